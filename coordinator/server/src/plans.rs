//! Plans of epochs for those who look: the lines behind them are dear and kept, a few of them.

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

/// Lines in memory at most; one over a million shards has 12 MB.
const LINES_MAX: usize = 4;

/// Epochs of dynamic jobs whose groups are in memory, at most: a few jobs, each in two epochs.
const GROUPS_MAX: usize = 8;

/// How often it looks whether groups are missing that are granted soon.
const READY_EVERY: Duration = Duration::from_millis(500);

/// Plans that are computed at a time, at most, so that looking leaves a core for working.
const COMPUTING_MAX: usize = 2;

/// Lists of shards that are being sent at a time, at most: each holds a job's whole picture.
const LISTS_MAX: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Plans {
    /// The last lines, newest last.
    recent: Mutex<Vec<Known>>,
    /// The groups that were asked for last, newest last.
    groups: Mutex<Vec<Arc<Groups>>>,
    turn: Semaphore,
    /// Lists of shards that may still begin.
    pub(crate) lists: Arc<Semaphore>,
    /// Archives that may still begin: each holds the whole state.
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

/// What a job's plans are made of.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) identity: JobIdentity,
    pub(crate) content: ContentDigest,
    /// Of the manifest, in order.
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
    /// The line of an epoch, from memory or computed now.
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
    /// The groups of an epoch, if they are in memory.
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

/// The groups of an epoch of a dynamic job.
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

/// Keeps the groups in memory that are granted now and next, on every node: whoever is elected grants
/// at once. Runs until `stop` is told.
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
                    tracing::debug!(job, epoch, %error, "groups are not ready for a take yet");
                }
            }
        }
    }
}

impl Order {
    /// Of a job in the state; `None` if there is no such job.
    ///
    /// # Errors  `NotFound`: it names no dataset.
    pub(crate) fn of(state: &State, name: &str) -> Result<Option<Self>, WireError> {
        let Some(job) = state.job(name) else {
            return Ok(None);
        };
        let ready = state.dataset(&job.dataset).and_then(|dataset| dataset.ready());
        let ready = ready.ok_or_else(|| {
            // What it names was ready when it was registered, and stays as long as the job.
            let message =
                format!("job `{name}` names no dataset: only its trainers know what it reads");
            WireError::new(ErrorKind::NotFound, message)
        })?;
        let chunks = ready.chunks().collect();
        Ok(Some(Self { identity: job.identity.clone(), content: ready.content, chunks }))
    }

    /// The manifest. Blocks on the disk.
    pub(crate) fn manifest(&self, core: &Core) -> Result<Arc<Manifest>, WireError> {
        core.manifests.get(&core.chunks, self.content, &self.chunks)
    }

    /// The groups of an epoch of a dynamic job. Computes for long, and blocks on the disk.
    pub(crate) fn groups(&self, core: &Core, epoch: u64) -> Result<Arc<Groups>, WireError> {
        let shuffle = &self.identity.shuffle;
        // Another one may have asked while this one waited for its turn.
        if let Some(known) = core.plans.known_groups(shuffle, epoch) {
            return Ok(known);
        }
        let line = core.plans.line(&*self.manifest(core)?, shuffle, epoch);
        let groups = line.and_then(|line| Groups::new(line, shuffle.clone(), epoch));
        Ok(core.plans.keep_groups(groups.map_err(|error| error::plan(&error))?))
    }

    /// The plan of an epoch. Computes for long, and blocks on the disk.
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

/// Runs a computation over plans on a thread of its own, when it is its turn.
/// - `chunks`: of the manifest that it needs; those that are not here are brought first.
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
