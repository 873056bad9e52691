//! Sample maps and measured columns in the cache of this host, and their names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use shardfeed_pipeline::{MeasuredColumn, MeasuredColumns, SampleProgram};
use shardfeed_plan::{Digest, Shard};

use super::samples::SampleMap;
use super::{pack_counts, samples};
use crate::cache::CacheOptions;
use crate::cache::object_kind::ObjectKind;
use crate::cache::object_log::ObjectLog;
use crate::shared::Lock;

pub(super) const COLUMNS: ObjectKind = ObjectKind("shardfeed columns 1\n");

pub(super) const DAMAGED: ObjectKind = ObjectKind("shardfeed damaged 1\n");

pub(super) struct MapNames {
    pub(super) digest: String,
    depends_on_path: bool,
}

impl MapNames {
    pub(super) fn new(program: &SampleProgram) -> Self {
        let head: &[u8] = match (program.has_rows(), program.packer()) {
            _ if program.windower().is_some() => b"shardfeed windows 1\n",
            (true, _) => b"shardfeed rows 1\n",
            (false, Some(_)) => b"shardfeed lengths 1\n",
            (false, None) => b"shardfeed filter 1\n",
        };
        let digest = Digest::of_parts([head, &program.key()[..]]).to_string()[..24].to_owned();
        Self { digest, depends_on_path: program.depends_on_path() }
    }

    /// Returns the name of a shard's map: digests of the program, and of the shard.
    pub(super) fn map(&self, shard: &Shard) -> String {
        let path = if self.depends_on_path { shard.path.as_str() } else { "" };
        let count = shard.records.to_le_bytes();
        let parts: [&[u8]; 3] = [shard.digest.as_bytes(), &count, path.as_bytes()];
        format!("{}/{}", self.digest, Digest::of_parts(parts))
    }
}

/// Objects that a host keeps, by the contents of their shards.
pub(super) struct HostLogs {
    folder: PathBuf,
    options: CacheOptions,
    pub(super) maps: Arc<ObjectLog>,
    /// Numbers of packs, if packs are samples.
    pub(super) packs: Option<Arc<ObjectLog>>,
    /// Opened when they are needed, by the keys of their columns.
    columns: Lock<BTreeMap<String, Arc<ObjectLog>>>,
    pub(super) damaged: Arc<ObjectLog>,
}

impl HostLogs {
    /// Opens them; `None`: this host keeps nothing.
    pub(super) fn open(
        options: &CacheOptions,
        program: &SampleProgram,
        names: &MapNames,
    ) -> Option<Self> {
        let (folder, digest) = (options.folder.folder()?, &names.digest);
        let log = |kind: ObjectKind, of: &str| options.log(folder.join(kind.folder()).join(of));
        let packs = pack_counts::name(digest, program).map(|of| log(pack_counts::KIND, &of));
        let (maps, damaged) = (log(samples::KIND, digest), log(DAMAGED, digest));
        let (options, columns) = (options.clone(), Lock::default());
        Some(Self { folder, options, maps, packs, damaged, columns })
    }

    /// Returns the values of a column.
    /// - `column`: digest of its key.
    pub(super) fn column(&self, column: &str) -> Arc<ObjectLog> {
        let mut columns = self.columns.lock();
        let log = columns
            .entry(column.to_owned())
            .or_insert_with(|| self.options.log(self.folder.join(COLUMNS.folder()).join(column)));
        Arc::clone(log)
    }

    /// Keeps a shard that was counted without damage.
    pub(super) fn keep(
        &self,
        names: &MapNames,
        shard: &Shard,
        map: &SampleMap,
        columns: &MeasuredColumns,
    ) {
        for (key, column) in columns.whole() {
            let name = column_name(shard, key);
            self.keep_column(key, &name, encode_column(&name, column));
        }
        let name = names.map(shard);
        self.maps.add([(key_of(&name), map.encode(&name))]);
    }

    pub(super) fn keep_column(&self, key: &str, name: &str, bytes: Vec<u8>) {
        self.column(&column_digest(key)).add([(key_of(name), bytes)]);
    }
}

pub(super) fn column_name(shard: &Shard, key: &str) -> String {
    let parts: [&[u8]; 2] = [shard.digest.as_bytes(), &shard.records.to_le_bytes()];
    format!("{}/{}", column_digest(key), Digest::of_parts(parts))
}

pub(super) fn encode_column(name: &str, column: &MeasuredColumn) -> Vec<u8> {
    COLUMNS.encode(name, &postcard::to_stdvec(column).expect("columns are plain data"))
}

/// Returns a stored column; `None` if it is damaged.
/// - `values`: their number, if it is known.
pub(super) fn decode_column(
    name: &str,
    bytes: &[u8],
    values: Option<u64>,
) -> Option<MeasuredColumn> {
    let column: MeasuredColumn = postcard::from_bytes(COLUMNS.decode(name, bytes)?).ok()?;
    values.is_none_or(|values| column.len() as u64 == values).then_some(column)
}

/// Returns the digest of a column's key, in names of columns.
pub(super) fn column_digest(key: &str) -> String {
    let digest = Digest::of_parts([b"shardfeed column\n", key.as_bytes()]).to_string();
    digest[..24].to_owned()
}

/// Returns the key of an object on this host: half of its name's digest; it states the whole.
pub(super) fn key_of(name: &str) -> &str {
    let digest = name.split_once('/').map_or(name, |(_, digest)| digest);
    &digest[..32.min(digest.len())]
}
