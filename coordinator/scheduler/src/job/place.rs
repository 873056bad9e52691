//! The rules of starts: which generation a rank joins, comes back to or opens.
//! Source: docs/ARCHITECTURE.md, Starts.

use shardfeed_plan::{Digest, Intent, LeftOut, Tail, check_epoch};

use super::Job;
use crate::dynamic::pool::Pool;
use crate::job::generation::{Generation, Rank};
use crate::job::origin::{Origin, alike};
use crate::log::{CursorReport, GENERATION_MAX, RankCursor, Refusal, Result, StartRank};

/// Decision on a start, before any change.
#[derive(Debug)]
pub(crate) enum StartDecision {
    /// The rank comes back to a generation that it has joined.
    Back { generation: u64, cursor: RankCursor },
    /// The rank joins a generation.
    Join { generation: u64, origin: Origin },
    /// The rank opens a generation.
    Open(Opening),
}

#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) number: u64,
    pub(crate) parent: Option<u64>,
    /// `None`: no launcher named the run; its name is derived from the generation's number.
    pub(crate) run: Option<String>,
    pub(crate) implicit: bool,
    pub(crate) by_move: bool,
    pub(crate) origin: Origin,
    /// For a dynamic job that continues in mid-epoch: the lists and free samples of that epoch.
    pub(crate) pool: Option<Box<Pool>>,
}

impl Job {
    /// Decides which generation a start leads to, or refuses it.
    pub(crate) fn place(&self, start: &StartRank) -> Result<StartDecision> {
        if self.identity.is_dynamic() && start.limit.is_some() {
            let reason =
                "limit= cuts the plan of an epoch, and mode=\"dynamic\" has none; leave it out";
            return Err(Refusal::Invalid(reason.to_owned()));
        }
        self.check_left_out(start)?;
        let mut place = self.place_by_intent(start)?;
        if self.identity.is_dynamic() {
            self.place_lists(start, &mut place)?;
        }
        Ok(place)
    }

    fn check_left_out(&self, start: &StartRank) -> Result<()> {
        let ranges = start.left_out.ranges();
        let reason = if ranges.is_empty() {
            return Ok(());
        } else if self.identity.is_dynamic() || self.identity.tail == Tail::Uneven {
            "are steps of a job whose ranks have no steps in common"
        } else if !start.left_out_fits() {
            "are not steps before the position of a start"
        } else {
            return Ok(());
        };
        Err(Refusal::Invalid(format!("`left_out` {ranges:?} {reason}")))
    }

    fn place_by_intent(&self, start: &StartRank) -> Result<StartDecision> {
        let tail = self.identity.tail;
        match &start.intent {
            Intent::Reconnect { generation, epoch, step } => {
                let cursor = RankCursor { epoch: *epoch, step: *step };
                self.reconnect(start, *generation, cursor)
            }
            Intent::Move { from, epoch, segments } => {
                let origin = Origin::new(*epoch, segments, start.world_size, tail)?;
                self.move_on(start, *from, origin)
            }
            Intent::Start { state_generation, epoch, segments, .. } => {
                let origin = Origin::new(*epoch, segments, start.world_size, tail)?;
                self.check_state_generation(*state_generation)?;
                self.start(start, *state_generation, origin)
            }
        }
    }

    /// The same loader continues at its position.
    fn reconnect(&self, start: &StartRank, number: u64, to: RankCursor) -> Result<StartDecision> {
        let (generation, rank) = self.own_rank(start, number)?;
        if let Some(refusal) = generation.disagreement(start, None) {
            return Err(refusal);
        }
        let RankCursor { epoch, step } = to;
        if !to.is_possible() {
            let reason = check_epoch(epoch).err().map(|error| error.to_string());
            let beyond = || format!("epoch {epoch} step {step} is beyond every epoch");
            return Err(Refusal::Invalid(reason.unwrap_or_else(beyond)));
        }
        if to < rank.cursor {
            let (StartRank { job, rank: number, .. }, known) = (start, rank.cursor);
            return Err(Refusal::Invalid(format!(
                "rank {number} of job `{job}` asks for epoch {epoch} step {step}, but it has \
                 already consumed everything before epoch {} step {}",
                known.epoch, known.step
            )));
        }
        Ok(StartDecision::Back { generation: number, cursor: to })
    }

    /// The same loader moves elsewhere within its run; the other ranks follow one by one.
    fn move_on(&self, start: &StartRank, from: u64, origin: Origin) -> Result<StartDecision> {
        let (left, _) = self.own_rank(start, from)?;
        if let Some(refusal) = left.disagreement(start, None) {
            return Err(refusal);
        }
        let tail = self.identity.tail;
        let children = self.generations.range(from..).map(|(_, generation)| generation);
        // None of them is superseded, or the generation they came from would be, too.
        let children = children.filter(|generation| {
            let of_this = generation.by_move && generation.parent == Some(from);
            of_this && generation.origin.fits(&origin, tail)
        });
        for child in children {
            match child.ranks.get(&start.rank) {
                None => return Ok(StartDecision::Join { generation: child.number, origin }),
                // The answer to the same move was lost.
                Some(rank) if rank.trainer == start.trainer && rank.cursor == rank.start => {
                    let (generation, cursor) = (child.number, rank.cursor);
                    return Ok(StartDecision::Back { generation, cursor });
                }
                Some(_) => {}
            }
        }
        Ok(StartDecision::Open(Opening {
            number: self.next_number(None)?,
            parent: Some(from),
            run: Some(left.run.clone()),
            implicit: left.implicit,
            by_move: true,
            origin,
            pool: None,
        }))
    }

    /// A loader starts, with or without a loader state.
    fn start(
        &self,
        start: &StartRank,
        state_generation: Option<u64>,
        origin: Origin,
    ) -> Result<StartDecision> {
        let number = self.next_number(state_generation)?;
        let parent = state_generation.filter(|parent| self.generations.contains_key(parent));
        let opening = |run: Option<String>, origin: Origin| {
            let (implicit, by_move, pool) = (start.run.is_none(), false, None);
            let opening = Opening { number, parent, run, implicit, by_move, origin, pool };
            Ok(StartDecision::Open(opening))
        };
        let Some(current) = self.current() else {
            return opening(start.run.clone(), origin);
        };
        if !current.is_run_of(start) {
            return match start.run.as_deref().and_then(|run| self.seen(run)) {
                Some(last) => Err(current.as_successor().refusal(&self.name, last)),
                None => opening(start.run.clone(), origin),
            };
        }
        let generation = current.number;
        let again = Some(current.run.clone());
        let is_new = start.intent.is_reshard_of(generation) || state_generation > Some(generation);
        if is_new && !self.identity.is_dynamic() {
            // All its ranks leave it, also those that are at this position already. In one cluster only
            // the state of a reshard that no rank has started is of a later generation.
            return opening(again, origin);
        }
        let Some(rank) = current.ranks.get(&start.rank) else {
            return match current.misfit(start, &origin, self) {
                None => Ok(StartDecision::Join { generation, origin }),
                Some(_) if current.leases().next().is_none() => opening(again, origin),
                Some(refusal) => Err(refusal),
            };
        };
        // Workers report cursors periodically. The final position of another loader is known only
        // if that loader reported it; a loader that is gone without a report may have consumed
        // more. In a dynamic job, samples beyond the state still belong to this rank, in doubt
        // until it reports.
        let is_left = self.identity.is_dynamic() && rank.lease.is_none();
        let replaced = start.replaces.as_ref().filter(|last| last.lease.generation == generation);
        let replaced = replaced.and_then(|_| self.replaced(start));
        let is_known = rank.trainer == start.trainer || rank.ended || is_left || replaced.is_some();
        let cursor = replaced.unwrap_or(rank.cursor);
        let stays = is_known
            && current.disagreement(start, Some(&origin)).is_none()
            && current.is_at(cursor, &origin);
        if stays {
            return Ok(StartDecision::Back { generation, cursor });
        }
        opening(again, origin)
    }

    /// Returns the final cursor of the loader that a start replaces.
    ///
    /// `None`: the start's session does not serve this rank under that lease, or the position is
    /// none that the lease can report.
    pub(crate) fn replaced(&self, start: &StartRank) -> Option<RankCursor> {
        let CursorReport { lease, epoch, step } = start.replaces.as_ref()?;
        let to = RankCursor { epoch: *epoch, step: *step };
        let is_this = lease.job == self.name && lease.rank == start.rank;
        let rank = self.generations.get(&lease.generation)?.ranks.get(&start.rank)?;
        let held = rank.lease.as_ref().filter(|held| held.session == start.session)?;
        let may_report = held.fencing == lease.fencing && rank.cursor <= to && to.is_possible();
        (is_this && may_report && !self.identity.is_dynamic()).then_some(to)
    }

    /// Returns the rank that a loader names, in a generation that is not superseded.
    fn own_rank(&self, start: &StartRank, number: u64) -> Result<(&Generation, &Rank)> {
        if let Some(refusal) = self.superseded(number) {
            return Err(refusal);
        }
        let (job, rank) = (&self.name, start.rank);
        let Some(generation) = self.generations.get(&number) else {
            let reason = format!("job `{job}` has no generation {number}; start from a state");
            return Err(self.out_of_place(number, Refusal::Invalid(reason)));
        };
        match generation.ranks.get(&rank) {
            Some(known) if known.trainer == start.trainer => Ok((generation, known)),
            Some(_) => {
                let (job, generation) = (job.clone(), number);
                Err(self.out_of_place(number, Refusal::Replaced { job, rank, generation }))
            }
            None => {
                let reason = format!(
                    "rank {rank} of job `{job}` has not joined generation {number}; start from a \
                     state"
                );
                Err(self.out_of_place(number, Refusal::Invalid(reason)))
            }
        }
    }

    fn check_state_generation(&self, state_generation: Option<u64>) -> Result<()> {
        let last = self.current().map(|current| current.number);
        match state_generation {
            Some(number) if number > GENERATION_MAX && Some(number) > last => {
                let reason = format!("generation {number} is beyond every generation");
                Err(Refusal::Invalid(reason))
            }
            _ => Ok(()),
        }
    }

    fn next_number(&self, state_generation: Option<u64>) -> Result<u64> {
        let last = self.current().map(|current| current.number);
        match last.max(state_generation) {
            None => Ok(self.numbered_from),
            Some(number) => number
                .max(self.numbered_from.saturating_sub(1))
                .checked_add(1)
                .ok_or_else(|| Refusal::Full {
                    what: "generations".to_owned(),
                    most: u64::MAX,
                    hint: "use another name for the job".to_owned(),
                }),
        }
    }
}

impl Generation {
    fn is_run_of(&self, start: &StartRank) -> bool {
        match &start.run {
            Some(run) => !self.implicit && self.run == *run,
            None => self.implicit && (self.run_is_open() || self.ranks.contains_key(&start.rank)),
        }
    }

    /// True if a start is exactly at a rank's cursor.
    fn is_at(&self, cursor: RankCursor, origin: &Origin) -> bool {
        cursor == origin.cursor()
            && self
                .segments_of(cursor.epoch)
                .is_some_and(|segments| alike(&segments, &origin.segments))
    }

    /// Returns the first number in which a start differs from the other ranks, if there is one.
    fn disagreement(&self, start: &StartRank, origin: Option<&Origin>) -> Option<Refusal> {
        let limit = |limit: Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
        let number = |number: u64| number.to_string();
        let mixture = |mixture: Option<Digest>| {
            mixture.map_or("none".to_owned(), |digest| digest.to_string()[..16].to_owned())
        };
        let (is_told, origin) = (origin.is_some(), origin.unwrap_or(&self.origin));
        let pairs = [
            ("world_size", number(start.world_size), number(self.world_size)),
            ("limit", limit(start.limit), limit(self.limit)),
            ("mixture", mixture(start.mixture), mixture(self.mixture)),
            ("in_doubt", start.doubt.in_doubt.to_string(), self.doubt.in_doubt.to_string()),
            ("in_doubt_grace", start.doubt.grace_text(), self.doubt.grace_text()),
            ("lanes", number(origin.lanes()), number(self.origin.lanes())),
            ("global batch", number(origin.global_batch()), number(self.origin.global_batch())),
        ];
        let left_out = |left_out: &LeftOut| format!("{:?}", left_out.ranges());
        let known = || left_out(&self.left_out_of(origin.epoch));
        let left_out = is_told.then(|| ("left_out", left_out(&start.left_out), known()));
        let (name, value, known) =
            pairs.into_iter().chain(left_out).find(|(_, value, known)| value != known)?;
        Some(self.disagree(start, name, value, known))
    }

    fn disagree(&self, start: &StartRank, name: &str, value: String, known: String) -> Refusal {
        let (job, run, rank) = (start.job.clone(), self.run.clone(), start.rank);
        Refusal::Disagree { job, run, rank, name: name.into(), value, known }
    }

    /// Returns the reason why a rank that has not joined cannot start here, if there is one.
    fn misfit(&self, start: &StartRank, origin: &Origin, job: &Job) -> Option<Refusal> {
        if let Some(refusal) = self.disagreement(start, Some(origin)) {
            return Some(refusal);
        }
        if self.origin.fits(origin, job.identity.tail) {
            return None;
        }
        let RankCursor { epoch: by_epoch, step: by_step } = self.start();
        if (origin.epoch, origin.step()) == (by_epoch, by_step) {
            // A conflict would show the same numbers on both sides.
            let (value, known) = (origin.segments_text(), self.origin.segments_text());
            return Some(self.disagree(start, "segments", value, known));
        }
        Some(Refusal::Conflict {
            job: start.job.clone(),
            run: self.run.clone(),
            rank: start.rank,
            epoch: origin.epoch,
            step: origin.step(),
            by_rank: self.opened_by,
            by_epoch,
            by_step,
        })
    }
}

#[cfg(test)]
mod tests;
