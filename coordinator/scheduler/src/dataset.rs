//! Datasets: added once, listed and scanned by workers, then ready permanently.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use shardfeed_plan::{ContentDigest, Corrupt, Digest};

use crate::answer::{Answer, Refusal};
use crate::bound::{
    DATASETS_MAX, EVENT_TEXT_BYTES_MAX, PATTERNS_MAX, PRINCIPAL_DATASETS_MAX, PRINCIPAL_PARTS_MAX,
    PRINCIPAL_SCANS_MAX, check_name, check_room, check_text, shortened,
};
use crate::command::{
    AddDataset, Command, FailDataset, Failure, FinishDataset, Listing, SessionId,
};
use crate::event::EventKind;
use crate::job::is_zero;
use crate::scan::{PartState, Progress, Scan, ScanLease, ScanRef, check_listing, check_total};
use crate::session::Sessions;
use crate::state::{Moment, State};

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Name of the dataset.
    pub name: String,
    /// Patterns of the files.
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
    /// Principal that added it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub added_by: String,
    /// Names that this principal is limited to, as in [`Command::scope`]: only its own sessions,
    /// and workers whose data roots contain the dataset, may scan it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Number of stalls of each session that made no progress with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) stalls: BTreeMap<SessionId, u32>,
    /// Phase of the dataset.
    pub phase: Phase,
}

/// Phase of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The files are being listed.
    Listing {
        /// Lease of the listing; `None`: free.
        lease: Option<ScanLease>,
    },
    /// The parts are being scanned.
    Scanning(Scan),
    /// All parts are scanned; the leader assembles them.
    Assembling(Scan),
    /// The dataset is ready to be read.
    Ready(Ready),
    /// The dataset cannot be used; adding it again starts a new attempt.
    Failed {
        /// The failure.
        failure: Failure,
        /// Time of the failure, Unix ms.
        failed_ms: u64,
    },
}

/// A dataset that is ready to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Content digest.
    pub content: ContentDigest,
    /// Number of shards.
    pub shards: u64,
    /// Number of records.
    pub records: u64,
    /// Total size of the files, bytes.
    pub bytes: u64,
    /// Time at which it became ready, Unix ms.
    pub ready_ms: u64,
    /// Its scan: the folder, and the chunks of the manifest.
    pub scan: Scan,
}

/// All datasets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Datasets {
    pub(crate) by_name: BTreeMap<String, Dataset>,
    /// Datasets with free work, by their order.
    #[serde(skip)]
    pub(crate) with_work: BTreeMap<u64, String>,
    #[serde(skip)]
    pub(crate) assembling: BTreeSet<String>,
    /// Number of parts of all datasets.
    #[serde(skip)]
    pub(crate) parts: u64,
    /// Highest attempt of the datasets that were removed. Later attempts have higher numbers, so
    /// that a proposal for a removed dataset never fits another one of the same name.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) removed_attempts: u64,
}

impl Dataset {
    /// Progress of the scan.
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

    /// Properties of the dataset, if it is ready.
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

    /// Name of the phase in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Listing { .. } => "listing",
            Self::Scanning(_) => "scanning",
            Self::Assembling(_) => "assembling",
            Self::Ready(_) => "ready",
            Self::Failed { .. } => "failed",
        }
    }
}

impl Datasets {
    pub(crate) fn get_mut(&mut self, name: &str) -> Result<&mut Dataset, Refusal> {
        self.by_name.get_mut(name).ok_or_else(|| not_found(name))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Dataset, Refusal> {
        self.by_name.get(name).ok_or_else(|| not_found(name))
    }

    /// Updates the indexes after a change of a dataset.
    pub(crate) fn file(&mut self, name: &str) {
        let Some(dataset) = self.by_name.get(name) else {
            return;
        };
        if dataset.has_work() {
            self.with_work.insert(dataset.order, name.to_owned());
        } else {
            self.with_work.remove(&dataset.order);
        }
        if matches!(dataset.phase, Phase::Assembling(_)) {
            self.assembling.insert(name.to_owned());
        } else {
            self.assembling.remove(name);
        }
    }

    /// Rejects one more dataset of a limited principal that has reached its quota.
    fn check_quota(&self, principal: &str, parts: usize) -> Result<(), Refusal> {
        let own = || self.by_name.values().filter(|dataset| dataset.added_by == principal);
        let waits =
            |dataset: &&Dataset| !matches!(dataset.phase, Phase::Ready(_) | Phase::Failed { .. });
        let what = format!("datasets of {principal} that are not ready");
        let hint = "wait until they are, or have an operator remove some";
        check_room(&what, own().filter(waits).count() as u64, PRINCIPAL_SCANS_MAX, hint)?;
        let what = format!("datasets of {principal}");
        check_room(&what, own().count() as u64, PRINCIPAL_DATASETS_MAX, "use datasets that exist")?;
        self.check_parts(principal, parts)
    }

    /// Checks that a limited principal's datasets may have `more` further parts.
    pub(crate) fn check_parts(&self, principal: &str, more: usize) -> Result<(), Refusal> {
        let own = self.by_name.values().filter(|dataset| dataset.added_by == principal);
        let held: u64 = own.map(|dataset| dataset.progress().parts).sum();
        if held.saturating_add(more as u64) <= PRINCIPAL_PARTS_MAX {
            return Ok(());
        }
        let what = format!("parts of datasets of {principal}");
        let hint = "name fewer files, or have an operator remove datasets".to_owned();
        Err(Refusal::Full { what, most: PRINCIPAL_PARTS_MAX, hint })
    }

    /// Frees a scan whose session ended.
    pub(crate) fn free(&mut self, scan: &ScanRef) {
        match self.by_name.get_mut(&scan.dataset).map(|dataset| &mut dataset.phase) {
            Some(Phase::Listing { lease }) if scan.part.is_none() => *lease = None,
            Some(Phase::Scanning(parts)) => parts.free(scan.part),
            _ => {}
        }
        self.file(&scan.dataset);
    }

    /// See [`State::fail`].
    fn fail(&mut self, sessions: &mut Sessions, name: &str, failed_ms: u64, failure: Failure) {
        let Some(dataset) = self.by_name.get_mut(name) else {
            return;
        };
        for (session, scan) in leases_of(dataset) {
            sessions.drop_scan(session, &scan);
        }
        self.parts -= dataset.progress().parts;
        dataset.phase = Phase::Failed { failure, failed_ms };
        self.file(name);
    }

    /// Recomputes the indexes from the datasets.
    pub(crate) fn index(&mut self, sessions: &mut Sessions) {
        self.with_work.clear();
        self.assembling.clear();
        self.parts = 0;
        for dataset in self.by_name.values_mut() {
            match &mut dataset.phase {
                Phase::Scanning(scan) | Phase::Assembling(scan) => scan.index(),
                Phase::Ready(ready) => ready.scan.index(),
                Phase::Listing { .. } | Phase::Failed { .. } => {}
            }
            self.parts += dataset.progress().parts;
            for (session, scan) in leases_of(dataset) {
                sessions.file_scan(session, scan);
            }
        }
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        for name in names {
            self.file(&name);
        }
    }
}

impl State {
    pub(crate) fn remove_dataset(&mut self, name: &str) -> Result<Answer, Refusal> {
        let dataset = self.datasets.get(name)?;
        let user = self.jobs.by_name.values().find(|job| job.dataset == name);
        if let Some(job) = user {
            return Err(Refusal::Invalid(format!(
                "job `{}` reads dataset `{name}`; remove the job first",
                job.name
            )));
        }
        for (session, scan) in leases_of(dataset) {
            self.sessions.drop_scan(session, &scan);
        }
        let Dataset { attempt, order, .. } = *dataset;
        self.datasets.parts -= dataset.progress().parts;
        self.datasets.with_work.remove(&order);
        self.datasets.assembling.remove(name);
        self.datasets.by_name.remove(name);
        self.datasets.removed_attempts = self.datasets.removed_attempts.max(attempt);
        self.events.tell(EventKind::DatasetRemoved { dataset: name.to_owned() });
        Ok(Answer::Done)
    }

    pub(crate) fn add_dataset(
        &mut self,
        moment: Moment,
        Command { principal, scope, .. }: &Command,
        add: &AddDataset,
    ) -> Result<Answer, Refusal> {
        check_add(add)?;
        let held = self.datasets.parts;
        let mut attempt = self.datasets.removed_attempts + 1;
        if let Some(known) = self.datasets.by_name.get(&add.name) {
            check_same(known, add)?;
            if scope.is_empty() && !known.scope.is_empty() {
                return Err(Refusal::Denied(format!(
                    "dataset `{}` was added by {}, who is limited to some jobs: no other principal \
                     has listed its files; remove it first, or use another name",
                    add.name, known.added_by
                )));
            }
            if !matches!(known.phase, Phase::Failed { .. }) {
                return Ok(Answer::Done);
            }
            attempt = known.attempt + 1;
        } else {
            let held = self.datasets.by_name.len() as u64;
            check_room("datasets", held, DATASETS_MAX as u64, "use datasets that exist")?;
        }
        if !scope.is_empty() {
            let parts = add.listing.as_ref().map_or(0, |listing| listing.parts.len());
            self.datasets.check_quota(principal, parts)?;
        }
        if let Some(listing) = &add.listing {
            check_total(held, listing.parts.len())?;
        }
        let AddDataset { name, patterns, compression, corrupt, listing } = add.clone();
        let phase = match &listing {
            Some(listing) => Phase::Scanning(Scan::new(&listing.root, &listing.parts)),
            None => Phase::Listing { lease: None },
        };
        self.datasets.parts += listing.map_or(0, |listing| listing.parts.len() as u64);
        let dataset = Dataset {
            name,
            patterns,
            compression,
            corrupt,
            attempt,
            order: moment.index,
            added_ms: moment.now_ms,
            added_by: principal.clone(),
            scope: scope.clone(),
            stalls: BTreeMap::new(),
            phase,
        };
        self.datasets.by_name.insert(add.name.clone(), dataset);
        self.datasets.file(&add.name);
        self.events.tell(EventKind::DatasetAdded { dataset: add.name.clone() });
        Ok(Answer::Done)
    }

    pub(crate) fn finish_dataset(
        &mut self,
        moment: Moment,
        finish: &FinishDataset,
    ) -> Result<Answer, Refusal> {
        let dataset = self.datasets.get_mut(&finish.dataset)?;
        let FinishDataset { content, shards, records, .. } = *finish;
        if let Phase::Ready(ready) = &dataset.phase {
            check_content(&dataset.name, ready, content)?;
            return Ok(Answer::Done);
        }
        let scan = assembling(dataset, finish.attempt)?;
        let Progress { files, bytes, records: scanned, .. } = scan.progress;
        if (shards, records) != (files, scanned) {
            return Err(Refusal::Invalid(format!(
                "dataset `{}` was put together as {shards} shards with {records} records, but \
                 {files} shards with {scanned} records were scanned",
                dataset.name
            )));
        }
        let scan = scan.clone();
        let ready_ms = moment.now_ms;
        dataset.phase = Phase::Ready(Ready { content, shards, records, bytes, ready_ms, scan });
        self.datasets.file(&finish.dataset);
        let dataset = finish.dataset.clone();
        self.events.tell(EventKind::DatasetReady { dataset, shards, records });
        Ok(Answer::Done)
    }

    pub(crate) fn fail_dataset(
        &mut self,
        moment: Moment,
        fail: &FailDataset,
    ) -> Result<Answer, Refusal> {
        let failure = bounded(&fail.failure);
        let dataset = self.datasets.get(&fail.dataset)?;
        if is_failed_by(dataset, &failure) && dataset.attempt == fail.attempt {
            return Ok(Answer::Done);
        }
        assembling(dataset, fail.attempt)?;
        self.fail(moment, &fail.dataset, failure);
        Ok(Answer::Done)
    }

    /// Ends an attempt with a failure and drops the remaining scans.
    pub(crate) fn fail(&mut self, moment: Moment, name: &str, failure: Failure) {
        let end = failure.message.floor_char_boundary(EVENT_TEXT_BYTES_MAX);
        let (dataset, message) = (name.to_owned(), failure.message[..end].to_owned());
        self.events.tell(EventKind::DatasetFailed { dataset, message });
        self.datasets.fail(&mut self.sessions, name, moment.now_ms, failure);
    }
}

/// True if the dataset failed with exactly this failure.
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
pub(crate) fn check_content(
    name: &str,
    ready: &Ready,
    content: ContentDigest,
) -> Result<(), Refusal> {
    if ready.content == content {
        return Ok(());
    }
    let (name, field) = (name.to_owned(), "content".to_owned());
    Err(Refusal::OtherDataset { name, field, known: ready.content.to_string() })
}

fn assembling(dataset: &Dataset, attempt: u64) -> Result<&Scan, Refusal> {
    let name = &dataset.name;
    match &dataset.phase {
        Phase::Assembling(scan) if dataset.attempt == attempt => Ok(scan),
        Phase::Assembling(_) => Err(Refusal::Invalid(format!(
            "dataset `{name}` is in its attempt {}, not {attempt}",
            dataset.attempt
        ))),
        phase => Err(Refusal::Invalid(format!(
            "dataset `{name}` cannot be put together: it is {}",
            phase.in_words()
        ))),
    }
}

fn not_found(name: &str) -> Refusal {
    Refusal::NotFound { what: "dataset".to_owned(), name: name.to_owned() }
}

fn leases_of(dataset: &Dataset) -> Vec<(u64, ScanRef)> {
    let scan_ref = |part| ScanRef { dataset: dataset.name.clone(), part };
    match &dataset.phase {
        Phase::Listing { lease: Some(lease) } => vec![(lease.session, scan_ref(None))],
        Phase::Scanning(scan) => {
            let held = scan.parts.iter().zip(0..).filter_map(|(part, number)| match &part.state {
                PartState::Leased(lease) => Some((lease.session, scan_ref(Some(number)))),
                PartState::Free | PartState::Done { .. } => None,
            });
            held.collect()
        }
        _ => vec![],
    }
}

fn check_add(add: &AddDataset) -> Result<(), Refusal> {
    check_name("the dataset's name", &add.name)?;
    let found = add.patterns.len();
    if let Some(Listing { root, parts }) = &add.listing {
        check_listing(root, parts)?;
        if parts.is_empty() || found > 0 {
            return Err(Refusal::Invalid("a listing has files, and no patterns".to_owned()));
        }
    } else if found == 0 || found > PATTERNS_MAX {
        let reason = format!(
            "a dataset has 1 to {PATTERNS_MAX} patterns, not {found}; name more files as @LIST, a text with one a line"
        );
        return Err(Refusal::Invalid(reason));
    }
    for pattern in &add.patterns {
        check_text("a pattern", pattern)?;
        if pattern.is_empty() {
            return Err(Refusal::Invalid("a pattern is empty".to_owned()));
        }
    }
    match add.compression.as_str() {
        "auto" | "none" | "gzip" | "zlib" => Ok(()),
        other => {
            let other: String = other.chars().take(20).collect();
            let reason = format!("compression={other:?} is none of auto, none, gzip, zlib");
            Err(Refusal::Invalid(reason))
        }
    }
}

fn check_same(known: &Dataset, add: &AddDataset) -> Result<(), Refusal> {
    const NAMED_MAX: usize = 3;
    let (field, known) = if known.patterns != add.patterns {
        let more = known.patterns.len().saturating_sub(NAMED_MAX);
        let mut named = known.patterns[..known.patterns.len() - more].join(", ");
        if more > 0 {
            named.push_str(&format!(" and {more} more"));
        }
        ("patterns", named)
    } else if known.compression != add.compression {
        ("compression", known.compression.clone())
    } else if known.corrupt != add.corrupt {
        ("corrupt", known.corrupt.to_string())
    } else {
        return Ok(());
    };
    Err(Refusal::OtherDataset { name: add.name.clone(), field: field.to_owned(), known })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::Change;
    use crate::fixture::{DATASET, Fixture, add, add_dataset, digest, finish, listing, scanned};

    fn dataset(fixture: &Fixture) -> &Dataset {
        fixture.state.dataset(DATASET).unwrap()
    }

    fn failure(message: &str) -> Failure {
        let (kind, message) = ("ERROR_KIND_CORRUPT".to_owned(), message.to_owned());
        Failure { kind, message, file: Some("a".to_owned()), offset: Some(7), ..Failure::default() }
    }

    fn fail(attempt: u64, message: &str) -> Change {
        let (dataset, failure) = (DATASET.to_owned(), failure(message));
        Change::FailDataset(FailDataset { dataset, attempt, failure })
    }

    /// A dataset of one part that waits to be assembled.
    fn assembling() -> (Fixture, u64) {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.done(add());
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(listing(session, fencing, 1));
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(scanned(session, fencing, 0));
        (fixture, session)
    }

    #[test]
    fn adding_it_again_changes_nothing() {
        let mut fixture = Fixture::default();
        fixture.done(add());
        let before = fixture.contents();
        fixture.done(add());
        assert_eq!(fixture.contents(), before);
        let (mut fixture, _) = assembling();
        fixture.done(finish(1, 1));
        let before = fixture.contents();
        fixture.done(add());
        assert_eq!(fixture.contents(), before);
    }

    #[test]
    fn other_files_under_the_same_name_are_refused() {
        let mut fixture = Fixture::default();
        let patterns = ["/a", "/b", "/c", "/d", "/e"].map(str::to_owned).to_vec();
        fixture
            .done(Change::AddDataset(AddDataset { patterns: patterns.clone(), ..add_dataset() }));
        fixture.refused(
            add(),
            expect![[r#"
            dataset `images` exists with other patterns: /a, /b, /c and 2
            more; use another name"#]],
        );
        let compression = "gzip".to_owned();
        let other = AddDataset { patterns, compression, ..add_dataset() };
        fixture.refused(
            Change::AddDataset(other),
            expect![[r#"
            dataset `images` exists with other compression: auto; use
            another name"#]],
        );
    }

    #[test]
    fn a_failed_one_is_tried_again() {
        let (mut fixture, session) = assembling();
        fixture.done(fail(1, "cut"));
        fixture.done(fail(1, "cut"));
        assert_eq!(dataset(&fixture).phase.name(), "failed");
        fixture.done(add());
        assert_eq!((dataset(&fixture).attempt, dataset(&fixture).phase.name()), (2, "listing"));
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(listing(session, fencing, 1));
        // The result that was assembled for the earlier attempt does not apply to this one.
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(scanned(session, fencing, 0));
        fixture.refused(finish(1, 1), expect!["dataset `images` is in its attempt 2, not 1"]);
        fixture.refused(fail(1, "cut"), expect!["dataset `images` is in its attempt 2, not 1"]);
        fixture.done(finish(2, 1));
    }

    #[test]
    fn is_ready_once_the_leader_has_put_it_together() {
        let (mut fixture, _) = assembling();
        let waiting = fixture.state.assembling().map(|dataset| dataset.name.as_str());
        assert_eq!(waiting.collect::<Vec<_>>(), [DATASET]);
        fixture.now_ms = 5;
        fixture.done(finish(1, 1));
        assert_eq!(fixture.state.assembling().count(), 0);
        let ready = dataset(&fixture).ready().unwrap();
        assert_eq!((ready.content, ready.shards, ready.records), (digest(7), 10, 50));
        assert_eq!((ready.bytes, ready.ready_ms, ready.scan.root.as_str()), (1_000, 5, "/data"));
        assert_eq!(ready.chunks().collect::<Vec<_>>(), [digest(100)]);
        fixture.done(finish(1, 1));
        let content = digest(8);
        let finish = FinishDataset {
            dataset: DATASET.to_owned(),
            attempt: 1,
            content,
            shards: 10,
            records: 50,
        };
        fixture.refused(
            Change::FinishDataset(finish),
            expect![[r#"
            dataset `images` exists with other content:
            0707070707070707070707070707070707070707070707070707070707070707;
            use another name"#]],
        );
        fixture.refused(
            fail(1, "late"),
            expect!["dataset `images` cannot be put together: it is ready"],
        );
    }

    #[test]
    fn is_put_together_only_of_all_that_was_scanned() {
        let (mut fixture, _) = assembling();
        fixture.refused(
            finish(1, 2),
            expect![[r#"
            dataset `images` was put together as 20 shards with 100
            records, but 10 shards with 50 records were scanned"#]],
        );
        fixture.refused(finish(2, 1), expect!["dataset `images` is in its attempt 1, not 2"]);
        let mut fixture = Fixture::default();
        fixture.refused(finish(1, 1), expect!["there is no dataset `images`"]);
        fixture.done(add());
        fixture.refused(
            finish(1, 1),
            expect!["dataset `images` cannot be put together: it is being listed"],
        );
    }

    #[test]
    fn what_makes_no_dataset_is_refused() {
        let mut fixture = Fixture::default();
        let mut refused = |add: AddDataset, says| fixture.refused(Change::AddDataset(add), says);
        refused(
            AddDataset { name: String::new(), ..add_dataset() },
            expect!["the dataset's name is empty"],
        );
        refused(
            AddDataset { patterns: vec![], ..add_dataset() },
            expect![[r#"
                a dataset has 1 to 1000 patterns, not 0; name more files as
                @LIST, a text with one a line"#]],
        );
        refused(
            AddDataset { patterns: vec![String::new()], ..add_dataset() },
            expect!["a pattern is empty"],
        );
        refused(
            AddDataset { patterns: vec!["x".repeat(5_000)], ..add_dataset() },
            expect!["a pattern has 5000 bytes; at most 4096 are allowed"],
        );
        refused(
            AddDataset { compression: "zip".to_owned(), ..add_dataset() },
            expect![[r#"compression="zip" is none of auto, none, gzip, zlib"#]],
        );
    }

    #[test]
    fn long_failures_are_cut() {
        let (mut fixture, _) = assembling();
        fixture.done(fail(1, &"é".repeat(5_000)));
        let Phase::Failed { failure, .. } = &dataset(&fixture).phase else { panic!() };
        assert_eq!(failure.message.len(), 4_096);
        let told = fixture.state.events_after(0).last().unwrap();
        let EventKind::DatasetFailed { message, .. } = &told.what else { panic!("{told:?}") };
        assert_eq!(message.len(), 400);
    }

    #[test]
    fn there_is_a_bound_for_datasets() {
        let mut fixture = Fixture::default();
        for number in 0..DATASETS_MAX as u64 {
            let add = AddDataset { name: number.to_string(), ..add_dataset() };
            let command = fixture.command(Change::AddDataset(add));
            fixture.state.apply(number + 1, &command).answer.unwrap();
        }
        fixture.refused(add(), expect!["datasets: at most 10000; use datasets that exist"]);
    }
}
