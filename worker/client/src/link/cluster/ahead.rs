//! What is in hand, shown to one who copies it elsewhere before it is asked for, and what that one is not done with.

use shardfeed_agent::Delivered;
use shardfeed_pipeline::Batch;

use super::{Cluster, Origin, Phase, Queued, Way};

impl Cluster {
    pub(super) fn origin(&self, start: u64) -> Origin {
        Origin { connection: self.connection, start, is_copied: false }
    }

    /// The batch that was handed out last is the first one in hand again, and counts as long as the others there.
    pub(crate) fn put_back(&mut self, delivered: Delivered) {
        match (self.last_origin, &mut self.way) {
            (Some(origin), _) => {
                let Delivered { epoch, step, skipped, batch, .. } = delivered;
                self.queue.push_front(Queued { origin, epoch, step, batch: Some(batch), skipped });
            }
            (None, Way::Here(here)) => here.here.put_back(Box::new(delivered)),
            // Read again: nothing was consumed.
            (None, _) => self.stop(),
        }
    }

    /// Shows what is in hand of the next `count` batches.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if matches!(self.way, Way::Worker(_, Phase::Running))
            && self.failure.is_none()
            && let Err(error) = self.drain()
        {
            // For whoever asks for the batch after what is in hand.
            self.failure = Some(error);
        }
        let in_hand = self.queue.len();
        self.queue.iter_mut().take(count).filter_map(|q| q.batch.as_mut()).for_each(&mut *see);
        if let Way::Here(here) = &mut self.way {
            here.here.peek(count.saturating_sub(in_hand), see);
        }
    }
}
