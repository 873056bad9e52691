//! Received batches: shown for copying in advance, and confirmed before they are consumed.

use shardfeed_pipeline::Batch;
use shardfeed_source::LoadError;

use super::{Cluster, Origin, Phase, Way};
use crate::link::exchange::InHand;

impl Cluster {
    pub(super) fn origin(&self, start: u64) -> Origin {
        Origin { connection: self.connection, start }
    }

    /// Checks whether the batch that was offered last may be consumed.
    pub(crate) fn confirm(&mut self) -> Result<InHand, LoadError> {
        // No request is open while a batch is offered, so this event is no answer.
        if self.drain()?.is_some() {
            self.stop();
        }
        match &self.way {
            Way::Here(here) if self.offered.is_none() => return here.here.confirm(),
            Way::Here(here) => here.here.check()?,
            Way::Worker(..) | Way::Connecting(_) | Way::Opening(_) => {}
        }
        let is_good = self.may_hand_out();
        Ok(match self.offered {
            None => InHand::Gone,
            Some(_) if is_good => InHand::Good,
            Some(_) => InHand::Unconfirmed,
        })
    }

    /// Shows the received batches of the next `count`.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if matches!(self.way, Way::Worker(_, Phase::Running))
            && self.failure.is_none()
            && let Err(error) = self.drain()
        {
            // Returned to the caller that asks for a batch after the received ones.
            self.failure = Some(error);
        }
        let in_hand = self.queue.len();
        self.queue.iter_mut().take(count).filter_map(|q| q.batch.as_mut()).for_each(&mut *see);
        if let Way::Here(here) = &mut self.way {
            here.here.peek(count.saturating_sub(in_hand), see);
        }
    }
}
