//! Parts of datasets that are listed and scanned under leases.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::log::{
    Fencing, PARTS_MAX, PARTS_TOTAL_MAX, Part, Refusal, Result, SessionId, check_text,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanLease {
    /// Fencing token; parts that were claimed together share it.
    pub fencing: Fencing,
    pub session: SessionId,
    pub granted_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// Folder that paths are relative to.
    pub root: String,
    /// Parts of the listing, in manifest order.
    pub parts: Vec<ScanPart>,
    /// Parts that are not leased and not scanned.
    #[serde(skip)]
    pub(crate) free: BTreeSet<u64>,
    #[serde(skip)]
    pub(crate) progress: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanPart {
    pub listed: Part,
    pub state: PartState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartState {
    Free,
    Leased(ScanLease),
    Done {
        /// Digest of the chunk that holds the result.
        chunk: Digest,
        records: u64,
        /// Digests of the chunks with its sample maps.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        maps: Vec<Digest>,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub parts: u64,
    pub parts_done: u64,
    pub files: u64,
    pub files_done: u64,
    pub bytes: u64,
    /// Total size of the files in parts that are scanned, bytes.
    pub bytes_done: u64,
    pub records: u64,
    /// Chunks with sample maps.
    pub maps: u64,
}

impl Scan {
    /// Result chunks of the parts that are scanned, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Digest> {
        self.parts.iter().filter_map(|part| match &part.state {
            PartState::Done { chunk, .. } => Some(*chunk),
            PartState::Free | PartState::Leased(_) => None,
        })
    }

    /// All chunks that the scan refers to.
    pub fn held(&self) -> impl Iterator<Item = Digest> {
        self.parts.iter().flat_map(|part| {
            let done = match &part.state {
                PartState::Done { chunk, maps, .. } => Some((*chunk, maps)),
                PartState::Free | PartState::Leased(_) => None,
            };
            let done =
                done.into_iter().flat_map(|(chunk, maps)| maps.iter().copied().chain([chunk]));
            done.chain([part.listed.chunk])
        })
    }

    pub(crate) fn new(root: &str, parts: &[Part]) -> Self {
        let part = |listed: &Part| ScanPart { listed: listed.clone(), state: PartState::Free };
        let parts = parts.iter().map(part).collect();
        let (free, progress) = (BTreeSet::new(), Progress::default());
        let mut scan = Self { root: root.to_owned(), parts, free, progress };
        scan.index();
        scan
    }

    pub(super) fn part_mut(&mut self, number: u64) -> Option<&mut ScanPart> {
        self.parts.get_mut(usize::try_from(number).ok()?)
    }

    /// Frees a part whose session ended.
    pub(crate) fn free(&mut self, number: Option<u64>) {
        let Some(number) = number else {
            return;
        };
        if let Some(part) = self.part_mut(number) {
            part.state = PartState::Free;
            self.free.insert(number);
        }
    }

    /// Leases the first free part.
    pub(super) fn take(&mut self, lease: &ScanLease) -> Option<(u64, Digest)> {
        let number = self.free.pop_first()?;
        let part = self.part_mut(number)?;
        part.state = PartState::Leased(lease.clone());
        Some((number, part.listed.chunk))
    }

    pub(crate) fn index(&mut self) {
        self.free.clear();
        self.progress = Progress::default();
        for (part, number) in self.parts.iter().zip(0..) {
            let Part { files, bytes, .. } = part.listed;
            self.progress.parts += 1;
            self.progress.files = self.progress.files.saturating_add(files);
            self.progress.bytes = self.progress.bytes.saturating_add(bytes);
            match part.state {
                PartState::Free => {
                    self.free.insert(number);
                }
                PartState::Leased(_) => {}
                PartState::Done { records, ref maps, .. } => {
                    self.progress.count(&part.listed, records, maps.len());
                }
            }
        }
    }
}

impl Progress {
    /// Number of parts and of chunks with sample maps, which count like parts.
    pub(crate) fn weight(&self) -> u64 {
        self.parts + self.maps
    }

    pub(super) fn count(&mut self, part: &Part, records: u64, maps: usize) {
        self.parts_done += 1;
        self.files_done = self.files_done.saturating_add(part.files);
        self.bytes_done = self.bytes_done.saturating_add(part.bytes);
        self.records = self.records.saturating_add(records);
        self.maps += maps as u64;
    }
}

/// Rejects parts beyond the maximum for all datasets together.
/// - `held`: current number of parts.
pub(crate) fn check_total(held: u64, parts: usize) -> Result<()> {
    if parts as u64 <= PARTS_TOTAL_MAX.saturating_sub(held) {
        return Ok(());
    }
    Err(full("parts of all datasets", PARTS_TOTAL_MAX, "name fewer files in all datasets together"))
}

fn full(what: &str, most: u64, hint: &str) -> Refusal {
    Refusal::Full { what: what.to_owned(), most, hint: hint.to_owned() }
}

pub(crate) fn check_listing(root: &str, parts: &[Part]) -> Result<()> {
    check_text("the root", root)?;
    if parts.len() > PARTS_MAX {
        let hint = "put more files into a part, or name fewer files";
        return Err(full("parts of a dataset", PARTS_MAX as u64, hint));
    }
    if parts.iter().any(|part| part.files == 0) {
        return Err(Refusal::Invalid("a part of the listing has no files".to_owned()));
    }
    let sum = |count: fn(&Part) -> u64| {
        parts.iter().try_fold(0u64, |sum, part| sum.checked_add(count(part)))
    };
    if sum(|part| part.files).is_none() || sum(|part| part.bytes).is_none() {
        return Err(Refusal::Invalid("the files of the listing cannot be counted".to_owned()));
    }
    Ok(())
}
