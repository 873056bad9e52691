//! Listing and scanning: parts of datasets that are leased to sessions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::answer::{Answer, Refusal, ScanTask, ScanWork};
use crate::bound::{PARTS_MAX, PARTS_TOTAL_MAX, SCANS_TAKEN_MAX, check_text};
use crate::command::{
    Cordon, FailScan, Failure, Fencing, Part, ReportListing, ReportScan, SessionId,
};
use crate::dataset::{Dataset, Phase, bounded, is_failed_by};
use crate::event::Happening;
use crate::state::{Moment, State};

/// The right to list a dataset, or to scan one of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanLease {
    /// Its token; parts that were taken together share it.
    pub fencing: Fencing,
    /// Who has it.
    pub session: SessionId,
    /// Since when, Unix ms.
    pub granted_ms: u64,
}

/// What a session lists or scans.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanRef {
    /// The dataset.
    pub dataset: String,
    /// Which part; `None`: its listing.
    pub part: Option<u64>,
}

/// A listing and how far its scan is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// Folder that paths are relative to.
    pub root: String,
    /// Its parts, in manifest order.
    pub parts: Vec<ScanPart>,
    /// Parts that nobody has.
    #[serde(skip)]
    pub(crate) free: BTreeSet<u64>,
    #[serde(skip)]
    pub(crate) progress: Progress,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanPart {
    /// The files.
    pub listed: Part,
    /// How far it is.
    pub state: PartState,
}

/// How far a part is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartState {
    /// Nobody has it.
    Free,
    /// A worker scans it.
    Leased(ScanLease),
    /// It is scanned.
    Done {
        /// Digest of the chunk that holds what was found.
        chunk: Digest,
        /// Records found.
        records: u64,
    },
}

/// How far a dataset's scan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Parts of its listing.
    pub parts: u64,
    /// Parts that are scanned.
    pub parts_done: u64,
    /// Files found.
    pub files: u64,
    /// Files in parts that are scanned.
    pub files_done: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of files in parts that are scanned.
    pub bytes_done: u64,
    /// Records found so far.
    pub records: u64,
}

impl Scan {
    /// Chunks that hold what was found, in order; of parts that are scanned.
    pub fn chunks(&self) -> impl Iterator<Item = Digest> {
        self.parts.iter().filter_map(|part| match &part.state {
            PartState::Done { chunk, .. } => Some(*chunk),
            PartState::Free | PartState::Leased(_) => None,
        })
    }

    fn new(root: &str, parts: &[Part]) -> Self {
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

    /// Computes anew what the parts imply.
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
    pub(crate) fn take_scans(
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
        while tasks.len() < most.min(SCANS_TAKEN_MAX) as usize {
            let Some((_, name)) = self.datasets.with_work.first_key_value() else {
                break;
            };
            let name = name.clone();
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
        if parts.len() as u64 > PARTS_TOTAL_MAX.saturating_sub(held) {
            let hint = "name fewer files in all datasets together";
            return Err(full("parts of all datasets", PARTS_TOTAL_MAX, hint));
        }
        let scan = Scan::new(root, parts);
        let Progress { files, bytes, .. } = scan.progress;
        self.events.tell(Happening::DatasetListed { dataset: name.clone(), files, bytes });
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
        let held = &self.sessions.live(*session)?.scans;
        let dataset = self.datasets.get(name)?;
        let failure = bounded(failure);
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
    /// Leases the first piece of work that is free.
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
        match (&self.phase, part) {
            (Phase::Listing { lease }, None) => lease.as_ref().map(|lease| lease.fencing),
            (Phase::Scanning(scan), Some(number)) => {
                match &scan.parts.get(usize::try_from(number).ok()?)?.state {
                    PartState::Leased(lease) => Some(lease.fencing),
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

/// Whether the dataset came out of just this listing.
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
    bounded(&Failure { kind, message, file: None, offset: None, ordinal: None })
}

fn full(what: &str, most: u64, hint: &str) -> Refusal {
    Refusal::Full { what: what.to_owned(), most, hint: hint.to_owned() }
}

fn check_listing(root: &str, parts: &[Part]) -> Result<(), Refusal> {
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
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::Change;
    use crate::command::AddDataset;
    use crate::fixture::{DATASET, Fixture, add, add_dataset, digest, listing, scanned, wrapped};

    /// A dataset of two parts that nobody has yet.
    fn listed() -> (Fixture, SessionId) {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.done(add());
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(listing(session, fencing, 2));
        (fixture, session)
    }

    fn dataset(fixture: &Fixture) -> &Dataset {
        fixture.state.dataset(DATASET).unwrap()
    }

    fn parts(tasks: &[ScanTask]) -> Vec<u64> {
        let part = |task: &ScanTask| match task.work {
            ScanWork::List { .. } => None,
            ScanWork::Scan { part, .. } => Some(part),
        };
        tasks.iter().filter_map(part).collect()
    }

    fn fail(session: SessionId, fencing: Fencing) -> Change {
        let (kind, message) = ("ERROR_KIND_CORRUPT".to_owned(), "damaged".to_owned());
        let failure = Failure { kind, message, file: None, offset: None, ordinal: None };
        Change::FailScan(FailScan { session, dataset: DATASET.to_owned(), fencing, failure })
    }

    #[test]
    fn one_session_lists_and_any_scan() {
        let mut fixture = Fixture::default();
        let (a, b) = (fixture.join("a"), fixture.join("b"));
        assert!(!fixture.state.has_scans());
        fixture.done(add());
        assert!(fixture.state.has_scans());
        let tasks = fixture.take(a, 5);
        let patterns = vec!["/data/*.tfrecord".to_owned()];
        let (fencing, compression) = (fixture.state.applied(), "auto".to_owned());
        let (dataset, work) = (DATASET.to_owned(), ScanWork::List { patterns });
        assert_eq!(
            tasks,
            [ScanTask {
                dataset,
                fencing,
                compression,
                corrupt: shardfeed_plan::Corrupt::Error,
                work
            }]
        );
        assert_eq!(fixture.take(b, 5), []);
        fixture.done(listing(a, fencing, 3));
        let tasks = fixture.take(a, 2);
        assert_eq!(parts(&tasks), [0, 1]);
        assert_eq!(tasks[0].fencing, tasks[1].fencing);
        let (root, chunk) = ("/data".to_owned(), digest(2));
        assert_eq!(fixture.take(b, 2)[0].work, ScanWork::Scan { root, part: 2, chunk });
        assert!(!fixture.state.has_scans());
    }

    #[test]
    fn the_oldest_dataset_comes_first() {
        let (mut fixture, session) = listed();
        let later = AddDataset { name: "a later one".to_owned(), ..add_dataset() };
        fixture.done(Change::AddDataset(later));
        let names: Vec<_> = fixture.take(session, 9).into_iter().map(|task| task.dataset).collect();
        assert_eq!(names, [DATASET, DATASET, "a later one"]);
    }

    #[test]
    fn no_more_are_taken_than_asked_for_or_useful() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.done(add());
        assert_eq!(fixture.take(session, 0), []);
        let fencing = fixture.take(session, 1)[0].fencing;
        let part = |number| Part { chunk: digest(number as u8), files: 1, bytes: 1 };
        let report = ReportListing {
            session,
            dataset: DATASET.to_owned(),
            fencing,
            root: "/data".to_owned(),
            parts: (0..300).map(part).collect(),
        };
        fixture.done(Change::ReportListing(report));
        assert_eq!(fixture.take(session, u32::MAX).len(), SCANS_TAKEN_MAX as usize);
    }

    #[test]
    fn what_a_dead_session_had_is_free_again() {
        let mut fixture = Fixture::default();
        let (a, b) = (fixture.join("a"), fixture.join("b"));
        fixture.done(add());
        let dead = fixture.take(a, 1)[0].fencing;
        fixture.done(Change::ExpireSessions { sessions: vec![a] });
        let fencing = fixture.take(b, 1)[0].fencing;
        fixture.refused(
            listing(a, dead, 1),
            expect![[r#"
            session 1 is no longer valid: nothing was heard of it in
            time; join again"#]],
        );
        fixture.refused(
            listing(b, dead, 1),
            expect![[r#"
                scan 4 is no longer valid: the dataset is being listed, and
                this session does not have that part of it"#]],
        );
        fixture.done(listing(b, fencing, 2));
        fixture.take(b, 2);
        fixture.done(Change::LeaveSession { session: b });
        let c = fixture.join("c");
        assert_eq!(parts(&fixture.take(c, 2)), [0, 1]);
        assert_eq!(fixture.state.session(c).unwrap().scans.len(), 2);
    }

    #[test]
    fn only_the_holder_of_a_part_reports_it() {
        let (mut fixture, session) = listed();
        let other = fixture.join("other");
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.refused(
            scanned(other, fencing, 0),
            expect![[r#"
                scan 6 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        fixture.refused(
            scanned(session, fencing - 1, 0),
            expect![[r#"
                scan 5 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        fixture.refused(
            scanned(session, fencing, 1),
            expect![[r#"
                scan 6 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        fixture.refused(
            scanned(session, fencing, u64::MAX),
            expect![[r#"
                scan 6 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        fixture.done(scanned(session, fencing, 0));
        assert_eq!(fixture.state.session(session).unwrap().scans.len(), 0);
    }

    #[test]
    fn progress_is_counted() {
        let (mut fixture, session) = listed();
        let fencing = fixture.take(session, 2)[0].fencing;
        fixture.done(scanned(session, fencing, 1));
        let progress = Progress {
            parts: 2,
            parts_done: 1,
            files: 20,
            files_done: 10,
            bytes: 2_000,
            bytes_done: 1_000,
            records: 50,
        };
        assert_eq!(dataset(&fixture).progress(), progress);
        assert_eq!(dataset(&fixture).phase.name(), "scanning");
        fixture.done(scanned(session, fencing, 0));
        assert_eq!(dataset(&fixture).phase.name(), "assembling");
    }

    #[test]
    fn the_same_report_again_is_done() {
        let (mut fixture, session) = listed();
        fixture.done(listing(session, 3, 2));
        fixture.refused(
            listing(session, 3, 1),
            expect![[r#"
                scan 3 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        let fencing = fixture.take(session, 2)[0].fencing;
        for _ in 0..2 {
            fixture.done(scanned(session, fencing, 0));
        }
        let (dataset, chunk) = (DATASET.to_owned(), digest(99));
        let other = ReportScan { session, dataset, part: 0, fencing, chunk, records: 50 };
        fixture.refused(
            Change::ReportScan(other),
            expect![[r#"
                scan 7 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        for _ in 0..2 {
            fixture.done(fail(session, fencing));
        }
    }

    #[test]
    fn a_listing_without_files_fails() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.done(add());
        let fencing = fixture.take(session, 1)[0].fencing;
        for _ in 0..2 {
            fixture.done(listing(session, fencing, 0));
        }
        let Phase::Failed { failure, .. } = &dataset(&fixture).phase else { panic!() };
        expect!["no file matches /data/*.tfrecord; check the patterns, or add the files first"]
            .assert_eq(&failure.message);
    }

    #[test]
    fn one_failed_part_fails_the_dataset_and_drops_the_others() {
        let (mut fixture, session) = listed();
        let other = fixture.join("other");
        let first = fixture.take(session, 1)[0].fencing;
        let second = fixture.take(other, 1)[0].fencing;
        fixture.refused(
            fail(session, second),
            expect![[r#"
                scan 7 is no longer valid: the dataset is being scanned, and
                this session does not have that part of it"#]],
        );
        fixture.done(fail(session, first));
        assert!(fixture.state.sessions().all(|session| session.scans.is_empty()));
        fixture.refused(
            scanned(other, second, 1),
            expect![[r#"
                scan 7 is no longer valid: the dataset is failed, and this
                session does not have that part of it"#]],
        );
        assert!(!fixture.state.has_scans());
    }

    #[test]
    fn a_listing_that_cannot_be_counted_is_refused() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.done(add());
        let fencing = fixture.take(session, 1)[0].fencing;
        let with = |parts: Vec<Part>| {
            let (dataset, root) = (DATASET.to_owned(), "/data".to_owned());
            Change::ReportListing(ReportListing { session, dataset, fencing, root, parts })
        };
        let part = |files, bytes| Part { chunk: digest(0), files, bytes };
        fixture.refused(with(vec![part(0, 1)]), expect!["a part of the listing has no files"]);
        fixture.refused(
            with(vec![part(1, u64::MAX); 2]),
            expect!["the files of the listing cannot be counted"],
        );
        fixture.refused(
            with(vec![part(1, 1); PARTS_MAX + 1]),
            expect![[r#"
            parts of a dataset: at most 16384; put more files into a
            part, or name fewer files"#]],
        );
        fixture.done(with(vec![part(1, 1); 2]));
        let fencing = fixture.take(session, 2)[0].fencing;
        let scanned = |part| {
            let (dataset, chunk) = (DATASET.to_owned(), digest(1));
            let records = u64::MAX;
            Change::ReportScan(ReportScan { session, dataset, part, fencing, chunk, records })
        };
        fixture.done(scanned(0));
        fixture.refused(scanned(1), expect!["18446744073709551615 records cannot be counted"]);
    }

    #[test]
    fn there_is_a_bound_for_the_parts_of_all_datasets() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.done(add());
        let fencing = fixture.take(session, 1)[0].fencing;
        let part = Part { chunk: digest(0), files: 1, bytes: 1 };
        let (dataset, root, parts) = (DATASET.to_owned(), "/".to_owned(), vec![part; 2]);
        let report = ReportListing { session, dataset, fencing, root, parts };
        // As if other datasets had so many.
        fixture.state.datasets.parts = PARTS_TOTAL_MAX - 1;
        let moment = Moment { index: 9, now_ms: 0 };
        let refusal = fixture.state.report_listing(moment, &report).unwrap_err();
        expect![[r#"
            parts of all datasets: at most 1000000; name fewer files in
            all datasets together"#]]
        .assert_eq(&wrapped(&refusal.to_string()));
        fixture.state.datasets.parts = PARTS_TOTAL_MAX - 2;
        assert_eq!(fixture.state.report_listing(moment, &report), Ok(Answer::Done));
    }

    #[test]
    fn scans_of_datasets_that_are_not_known_are_refused() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.refused(listing(session, 1, 1), expect!["there is no dataset `images`"]);
        fixture.refused(scanned(session, 1, 1), expect!["there is no dataset `images`"]);
        fixture.refused(fail(session, 1), expect!["there is no dataset `images`"]);
    }
}
