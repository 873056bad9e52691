//! Contract of [`LogStore`], checked against every implementation, each time also after reopening.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use uuid::Uuid;

use super::memory::MemoryLog;
use super::{LogChange, LogError, LogState, LogStore};
use crate::storage::framing::{self, FrameKind};
use crate::storage::record::{Members, Payload, Position, Record, Vote};
use crate::storage::redb_log::{RedbLog, SyncMeter};
use crate::storage::witness::Witness;
use shardfeed_host::{Disk, RealDisk, RealHost};

/// Location where a log can be opened repeatedly.
trait LogFixture {
    type Store: LogStore;
    fn open(&self) -> Self::Store;
}

impl LogFixture for MemoryLog {
    type Store = Self;

    fn open(&self) -> Self {
        self.clone()
    }
}

struct RedbFixture {
    disk: RealDisk,
    _dir: tempfile::TempDir,
}

const CLUSTER: Uuid = Uuid::from_bytes([7; 16]);

impl RedbFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        disk.write("witness", &Witness::pristine(CLUSTER)).unwrap();
        let header = framing::seal(FrameKind::Header, CLUSTER, b"");
        RedbLog::create(disk.open("log").unwrap(), CLUSTER, &header).unwrap();
        Self { disk, _dir: dir }
    }
}

impl LogFixture for RedbFixture {
    type Store = RedbLog;

    fn open(&self) -> RedbLog {
        let (file, witness) = (self.disk.open("log").unwrap(), self.disk.open("witness").unwrap());
        RedbLog::open(file, witness).unwrap().0
    }
}

fn at(term: u64, index: u64) -> Position {
    Position { term, node: 1, index }
}

fn record(term: u64, index: u64) -> Record {
    let command: Arc<[u8]> = format!("{term}/{index}").into_bytes().into();
    Record { position: at(term, index), payload: Payload::Command(command) }
}

fn records(term: u64, indexes: std::ops::Range<u64>) -> Vec<Record> {
    indexes.map(|index| record(term, index)).collect()
}

/// Writes each batch to a new log, and checks its content before and after reopening.
fn check(fixture: &impl LogFixture, batches: &[&[LogChange]], state: LogState, held: &[Record]) {
    let mut store = fixture.open();
    for batch in batches {
        store.write(batch).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(store.state(), state);
        assert_eq!(store.read(0..u64::MAX).unwrap(), held);
        let first = state.first_index();
        assert_eq!(
            store.read(first + 1..first + 3).unwrap(),
            held.iter().skip(1).take(2).cloned().collect::<Vec<_>>()
        );
        assert_eq!(store.read(7..7).unwrap(), []);
        drop(store);
        store = fixture.open();
    }
}

fn an_empty_log_holds_nothing(fixture: &impl LogFixture) {
    check(fixture, &[], LogState::default(), &[]);
}

fn entries_of_every_sort_come_back(fixture: &impl LogFixture) {
    let mut entries = records(1, 0..4);
    entries[0].payload = Payload::Members(Members::default());
    entries[1].payload = Payload::Blank;
    let batches: [&[LogChange]; 2] =
        [&[LogChange::Append(entries[..1].to_vec())], &[LogChange::Append(entries[1..].to_vec())]];
    check(fixture, &batches, LogState { last: Some(at(1, 3)), ..LogState::default() }, &entries);
}

fn a_batch_mixes_changes_in_order(fixture: &impl LogFixture) {
    let vote = |term, committed| LogChange::Vote(Vote { term, node: 1, committed });
    let batch = [
        vote(1, false),
        LogChange::Append(records(1, 0..5)),
        LogChange::TruncateAfter(Some(2)),
        vote(2, true),
        LogChange::Append(records(2, 3..4)),
        LogChange::Committed(at(2, 3)),
    ];
    let state = LogState {
        last: Some(at(2, 3)),
        vote: Some(Vote { term: 2, node: 1, committed: true }),
        committed: Some(at(2, 3)),
        purged: None,
    };
    check(fixture, &[&batch], state, &[records(1, 0..3), records(2, 3..4)].concat());
}

fn truncation_goes_back_to_the_purged_entry(fixture: &impl LogFixture) {
    let batches: [&[LogChange]; 3] = [
        &[LogChange::Append(records(1, 0..6))],
        &[LogChange::Purge(at(1, 2))],
        &[LogChange::TruncateAfter(Some(2))],
    ];
    let state = LogState { purged: Some(at(1, 2)), last: Some(at(1, 2)), ..LogState::default() };
    check(fixture, &batches, state, &[]);
}

fn all_entries_can_be_truncated(fixture: &impl LogFixture) {
    let batches: [&[LogChange]; 3] = [
        &[LogChange::Append(records(1, 0..6))],
        &[LogChange::TruncateAfter(Some(9))],
        &[LogChange::TruncateAfter(None), LogChange::Append(records(3, 0..2))],
    ];
    let state = LogState { last: Some(at(3, 1)), ..LogState::default() };
    check(fixture, &batches, state, &records(3, 0..2));
}

fn purging_keeps_the_rest_and_never_goes_back(fixture: &impl LogFixture) {
    let batches: [&[LogChange]; 3] = [
        &[LogChange::Append(records(1, 0..10))],
        &[LogChange::Purge(at(1, 5))],
        &[LogChange::Purge(at(1, 3))],
    ];
    let state = LogState { purged: Some(at(1, 5)), last: Some(at(1, 9)), ..LogState::default() };
    check(fixture, &batches, state, &records(1, 6..10));
}

fn a_snapshot_from_elsewhere_takes_the_logs_place(fixture: &impl LogFixture) {
    let batches: [&[LogChange]; 3] = [
        &[LogChange::Append(records(1, 0..3))],
        &[LogChange::Purge(at(4, 99))],
        &[LogChange::Append(records(4, 100..102))],
    ];
    let state = LogState { purged: Some(at(4, 99)), last: Some(at(4, 101)), ..LogState::default() };
    check(fixture, &batches, state, &records(4, 100..102));
}

fn a_hole_is_refused_and_changes_nothing(fixture: &impl LogFixture) {
    let mut store = fixture.open();
    store.write(&[LogChange::Append(records(1, 0..3))]).unwrap();
    let before = store.state();
    for first in [2, 4, 0] {
        let vote = LogChange::Vote(Vote { term: 9, node: 9, committed: false });
        let error =
            store.write(&[vote, LogChange::Append(records(1, first..first + 2))]).unwrap_err();
        assert!(matches!(error, LogError::Gap { expected: 3, found } if found == first), "{error}");
    }
    assert_eq!(store.state(), before);
    drop(store);
    check(fixture, &[], before, &records(1, 0..3));
}

macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod in_memory {
            $(#[test] fn $test() { super::$test(&super::MemoryLog::default()); })*
        }
        mod in_redb {
            $(#[test] fn $test() { super::$test(&super::RedbFixture::new()); })*
        }
    };
}

suite![
    an_empty_log_holds_nothing,
    entries_of_every_sort_come_back,
    a_batch_mixes_changes_in_order,
    truncation_goes_back_to_the_purged_entry,
    all_entries_can_be_truncated,
    purging_keeps_the_rest_and_never_goes_back,
    a_snapshot_from_elsewhere_takes_the_logs_place,
    a_hole_is_refused_and_changes_nothing,
];

#[test]
fn syncs_of_the_log_are_timed_and_its_file_is_measured() {
    #[derive(Debug, Default)]
    struct Syncs(AtomicUsize);

    impl SyncMeter for Syncs {
        fn synced(&self, _: Duration) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let (fixture, syncs) = (RedbFixture::new(), Arc::new(Syncs::default()));
    let mut log = fixture.open();
    log.meter().measure(Arc::new(RealHost), syncs.clone());
    log.write(&[LogChange::Append(records(1, 0..3))]).unwrap();
    assert!(syncs.0.load(Ordering::Relaxed) > 0);
    assert_eq!(log.meter().bytes(), fixture.disk.open("log").unwrap().len().unwrap());
}
