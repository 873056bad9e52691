//! A rank that is read under its lease: the steps that are the same for a worker, which sends the
//! batches to the trainer, and for a trainer that reads in its own process.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_plan::JobIdentity;
use shardfeed_proto::ErrorKind;
use shardfeed_source::LoadError;

use super::{Consumer, Prefetch};
use crate::assignment::{Assignment, PrefetchOptions};
use crate::control::{Control, Lease};
use crate::meter::Demand;
use crate::plans::Plans;
use crate::sequence::Delivery;

/// Interval at which a rank whose batches are withheld is checked again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Reason why nothing is delivered of a dynamic job while its coordinator is silent.
const UNCONFIRMED: &str =
    "the coordinator has not confirmed the lease of this dynamic job for most of its life";

/// Lease of a rank, and the control that granted it.
#[derive(Clone)]
pub struct RankLease {
    pub control: Arc<dyn Control>,
    pub lease: Lease,
}

impl RankLease {
    /// Starts to read ahead for the rank.
    ///
    /// # Errors  The system has no threads.
    pub fn read(
        &self,
        plans: Arc<Plans>,
        identity: &JobIdentity,
        world_size: u64,
        options: PrefetchOptions,
    ) -> Result<RankReader, LoadError> {
        let (rank, identity) = (self.clone(), identity.clone());
        let assignment = Assignment { rank, plans, identity, world_size };
        Ok(RankReader::new(self.clone(), Prefetch::start(assignment, options)?))
    }

    /// Checks that the lease is not known to be invalid.
    ///
    /// # Errors  The lease is known to be invalid.
    pub fn check(&self) -> Result<(), LoadError> {
        Ok(self.control.check(&self.lease)?)
    }

    /// Returns the time for which batches may still be delivered; `None`: unlimited.
    pub fn good_for(&self) -> Option<Duration> {
        self.control.good_for(&self.lease)
    }

    /// Returns why ready batches may not be delivered now: granted samples that are not confirmed may
    /// be another rank's, or the job is paused.
    pub fn withheld(&self) -> Option<String> {
        match self.good_for() {
            Some(Duration::ZERO) => Some(UNCONFIRMED.to_owned()),
            _ => self.control.paused(&self.lease),
        }
    }

    /// Records that the rank consumed everything before (epoch, step).
    /// - `demand`: of a consumed batch, if the position changed by one.
    pub fn took(&self, consumer: &Consumer, (epoch, step): (u64, u64), demand: Option<&Demand>) {
        if let Some(demand) = demand {
            consumer.account(demand);
        }
        // The next check returns an error of control.
        let _ = self.control.report(&self.lease, epoch, step);
    }

    /// Records the error with which the rank ends.
    pub fn fail(&self, failure: &str) {
        self.control.report_failure(&self.lease, failure);
    }
}

/// Guard that releases a lease when dropped.
pub struct LeaseGuard {
    rank: RankLease,
    /// The trainer has reported its final position, or received nothing.
    pub is_told: bool,
    /// The lease stays until the session ends.
    pub is_kept: bool,
}

impl LeaseGuard {
    pub fn new(control: Arc<dyn Control>, lease: Lease) -> Self {
        Self { rank: RankLease { control, lease }, is_told: true, is_kept: false }
    }
}

impl Deref for LeaseGuard {
    type Target = RankLease;

    fn deref(&self) -> &RankLease {
        &self.rank
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if !self.is_kept {
            self.control.release(&self.lease, self.is_told);
        }
    }
}

/// Reader of a rank's batches, in sequence, as far as its lease allows.
pub struct RankReader {
    pub rank: RankLease,
    pub prefetch: Prefetch,
    is_dynamic: bool,
    /// Reason why batches are withheld, and whether it was taken.
    withheld: Option<(String, bool)>,
}

impl RankReader {
    pub fn new(rank: RankLease, prefetch: Prefetch) -> Self {
        let is_dynamic = rank.good_for().is_some();
        Self { rank, prefetch, is_dynamic, withheld: None }
    }

    /// Waits at most `timeout` for the next batch; it counts as ahead until [`Consumer::take`].
    ///
    /// # Errors  The error that ended the lease or stopped reading; no batch follows it.
    pub fn next(&mut self, timeout: Duration) -> Result<Delivery, LoadError> {
        self.rank.check()?;
        if self.is_withheld() {
            std::thread::sleep(timeout.min(LOOK_EVERY));
            return Ok(Delivery::Pending);
        }
        let good = self.rank.good_for().unwrap_or(timeout);
        let delivery = self.prefetch.show(timeout.min(good))?;
        if let Delivery::Batch(delivered) = &delivery {
            let Lease { job, mixture, .. } = &self.rank.lease;
            self.rank.control.report_skipped(job, *mixture, &delivered.skipped);
        }
        Ok(delivery)
    }

    /// Records whether batches are withheld, and why. The session logs pauses.
    fn is_withheld(&mut self) -> bool {
        let reason = self.rank.withheld();
        let is_unconfirmed = reason.as_deref() == Some(UNCONFIRMED);
        self.prefetch.confirmed(!is_unconfirmed);
        if reason.as_ref() != self.withheld.as_ref().map(|(reason, _)| reason) {
            if is_unconfirmed {
                let Lease { job, rank, .. } = &self.rank.lease;
                tracing::warn!(%job, rank, "{UNCONFIRMED}; waiting");
            }
            self.withheld = reason.map(|reason| (reason, false));
        }
        self.withheld.is_some()
    }

    /// Returns the reason why batches are withheld, once.
    pub fn take_reason(&mut self) -> Option<&str> {
        let (reason, is_taken) = self.withheld.as_mut()?;
        (!std::mem::replace(is_taken, true)).then_some(reason)
    }

    /// Reports the batches ahead and the time breakdown.
    /// - `reading`: shards of the batches in flight.
    pub fn report(&self, reading: &[u32]) {
        let (RankLease { control, lease }, stats) = (&self.rank, self.prefetch.stats());
        // Shown batches are ahead of the trainer until it takes them.
        control.report_ahead(lease, (stats.ready + stats.shown) as u64, reading);
        control.report_account(lease, &stats.account);
    }

    /// Records the error that ended reading, if the job fails by it; returns true if the lease of a
    /// dynamic job lapsed, and the rank continues after its consumed samples.
    pub fn lapses(&self, error: &LoadError) -> bool {
        if error.fails_job() {
            self.rank.fail(&error.to_string());
        }
        self.is_dynamic
            && matches!(error, LoadError::Wire(error) if error.kind == ErrorKind::Fenced)
    }
}

#[cfg(test)]
mod tests;
