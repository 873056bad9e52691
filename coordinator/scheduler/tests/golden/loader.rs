//! The knowledge of a rank's loader and of its worker, as far as the protocol needs it.

use shardfeed_plan::dynamic::RankList;
use shardfeed_scheduler::{Claim, ClaimResult, LeaseRef, StartRank};

/// A loader, and its worker's copy of the rank's list.
pub(super) struct Loader {
    /// Its last start.
    pub(super) start: StartRank,
    pub(super) lease: LeaseRef,
    /// First step that its trainer has not consumed.
    pub(super) epoch: u64,
    pub(super) step: u64,
    pub(super) copy: ListCopy,
    /// Its last claim that gave back samples.
    pub(super) last_release: Option<Claim>,
}

/// A worker's copy of a rank's list in one epoch of a dynamic job.
pub(super) struct ListCopy {
    pub(super) list: RankList,
    pub(super) started: u64,
    pub(super) horizon: u64,
    pub(super) version: u64,
    pub(super) revoke_from: Option<u64>,
}

impl Default for ListCopy {
    fn default() -> Self {
        let list = RankList::new(1, 0);
        Self { list, started: 0, horizon: 0, version: 0, revoke_from: None }
    }
}

impl Loader {
    /// Moves to a position. Another epoch has another list.
    pub(super) fn go_to(&mut self, epoch: u64, step: u64) {
        if epoch != self.epoch {
            self.copy = ListCopy::default();
        }
        (self.epoch, self.step) = (epoch, step);
    }

    /// Applies the answer to a claim, as a worker does.
    pub(super) fn learn(&mut self, taken: &ClaimResult) {
        let copy = &mut self.copy;
        let is_new = copy.list.pieces().is_empty();
        if is_new {
            copy.list = RankList::new(taken.batch_size, taken.first_step);
        }
        if let Some(truncated) = taken.truncated {
            copy.list.truncate_to(truncated);
        }
        taken.pieces.iter().for_each(|piece| copy.list.append(*piece));
        taken.closed.iter().for_each(|end| copy.list.close_at(*end));
        (copy.horizon, copy.version) = (taken.horizon, taken.version);
        copy.revoke_from = taken.revoke_from;
        if is_new {
            // Samples before the trainer's position were delivered by an earlier worker.
            let position = copy.list.position_of_step(self.step);
            copy.started = position.unwrap_or_else(|| copy.list.samples());
        }
    }
}
