//! Datasets: added once, listed and scanned by workers, then ready permanently.

mod commands;
pub(crate) mod scan;
mod scanning;
mod turn;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfeed_plan::{ContentDigest, Corrupt, Digest};

use crate::dataset::scan::{PartState, Progress, Scan, ScanLease};
use crate::log::{
    Failure, Fencing, PRINCIPAL_DATASETS_MAX, PRINCIPAL_PARTS_MAX, PRINCIPAL_SCANS_MAX, Refusal,
    Result, ScanRef, ScanTask, ScanWork, SessionId, check_room, is_zero, shortened,
};
use crate::session::{Sessions, principal_name};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    pub name: String,
    pub patterns: Vec<String>,
    /// Compression: `auto`, `none`, `gzip` or `zlib`.
    pub compression: String,
    /// Policy for damaged files. Not serialized if it is the default (`Corrupt::is_error`).
    #[serde(default, skip_serializing_if = "Corrupt::is_error")]
    pub corrupt: Corrupt,
    /// Number of times that it was added, from 1; after a removal the count continues.
    pub attempt: u64,
    /// Log index at which this attempt began; the oldest one is served first.
    pub order: u64,
    /// Time at which this attempt began, Unix ms.
    pub added_ms: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub added_by: String,
    /// Names that this principal is limited to, as in [`crate::Command::scope`]: only its own
    /// sessions, and workers whose data roots contain the dataset, may scan it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Number of stalls of each session that made no progress with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) stalls: BTreeMap<SessionId, u32>,
    pub phase: Phase,
    /// Digest of the chunk with the record spec that makes samples of its records, which count as
    /// its records then; `None`: each record is a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The files are not known yet; no session lists them if `lease` is `None`.
    Listing { lease: Option<ScanLease> },
    /// The files are known, and are scanned part by part.
    Scanning(Scan),
    /// All parts are scanned; the leader assembles them.
    Assembling(Scan),
    /// Jobs may read the dataset.
    Ready(Ready),
    /// The dataset cannot be used; adding it again starts a new attempt.
    Failed { failure: Failure, failed_ms: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub content: ContentDigest,
    pub shards: u64,
    pub records: u64,
    /// Total size of the files, bytes.
    pub bytes: u64,
    pub ready_ms: u64,
    /// Its scan: the folder, and the chunks of the manifest.
    pub scan: Scan,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Datasets {
    pub(crate) by_name: BTreeMap<String, Dataset>,
    /// Datasets with free work, by their order.
    #[serde(skip)]
    pub(crate) with_work: BTreeMap<u64, String>,
    /// Highest attempt of the datasets that were removed. Later attempts have higher numbers, so
    /// that a proposal for a removed dataset never fits another one of the same name.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) removed_attempts: u64,
}

impl Dataset {
    pub fn progress(&self) -> Progress {
        self.scan().map(|scan| scan.progress).unwrap_or_default()
    }

    /// Folder that the paths are relative to, once the dataset is listed.
    pub fn root(&self) -> Option<&str> {
        self.scan().map(|scan| scan.root.as_str())
    }

    /// The listing, once it exists and unless the dataset failed.
    pub fn scan(&self) -> Option<&Scan> {
        match &self.phase {
            Phase::Scanning(scan) | Phase::Assembling(scan) => Some(scan),
            Phase::Ready(ready) => Some(&ready.scan),
            Phase::Listing { .. } | Phase::Failed { .. } => None,
        }
    }

    pub fn ready(&self) -> Option<&Ready> {
        match &self.phase {
            Phase::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        match &self.phase {
            Phase::Listing { lease } => lease.is_none(),
            Phase::Scanning(scan) => !scan.free.is_empty(),
            _ => false,
        }
    }

    fn stalls_of(&self, session: SessionId) -> u32 {
        self.stalls.get(&session).copied().unwrap_or(0)
    }

    /// Leases the first free piece of work.
    fn take(&mut self, lease: &ScanLease) -> Option<(ScanTask, Option<u64>)> {
        let (work, part) = match &mut self.phase {
            Phase::Listing { lease: free @ None } => {
                *free = Some(lease.clone());
                (ScanWork::List { patterns: self.patterns.clone() }, None)
            }
            Phase::Scanning(scan) => {
                let (part, chunk) = scan.take(lease)?;
                (ScanWork::Scan { root: scan.root.clone(), part, chunk }, Some(part))
            }
            _ => return None,
        };
        let (dataset, compression) = (self.name.clone(), self.compression.clone());
        let (fencing, corrupt, program) = (lease.fencing, self.corrupt, self.program);
        Some((ScanTask { dataset, fencing, compression, corrupt, work, program }, part))
    }

    /// Principal that added it, without the id of its token.
    fn principal(&self) -> &str {
        principal_name(&self.added_by)
    }

    fn fencing_of(&self, part: Option<u64>) -> Option<Fencing> {
        self.lease_of(part).map(|lease| lease.fencing)
    }

    /// Returns the leases of the listing (`None`) or of the parts.
    pub(crate) fn leases(&self) -> Vec<(Option<u64>, &ScanLease)> {
        let numbered = |number| Some((Some(number), self.lease_of(Some(number))?));
        match &self.phase {
            Phase::Listing { lease } => lease.iter().map(|lease| (None, lease)).collect(),
            Phase::Scanning(scan) => (0..scan.parts.len() as u64).filter_map(numbered).collect(),
            _ => vec![],
        }
    }

    fn scans(&self) -> Vec<(SessionId, ScanRef)> {
        let scan = |part| ScanRef { dataset: self.name.clone(), part };
        self.leases().into_iter().map(|(part, lease)| (lease.session, scan(part))).collect()
    }

    /// Lease of the listing (`None`) or of a part.
    pub fn lease_of(&self, part: Option<u64>) -> Option<&ScanLease> {
        match (&self.phase, part) {
            (Phase::Listing { lease }, None) => lease.as_ref(),
            (Phase::Scanning(scan), Some(number)) => {
                match &scan.parts.get(usize::try_from(number).ok()?)?.state {
                    PartState::Leased(lease) => Some(lease),
                    PartState::Free | PartState::Done { .. } => None,
                }
            }
            _ => None,
        }
    }
}

impl Ready {
    /// Chunks of the manifest, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Digest> {
        self.scan.chunks()
    }
}

impl Phase {
    /// Description of the phase for a sentence: "the dataset is ...".
    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Self::Listing { .. } => "being listed",
            Self::Scanning(_) => "being scanned",
            Self::Assembling(_) => "being put together",
            Self::Ready(_) => "ready",
            Self::Failed { .. } => "failed",
        }
    }
}

impl Datasets {
    pub(crate) fn get_mut(&mut self, name: &str) -> Result<&mut Dataset> {
        self.by_name.get_mut(name).ok_or_else(|| not_found(name))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Dataset> {
        self.by_name.get(name).ok_or_else(|| not_found(name))
    }

    /// Updates the index after a change of a dataset.
    pub(crate) fn file(&mut self, name: &str) {
        let Some(dataset) = self.by_name.get(name) else {
            return;
        };
        if dataset.has_work() {
            self.with_work.insert(dataset.order, name.to_owned());
        } else {
            self.with_work.remove(&dataset.order);
        }
    }

    /// Rejects one more dataset of a limited principal that has reached its quota.
    /// - `name`: the dataset; an attempt of it that failed does not count.
    fn check_quota(&self, principal: &str, name: &str, parts: usize) -> Result<()> {
        let principal = principal_name(principal);
        let own = || self.of(principal).filter(|dataset| dataset.name != name);
        let waits =
            |dataset: &&Dataset| !matches!(dataset.phase, Phase::Ready(_) | Phase::Failed { .. });
        let what = format!("datasets of {principal} that are not ready");
        let hint = "wait until they are, or have an operator remove some";
        check_room(&what, own().filter(waits).count() as u64, PRINCIPAL_SCANS_MAX, hint)?;
        let what = format!("datasets of {principal}");
        check_room(&what, own().count() as u64, PRINCIPAL_DATASETS_MAX, "use datasets that exist")?;
        self.check_parts(principal, parts)
    }

    /// Number of parts, and of chunks with sample maps, of all datasets.
    pub(crate) fn parts(&self) -> u64 {
        self.by_name.values().map(|dataset| dataset.progress().weight()).sum()
    }

    /// Datasets that a principal added, with any of its tokens.
    fn of(&self, principal: &str) -> impl Iterator<Item = &Dataset> {
        self.by_name.values().filter(move |dataset| dataset.principal() == principal)
    }

    /// Checks that a limited principal's datasets may have `more` further parts.
    pub(crate) fn check_parts(&self, principal: &str, more: usize) -> Result<()> {
        let held: u64 = self.of(principal).map(|dataset| dataset.progress().weight()).sum();
        if held.saturating_add(more as u64) <= PRINCIPAL_PARTS_MAX {
            return Ok(());
        }
        let what = format!("parts of datasets of {principal}");
        let hint = "name fewer files, or have an operator remove datasets".to_owned();
        Err(Refusal::Full { what, most: PRINCIPAL_PARTS_MAX, hint })
    }

    pub(crate) fn free(&mut self, scan: &ScanRef) {
        match self.by_name.get_mut(&scan.dataset).map(|dataset| &mut dataset.phase) {
            Some(Phase::Listing { lease }) if scan.part.is_none() => *lease = None,
            Some(Phase::Scanning(parts)) => parts.free(scan.part),
            _ => {}
        }
        self.file(&scan.dataset);
    }

    /// Ends an attempt with a failure and drops its scans; the caller emits the event.
    fn fail(&mut self, sessions: &mut Sessions, name: &str, failed_ms: u64, failure: Failure) {
        let Some(dataset) = self.by_name.get_mut(name) else {
            return;
        };
        for (session, scan) in dataset.scans() {
            sessions.drop_scan(session, &scan);
        }
        dataset.phase = Phase::Failed { failure, failed_ms };
        self.file(name);
    }

    pub(crate) fn index(&mut self, sessions: &mut Sessions) {
        self.with_work.clear();
        for dataset in self.by_name.values_mut() {
            match &mut dataset.phase {
                Phase::Scanning(scan) | Phase::Assembling(scan) => scan.index(),
                Phase::Ready(ready) => ready.scan.index(),
                Phase::Listing { .. } | Phase::Failed { .. } => {}
            }
            for (session, scan) in dataset.scans() {
                sessions.file_scan(session, scan);
            }
        }
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        for name in names {
            self.file(&name);
        }
    }
}

pub(crate) fn is_failed_by(dataset: &Dataset, failure: &Failure) -> bool {
    matches!(&dataset.phase, Phase::Failed { failure: known, .. } if known == failure)
}

/// Returns the failure with its texts cut to the maximum length.
pub(crate) fn bounded(failure: &Failure) -> Failure {
    Failure {
        kind: shortened(&failure.kind),
        message: shortened(&failure.message),
        file: failure.file.as_deref().map(shortened),
        reported_by: shortened(&failure.reported_by),
        ..*failure
    }
}

/// Rejects a content digest that differs from the dataset's.
pub(crate) fn check_content(name: &str, ready: &Ready, content: ContentDigest) -> Result<()> {
    if ready.content == content {
        return Ok(());
    }
    let (name, field) = (name.to_owned(), "content".to_owned());
    Err(Refusal::OtherDataset { name, field, known: ready.content.to_string() })
}

fn not_found(name: &str) -> Refusal {
    Refusal::NotFound { what: "dataset".to_owned(), name: name.to_owned() }
}
