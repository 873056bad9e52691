//! Contents of chunks: a part of a dataset's listing, and a part's scan results. Versioned JSON.
//!
//! A reader must not rely on anything that is not checked here.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::CHUNK_BYTES_MAX;

/// Version of both formats.
pub const CHUNK_VERSION: u32 = 1;

/// Maximum number of records of one file; keeps sums over a dataset from overflowing.
pub const FILE_RECORDS_MAX: u64 = 1 << 31;

/// Maximum length of a path in bytes, as in file systems.
pub const PATH_BYTES_MAX: usize = 4096;

pub const ETAG_BYTES_MAX: usize = 1024;

/// Maximum length in bytes of the reason why a part of a file is omitted.
pub const REASON_BYTES_MAX: usize = 2 * PATH_BYTES_MAX;

pub const MARKS_MAX: usize = 4096;

/// Part of a dataset's files, in manifest order: bytewise by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListingChunk {
    pub version: u32,
    pub files: Vec<ListedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedFile {
    /// Path relative to the dataset's root.
    pub path: String,
    /// Stored size in bytes.
    pub size: u64,
    /// The object store's identifier of the content, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Modification time, ns since 1970; a string in JSON. Absent: not determined.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_optional_text")]
    pub changed_ns: Option<i128>,
}

/// Scan results of a part of a dataset's files, in manifest order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntriesChunk {
    pub version: u32,
    /// One entry for each file of the part.
    pub entries: Vec<FileEntry>,
    /// Digests of the chunks with the sample maps of all entries, end to end; all but the last have
    /// [`CHUNK_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<Digest>,
    /// Damaged records that are no samples; truncated if there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedEntry>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged_total: u64,
}

/// A file that was scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Path relative to the dataset's root.
    pub path: String,
    /// Stored size in bytes, part of the change stamp.
    pub size_bytes: u64,
    /// Modification time, ns since 1970, the other part of the change stamp; a string in JSON.
    #[serde(with = "as_text")]
    pub modified_ns: i128,
    /// The object store's identifier of the content, if it has one; part of the change stamp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Compression of the file: `none`, `gzip` or `zlib`.
    pub compression: String,
    pub records: u64,
    /// Bytes of data of all records, without framing.
    pub data_bytes: u64,
    /// Bytes of data of the largest record.
    pub record_bytes_max: u64,
    pub digest: Digest,
    /// Some record starts, `[ordinal, offset in the uncompressed stream]`, both ascending.
    pub marks: Vec<(u64, u64)>,
    /// Damaged part of the file that is omitted; counts and digest cover the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOutEntry>,
    /// Samples, if the dataset has a program: then all entries have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<SamplesEntry>,
}

/// Samples that a program makes of a file's records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplesEntry {
    pub samples: u64,
    /// Digest of the records and of the samples among them.
    pub digest: Digest,
    /// Bytes of its map; 0: the map is in the index of the workers.
    pub map_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DamagedEntry {
    /// Index of its file's entry.
    pub entry: u32,
    pub ordinal: u64,
    /// Offset of its header in the uncompressed stream.
    pub offset: u64,
    /// Description of the damage; at most [`REASON_BYTES_MAX`].
    pub reason: String,
}

/// Omitted part of a damaged file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOutEntry {
    /// First record that is damaged, or that is lost together with all later ones.
    pub ordinal: u64,
    /// Offset of its header in the uncompressed stream.
    pub offset: u64,
    pub is_whole: bool,
    /// Description of the damage; at most [`REASON_BYTES_MAX`].
    pub reason: String,
}

/// Reason why bytes are not a chunk, or a chunk cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// `what`: `a listing` or `a part's entries`.
    #[error("{what} has {bytes} bytes; a chunk has at most {CHUNK_BYTES_MAX}, cut smaller parts")]
    TooLarge { what: &'static str, bytes: usize },
    #[error("this chunk does not hold {what}: {reason}")]
    Malformed { what: &'static str, reason: String },
    #[error("the chunk with {what} has version {found}, this software knows up to {CHUNK_VERSION}")]
    Version { what: &'static str, found: u32 },
    /// The path of a file is shortened to a readable length.
    #[error("`{path}` in {what}: {reason}")]
    File { what: &'static str, path: String, reason: &'static str },
}

macro_rules! encoded {
    ($($chunk:ident: $what:literal),*) => {$(
        impl $chunk {
            const WHAT: &'static str = $what;

            /// Encodes the chunk.
            ///
            /// # Errors  `TooLarge`, `File`.
            pub fn encode(&self) -> Result<Vec<u8>, ChunkError> {
                self.check()?;
                encode(Self::WHAT, self)
            }

            /// Decodes and checks a chunk.
            pub fn decode(bytes: &[u8]) -> Result<Self, ChunkError> {
                let chunk: Self = decode(Self::WHAT, bytes)?;
                chunk.check()?;
                Ok(chunk)
            }
        }
    )*};
}

encoded!(ListingChunk: "a listing", EntriesChunk: "a part's entries");

impl ListingChunk {
    pub fn new(files: Vec<ListedFile>) -> Self {
        Self { version: CHUNK_VERSION, files }
    }

    fn check(&self) -> Result<(), ChunkError> {
        check_paths(Self::WHAT, self.files.iter().map(|file| file.path.as_str()))?;
        for file in &self.files {
            if file.size > i64::MAX as u64 {
                return Err(refused(Self::WHAT, &file.path, "its size is beyond every file"));
            }
            if !is_etag(&file.etag) {
                return Err(refused(Self::WHAT, &file.path, "its ETag is none"));
            }
        }
        Ok(())
    }
}

impl EntriesChunk {
    pub fn new(entries: Vec<FileEntry>) -> Self {
        let (maps, damaged, damaged_total) = (vec![], vec![], 0);
        Self { version: CHUNK_VERSION, entries, maps, damaged, damaged_total }
    }

    pub fn samples(&self) -> u64 {
        self.entries.iter().map(|entry| entry.counted().0).sum()
    }

    /// Returns true if the samples of a program were counted.
    pub fn has_samples(&self) -> bool {
        self.entries.iter().any(|entry| entry.samples.is_some())
    }

    fn check(&self) -> Result<(), ChunkError> {
        check_paths(Self::WHAT, self.entries.iter().map(|entry| entry.path.as_str()))?;
        self.entries.iter().try_for_each(FileEntry::check)?;
        let maps = self.entries.iter().filter_map(|entry| entry.samples.as_ref());
        let bytes = maps.fold(0_u64, |sum, samples| sum.saturating_add(samples.map_bytes));
        let reason = if bytes.div_ceil(CHUNK_BYTES_MAX as u64) != self.maps.len() as u64 {
            "its part has more or fewer chunks with sample maps than these maps have bytes for"
        } else if self.has_samples() && self.entries.iter().any(|entry| entry.samples.is_none()) {
            "its part has files with and without samples"
        } else if self.damaged.iter().any(|one| self.entries.get(one.entry as usize).is_none()) {
            "its part has a damaged record of another file"
        } else if self.damaged.iter().any(|one| one.reason.len() > REASON_BYTES_MAX) {
            "its part has a damaged record with a reason that is too long"
        } else {
            return Ok(());
        };
        Err(refused(Self::WHAT, self.entries.first().map_or("", |entry| &entry.path), reason))
    }
}

impl FileEntry {
    /// Returns the number and the digest of its samples.
    pub fn counted(&self) -> (u64, Digest) {
        match &self.samples {
            Some(samples) => (samples.samples, samples.digest),
            None => (self.records, self.digest),
        }
    }

    fn check(&self) -> Result<(), ChunkError> {
        let ascending = |pair: &[(u64, u64)]| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1;
        let reason = if !matches!(self.compression.as_str(), "none" | "gzip" | "zlib") {
            "its compression is none of none, gzip, zlib"
        } else if self.records > FILE_RECORDS_MAX {
            "it has more records than a file may have"
        } else if self.size_bytes.max(self.data_bytes).max(self.record_bytes_max) > i64::MAX as u64
        {
            "its sizes are beyond every file"
        } else if !is_etag(&self.etag) {
            "its ETag is none"
        } else if self.marks.len() > MARKS_MAX {
            "it has too many marks"
        } else if !self.marks.windows(2).all(ascending) {
            "its marks do not ascend"
        } else if self.marks.last().is_some_and(|mark| mark.0 >= self.records) {
            "a mark is beyond its records"
        } else if self.left_out.as_ref().is_some_and(|left| left.reason.len() > REASON_BYTES_MAX) {
            "the reason why something of it is left out is too long"
        } else if self.left_out.as_ref().is_some_and(|left| left.is_whole && self.records > 0) {
            "it is left out whole and has records"
        } else if self.samples.as_ref().is_some_and(|one| one.samples > FILE_RECORDS_MAX) {
            "it has more samples than a file may have"
        } else {
            return Ok(());
        };
        Err(refused(EntriesChunk::WHAT, &self.path, reason))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Returns true if the ETag can be used in a header.
fn is_etag(etag: &Option<String>) -> bool {
    let printable = |etag: &String| etag.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    etag.as_ref().is_none_or(|etag| etag.len() <= ETAG_BYTES_MAX && printable(etag))
}

fn encode(what: &'static str, chunk: &impl Serialize) -> Result<Vec<u8>, ChunkError> {
    let malformed =
        |error: serde_json::Error| ChunkError::Malformed { what, reason: error.to_string() };
    let bytes = serde_json::to_vec(chunk).map_err(malformed)?;
    match bytes.len() <= CHUNK_BYTES_MAX {
        true => Ok(bytes),
        false => Err(ChunkError::TooLarge { what, bytes: bytes.len() }),
    }
}

fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, ChunkError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    if bytes.len() > CHUNK_BYTES_MAX {
        return Err(ChunkError::TooLarge { what, bytes: bytes.len() });
    }
    let malformed =
        |error: serde_json::Error| ChunkError::Malformed { what, reason: error.to_string() };
    let Versioned { version: found } = serde_json::from_slice(bytes).map_err(malformed)?;
    if found != CHUNK_VERSION {
        return Err(ChunkError::Version { what, found });
    }
    serde_json::from_slice(bytes).map_err(malformed)
}

fn check_paths<'a>(
    what: &'static str,
    paths: impl Iterator<Item = &'a str>,
) -> Result<(), ChunkError> {
    let mut last: Option<&str> = None;
    for path in paths {
        let reason = if path.is_empty() {
            "the path is empty"
        } else if path.starts_with('/') {
            "the path is not relative to the dataset"
        } else if path.len() > PATH_BYTES_MAX {
            "the path is too long"
        } else if path.contains('\0') {
            "the path has a zero byte"
        } else if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            "the path has a component that names no file"
        } else if last.is_some_and(|last| last.as_bytes() >= path.as_bytes()) {
            "it does not follow the path before it in bytewise order"
        } else {
            last = Some(path);
            continue;
        };
        return Err(refused(what, path, reason));
    }
    Ok(())
}

fn refused(what: &'static str, path: &str, reason: &'static str) -> ChunkError {
    const SHOWN: usize = 256;
    ChunkError::File { what, path: path.chars().take(SHOWN).collect(), reason }
}

/// Serializes numbers as text that JSON readers might not represent exactly.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &i128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// As [`as_text`], for optional values.
mod as_optional_text {
    use serde::{Deserializer, Serializer};

    use super::as_text;

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<i128>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => as_text::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<i128>, D::Error> {
        as_text::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> FileEntry {
        FileEntry {
            path: path.into(),
            size_bytes: 10,
            modified_ns: -(1 << 80),
            etag: None,
            compression: "none".into(),
            records: 3,
            data_bytes: 6,
            record_bytes_max: 2,
            digest: Digest::from_bytes([5; 32]),
            marks: vec![(0, 0), (2, 36)],
            left_out: None,
            samples: None,
        }
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let files = ["a", "b/c"].map(|path| ListedFile {
            path: path.into(),
            size: 3,
            etag: None,
            changed_ns: None,
        });
        let listing = ListingChunk::new(files.to_vec());
        let bytes = listing.encode().unwrap();
        assert_eq!(ListingChunk::decode(&bytes), Ok(listing));
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            r#"{"version":1,"files":[{"path":"a","size":3},{"path":"b/c","size":3}]}"#
        );
        let entries = EntriesChunk::new(vec![entry("a"), entry("b")]);
        let bytes = entries.encode().unwrap();
        assert_eq!(EntriesChunk::decode(&bytes), Ok(entries));
        assert!(String::from_utf8(bytes).unwrap().contains(r#""marks":[[0,0],[2,36]]"#));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: fn(&mut FileEntry)| {
            let mut chunk = EntriesChunk::new(vec![entry("a"), entry("b")]);
            change(&mut chunk.entries[1]);
            chunk.encode().unwrap_err().to_string()
        };
        assert!(refused(|entry| entry.path = "a".into()).contains("does not follow"));
        assert!(refused(|entry| entry.path = "/b".into()).contains("not relative"));
        assert!(refused(|entry| entry.path.clear()).contains("empty"));
        assert!(refused(|entry| entry.records = u64::MAX).contains("more records"));
        assert!(refused(|entry| entry.records = 1).contains("a mark is beyond"));
        assert!(refused(|entry| entry.compression = "xz".into()).contains("compression"));
        assert!(refused(|entry| entry.marks.reverse()).contains("ascend"));
        assert!(refused(|entry| entry.etag = Some("a\nb".into())).contains("ETag"));
        let later = ListingChunk::decode(br#"{"version":2,"stuff":[]}"#).unwrap_err();
        assert_eq!(later, ChunkError::Version { what: "a listing", found: 2 });
        assert!(matches!(ListingChunk::decode(b"[]"), Err(ChunkError::Malformed { .. })));
        let large = vec![b' '; CHUNK_BYTES_MAX + 1];
        assert!(matches!(EntriesChunk::decode(&large), Err(ChunkError::TooLarge { .. })));
    }
}
