//! Slots in flight: written here, viewed by the trainer, and returned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use shardfeed_handoff::{RegionId, SharedSlot, SlotPool};
use shardfeed_pipeline::Batch;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_reader::Delivered;
use shardfeed_socket::SocketError;
use shardfeed_source::Lock;

/// Maximum number of skipped records in one message: a frame holds many times as many.
const SKIPPED_PER_MESSAGE: usize = 1000;

/// Callback that sends a message to the trainer, with or without a descriptor.
pub(crate) type SendTo<'a> =
    &'a mut dyn FnMut(Message, Option<BorrowedFd<'_>>) -> Result<(), SocketError>;

#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) pool: SlotPool,
    state: Arc<Lock<FlightState>>,
    named: Named,
}

/// Names of the samples of a batch's rows, beside their records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named {
    pub(crate) samples: bool,
    /// Source epochs of a mixture.
    pub(crate) epochs: bool,
}

#[derive(Debug, Default)]
struct FlightState {
    /// Slots that the trainer has not returned.
    out: BTreeMap<RegionId, SharedSlot>,
    /// Regions that the trainer knows.
    told: BTreeSet<RegionId>,
    /// Bytes of the batches of the current start that the trainer has not taken, oldest first.
    ahead: VecDeque<usize>,
}

/// The connection is over, but its trainer may view its slots indefinitely: none of them is written
/// again, not even for a batch that is still being assembled.
impl Drop for FlightState {
    fn drop(&mut self) {
        std::mem::take(&mut self.out).into_values().for_each(SharedSlot::retire);
    }
}

impl Flight {
    pub(crate) fn new(keep: usize, named: Named) -> Self {
        Self { pool: SlotPool::sealed(keep), state: Arc::default(), named }
    }

    /// Begins a new start, which has none of the previous start's batches ahead.
    pub(crate) fn restart(&self) {
        self.state.lock().ahead.clear();
    }

    /// Sends a batch; its slot belongs to the trainer from here on. If there are too many skipped
    /// records for one frame, the excess is sent before the batch.
    pub(crate) fn send(
        &self,
        send: SendTo<'_>,
        start: u64,
        delivered: Delivered,
    ) -> Result<(), SocketError> {
        self.tell_retired(send)?;
        let Delivered { epoch, step, skipped, batch, samples } = delivered;
        let Batch { rows, columns, valid, shards, ordinals, mut slot } = batch;
        let handle = slot.region().expect("a worker's slots are sealed");
        let region = handle.id;
        if !self.state.lock().told.contains(&region) {
            let bytes = handle.size_bytes as u64;
            let message = wire::Region { region: region.0, bytes };
            send(Message::Region(message), handle.fd)?;
            self.state.lock().told.insert(region);
            slot.close_descriptor();
        }
        let mut skipped: Vec<_> = skipped.into_iter().map(wire::Skipped::from).collect();
        while skipped.len() > SKIPPED_PER_MESSAGE {
            let rest = skipped.split_off(SKIPPED_PER_MESSAGE);
            let part = wire::SkippedPart { start, skipped: std::mem::replace(&mut skipped, rest) };
            send(Message::SkippedPart(part), None)?;
        }
        let columns = columns.iter().map(|column| wire::Column {
            values: Some(range(&column.values)),
            offsets: column.offsets.as_ref().map(range),
            splits: column.splits.iter().map(range).collect(),
        });
        let message = wire::Batch {
            start,
            epoch,
            step,
            rows: rows as u64,
            region: region.0,
            columns: columns.collect(),
            valid: Some(range(&valid)),
            shards: Some(range(&shards)),
            ordinals: Some(range(&ordinals)),
            skipped,
            samples: match self.named.samples {
                true => samples.iter().map(|planned| planned.sample.ordinal).collect(),
                false => vec![],
            },
            source_epochs: match self.named.epochs {
                true => samples.iter().map(|planned| planned.portion.epoch).collect(),
                false => vec![],
            },
        };
        let mut state = self.state.lock();
        state.ahead.push_back(slot.size_bytes());
        state.out.insert(region, slot);
        drop(state);
        send(Message::Batch(message), None)
    }

    fn tell_retired(&self, send: SendTo<'_>) -> Result<(), SocketError> {
        let retired = self.pool.take_retired();
        if retired.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let regions: Vec<_> =
            retired.into_iter().filter(|id| state.told.remove(id)).map(|id| id.0).collect();
        drop(state);
        if regions.is_empty() {
            return Ok(());
        }
        send(Message::Forget(wire::Forget { regions }), None)
    }

    /// Returns the number of batches that were sent and not taken.
    #[cfg(test)]
    pub(crate) fn ahead(&self) -> usize {
        self.state.lock().ahead.len()
    }

    /// Records that the trainer took batches; returns their number and bytes.
    pub(crate) fn taken(&self, batches: usize) -> (usize, usize) {
        let mut state = self.state.lock();
        let count = batches.min(state.ahead.len());
        (count, state.ahead.drain(..count).sum())
    }

    /// Frees slots that the trainer returned.
    pub(crate) fn free(&self, regions: &[u64]) {
        let freed: Vec<_> = {
            let mut state = self.state.lock();
            regions.iter().filter_map(|&id| state.out.remove(&RegionId(id))).collect()
        };
        drop(freed);
    }
}

fn range(range: &shardfeed_handoff::BufferRange) -> wire::Range {
    wire::Range { start: range.start as u64, len: range.len as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trainer_has_is_never_written_again() {
        let flight = Flight::new(4, Named::default());
        let pool = flight.pool.clone();
        let slot = pool.take(4096).unwrap().share();
        let id = slot.region().unwrap().id;
        flight.state.lock().out.insert(id, slot);
        // The slot of a returned batch is reused.
        let other = pool.take(4096).unwrap().share();
        let back = other.region().unwrap().id;
        flight.state.lock().out.insert(back, other);
        flight.free(&[back.0]);
        drop(flight);
        let later: Vec<_> = (0..4).map(|_| pool.take(4096).unwrap().share()).collect();
        let ids: Vec<_> = later.iter().map(|slot| slot.region().unwrap().id).collect();
        assert!(ids.contains(&back) && !ids.contains(&id), "{ids:?}");
    }
}
