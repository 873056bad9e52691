//! A job at one moment: copied from state and memory, so that computing on it holds no lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_proto::WireError;
use shardfeed_scheduler::{
    Generation, JobPhase, LeaseRef, RankCursor, SampleRuns, SealedEpoch, SessionId, SkippedRecord,
    State,
};
use tokio::time::Instant;

use crate::error::{Result, not_found};
use crate::leader::computing::computing;
use crate::leader::core::Core;
use crate::leader::plans::{EpochOf, Order};
use crate::leader::progress::RankState;

#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) job: String,
    pub(crate) order: Order,
    pub(crate) is_held: bool,
    /// True if its run has ended, and none followed.
    pub(crate) is_finished: bool,
    pub(crate) generation: Generation,
    /// Earlier generations of its lineage, as far as kept, newest first. Without their ranks.
    pub(crate) earlier: Vec<Generation>,
    pub(crate) sealed: Vec<SealedEpoch>,
    /// The first corrupt records of the job, by sample.
    pub(crate) skipped: Vec<SkippedRecord>,
    /// Samples of its further corrupt records.
    pub(crate) skipped_more: SampleRuns,
    /// Worker and host of the sessions that serve its ranks.
    pub(crate) workers: BTreeMap<SessionId, (String, String)>,
    /// State of its ranks according to heartbeats.
    pub(crate) live: BTreeMap<u64, RankState>,
    /// Samples per second of the job.
    pub(crate) rate: Option<f64>,
    pub(crate) now: Instant,
    pub(crate) now_ms: u64,
}

impl Picture {
    /// Copies the job; `None` if it has not started.
    ///
    /// # Errors  `NotFound`.
    pub(crate) fn take(core: &Core, job: &str) -> Result<Option<Self>> {
        let now = (core.host.now(), core.host.wall_ms());
        let Some(mut picture) = core.read(|state| Self::of_state(state, job, now))? else {
            return Ok(None);
        };
        let live = core.live();
        for (number, rank) in &picture.generation.ranks {
            let lease = rank.lease.as_ref().map(|lease| LeaseRef {
                job: picture.job.clone(),
                generation: picture.generation.number,
                rank: *number,
                fencing: lease.fencing,
            });
            if let Some(state) = lease.and_then(|lease| live.progress.of_rank(&lease)) {
                picture.live.insert(*number, state.clone());
            }
        }
        picture.rate = live.progress.rate(job, picture.now);
        Ok(Some(picture))
    }

    fn of_state(state: &State, name: &str, (now, now_ms): (Instant, u64)) -> Result<Option<Self>> {
        let job = state.job(name).ok_or_else(|| no_job(name))?;
        let Some(generation) = job.current().cloned() else {
            return Ok(None);
        };
        let order = Order::of(state, name)?.ok_or_else(|| no_job(name))?;
        let sessions = generation.ranks.values().filter_map(|rank| rank.lease.as_ref());
        let worker = |session: SessionId| {
            let join = &state.session(session)?.join;
            Some((session, (join.worker.clone(), join.host.clone())))
        };
        let workers = sessions.filter_map(|lease| worker(lease.session)).collect();
        let mut earlier = vec![];
        let mut parent = generation.parent;
        while let Some(known) = parent.and_then(|parent| job.generations.get(&parent)) {
            // A parent is older: the walk ends.
            parent = known.parent.filter(|grandparent| *grandparent < known.number);
            let mut known = known.clone();
            known.ranks.clear();
            earlier.push(known);
        }
        Ok(Some(Self {
            job: name.to_owned(),
            order,
            is_held: job.held.is_some(),
            is_finished: job.phase() == JobPhase::Finished,
            generation,
            earlier,
            sealed: job.sealed.iter().copied().collect(),
            skipped: job.skipped.clone(),
            skipped_more: job.skipped_more.clone(),
            workers,
            live: BTreeMap::new(),
            rate: None,
            now,
            now_ms,
        }))
    }

    /// Returns the first step that a rank has not consumed, as far as known.
    pub(crate) fn cursor(&self, rank: u64) -> RankCursor {
        let kept = self.generation.ranks.get(&rank).map(|rank| rank.cursor);
        let live = self.live.get(&rank);
        let live = live.map(|live| RankCursor { epoch: live.epoch, step: live.step });
        kept.max(live).unwrap_or_else(|| self.generation.start())
    }

    pub(crate) fn cursors(&self) -> Vec<RankCursor> {
        (0..self.generation.world_size).map(|rank| self.cursor(rank)).collect()
    }

    pub(crate) fn worker(&self, rank: u64) -> Option<&(String, String)> {
        let lease = self.generation.ranks.get(&rank)?.lease.as_ref()?;
        self.workers.get(&lease.session)
    }

    /// Returns the time since a rank's cursor last moved, ms; `None` if it never moved.
    pub(crate) fn stands_ms(&self, rank: u64) -> Option<u64> {
        let known = self.generation.ranks.get(&rank)?;
        let kept =
            (known.cursor != known.start).then(|| self.now_ms.saturating_sub(known.cursor_ms));
        let live = self
            .live
            .get(&rank)
            .filter(|live| RankCursor { epoch: live.epoch, step: live.step } > known.cursor);
        let live = live.map(|live| self.now.duration_since(live.moved).as_millis() as u64);
        live.or(kept)
    }

    /// Returns the kept generations of the lineage, newest first.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&self.generation).chain(&self.earlier)
    }

    /// Runs a computation over the job's plans on its own thread, when it is its turn.
    pub(crate) async fn compute<T: Send + 'static>(
        self,
        core: &Arc<Core>,
        work: impl FnOnce(&Core, Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let chunks = self.order.chunks.clone();
        computing(core, &chunks, move |core| work(core, self)).await
    }

    /// Returns the generation of the lineage in which an epoch continues, and its layout there.
    ///
    /// # Errors  `NotFound`: the epoch precedes the kept generations.
    pub(crate) fn epoch_of(&self, epoch: u64) -> Result<(&Generation, EpochOf)> {
        let found = |known| Some((known, EpochOf::new(known, epoch)?));
        self.lineage().find_map(found).ok_or_else(|| {
            let message = format!(
                "epoch {epoch} of job `{}` is no longer kept; its first epoch here is {}",
                self.job,
                self.earlier.last().unwrap_or(&self.generation).origin.epoch
            );
            not_found(message)
        })
    }
}

pub(crate) fn no_job(name: &str) -> WireError {
    let name: String = name.chars().take(200).collect();
    not_found(format!("there is no job `{name}`"))
}
