//! Leases of listings and scans.

use expect_test::expect;

use super::*;
use crate::fixture::{
    DATASET, Fixture, add, add_dataset, digest, listing, phase_name, scanned, wrapped,
};
use crate::{AddDataset, Change, Listing, PARTS_MAX, PARTS_TOTAL_MAX, ScanTask, ScanWork};

/// A dataset of two parts, both free.
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
    let failure = Failure { kind, message, ..Failure::default() };
    Change::FailScan(FailScan { session, dataset: DATASET.to_owned(), fencing, failure })
}

#[test]
fn one_session_lists_and_any_scan() {
    let mut fixture = Fixture::default();
    let (a, b) = (fixture.join("a"), fixture.join("b"));
    assert!(fixture.state.datasets.with_work.is_empty());
    fixture.done(add());
    assert!(!fixture.state.datasets.with_work.is_empty());
    let tasks = fixture.take(a, 5);
    let patterns = vec!["/data/*.tfrecord".to_owned()];
    let (fencing, compression) = (fixture.state.applied(), "auto".to_owned());
    let (dataset, work) = (DATASET.to_owned(), ScanWork::List { patterns });
    let (corrupt, program) = (shardfeed_plan::Corrupt::Error, None);
    assert_eq!(tasks, [ScanTask { dataset, fencing, compression, corrupt, work, program }]);
    assert_eq!(fixture.take(b, 5), []);
    fixture.done(listing(a, fencing, 3));
    let tasks = fixture.take(a, 2);
    assert_eq!(parts(&tasks), [0, 1]);
    assert_eq!(tasks[0].fencing, tasks[1].fencing);
    let (root, chunk) = ("/data".to_owned(), digest(2));
    assert_eq!(fixture.take(b, 2)[0].work, ScanWork::Scan { root, part: 2, chunk });
    assert!(fixture.state.datasets.with_work.is_empty());
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
        session 1 is no longer valid: no heartbeat arrived in time;
        join again"#]],
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
        maps: 0,
    };
    assert_eq!(dataset(&fixture).progress(), progress);
    assert_eq!(phase_name(dataset(&fixture)), "scanning");
    fixture.done(scanned(session, fencing, 0));
    assert_eq!(phase_name(dataset(&fixture)), "assembling");
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
    let maps = vec![];
    let other = ReportScan { session, dataset, part: 0, fencing, chunk, records: 50, maps };
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
    assert!(fixture.state.datasets.with_work.is_empty());
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
        let maps = vec![];
        Change::ReportScan(ReportScan { session, dataset, part, fencing, chunk, records, maps })
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
    let hold = |state: &mut State, parts: u64| {
        let mut scan = Scan::new("/", &[]);
        scan.progress.parts = parts;
        let (name, phase) = ("other".to_owned(), Phase::Scanning(scan));
        let other =
            Dataset { name: name.clone(), phase, ..state.dataset(DATASET).unwrap().clone() };
        state.datasets.by_name.insert(name, other);
    };
    hold(&mut fixture.state, PARTS_TOTAL_MAX - 1);
    let moment = Moment { index: 9, now_ms: 0 };
    let refusal = fixture.state.report_listing(moment, &report).unwrap_err();
    expect![[r#"
        parts of all datasets: at most 1000000; name fewer files in
        all datasets together"#]]
    .assert_eq(&wrapped(&refusal.to_string()));
    hold(&mut fixture.state, PARTS_TOTAL_MAX - 2);
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

#[test]
fn chunks_with_sample_maps_are_held_and_bounded() {
    let mut fixture = Fixture::default();
    let session = fixture.join("w");
    let part = |number| Part { chunk: digest(number), files: 1, bytes: 1 };
    let listing = Listing { root: "/data".to_owned(), parts: vec![part(1), part(2)] };
    let (patterns, program) = (vec![], Some(digest(9)));
    let without = AddDataset { program, ..add_dataset() };
    fixture
        .refused(Change::AddDataset(without), expect!["a dataset with a program needs a listing"]);
    let add = AddDataset { patterns, listing: Some(listing), program, ..add_dataset() };
    fixture.done(Change::AddDataset(add.clone()));
    fixture.refused(
        Change::AddDataset(AddDataset { program: None, ..add }),
        expect![[r#"
            dataset `images` exists with other program:
            0909090909090909090909090909090909090909090909090909090909090909;
            use another name"#]],
    );
    let tasks = fixture.take(session, 2);
    assert_eq!(tasks[0].program, program);
    let scanned = |part, maps| {
        let (dataset, fencing, chunk) = (DATASET.to_owned(), tasks[0].fencing, digest(100));
        let maps = vec![digest(101); maps];
        Change::ReportScan(ReportScan { session, dataset, part, fencing, chunk, records: 7, maps })
    };
    fixture.done(scanned(0, 1_000));
    fixture.done(scanned(0, 1_000));
    fixture.refused(
        scanned(1, 27),
        expect![[r#"
            MiB of sample maps of a dataset: at most 1024; start all
            workers with --index, where these maps are then kept, or use
            fewer files at once"#]],
    );
    fixture.done(scanned(1, 26));
    let held: Vec<_> = dataset(&fixture).scan().unwrap().held().collect();
    let of = |chunk| held.iter().filter(|held| **held == digest(chunk)).count();
    assert_eq!((held.len(), of(101), of(100), of(1), of(2)), (1_030, 1_026, 2, 1, 1));
}
