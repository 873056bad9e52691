//! openraft's log traits, implemented on the committer.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};

use super::convert;
use super::types::{LogId, RaftEntry, RaftVote, TypeConfig};
use crate::storage::committer::Committer;
use crate::storage::log::{LogChange, LogError};
use crate::storage::record::Record;

/// The log as openraft sees it. Its clones read; only openraft's core writes, one call at a time.
#[derive(Debug, Clone)]
pub(crate) struct LogAdapter {
    committer: Committer,
}

impl LogAdapter {
    pub(crate) fn new(committer: Committer) -> Self {
        Self { committer }
    }
}

impl RaftLogReader<TypeConfig> for LogAdapter {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let start = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&index) => index + 1,
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        let records = self.committer.read(start..end).await?;
        check_contiguous(&records)?;
        records.into_iter().map(convert::entry).collect()
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        Ok(self.committer.vote().map(convert::raft_vote))
    }
}

impl RaftLogStorage<TypeConfig> for LogAdapter {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let state = self.committer.state().await?;
        Ok(LogState {
            last_purged_log_id: state.purged.map(convert::log_id),
            last_log_id: state.last.map(convert::log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> io::Result<()> {
        self.committer.write(LogChange::Vote(convert::our_vote(vote))).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(id) = committed {
            self.committer.note_committed(convert::position(&id));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.committer.committed().map(convert::log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries.into_iter().map(convert::record).collect();
        self.committer.append(records, Box::new(move |result| callback.io_completed(result))).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.committer.write(LogChange::TruncateAfter(last.map(|id| id.index))).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.committer.write(LogChange::Purge(convert::position(&upto))).await
    }
}

/// Rejects holes: one that reached a peer or the machine could not be detected later.
fn check_contiguous(records: &[Record]) -> io::Result<()> {
    for pair in records.windows(2) {
        let (expected, found) = (pair[0].position.index + 1, pair[1].position.index);
        if expected != found {
            return Err(LogError::Gap { expected, found }.into());
        }
    }
    Ok(())
}
