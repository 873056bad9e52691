//! Addition, completion, failure and removal of datasets.

use std::collections::BTreeMap;

use super::{Dataset, Phase, Ready, bounded, check_content, is_failed_by};
use crate::dataset::scan::{Progress, Scan, check_listing, check_total};
use crate::log::{
    AddDataset, Answer, Command, DATASETS_MAX, EVENT_TEXT_BYTES_MAX, EventKind, FailDataset,
    Failure, FinishDataset, Listing, PATTERNS_MAX, Refusal, Result, check_name, check_room,
    check_text,
};
use crate::state::{Moment, State};

impl State {
    pub(crate) fn remove_dataset(&mut self, name: &str) -> Result<Answer> {
        let dataset = self.datasets.get(name)?;
        let mut jobs = self.jobs.by_name.values();
        let user = jobs.find(|job| job.dataset == name || job.mixes(name));
        if let Some(job) = user {
            let reason = format!("job `{}` reads dataset `{name}`; remove the job first", job.name);
            return Err(Refusal::Invalid(reason));
        }
        for (session, scan) in dataset.scans() {
            self.sessions.drop_scan(session, &scan);
        }
        let Dataset { attempt, order, .. } = *dataset;
        self.datasets.with_work.remove(&order);
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
    ) -> Result<Answer> {
        check_add(add)?;
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
            self.datasets.check_quota(principal, &add.name, parts)?;
        }
        if let Some(listing) = &add.listing {
            check_total(self.datasets.parts(), listing.parts.len())?;
        }
        let AddDataset { name, patterns, compression, corrupt, listing, program } = add.clone();
        let phase = match &listing {
            Some(listing) => Phase::Scanning(Scan::new(&listing.root, &listing.parts)),
            None => Phase::Listing { lease: None },
        };
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
            program,
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
    ) -> Result<Answer> {
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

    pub(crate) fn fail_dataset(&mut self, moment: Moment, fail: &FailDataset) -> Result<Answer> {
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

fn assembling(dataset: &Dataset, attempt: u64) -> Result<&Scan> {
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

fn check_add(add: &AddDataset) -> Result<()> {
    check_name("the dataset's name", &add.name)?;
    let found = add.patterns.len();
    if let Some(Listing { root, parts }) = &add.listing {
        check_listing(root, parts)?;
        if parts.is_empty() || found > 0 {
            return Err(Refusal::Invalid("a listing has files, and no patterns".to_owned()));
        }
    } else if add.program.is_some() {
        return Err(Refusal::Invalid("a dataset with a program needs a listing".to_owned()));
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

fn check_same(known: &Dataset, add: &AddDataset) -> Result<()> {
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
    } else if known.program != add.program {
        ("program", known.program.map_or("none".to_owned(), |program| program.to_string()))
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
    use crate::fixture::{
        DATASET, Fixture, add, add_dataset, digest, finish, listing, phase_name, scanned,
    };

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
        assert_eq!(phase_name(dataset(&fixture)), "failed");
        fixture.done(add());
        assert_eq!((dataset(&fixture).attempt, phase_name(dataset(&fixture))), (2, "listing"));
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
