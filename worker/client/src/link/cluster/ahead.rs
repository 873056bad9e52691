//! Received batches: shown for copying in advance, and confirmed before they are consumed.

use shardfeed_pipeline::Batch;
use shardfeed_reader::LeaseTime;
use shardfeed_source::LoadError;

use super::machine::{Input, State};
use super::{Backend, Cluster};
use crate::link::exchange::InHand;

impl Cluster {
    /// Checks whether the batch that was offered last may be consumed.
    pub(crate) fn confirm(&mut self) -> Result<InHand, LoadError> {
        // No request is open while a batch is offered, so this event is no answer.
        if self.drain()?.is_some() {
            self.stop();
        }
        if let Backend::InProcess(in_process, _) = &self.backend {
            if !self.machine.is_offered() {
                return in_process.link.confirm();
            }
            in_process.link.check()?;
        }
        let is_good = self.may_return();
        Ok(match self.machine.is_offered() {
            false => InHand::Gone,
            true if is_good => InHand::Good,
            true => InHand::Unconfirmed,
        })
    }

    /// True if received batches may be returned.
    pub(super) fn may_return(&mut self) -> bool {
        self.inform(Input::Check(LeaseTime::now()));
        // A ping may have taken time.
        self.machine.may_return(LeaseTime::now())
    }

    /// Shows the received batches of the next `count`.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if self.machine.state() == State::Running
            && !self.machine.has_failure()
            && let Err(error) = self.drain()
        {
            // Returned to the caller that asks for a batch after the received ones.
            self.machine.fail_later(error);
        }
        let in_hand = self.machine.in_hand();
        self.machine.batches_mut(count).for_each(|received| see(&mut received.batch));
        if let Backend::InProcess(in_process, _) = &mut self.backend {
            in_process.link.peek(count.saturating_sub(in_hand), see);
        }
    }
}
