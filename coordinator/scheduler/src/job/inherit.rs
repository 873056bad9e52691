//! Lists that a start of a dynamic job takes over from the generation of its loader state.
//! Source: docs/ORDER.md, section 10.

use shardfeed_plan::{Intent, Segment, Steps};

use super::Job;
use crate::dynamic::pool::Pool;
use crate::job::generation::Generation;
use crate::job::origin::{Origin, alike};
use crate::job::place::StartDecision;
use crate::log::{RankCursor, Refusal, Result, StartRank};

impl Job {
    /// Finds the lists with which a placed start continues.
    ///
    /// # Errors
    /// `Forgotten`; `Invalid` if the loader states of the ranks are of different generations.
    pub(crate) fn place_lists(&self, start: &StartRank, place: &mut StartDecision) -> Result<()> {
        if let Some((number, left)) = start.leaves() {
            self.check_stand(self.generations.get(&number), start, left)?;
        }
        match place {
            StartDecision::Back { generation, cursor } => {
                let known = self.generations.get(generation);
                self.check_stand(known, start, *cursor)
            }
            StartDecision::Join { generation, origin } => {
                let known = self.generations.get(generation);
                let cursor = origin.cursor();
                // Lists belong to one generation: the same steps of another one are other samples.
                if let (Some(known), Intent::Start { state_generation, .. }) =
                    (known, &start.intent)
                    && cursor.step > 0
                    && *state_generation != known.parent
                {
                    let (rank, job) = (start.rank, &start.job);
                    let named = |of: Option<u64>| {
                        of.map_or("no generation".to_owned(), |of| format!("generation {of}"))
                    };
                    return Err(Refusal::Invalid(format!(
                        "rank {rank} of job `{job}` brings a state of {}, the others one of {}; restart \
                         all ranks from one checkpoint",
                        named(*state_generation),
                        named(known.parent)
                    )));
                }
                self.check_stand(known, start, cursor)
            }
            StartDecision::Open(opening) => {
                let (from, is_move) = match &start.intent {
                    Intent::Start { state_generation, .. } => (*state_generation, false),
                    Intent::Move { from, .. } => (Some(*from), true),
                    Intent::Reconnect { .. } => (None, false),
                };
                // A loader that moves to the beginning of an epoch starts it with a new pool.
                if !(is_move && opening.origin.step() == 0) {
                    opening.pool = self.inherit(start, from, &opening.origin)?.map(Box::new);
                }
                Ok(())
            }
        }
    }

    fn check_stand(
        &self,
        generation: Option<&Generation>,
        start: &StartRank,
        cursor: RankCursor,
    ) -> Result<()> {
        if generation.is_some_and(|known| known.can_stand_at(start.rank, cursor, true)) {
            return Ok(());
        }
        let RankCursor { epoch, step } = cursor;
        let reason = format!("rank {} was not granted the batches before it", start.rank);
        Err(self.forgotten(epoch, step, reason))
    }

    fn forgotten(&self, epoch: u64, step: u64, reason: String) -> Refusal {
        let (job, reason) = (self.name.clone(), reason.into_boxed_str());
        Refusal::Forgotten { job, epoch, step, reason }
    }

    /// Returns the pool of a generation that continues a loader state of `from`; `None`: a new one.
    ///
    /// # Errors
    /// `Forgotten` if the lists are not kept, or do not fit the loader state.
    fn inherit(&self, start: &StartRank, from: Option<u64>, to: &Origin) -> Result<Option<Pool>> {
        let (epoch, step) = (to.epoch, to.step());
        let forgotten = |reason: String| match step {
            0 => Ok(None),
            _ => Err(self.forgotten(epoch, step, reason)),
        };
        let Some(from) = from else {
            return forgotten("it names no generation that made it".to_owned());
        };
        let Some(generation) = self.generations.get(&from) else {
            return forgotten(format!("generation {from} is not kept here"));
        };
        let (Some(pool), Some(segments)) =
            (generation.pools.get(&epoch), generation.segments_of(epoch))
        else {
            return forgotten(format!("generation {from} keeps no lists of epoch {epoch}"));
        };
        if generation.world_size == start.world_size
            && alike(&segments, &to.segments)
            && !pool.has_moved()
        {
            let copy = pool.copied();
            if !copy.can_stand_at(start.rank, step, true) {
                let reason = format!("generation {from} did not grant that to rank {}", start.rank);
                return Err(self.forgotten(epoch, step, reason));
            }
            return Ok(Some(copy));
        }
        if step == 0 {
            return Ok(None);
        }
        let recut = recut(pool, generation, &segments, start, to);
        if recut.is_none() {
            let reason = format!("it does not say the position of each rank of generation {from}");
            return Err(self.forgotten(epoch, step, reason));
        }
        Ok(recut)
    }
}

/// A pool for other ranks or other batches: consumed samples stay consumed, all others are free.
fn recut(
    pool: &Pool,
    generation: &Generation,
    segments: &[Segment],
    start: &StartRank,
    origin: &Origin,
) -> Option<Pool> {
    let (open, closed) = segments.split_last()?;
    let (stood, later) = origin.segments.get(closed.len()..)?.split_first()?;
    let is_history = origin.segments[..closed.len()] == *closed
        && (stood.lanes, stood.global_batch) == (open.lanes, open.global_batch);
    let goes_on = match later {
        [] => true,
        [new] => new.steps == Steps::All(0),
        _ => false,
    };
    if !(is_history && goes_on) {
        return None;
    }
    // Equal positions of fewer or more ranks are not the positions of these ranks.
    if let Intent::Start { segments: stated, .. } = &start.intent
        && let Some(Steps::PerRank(steps)) = stated.get(closed.len()).map(|segment| &segment.steps)
        && steps.len() as u64 != generation.world_size
    {
        return None;
    }
    let before: u64 = closed.iter().map(|segment| segment.steps.most()).sum();
    let step_of = |rank: u64| match &stood.steps {
        Steps::All(steps) => before.checked_add(*steps),
        // A rank whose loader state is missing delivers again all samples since its start.
        Steps::PerRank(steps) if steps.len() as u64 == generation.world_size => {
            let steps = steps.get(usize::try_from(rank).ok()?)?;
            Some(before.checked_add(*steps)?.max(pool.first_step))
        }
        Steps::PerRank(_) => None,
    };
    let (returned, duplicated) = pool.left_after(step_of)?;
    let Pool { groups, samples, next, begun, .. } = *pool;
    Some(Pool {
        groups,
        samples,
        first_step: origin.step(),
        batch_size: origin.global_batch() / start.world_size,
        before: begun - returned.samples(),
        next,
        begun,
        returned,
        duplicated,
        ..Pool::default()
    })
}
