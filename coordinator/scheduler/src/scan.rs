//! Listing and scanning: parts of datasets that are leased to sessions.

mod turn;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::answer::{Answer, Refusal, ScanTask, ScanWork};
use crate::bound::{PARTS_MAX, PARTS_TOTAL_MAX, SCANS_TAKEN_MAX, check_text};
use crate::command::{
    Cordon, FailScan, Failure, Fencing, Part, ReportListing, ReportScan, SessionId,
};
use crate::dataset::{Dataset, Phase, bounded, is_failed_by};
use crate::event::EventKind;
use crate::session::Session;
use crate::state::{Moment, State};

/// The right to list a dataset, or to scan one of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanLease {
    /// Fencing token; parts that were claimed together share it.
    pub fencing: Fencing,
    /// Session that holds the lease.
    pub session: SessionId,
    /// Time of the grant, Unix ms.
    pub granted_ms: u64,
}

/// A listing or scan of a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanRef {
    /// Name of the dataset.
    pub dataset: String,
    /// Number of the part; `None`: the listing.
    pub part: Option<u64>,
}

/// A listing and the progress of its scan.
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

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanPart {
    /// Chunk of the part's files.
    pub listed: Part,
    /// State of the scan.
    pub state: PartState,
}

/// State of a part's scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartState {
    /// The part is not leased.
    Free,
    /// A worker scans the part.
    Leased(ScanLease),
    /// The part is scanned.
    Done {
        /// Digest of the chunk that holds the result.
        chunk: Digest,
        /// Number of records found.
        records: u64,
    },
}

/// Progress of a dataset's scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of parts of the listing.
    pub parts: u64,
    /// Number of parts that are scanned.
    pub parts_done: u64,
    /// Number of files found.
    pub files: u64,
    /// Number of files in parts that are scanned.
    pub files_done: u64,
    /// Total size of all files, bytes.
    pub bytes: u64,
    /// Total size of the files in parts that are scanned, bytes.
    pub bytes_done: u64,
    /// Number of records found so far.
    pub records: u64,
}

impl Scan {
    /// Result chunks of the parts that are scanned, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Digest> {
        self.parts.iter().filter_map(|part| match &part.state {
            PartState::Done { chunk, .. } => Some(*chunk),
            PartState::Free | PartState::Leased(_) => None,
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

    fn part_mut(&mut self, number: u64) -> Option<&mut ScanPart> {
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
    fn take(&mut self, lease: &ScanLease) -> Option<(u64, Digest)> {
        let number = self.free.pop_first()?;
        let part = self.part_mut(number)?;
        part.state = PartState::Leased(lease.clone());
        Some((number, part.listed.chunk))
    }

    /// Recomputes the indexes from the parts.
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
                PartState::Done { records, .. } => self.progress.count(&part.listed, records),
            }
        }
    }
}

impl Progress {
    fn count(&mut self, part: &Part, records: u64) {
        self.parts_done += 1;
        self.files_done = self.files_done.saturating_add(part.files);
        self.bytes_done = self.bytes_done.saturating_add(part.bytes);
        self.records = self.records.saturating_add(records);
    }
}

impl State {
    pub(crate) fn claim_scans(
        &mut self,
        Moment { index, now_ms }: Moment,
        session: SessionId,
        most: u32,
    ) -> Result<Answer, Refusal> {
        self.sessions.live(session)?;
        if self.sessions.cordon(session) != Cordon::Open {
            return Ok(Answer::Scans(vec![]));
        }
        let lease = ScanLease { fencing: index, session, granted_ms: now_ms };
        let mut tasks = vec![];
        let mut fair = self.fair_share(session);
        while tasks.len() < most.min(SCANS_TAKEN_MAX) as usize {
            let Some(name) = fair.next(&self.datasets) else {
                break;
            };
            let task = self.datasets.get_mut(&name)?.take(&lease);
            self.datasets.file(&name);
            if let Some((task, part)) = task {
                tasks.push(task);
                self.sessions.file_scan(session, ScanRef { dataset: name, part });
            }
        }
        Ok(Answer::Scans(tasks))
    }

    pub(crate) fn report_listing(
        &mut self,
        moment: Moment,
        report: &ReportListing,
    ) -> Result<Answer, Refusal> {
        let ReportListing { session, dataset: name, fencing, root, parts } = report;
        self.sessions.live(*session)?;
        let held = self.datasets.parts;
        let dataset = self.datasets.get_mut(name)?;
        match &dataset.phase {
            Phase::Listing { lease } if holds(lease.as_ref(), *session, *fencing) => {}
            _ if was_listed(dataset, root, parts) => return Ok(Answer::Done),
            _ => return Err(fenced(*fencing, &dataset.phase)),
        }
        if parts.is_empty() {
            let failure = nothing_found(dataset);
            self.fail(moment, name, failure);
            return Ok(Answer::Done);
        }
        check_listing(root, parts)?;
        check_total(held, parts.len())?;
        if !dataset.scope.is_empty() {
            let added_by = dataset.added_by.clone();
            self.datasets.check_parts(&added_by, parts.len())?;
        }
        let dataset = self.datasets.get_mut(name)?;
        let scan = Scan::new(root, parts);
        let Progress { files, bytes, .. } = scan.progress;
        self.events.tell(EventKind::DatasetListed { dataset: name.clone(), files, bytes });
        dataset.phase = Phase::Scanning(scan);
        self.datasets.parts += parts.len() as u64;
        self.datasets.file(name);
        self.sessions.drop_scan(*session, &ScanRef { dataset: name.clone(), part: None });
        Ok(Answer::Done)
    }

    pub(crate) fn report_scan(&mut self, report: &ReportScan) -> Result<Answer, Refusal> {
        let ReportScan { session, dataset: name, part: number, fencing, chunk, records } = report;
        self.sessions.live(*session)?;
        let dataset = self.datasets.get_mut(name)?;
        let reported = PartState::Done { chunk: *chunk, records: *records };
        let known = dataset.scan().and_then(|scan| scan.parts.get(usize::try_from(*number).ok()?));
        let held = match known.map(|part| &part.state) {
            Some(PartState::Leased(lease)) => holds(Some(lease), *session, *fencing),
            Some(known) if *known == reported => return Ok(Answer::Done),
            _ => false,
        };
        let Phase::Scanning(scan) = &mut dataset.phase else {
            return Err(fenced(*fencing, &dataset.phase));
        };
        if !held {
            return Err(fenced(*fencing, &dataset.phase));
        }
        if scan.progress.records.checked_add(*records).is_none() {
            let reason = format!("{records} records cannot be counted");
            return Err(Refusal::Invalid(reason));
        }
        let Some(part) = scan.part_mut(*number) else {
            return Err(fenced(*fencing, &dataset.phase));
        };
        part.state = reported;
        let listed = part.listed.clone();
        scan.progress.count(&listed, *records);
        if scan.progress.parts_done == scan.progress.parts {
            dataset.phase = Phase::Assembling(scan.clone());
        }
        self.datasets.file(name);
        self.sessions.drop_scan(*session, &ScanRef { dataset: name.clone(), part: Some(*number) });
        Ok(Answer::Done)
    }

    pub(crate) fn fail_scan(&mut self, moment: Moment, fail: &FailScan) -> Result<Answer, Refusal> {
        let FailScan { session, dataset: name, fencing, failure } = fail;
        let Session { scans: held, join, owner, .. } = self.sessions.live(*session)?;
        let dataset = self.datasets.get(name)?;
        let reported_by = match join.worker == *owner || owner.is_empty() {
            true => join.worker.clone(),
            false => format!("{} of {owner}", join.worker),
        };
        let failure = bounded(&Failure { reported_by, ..failure.clone() });
        if is_failed_by(dataset, &failure) {
            return Ok(Answer::Done);
        }
        let first = ScanRef { dataset: name.clone(), part: None };
        let mut held = held.range(first..).take_while(|scan| scan.dataset == *name);
        if !held.any(|scan| dataset.fencing_of(scan.part) == Some(*fencing)) {
            return Err(fenced(*fencing, &dataset.phase));
        }
        self.fail(moment, name, failure);
        Ok(Answer::Done)
    }
}

impl Dataset {
    pub(super) fn stalls_of(&self, session: SessionId) -> u32 {
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
        let (fencing, corrupt) = (lease.fencing, self.corrupt);
        Some((ScanTask { dataset, fencing, compression, corrupt, work }, part))
    }

    fn fencing_of(&self, part: Option<u64>) -> Option<Fencing> {
        self.lease_of(part).map(|lease| lease.fencing)
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

fn holds(lease: Option<&ScanLease>, session: SessionId, fencing: Fencing) -> bool {
    lease.is_some_and(|lease| lease.session == session && lease.fencing == fencing)
}

fn fenced(fencing: Fencing, phase: &Phase) -> Refusal {
    let phase = phase.in_words();
    let reason = format!("the dataset is {phase}, and this session does not have that part of it");
    Refusal::Fenced { what: "scan".to_owned(), fencing, reason }
}

/// True if the dataset's scan came from exactly this listing.
fn was_listed(dataset: &Dataset, root: &str, parts: &[Part]) -> bool {
    match dataset.scan() {
        Some(scan) => scan.root == root && scan.parts.iter().map(|part| &part.listed).eq(parts),
        None => parts.is_empty() && is_failed_by(dataset, &nothing_found(dataset)),
    }
}

fn nothing_found(dataset: &Dataset) -> Failure {
    let patterns = dataset.patterns.join(", ");
    let message = format!("no file matches {patterns}; check the patterns, or add the files first");
    let kind = "ERROR_KIND_NOT_FOUND".to_owned();
    bounded(&Failure { kind, message, ..Failure::default() })
}

fn no_progress(dataset: &Dataset, worker: &str) -> Failure {
    let (doing, place) = match dataset.root() {
        Some(root) => ("scanning", root.to_owned()),
        None => ("listing", dataset.patterns.join(", ")),
    };
    let message = format!(
        "{doing} {place} made no progress on any worker, the last one was `{worker}`; check the mount or the \
         store there, then add the dataset again"
    );
    bounded(&Failure { kind: "ERROR_KIND_UNREACHABLE".to_owned(), message, ..Failure::default() })
}

/// Rejects parts beyond the maximum for all datasets together.
/// - `held`: current number of parts.
pub(crate) fn check_total(held: u64, parts: usize) -> Result<(), Refusal> {
    if parts as u64 <= PARTS_TOTAL_MAX.saturating_sub(held) {
        return Ok(());
    }
    Err(full("parts of all datasets", PARTS_TOTAL_MAX, "name fewer files in all datasets together"))
}

fn full(what: &str, most: u64, hint: &str) -> Refusal {
    Refusal::Full { what: what.to_owned(), most, hint: hint.to_owned() }
}

pub(crate) fn check_listing(root: &str, parts: &[Part]) -> Result<(), Refusal> {
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

#[cfg(test)]
mod tests;
