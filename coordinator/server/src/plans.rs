//! Plans of epochs for views: their epoch sequences are expensive, so a few of them are kept.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{
    ContentDigest, Digest, EpochPlan, JobIdentity, Line, Manifest, PlanError, Segment, Shuffle,
    check_epoch,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::{Job, State};
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use crate::copies;
use crate::core::Core;
use crate::error;

/// Maximum epoch sequences in memory; one over a million shards has 12 MB.
const LINES_MAX: usize = 4;

/// Maximum epochs of dynamic jobs whose groups are in memory: a few jobs, each in two epochs.
const GROUPS_MAX: usize = 8;

/// Interval between checks for missing groups that will be granted soon.
const READY_EVERY: Duration = Duration::from_millis(500);

/// Maximum concurrent computations of plans, so that views leave a core for other work.
const COMPUTING_MAX: usize = 2;

/// Maximum lists of shards being sent at the same time: each holds a copy of a job.
const LISTS_MAX: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Last epoch sequences, newest last.
    recent: Mutex<Vec<Known>>,
    /// Groups requested last, newest last.
    groups: Mutex<Vec<Arc<Groups>>>,
    turn: Semaphore,
    /// Permits for lists of shards.
    pub(crate) lists: Arc<Semaphore>,
    /// Permit for an archive, which holds the whole state.
    pub(crate) archives: Arc<Semaphore>,
}

#[derive(Debug)]
struct Known {
    shuffle: Shuffle,
    epoch: u64,
    line: Arc<Line>,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            recent: Mutex::default(),
            groups: Mutex::default(),
            turn: Semaphore::new(COMPUTING_MAX),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
            archives: Arc::new(Semaphore::new(1)),
        }
    }
}

/// Inputs of a job's plans.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) identity: JobIdentity,
    pub(crate) content: ContentDigest,
    /// Chunks of the manifest, in order.
    pub(crate) chunks: Vec<Digest>,
}

/// One epoch of a generation.
#[derive(Clone, Debug)]
pub(crate) struct EpochOf {
    pub(crate) epoch: u64,
    pub(crate) segments: Vec<Segment>,
    pub(crate) world_size: u64,
    pub(crate) limit: Option<u64>,
}

impl Plans {
    /// Returns the epoch sequence of an epoch, from memory or newly computed.
    fn line(
        &self,
        manifest: &Manifest,
        shuffle: &Shuffle,
        epoch: u64,
    ) -> Result<Arc<Line>, PlanError> {
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |known: &&Known| known.shuffle == *shuffle && known.epoch == epoch;
        if let Some(known) = recent().iter().find(is) {
            return Ok(Arc::clone(&known.line));
        }
        check_epoch(epoch)?;
        let line = Arc::new(Line::new(&manifest.counts(), shuffle, epoch)?);
        let mut recent = recent();
        recent.push(Known { shuffle: shuffle.clone(), epoch, line: Arc::clone(&line) });
        if recent.len() > LINES_MAX {
            recent.remove(0);
        }
        Ok(line)
    }
}

impl Plans {
    /// Returns the groups of an epoch, if they are in memory.
    fn known_groups(&self, shuffle: &Shuffle, epoch: u64) -> Option<Arc<Groups>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |known: &Arc<Groups>| known.epoch() == epoch && known.shuffle() == shuffle;
        let at = groups.iter().position(is)?;
        let known = groups.remove(at);
        groups.push(Arc::clone(&known));
        Some(known)
    }

    fn keep_groups(&self, fresh: Groups) -> Arc<Groups> {
        let fresh = Arc::new(fresh);
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.push(Arc::clone(&fresh));
        if groups.len() > GROUPS_MAX {
            groups.remove(0);
        }
        fresh
    }
}

/// Returns the groups of an epoch of a dynamic job.
pub(crate) async fn groups(
    core: &Arc<Core>,
    order: Order,
    epoch: u64,
) -> Result<Arc<Groups>, WireError> {
    if let Some(known) = core.plans.known_groups(&order.identity.shuffle, epoch) {
        return Ok(known);
    }
    let chunks = order.chunks.clone();
    computing(core, &chunks, move |core| order.groups(core, epoch)).await
}

/// Keeps the groups that are granted now and next in memory, on every node, so that a new leader
/// grants at once. Runs until `stop` is set.
pub(crate) async fn keep_groups_ready(core: Arc<Core>, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(READY_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !*stop.borrow() {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.changed() => break,
        }
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
    /// Returns the inputs of a job's plans; `None` if there is no such job.
    ///
    /// # Errors  `NotFound`: the job names no dataset.
    pub(crate) fn of(state: &State, name: &str) -> Result<Option<Self>, WireError> {
        let Some(job) = state.job(name) else {
            return Ok(None);
        };
        let ready = state.dataset(&job.dataset).and_then(|dataset| dataset.ready());
        let ready = ready.ok_or_else(|| {
            // A named dataset was ready when the job was registered, and stays as long as the job.
            let message =
                format!("job `{name}` names no dataset: only its trainers know its files");
            WireError::new(ErrorKind::NotFound, message)
        })?;
        let chunks = ready.chunks().collect();
        Ok(Some(Self { identity: job.identity.clone(), content: ready.content, chunks }))
    }

    /// Returns the manifest. Blocks on the disk.
    pub(crate) fn manifest(&self, core: &Core) -> Result<Arc<Manifest>, WireError> {
        core.manifests.get(&core.chunks, self.content, &self.chunks)
    }

    /// Returns the groups of an epoch of a dynamic job. Slow to compute; blocks on the disk.
    pub(crate) fn groups(&self, core: &Core, epoch: u64) -> Result<Arc<Groups>, WireError> {
        let shuffle = &self.identity.shuffle;
        // Another call may have computed them while this one waited for its turn.
        if let Some(known) = core.plans.known_groups(shuffle, epoch) {
            return Ok(known);
        }
        let line = core.plans.line(&*self.manifest(core)?, shuffle, epoch);
        let groups = line.and_then(|line| Groups::new(line, shuffle.clone(), epoch));
        Ok(core.plans.keep_groups(groups.map_err(|error| error::plan(&error))?))
    }

    /// Returns the plan of an epoch. Slow to compute; blocks on the disk.
    pub(crate) fn plan(&self, core: &Core, of: &EpochOf) -> Result<EpochPlan, WireError> {
        let manifest = self.manifest(core)?;
        let JobIdentity { shuffle, tail, .. } = &self.identity;
        let EpochOf { epoch, segments, world_size, limit } = of;
        let line = core.plans.line(&manifest, shuffle, *epoch);
        let plan = line.and_then(|line| {
            EpochPlan::new(line, shuffle.clone(), *epoch, (*tail, *limit), segments, *world_size)
        });
        plan.map_err(|error| error::plan(&error))
    }
}

/// Runs a computation over plans on its own thread, when it is its turn.
/// - `chunks`: of the manifest that it needs; missing ones are fetched first.
pub(crate) async fn computing<T: Send + 'static>(
    core: &Arc<Core>,
    chunks: &[Digest],
    work: impl FnOnce(&Core) -> Result<T, WireError> + Send + 'static,
) -> Result<T, WireError> {
    copies::bring(core, chunks).await?;
    let _turn = core.plans.turn.acquire().await.map_err(|_| error::lost("a plan"))?;
    let shared = Arc::clone(core);
    crate::core::blocking(core, "a plan", move || work(&shared)).await
}
