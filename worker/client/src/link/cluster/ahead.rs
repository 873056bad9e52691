//! What is in hand: shown to one who copies it elsewhere before it is asked for, and confirmed before it is consumed.

use shardfeed_agent::LoadError;
use shardfeed_pipeline::Batch;

use super::{Cluster, Origin, Phase, Way};
use crate::link::InHand;

impl Cluster {
    pub(super) fn origin(&self, start: u64) -> Origin {
        Origin { connection: self.connection, start }
    }

    /// Whether the batch that was offered last may be consumed.
    pub(crate) fn confirm(&mut self) -> Result<InHand, LoadError> {
        // Nothing is asked for while a batch is offered, so this is no answer.
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
