//! Names of sample maps and measured columns, and the stored form of columns.

use shardfeed_pipeline::{MeasuredColumn, SampleProgram};
use shardfeed_plan::{Digest, Shard};

use crate::cache::object_kind::ObjectKind;

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

/// Returns the name of a column of a shard, for any program that needs it.
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
fn column_digest(key: &str) -> String {
    let digest = Digest::of_parts([b"shardfeed column\n", key.as_bytes()]).to_string();
    digest[..24].to_owned()
}
