//! A dataset without a scan: from the properties of its files, and the files beside them.

use std::io::{self, Write};

use serde::Serialize;
use shardfeed_source::{Found, Sidecars};

use crate::files::InputFile;
use crate::listing::{self, Shown, column};
use crate::output::{self, Report};
use crate::sidecar::{self, FaultReport};

#[derive(Debug, Serialize)]
pub(super) struct Unscanned {
    root: String,
    shard_count: usize,
    /// Number of records according to files beside the shards; `null` if a shard has none there.
    records: Option<u64>,
    stored_bytes: u64,
    /// Shards in manifest order: a shard's position is its ordinal.
    shards: Vec<UnscannedShard>,
    /// Faults of files beside the shards, or contradictions between them.
    sidecar_faults: Vec<FaultReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct UnscannedShard {
    path: String,
    /// Number of records; `null`: no file beside it has the number, or several have different ones.
    records: Option<u64>,
    stored_bytes: u64,
    /// Absolute paths of the files with this number.
    records_by: Vec<String>,
}

impl Unscanned {
    pub(super) fn new(found: &Found, all: bool) -> anyhow::Result<Self> {
        let sidecars = Sidecars::beside(&found.root, &found.paths, &mut |_| true)?;
        let files = InputFile::of(found).into_iter().enumerate();
        let shards = files.map(|(shard, file)| UnscannedShard {
            records: sidecars.records(shard),
            stored_bytes: file.size_bytes(),
            path: file.name,
            records_by: sidecars.counts(shard).iter().map(|c| c.by.display().to_string()).collect(),
        });
        let shards: Vec<_> = shards.collect();
        // If two files have different numbers, one of them is compared with the other.
        let first: Vec<_> = (0..shards.len())
            .map(|shard| sidecars.counts(shard).first().map(|count| count.records))
            .collect();
        Ok(Self {
            root: found.root.display().to_string(),
            shard_count: shards.len(),
            records: shards.iter().map(|shard| shard.records).sum(),
            stored_bytes: shards.iter().map(|shard| shard.stored_bytes).sum(),
            sidecar_faults: sidecar::faults(&sidecars, &found.paths, &first),
            shards,
            all,
        })
    }
}

impl Report for Unscanned {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let known = self.shards.iter().filter_map(|shard| shard.records);
        let records = match self.records {
            Some(records) => format!("{}, as is said beside them", output::count(records)),
            None => format!(
                "not known: {} of {}",
                output::count(known.clone().sum()),
                output::counted(known.count() as u64, "shard")
            ),
        };
        let facts = [
            ("root", self.root.clone()),
            ("shards", output::count(self.shard_count as u64)),
            ("records", records),
            ("stored", output::bytes(self.stored_bytes)),
            ("content digest", "not known without a scan".into()),
        ];
        output::write_facts(out, &facts)?;
        let columns = [
            column("SHARD", |shard: &UnscannedShard| shard.path.clone()),
            column(">RECORDS", |shard| shard.records.map_or("-".into(), |n| n.to_string())),
            column(">STORED BYTES", |shard| shard.stored_bytes.to_string()),
            column("SAID BY", |shard| {
                let by = shard.records_by.iter().map(|by| by.rsplit('/').next().unwrap_or(by));
                let by = by.collect::<Vec<_>>().join(", ");
                if by.is_empty() { "-".into() } else { by }
            }),
        ];
        writeln!(out)?;
        let shown = Shown { is_wide: false, all: self.all };
        listing::write(out, "shards", &self.shards, &columns, shown)?;
        sidecar::write_faults(out, &self.sidecar_faults)
    }
}
