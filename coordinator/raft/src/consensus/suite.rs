//! openraft's own test suite, on the adapters as production assembles them: real files and threads.
//!
//! Eleven of its tests start a log at entry 1, 2 or 100, which openraft's contract forbids and our
//! log rejects. `Filled` writes the missing entries first, as blanks, and changes nothing else.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader, StorageError};
use tempfile::TempDir;

use super::types::{LogId, RaftEntry, RaftVote, TypeConfig};
use super::{LogAdapter, MachineAdapter, Shared};
use crate::machine::{Machine, MachineError};
use crate::options::NodeOptions;
use crate::storage::committer::{Committer, StopReason};
use crate::storage::directory::{self, Recovered};
use shardfeed_host::{Disk, Host, RealDisk, RealHost};

#[derive(Debug, Default)]
struct Counter(u64);

impl Machine for Counter {
    type Answer = ();

    fn apply(&mut self, _: u64, _: &[u8]) -> Result<(), MachineError> {
        self.0 += 1;
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError> {
        let bytes = snapshot.try_into().map_err(|_| MachineError::new("not 8 bytes"))?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

struct SuiteBuilder;

impl StoreBuilder<TypeConfig, Filled, MachineAdapter, TempDir> for SuiteBuilder {
    async fn build(&self) -> Result<(TempDir, Filled, MachineAdapter), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let options = NodeOptions::default();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()).unwrap());
        let mut machine = Counter::default();
        let host: Arc<dyn Host> = Arc::new(RealHost);
        let Recovered { lock, log, snapshots, restored, .. } =
            directory::recover(host.as_ref(), &disk, &options, &mut machine).unwrap();
        let failure = StopReason::default();
        let shared = Arc::new(Shared::new(machine, restored.as_ref(), failure.clone()));
        let snapshots = Arc::new(snapshots);
        let adapter = MachineAdapter::new(host, shared, snapshots, restored.as_ref()).unwrap();
        let committer = Committer::start(log, lock, failure, true).unwrap();
        Ok((dir, Filled(LogAdapter::new(committer)), adapter))
    }
}

struct Filled(LogAdapter);

impl RaftLogReader<TypeConfig> for Filled {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.0.try_get_log_entries(range).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        self.0.read_vote().await
    }
}

impl RaftLogStorage<TypeConfig> for Filled {
    type LogReader = LogAdapter;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.0.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> LogAdapter {
        self.0.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> io::Result<()> {
        self.0.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.0.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.0.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let last = self.0.get_log_state().await?.last_log_id;
        let mut next = last.map_or(0, |last| last.index + 1);
        let mut filled = Vec::new();
        for entry in entries {
            while next < entry.log_id.index {
                let log_id = LogId::new(entry.log_id.leader_id, next);
                filled.push(RaftEntry { log_id, payload: EntryPayload::Blank });
                next += 1;
            }
            next += 1;
            filled.push(entry);
        }
        self.0.append(filled, callback).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.0.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.0.purge(upto).await
    }
}

macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let (_dir, log, machine) = SuiteBuilder.build().await.unwrap();
            OpenraftSuite::$test(log, machine).await.unwrap();
        })*
    };
}

type OpenraftSuite = Suite<TypeConfig, Filled, MachineAdapter, SuiteBuilder, TempDir>;

suite![
    last_membership_in_log_initial,
    last_membership_in_log,
    last_membership_in_log_multi_step,
    get_membership_initial,
    get_membership_from_log_and_empty_sm,
    get_membership_from_empty_log_and_sm,
    get_membership_from_log_le_sm_last_applied,
    get_membership_from_log_gt_sm_last_applied_1,
    get_membership_from_log_gt_sm_last_applied_2,
    get_initial_state_without_init,
    get_initial_state_membership_from_empty_log_and_sm,
    get_initial_state_membership_from_sm_inlog_is_smaller,
    get_initial_state_membership_from_log_insm_is_smaller,
    get_initial_state_with_state,
    get_initial_state_last_log_gt_sm,
    get_initial_state_last_log_lt_sm,
    get_initial_state_inverted_log_order,
    get_initial_state_conflict_at_same_index,
    get_initial_state_log_ids,
    get_initial_state_re_apply_committed,
    save_vote,
    get_log_entries,
    limited_get_log_entries,
    leader_bounded_stream,
    entries_stream,
    try_get_log_entry,
    log_reader_reads_new_entries,
    initial_logs,
    get_log_state,
    get_log_id,
    last_id_in_log,
    last_applied_state,
    purge_logs_upto_0,
    purge_logs_upto_5,
    purge_logs_upto_20,
    delete_logs_after_11,
    delete_logs_after_5,
    delete_logs_after_0,
    delete_logs_after_none,
    append_to_log,
    snapshot_meta,
    snapshot_meta_optional,
    apply_single,
    apply_multiple,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_snapshot() {
    OpenraftSuite::transfer_snapshot(&SuiteBuilder).await.unwrap();
}
