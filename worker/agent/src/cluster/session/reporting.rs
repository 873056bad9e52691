//! Starts and ends of ranks that are under way, and leases that no trainer has.

use std::sync::Arc;

use shardfeed_proto::coordinator::v1 as wire;

use super::SharedSession;
use crate::cluster::runtime::runtime;
use crate::cluster::served::Served;

/// While it exists, a start or an end of this rank is being reported to the coordinator.
pub(crate) struct Reporting {
    shared: Arc<SharedSession>,
    rank: (String, u64),
}

impl Drop for Reporting {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(reports) = state.reporting.get_mut(&self.rank) {
            *reports -= 1;
            if *reports == 0 {
                state.reporting.remove(&self.rank);
            }
        }
    }
}

impl SharedSession {
    /// Notes that a start or an end of a rank is being reported.
    pub(crate) fn reporting(self: &Arc<Self>, job: &str, rank: u64) -> Reporting {
        let rank = (job.to_owned(), rank);
        *self.state.lock().reporting.entry(rank.clone()).or_default() += 1;
        Reporting { shared: Arc::clone(self), rank }
    }

    /// Ends leases that the coordinator granted and no trainer here has: a trainer was gone before
    /// its start was answered. Otherwise the rank would keep its samples while this worker lives.
    pub(super) fn end_unknown(self: &Arc<Self>, unlisted: Vec<wire::Lease>) {
        for lease in unlisted {
            let is_known = {
                let state = self.state.lock();
                let served = |known: &Arc<Served>| {
                    (&known.request.job, known.request.rank) == (&lease.job, lease.rank)
                };
                state.reporting.contains_key(&(lease.job.clone(), lease.rank))
                    || state.ranks.iter().any(served)
            };
            if is_known {
                continue;
            }
            tracing::info!(
                job = lease.job,
                rank = lease.rank,
                "ending a lease that no trainer has"
            );
            let (shared, reporting) = (Arc::clone(self), self.reporting(&lease.job, lease.rank));
            runtime().spawn(async move {
                let _reporting = reporting;
                let lease = Some(lease);
                let request = wire::EndRankRequest { lease, ..Default::default() };
                // The response to a later heartbeat lists the lease again.
                if let Err(error) = shared.coordinator.once(&request).await {
                    tracing::debug!(%error, "a lease that no trainer has was not ended");
                }
            });
        }
    }
}
