//! Invariants that hold after every command.

pub(crate) mod breach;
mod pools;

use std::collections::BTreeSet;

use crate::dataset::{Dataset, Phase};
use crate::dynamic::pool::Pool;
use crate::invariant::breach::{Breach, Checked, bound, rule};
use crate::invariant::pools::check_pools;
use crate::job::Job;
use crate::job::generation::Generation;
use crate::log::{
    ACCESS_TOKENS_MAX, CORDONS_MAX, DATASETS_MAX, EPOCHS_BEGUN_KEPT, EPOCHS_KEPT, EVENTS_KEPT,
    GENERATIONS_KEPT, Hold, JOBS_MAX, REQUESTS_KEPT, RUNS_KEPT, SEALED_KEPT, SESSIONS_ENDED_KEPT,
    SESSIONS_MAX, SKIPPED_KEPT,
};
use crate::state::State;

impl State {
    /// Checks the invariants, in time proportional to the state.
    pub fn check(&self) -> Result<(), Breach> {
        self.check_bounds()?;
        self.check_filed()?;
        self.check_leases()?;
        let past = |id: &u64| *id <= self.applied;
        rule(self.sessions.live.keys().all(past), "sessions", "they began in the past")?;
        for dataset in self.datasets() {
            check_dataset(dataset)?;
        }
        for job in self.jobs() {
            check_job(job, self.clock_ms)?;
        }
        Ok(())
    }

    fn check_bounds(&self) -> Checked {
        let bounds = [
            ("answers", self.dedupe.len(), REQUESTS_KEPT),
            ("sessions", self.sessions.live.len(), SESSIONS_MAX),
            ("ended sessions", self.sessions.ended.len(), SESSIONS_ENDED_KEPT),
            ("datasets", self.datasets.by_name.len(), DATASETS_MAX),
            ("jobs", self.jobs.by_name.len(), JOBS_MAX),
            ("cordoned workers", self.sessions.cordons.len(), CORDONS_MAX),
            ("events", self.events.len(), EVENTS_KEPT),
            ("access tokens", self.access.by_id.len(), ACCESS_TOKENS_MAX),
        ];
        bounds.into_iter().try_for_each(|(what, held, most)| bound(what, held, most))
    }

    /// Checks that every derived index equals one that is computed from the state now.
    fn check_filed(&self) -> Checked {
        let mut anew = self.clone();
        anew.index();
        let parts = [
            ("answers", self.dedupe == anew.dedupe),
            ("datasets", self.datasets == anew.datasets),
            ("jobs", self.jobs == anew.jobs),
            ("sessions", self.sessions == anew.sessions),
        ];
        match parts.into_iter().find(|(_, same)| !same) {
            Some((what, _)) => Err(Breach::Filed { what }),
            None => Ok(()),
        }
    }

    /// Checks that leases belong to live sessions.
    ///
    /// The fencing token of a rank's lease was granted once and in the past; that of a scan may be
    /// shared by scans that one session claimed together.
    fn check_leases(&self) -> Checked {
        let mut granted = BTreeSet::new();
        for job in self.jobs() {
            for generation in job.generations.values() {
                for (number, rank) in &generation.ranks {
                    let Some(lease) = &rank.lease else {
                        continue;
                    };
                    let what = || format!("rank {number} of {}", name_of(job, generation));
                    self.check_lease(lease.session, lease.fencing, what)?;
                    if !granted.insert(lease.fencing) {
                        return Err(Breach::Fencing { what: what(), fencing: lease.fencing });
                    }
                }
            }
        }
        for dataset in self.datasets() {
            for (_, lease) in dataset.leases() {
                let what = || format!("dataset {}", dataset.name);
                self.check_lease(lease.session, lease.fencing, what)?;
                if granted.contains(&lease.fencing) {
                    return Err(Breach::Fencing { what: what(), fencing: lease.fencing });
                }
            }
        }
        Ok(())
    }

    fn check_lease(&self, session: u64, fencing: u64, what: impl Fn() -> String) -> Checked {
        if self.session(session).is_none() {
            return Err(Breach::Holder { what: what(), session });
        }
        if fencing > self.applied || fencing <= session {
            return Err(Breach::Fencing { what: what(), fencing });
        }
        Ok(())
    }
}

fn name_of(job: &Job, generation: &Generation) -> String {
    format!("generation {} of job {}", generation.number, job.name)
}

fn check_dataset(dataset: &Dataset) -> Checked {
    let progress = dataset.progress();
    let is_done = progress.parts == progress.parts_done;
    let fits = match &dataset.phase {
        Phase::Listing { .. } | Phase::Failed { .. } => true,
        Phase::Scanning(_) => !is_done,
        Phase::Assembling(scan) => is_done && !scan.parts.is_empty(),
        Phase::Ready(ready) => {
            let counted = (progress.files, progress.bytes, progress.records);
            is_done && counted == (ready.shards, ready.bytes, ready.records)
        }
    };
    rule(fits, &dataset.name, "its phase fits its parts")?;
    rule(dataset.attempt > 0, &dataset.name, "attempts count from 1")
}

fn check_job(job: &Job, clock_ms: u64) -> Checked {
    let Job { name, generations, .. } = job;
    let world_size = job.current().map_or(0, |current| current.world_size);
    let most = usize::try_from(world_size).unwrap_or(usize::MAX).saturating_add(GENERATIONS_KEPT);
    bound("earlier generations of a job", generations.len().saturating_sub(1), most)?;
    let superseded = generations.values().filter(|known| known.superseded_by.is_some()).count();
    bound("superseded generations of a job", superseded, GENERATIONS_KEPT)?;
    bound("sealed epochs of a job", job.sealed.len(), SEALED_KEPT)?;
    bound("runs of a job", job.runs.len(), RUNS_KEPT)?;
    bound("corrupt records of a job", job.skipped.len(), SKIPPED_KEPT)?;
    let ascends = job.skipped.is_sorted_by(|a, b| a.sample < b.sample);
    let is_once = job.skipped.iter().all(|known| !job.skipped_more.contains(known.sample));
    rule(ascends && is_once, name, "corrupt records are known once each, by sample")?;
    let has_room = job.skipped.len() < SKIPPED_KEPT && !job.skipped_more.is_empty();
    rule(!has_room, name, "the first corrupt records are kept whole")?;
    rule(job.skipped_more.is_counted(), name, "runs of corrupt samples are counted, apart, few")?;
    rule(job.opened >= generations.len() as u64, name, "every generation was opened")?;
    for (number, generation) in generations {
        rule(*number == generation.number, name, "generations are kept by number")?;
        let what = &name_of(job, generation);
        check_generation(generation, what)?;
        check_pools(job, generation, what)?;
    }
    let is_cancelled = job.held.as_ref().is_some_and(|held| held.hold == Hold::Cancelled);
    let is_served = generations.values().any(|generation| generation.leases().next().is_some());
    rule(!(is_cancelled && is_served), name, "a cancelled job serves no rank")?;
    let usable = || generations.values().filter(|generation| generation.superseded_by.is_none());
    let starts = usable().filter(|generation| !generation.by_move).count();
    rule(starts <= 1, name, "at most one usable generation did not come from another by a move")?;
    let is_usable = job.current().is_none_or(|current| current.superseded_by.is_none());
    rule(is_usable, name, "the current generation is usable")?;
    for sealed in &job.sealed {
        let in_time = sealed.began_ms <= sealed.sealed_ms && sealed.sealed_ms <= clock_ms;
        rule(in_time, name, "an epoch begins before it is sealed")?;
        let known = generations.get(&sealed.generation);
        let is_left = known.is_none_or(|generation| {
            let pool = generation.pools.get(&sealed.epoch);
            let last = generation.pools.last_key_value().map_or(0, |(last, _)| *last);
            generation.cursor().epoch > sealed.epoch
                || pool.map_or(job.identity.is_dynamic(), Pool::is_done)
                || last + 1 >= sealed.epoch + EPOCHS_KEPT as u64
        });
        let what = "every rank is beyond a sealed epoch, or nothing is left of it, or it was given \
                    up for later ones";
        rule(is_left, name, what)?;
    }
    Ok(())
}

fn check_generation(generation: &Generation, what: &str) -> Checked {
    let Generation { number, origin, ranks, sealed_to, begun, .. } = generation;
    rule(generation.parent.is_none_or(|parent| parent < *number), what, "its parent is older")?;
    let by = generation.superseded_by.as_ref();
    rule(by.is_none_or(|by| by.generation > *number), what, "what took over is younger")?;
    rule(!ranks.is_empty(), what, "a rank opened it")?;
    let in_world = ranks.keys().all(|rank| *rank < generation.world_size);
    rule(in_world, what, "ranks are below the world size")?;
    for rank in ranks.values() {
        rule(rank.start.epoch == origin.epoch, what, "ranks start in its first epoch")?;
        rule(rank.start <= rank.cursor, what, "cursors do not go back")?;
        // In a dynamic job other ranks may have consumed all of an epoch.
        let is_beyond = rank.cursor.epoch >= *sealed_to || !generation.pools.is_empty();
        rule(is_beyond, what, "no rank is in a sealed epoch")?;
    }
    bound("epochs begun", begun.len(), EPOCHS_BEGUN_KEPT)?;
    rule(*sealed_to >= origin.epoch, what, "epochs are sealed from its first one on")?;
    let unsealed = begun.keys().all(|epoch| epoch >= sealed_to);
    rule(unsealed, what, "sealed epochs are no longer begun")
}
