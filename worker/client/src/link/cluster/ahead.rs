//! What is in hand, shown to one who copies it elsewhere before it is asked for.

use shardfeed_pipeline::Batch;

use super::{Cluster, Phase, Way};

impl Cluster {
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
