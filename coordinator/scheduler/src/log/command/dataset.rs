//! Commands of datasets and scans.

use serde::{Deserialize, Serialize};
use shardfeed_plan::{ContentDigest, Corrupt, Digest};

use crate::log::id::{Fencing, SessionId};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddDataset {
    pub name: String,
    /// Absolute patterns of the files; empty if `listing` is given.
    pub patterns: Vec<String>,
    pub compression: String,
    #[serde(default, skip_serializing_if = "Corrupt::is_error")]
    pub corrupt: Corrupt,
    /// The dataset's files, if the caller has already found them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<Listing>,
    /// Digest of the chunk with the record spec that makes samples of records; needs `listing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub root: String,
    /// The files in manifest order, split into parts.
    pub parts: Vec<Part>,
}

/// A listing, or the scan of a part, that is leased.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeasedScan {
    pub dataset: String,
    /// Number of the part; `None`: the listing.
    pub part: Option<u64>,
    pub fencing: Fencing,
}

/// A part of a listing, stored as a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub chunk: Digest,
    pub files: u64,
    /// Total size of these files, bytes.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportListing {
    pub session: SessionId,
    pub dataset: String,
    pub fencing: Fencing,
    pub root: String,
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportScan {
    pub session: SessionId,
    pub dataset: String,
    pub part: u64,
    pub fencing: Fencing,
    pub chunk: Digest,
    /// Number of records; of a dataset with a program, of samples.
    pub records: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailScan {
    pub session: SessionId,
    pub dataset: String,
    pub fencing: Fencing,
    pub failure: Failure,
}

/// Reason why a dataset cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the error's kind, as on the wire.
    pub kind: String,
    /// Description of the error, and a hint for the user.
    pub message: String,
    pub file: Option<String>,
    /// Offset in the uncompressed file, bytes.
    pub offset: Option<u64>,
    pub ordinal: Option<u64>,
    /// Worker that reported the error, and its principal if that differs; empty: a coordinator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reported_by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishDataset {
    pub dataset: String,
    /// Attempt: how many times the dataset was added.
    pub attempt: u64,
    pub content: ContentDigest,
    pub shards: u64,
    pub records: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailDataset {
    pub dataset: String,
    pub attempt: u64,
    pub failure: Failure,
}
