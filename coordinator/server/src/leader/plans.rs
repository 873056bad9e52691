//! Plans of epochs for views: their epoch sequences are expensive, so a few of them are kept.

use std::sync::Arc;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{
    ContentDigest, Digest, JobIdentity, LeftOut, Line, Manifest, Mode, PlanError, Segment, Shuffle,
    check_epoch,
};
use shardfeed_proto::WireError;
use shardfeed_scheduler::{Generation, State};
use tokio::sync::Semaphore;

use crate::error::not_found;
use crate::leader::mixtures::{MixtureOrder, StageSources};
use crate::recent::Recent;

/// Maximum epoch sequences in memory; one over a million shards has 12 MB.
const LINES_MAX: usize = 4;

/// Maximum stages of mixtures in memory; one with a million shards has about 200 MB.
const STAGES_MAX: usize = 2;

/// Maximum epochs of dynamic jobs whose groups are in memory: a few jobs, each in two epochs.
pub(super) const GROUPS_MAX: usize = 8;

/// Maximum concurrent computations of plans, so that views leave a core for other work.
const COMPUTING_MAX: usize = 2;

/// Maximum lists of shards being sent at the same time: each holds a copy of a job.
const LISTS_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Plans {
    lines: Recent<(Shuffle, Mode, u64), Line, LINES_MAX>,
    /// Stages by the digest of their mixture, and their index in it.
    pub(super) stages: Recent<(Digest, usize), StageSources, STAGES_MAX>,
    pub(super) groups: Recent<(Shuffle, u64), Groups, GROUPS_MAX>,
    pub(super) turn: Semaphore,
    pub(crate) lists: Arc<Semaphore>,
    /// Permit for an archive, which holds the whole state.
    pub(crate) archives: Arc<Semaphore>,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            lines: Recent::default(),
            stages: Recent::default(),
            groups: Recent::default(),
            turn: Semaphore::new(COMPUTING_MAX),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
            archives: Arc::new(Semaphore::new(1)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) identity: JobIdentity,
    /// Name of its dataset; empty for a job with mixtures.
    pub(crate) dataset: String,
    pub(crate) content: ContentDigest,
    /// Chunks of the manifest, in order; of a job with mixtures, of all their manifests.
    pub(crate) chunks: Vec<Digest>,
    pub(super) mixtures: Vec<MixtureOrder>,
}

#[derive(Clone, Debug)]
pub(crate) struct EpochOf {
    pub(crate) epoch: u64,
    pub(crate) segments: Vec<Segment>,
    pub(crate) world_size: u64,
    pub(crate) limit: Option<u64>,
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
        let key = (shuffle.clone(), mode, epoch);
        if let Some(known) = self.lines.get(&key) {
            return Ok(known);
        }
        check_epoch(epoch)?;
        let line = match mode {
            Mode::Deterministic => Line::new(&manifest.counts(), shuffle, epoch)?,
            Mode::Dynamic => Line::unrotated(&manifest.counts(), shuffle, epoch)?,
        };
        Ok(self.lines.keep(key, line))
    }

    pub(super) fn known_groups(&self, shuffle: &Shuffle, epoch: u64) -> Option<Arc<Groups>> {
        self.groups.get(&(shuffle.clone(), epoch))
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
            return Ok(Some(Self { identity, dataset: String::new(), content, chunks, mixtures }));
        }
        let ready = state.dataset(&job.dataset).and_then(|dataset| dataset.ready());
        let ready = ready.ok_or_else(|| {
            // A named dataset was ready when the job was registered, and stays as long as the job.
            not_found(format!("job `{name}` names no dataset: only its trainers know its files"))
        })?;
        let chunks = ready.chunks().collect();
        let (identity, content) = (job.identity.clone(), ready.content);
        let dataset = job.dataset.clone();
        Ok(Some(Self { identity, dataset, content, chunks, mixtures: vec![] }))
    }
}
