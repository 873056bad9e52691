//! `shardfeed dataset index`: fills the index that hosts share.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_client::open_dataset;
use shardfeed_plan::{ContentDigest, Corrupt};
use shardfeed_source::SharedIndex;

use crate::files::{POLICIES, one_of};
use crate::output::{self, Format, Report};
use crate::problem::Problem;
use crate::progress;
use crate::source::{PythonArgs, SourceName, SourceSpec};

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset index --index s3://bucket/index train.py:packs
  shardfeed dataset index --corrupt skip-record train.py:mixture";

/// Count the records and samples of a source once for all hosts
///
/// Reads the files of a source or mixture that the index, or the cache of this host, does not know:
/// once to count their records, and once more if filter, unbatch, pack, window or balance make
/// other samples of them. Loaders with the same index then read nothing before their first batch.
/// Damaged objects of the index are replaced.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct IndexArgs {
    /// Source or mixture that a Python module declares: MODULE is a module's name or a .py file,
    /// SOURCE a name in it or a function without arguments
    #[arg(value_name = "MODULE:SOURCE")]
    source: SourceName,
    /// Folder or URL of the index [default: that of the source]
    #[arg(long, value_name = "PLACE", value_parser = parse_index)]
    index: Option<SharedIndex>,
    /// Policy for damaged records, as in the run. The samples of files with damaged records are
    /// counted again by each host
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[arg(value_parser = one_of::<Corrupt>(POLICIES))]
    corrupt: Corrupt,
    #[command(flatten)]
    python: PythonArgs,
}

#[derive(Debug, Serialize)]
struct Indexed {
    /// Path or URL of each index that was filled.
    indexes: Vec<String>,
    /// Number of files.
    files: usize,
    records: u64,
    samples: u64,
    /// Records that are no samples because they are damaged.
    damaged: u64,
    content_digest: ContentDigest,
}

fn parse_index(text: &str) -> Result<SharedIndex, String> {
    SharedIndex::parse(text).map_err(|error| error.to_string())
}

pub fn run(args: &IndexArgs, format: Format) -> anyhow::Result<()> {
    let mut options = SourceSpec::declared(&args.source, &args.python)?.options;
    options.corrupt = args.corrupt;
    let sources = options.mixture.iter_mut().flat_map(|mixture| &mut mixture.sources);
    let of_sources: Vec<_> = sources.map(|source| &mut source.index).collect();
    let places = if of_sources.is_empty() { vec![&mut options.index] } else { of_sources };
    let mut indexes = Vec::new();
    for place in places {
        let Some(index) = args.index.clone().or_else(|| place.take()) else {
            let hint = "pass --index with a folder or URL, or sf.source(..., index=...)";
            return Err(Problem::usage("a source has no index").hint(hint).into());
        };
        indexes.push(index.to_string());
        *place = Some(index.filling());
    }
    indexes.sort();
    indexes.dedup();
    let dataset = open_dataset(&options, &mut progress::of_scan())?;
    Ok(format.print(&Indexed {
        indexes,
        files: dataset.files().len(),
        records: dataset.manifest().records(),
        samples: dataset.sample_counts().iter().sum(),
        damaged: dataset.samples().map_or(0, |samples| samples.damaged_total),
        content_digest: dataset.content(),
    })?)
}

impl Report for Indexed {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let mut facts = vec![
            ("index", self.indexes.join(", ")),
            ("files", output::count(self.files as u64)),
            ("records", output::count(self.records)),
            ("samples", output::count(self.samples)),
        ];
        if self.damaged > 0 {
            facts.push(("damaged", output::count(self.damaged)));
        }
        facts.push(("content digest", self.content_digest.to_string()));
        output::write_facts(out, &facts)
    }
}
