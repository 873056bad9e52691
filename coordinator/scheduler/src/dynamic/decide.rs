//! Decisions on samples in doubt, after a grace period or by an operator.
//! Source: docs/ARCHITECTURE.md, Dynamic jobs.

use crate::dynamic::doubt::Decision;
use crate::dynamic::pool::Pool;
use crate::job::Job;
use crate::job::generation::Generation;
use crate::log::{Answer, DoubtPolicy, EventKind, Events, InDoubt, Refusal, Result, WaitForDoubt};
use crate::state::{Moment, State};

impl State {
    /// Epochs waiting only for samples in doubt, by job and generation: a leader measures how long.
    pub fn waiting_for_doubt(&self) -> Vec<(String, u64, Vec<u64>)> {
        let mut waiting = vec![];
        for job in self.jobs().filter(|job| job.identity.is_dynamic() && job.held.is_none()) {
            for generation in job.usable() {
                let pools = generation.pools.iter().filter(|(_, pool)| pool.waits_for_doubt());
                let epochs: Vec<u64> = pools.map(|(epoch, _)| *epoch).collect();
                if !epochs.is_empty() {
                    waiting.push((job.name.clone(), generation.number, epochs));
                }
            }
        }
        waiting
    }

    /// Counts the time for which the leader has seen epochs wait only for samples in doubt.
    pub(crate) fn wait_for_doubt(&mut self, moment: Moment, wait: &WaitForDoubt) -> Result<Answer> {
        let WaitForDoubt { job, generation, epochs, ms } = wait;
        let job = self.jobs.get_mut(job)?;
        // A job that is paused or cancelled does not wait.
        if job.superseded(*generation).is_none() && job.held.is_none() {
            job.decide(*generation, moment, &mut self.events, |epoch, pool, policy| {
                let is_told = epochs.contains(&epoch);
                if is_told { pool.wait(*ms, policy, moment.now_ms) } else { vec![] }
            });
        }
        Ok(Answer::Done)
    }

    /// Applies the policy to a rank whose trainer, according to an operator, does not come back.
    ///
    /// # Errors
    /// `Invalid` if there is no such rank or it is served; `NotFound` if there is no such job.
    pub(crate) fn declare_gone(&mut self, moment: Moment, name: &str, rank: u64) -> Result<Answer> {
        let job = self.jobs.get_mut(name)?;
        let Some(current) = job.current() else {
            return Err(Refusal::Invalid(format!("job `{name}` has not started")));
        };
        if rank >= current.world_size {
            let most = current.world_size.saturating_sub(1);
            let reason = format!("job `{name}` has the ranks 0 to {most}, and no rank {rank}");
            return Err(Refusal::Invalid(reason));
        }
        let serves =
            |known: &Generation| known.ranks.get(&rank).is_some_and(|rank| rank.lease.is_some());
        if job.usable().any(serves) {
            return Err(Refusal::Invalid(format!(
                "rank {rank} of job `{name}` is served: its worker lives; stop its trainer, or wait until its session \
                 has ended"
            )));
        }
        let usable: Vec<u64> = job.usable().map(|generation| generation.number).collect();
        let mut samples = 0;
        for number in usable {
            // The list of a rank that did not join is reserved for it, and its position unknown.
            if let Some(generation) = job.generations.get_mut(&number)
                && !generation.ranks.contains_key(&rank)
            {
                let pools = generation.pools.values_mut();
                pools.for_each(|pool| pool.release(rank, 0, (moment.now_ms, false)));
            }
            samples += job.decide(number, moment, &mut self.events, |_, pool, policy| {
                pool.decide(rank, policy.in_doubt, moment.now_ms).into_iter().collect()
            });
        }
        Ok(Answer::Decided { samples })
    }
}

impl Job {
    /// Applies `decide` to each epoch of a generation.
    ///
    /// Returns the number of samples that were decided on.
    fn decide(
        &mut self,
        number: u64,
        moment: Moment,
        events: &mut Events,
        mut decide: impl FnMut(u64, &mut Pool, DoubtPolicy) -> Vec<Decision>,
    ) -> u64 {
        let Some(generation) = self.generations.get_mut(&number) else {
            return 0;
        };
        let policy = generation.doubt;
        let is_dropped = policy.in_doubt == InDoubt::Drop;
        let mut all = 0;
        for (&epoch, pool) in &mut generation.pools {
            for (rank, samples) in decide(epoch, pool, policy) {
                all += samples;
                let (job, generation) = (self.name.clone(), number);
                events.tell(EventKind::DoubtDecided {
                    job,
                    generation,
                    rank,
                    epoch,
                    samples,
                    is_dropped,
                });
            }
        }
        let sealed = generation.seal(moment.now_ms);
        self.seal(sealed, events);
        all
    }
}
