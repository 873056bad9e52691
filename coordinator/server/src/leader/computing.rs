//! Computations over plans, on threads of their own: manifests, groups and plans of epochs.

use std::sync::Arc;
use std::time::Duration;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{Digest, EpochPlan, JobIdentity, JobMixture, Manifest, Mode};
use shardfeed_scheduler::Job;
use tokio::sync::watch;

use crate::error::{self, Result, not_found};
use crate::leader::core::{Core, blocking};
use crate::leader::mixtures::{MixtureOrder, StageSources};
use crate::leader::plans::{EpochOf, GROUPS_MAX, Order};
use crate::storage::copies;
use crate::ticks::Ticks;

/// Interval between checks for missing groups that will be granted soon.
const READY_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn groups(core: &Arc<Core>, order: Order, epoch: u64) -> Result<Arc<Groups>> {
    if let Some(known) = core.plans.known_groups(&order.identity.shuffle, epoch) {
        return Ok(known);
    }
    let chunks = order.chunks.clone();
    computing(core, &chunks, move |core| order.groups(core, epoch)).await
}

/// Keeps the groups that are granted now and next in memory, on every node, so that a new leader
/// grants at once. Runs until `stop` is set.
pub(crate) async fn keep_groups_ready(core: Arc<Core>, stop: watch::Receiver<bool>) {
    let mut ticks = Ticks::new(READY_EVERY, stop);
    while ticks.next().await {
        let granting: Vec<(String, u64)> = core.read(|state| {
            let last = |job: &Job| {
                let current = job.current().filter(|current| current.leases().next().is_some())?;
                Some((current.started_ms, job.name.clone(), *current.pools.last_key_value()?.0))
            };
            let mut granting: Vec<_> = state.jobs().filter_map(last).collect();
            granting.sort_unstable_by(|left, right| right.cmp(left));
            granting.truncate(GROUPS_MAX / 2);
            granting.into_iter().map(|(_, job, last)| (job, last)).collect()
        });
        for (job, last) in granting {
            let Ok(Some(order)) = core.read(|state| Order::of(state, &job)) else { continue };
            for epoch in [last, last.saturating_add(1)] {
                if core.plans.known_groups(&order.identity.shuffle, epoch).is_none()
                    && let Err(error) = groups(&core, order.clone(), epoch).await
                {
                    tracing::debug!(job, epoch, %error, "groups are not ready for a claim yet");
                }
            }
        }
    }
}

impl Order {
    /// Returns the manifest. Blocks on the disk.
    pub(crate) fn manifest(&self, core: &Core) -> Result<Arc<Manifest>> {
        core.manifests.get(&core.chunks, self.content, &self.chunks)
    }

    /// Returns the sources of an epoch of a mixture; `None`: no mixture. Blocks on the disk.
    pub(crate) fn stage(&self, core: &Core, of: &EpochOf) -> Result<Option<Arc<StageSources>>> {
        let stage = |digest| self.mixture(digest)?.stage(core, of.epoch);
        of.mixture.map(stage).transpose()
    }

    /// Returns the shards of an epoch. Blocks on the disk.
    pub(crate) fn shards(&self, core: &Core, of: &EpochOf) -> Result<Arc<Manifest>> {
        match self.stage(core, of)? {
            Some(stage) => Ok(Arc::clone(&stage.manifest)),
            None => self.manifest(core),
        }
    }

    pub(crate) fn has_mixture(&self) -> bool {
        !self.mixtures.is_empty()
    }

    /// Returns the mixture of an epoch; `None`: the job reads one dataset.
    pub(crate) fn mixture_of(&self, of: &EpochOf) -> Result<Option<&JobMixture>> {
        of.mixture.map(|digest| Ok(self.mixture(digest)?.mixture())).transpose()
    }

    fn mixture(&self, digest: Digest) -> Result<&MixtureOrder> {
        let found = self.mixtures.iter().find(|mixture| mixture.digest() == digest);
        found.ok_or_else(|| not_found("the mixture of that generation is no longer kept"))
    }

    /// False if the mixture of an epoch's generation is no longer kept.
    pub(crate) fn keeps(&self, of: &EpochOf) -> bool {
        of.mixture.is_none_or(|mixture| self.mixture(mixture).is_ok())
    }

    /// True if an epoch's generation numbers the shards of its sources as the current generation,
    /// whose numbers the known corrupt records have.
    pub(crate) fn numbers_as_current(&self, of: &EpochOf, current: Option<Digest>) -> bool {
        let (Some(of), Some(current)) = (of.mixture, current) else {
            return of.mixture == current;
        };
        match (self.mixture(of), self.mixture(current)) {
            (Ok(of), Ok(current)) => of.numbers_as(current),
            _ => false,
        }
    }

    /// Returns the groups of an epoch of a dynamic job. Slow to compute; blocks on the disk.
    pub(crate) fn groups(&self, core: &Core, epoch: u64) -> Result<Arc<Groups>> {
        let shuffle = &self.identity.shuffle;
        // Another call may have computed them while this one waited for its turn.
        if let Some(known) = core.plans.known_groups(shuffle, epoch) {
            return Ok(known);
        }
        let manifest = self.manifest(core)?;
        let line = core.plans.line(&manifest, &self.identity, Mode::Dynamic, epoch)?;
        let groups = Groups::new(line, shuffle.clone(), epoch)?;
        Ok(core.plans.groups.keep((shuffle.clone(), epoch), groups))
    }

    /// Returns the plan of an epoch. Slow to compute; blocks on the disk.
    pub(crate) fn plan(&self, core: &Core, of: &EpochOf) -> Result<EpochPlan> {
        let JobIdentity { shuffle, tail, .. } = &self.identity;
        let EpochOf { epoch, segments, world_size, limit, mixture, .. } = of;
        if let Some(digest) = mixture {
            return self.mixture(*digest)?.plan(core, &self.identity, of);
        }
        let manifest = self.manifest(core)?;
        let line = core.plans.line(&manifest, &self.identity, Mode::Deterministic, *epoch)?;
        let rules = (*tail, *limit);
        Ok(EpochPlan::new(line, shuffle.clone(), *epoch, rules, segments, *world_size)?)
    }
}

/// Runs a computation over plans on its own thread, when it is its turn.
/// - `chunks`: of the manifest that it needs; missing ones are fetched first.
pub(crate) async fn computing<T: Send + 'static>(
    core: &Arc<Core>,
    chunks: &[Digest],
    work: impl FnOnce(&Core) -> Result<T> + Send + 'static,
) -> Result<T> {
    copies::bring(core, chunks).await?;
    let _turn = core.plans.turn.acquire().await.map_err(|_| error::lost("a plan"))?;
    blocking(core, "a plan", work).await
}
