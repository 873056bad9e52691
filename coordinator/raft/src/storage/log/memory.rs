//! In-memory log for tests: the simplest implementation of the contract.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::{LogChange, LogError, LogState, LogStore};
use crate::storage::record::Record;

/// Clones share the log, as two openings of a file would.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryLog {
    inner: Arc<Mutex<MemoryInner>>,
}

#[derive(Debug, Clone, Default)]
struct MemoryInner {
    records: Vec<Record>,
    state: LogState,
    writes: usize,
    /// Number of further writes that succeed.
    fails_after: Option<usize>,
}

impl MemoryLog {
    pub(crate) fn fail_after(&self, writes: usize) {
        self.inner.lock().unwrap().fails_after = Some(writes);
    }

    pub(crate) fn writes(&self) -> usize {
        self.inner.lock().unwrap().writes
    }
}

impl LogStore for MemoryLog {
    fn state(&self) -> LogState {
        self.inner.lock().unwrap().state
    }

    fn write(&mut self, changes: &[LogChange]) -> Result<(), LogError> {
        let mut inner = self.inner.lock().unwrap();
        match &mut inner.fails_after {
            Some(0) => return Err(LogError::Io(std::io::Error::from_raw_os_error(28))),
            Some(left) => *left -= 1,
            None => {}
        }
        let mut next = inner.clone();
        changes.iter().try_for_each(|change| apply(&mut next, change))?;
        next.writes += 1;
        *inner = next;
        Ok(())
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<Record>, LogError> {
        let inner = self.inner.lock().unwrap();
        let wanted = inner.records.iter().filter(|record| range.contains(&record.position.index));
        Ok(wanted.cloned().collect())
    }
}

fn apply(inner: &mut MemoryInner, change: &LogChange) -> Result<(), LogError> {
    match change {
        LogChange::Append(records) => {
            for record in records {
                let (expected, found) = (inner.state.next_index(), record.position.index);
                if expected != found {
                    return Err(LogError::Gap { expected, found });
                }
                inner.records.push(record.clone());
                inner.state.last = Some(record.position);
            }
        }
        LogChange::TruncateAfter(kept) => {
            inner.records.retain(|record| Some(record.position.index) <= *kept);
            let last = inner.records.last().map(|record| record.position);
            inner.state.last = last.or(inner.state.purged);
        }
        LogChange::Purge(upto) => {
            inner.records.retain(|record| record.position.index > upto.index);
            inner.state.purged = inner.state.purged.max(Some(*upto));
            inner.state.last = inner.state.last.max(inner.state.purged);
        }
        LogChange::Vote(vote) => inner.state.vote = Some(*vote),
        LogChange::Committed(position) => inner.state.committed = Some(*position),
    }
    Ok(())
}
