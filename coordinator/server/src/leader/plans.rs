//! Plans of epochs for views: their epoch sequences are expensive, so a few of them are kept.

use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{
    ContentDigest, Digest, JobIdentity, LeftOut, Line, Manifest, Mode, PlanError, Segment, Shuffle,
    check_epoch,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::{Generation, State};
use tokio::sync::Semaphore;

use crate::leader::mixtures::{MixtureOrder, Stages};

/// Maximum epoch sequences in memory; one over a million shards has 12 MB.
const LINES_MAX: usize = 4;

/// Maximum epochs of dynamic jobs whose groups are in memory: a few jobs, each in two epochs.
pub(super) const GROUPS_MAX: usize = 8;

/// Maximum concurrent computations of plans, so that views leave a core for other work.
const COMPUTING_MAX: usize = 2;

/// Maximum lists of shards being sent at the same time: each holds a copy of a job.
const LISTS_MAX: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Last epoch sequences, newest last.
    recent: Mutex<Vec<CachedLine>>,
    pub(super) stages: Stages,
    /// Groups requested last, newest last.
    groups: Mutex<Vec<Arc<Groups>>>,
    /// Permits for computations of plans.
    pub(super) turn: Semaphore,
    /// Permits for lists of shards.
    pub(crate) lists: Arc<Semaphore>,
    /// Permit for an archive, which holds the whole state.
    pub(crate) archives: Arc<Semaphore>,
}

#[derive(Debug)]
struct CachedLine {
    shuffle: Shuffle,
    mode: Mode,
    epoch: u64,
    line: Arc<Line>,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            recent: Mutex::default(),
            stages: Stages::default(),
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
    /// Chunks of the manifest, in order; of a job with mixtures, of all their manifests.
    pub(crate) chunks: Vec<Digest>,
    /// Mixtures that the job's generations read.
    pub(super) mixtures: Vec<MixtureOrder>,
}

/// One epoch of a generation.
#[derive(Clone, Debug)]
pub(crate) struct EpochOf {
    pub(crate) epoch: u64,
    pub(crate) segments: Vec<Segment>,
    pub(crate) world_size: u64,
    pub(crate) limit: Option<u64>,
    /// Digest of its mixture, if it has one.
    pub(crate) mixture: Option<Digest>,
    /// Steps that all ranks left out.
    pub(crate) left_out: LeftOut,
}

impl EpochOf {
    /// Returns an epoch of a generation; `None` if it precedes the generation.
    pub(crate) fn new(generation: &Generation, epoch: u64) -> Option<Self> {
        let segments = generation.segments_of(epoch)?;
        let Generation { world_size, limit, mixture, .. } = *generation;
        let left_out = generation.left_out_of(epoch);
        Some(Self { epoch, segments, world_size, limit, mixture, left_out })
    }
}

impl Plans {
    /// Returns the epoch sequence of an epoch, from memory or newly computed.
    /// - `mode`: `Deterministic` for plans, `Dynamic` for groups.
    pub(super) fn line(
        &self,
        manifest: &Manifest,
        identity: &JobIdentity,
        mode: Mode,
        epoch: u64,
    ) -> Result<Arc<Line>, PlanError> {
        let shuffle = &identity.shuffle;
        identity.check_order()?;
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |known: &&CachedLine| {
            known.shuffle == *shuffle && known.mode == mode && known.epoch == epoch
        };
        if let Some(known) = recent().iter().find(is) {
            return Ok(Arc::clone(&known.line));
        }
        check_epoch(epoch)?;
        let line = match mode {
            Mode::Deterministic => Line::new(&manifest.counts(), shuffle, epoch)?,
            Mode::Dynamic => Line::unrotated(&manifest.counts(), shuffle, epoch)?,
        };
        let line = Arc::new(line);
        let mut recent = recent();
        let shuffle = shuffle.clone();
        recent.push(CachedLine { shuffle, mode, epoch, line: Arc::clone(&line) });
        if recent.len() > LINES_MAX {
            recent.remove(0);
        }
        Ok(line)
    }

    /// Returns the groups of an epoch, if they are in memory.
    pub(super) fn known_groups(&self, shuffle: &Shuffle, epoch: u64) -> Option<Arc<Groups>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |known: &Arc<Groups>| known.epoch() == epoch && known.shuffle() == shuffle;
        let at = groups.iter().position(is)?;
        let known = groups.remove(at);
        groups.push(Arc::clone(&known));
        Some(known)
    }

    pub(super) fn keep_groups(&self, fresh: Groups) -> Arc<Groups> {
        let fresh = Arc::new(fresh);
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.push(Arc::clone(&fresh));
        if groups.len() > GROUPS_MAX {
            groups.remove(0);
        }
        fresh
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
        if !job.mixtures.is_empty() {
            let mixtures = MixtureOrder::all(state, job)?;
            let chunks = mixtures.iter().flat_map(MixtureOrder::chunks).collect();
            let identity = job.identity.clone();
            let content = identity.content;
            return Ok(Some(Self { identity, content, chunks, mixtures }));
        }
        let ready = state.dataset(&job.dataset).and_then(|dataset| dataset.ready());
        let ready = ready.ok_or_else(|| {
            // A named dataset was ready when the job was registered, and stays as long as the job.
            let message =
                format!("job `{name}` names no dataset: only its trainers know its files");
            WireError::new(ErrorKind::NotFound, message)
        })?;
        let chunks = ready.chunks().collect();
        let (identity, content) = (job.identity.clone(), ready.content);
        Ok(Some(Self { identity, content, chunks, mixtures: vec![] }))
    }
}
