//! Jobs: the identity that determines an order, and the generations that delivered it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use shardfeed_plan::{Digest, JobIdentity, Records, Segment, differences};

use crate::answer::{Answer, Refusal};
use crate::bound::{
    GENERATIONS_KEPT, JOBS_MAX, OPERATORS_BYTES_MAX, PIECES_KEPT, PRINCIPAL_JOBS_MAX, RANKS_KEPT,
    RECORD_SPEC_CHUNKS_MAX, RUNS_KEPT, SEALED_KEPT, check_count, check_length, check_name,
    check_room, check_text,
};
use crate::command::{Command, RegisterJob};
use crate::cursor::SealedEpoch;
use crate::dataset::{Phase, check_content};
use crate::event::EventKind;
use crate::generation::Generation;
use crate::history::LeaseEnd;
use crate::hold::Held;
use crate::lease::RankRef;
use crate::pool::Pool;
use crate::session::{Sessions, principal_name};
use crate::skipped::{SampleRuns, SkippedRecord};
use crate::state::{Moment, State};

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Name of the job.
    pub name: String,
    /// Identity, which determines the job's order.
    pub identity: JobIdentity,
    /// Name of the dataset that it reads.
    pub dataset: String,
    /// Chunks of its `RecordSpec`, in order; empty in one process and for a job of an earlier
    /// release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub record_spec_chunks: Vec<Digest>,
    /// Time at which it was registered, Unix ms.
    pub registered_ms: u64,
    /// Principal that registered it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub registered_by: String,
    /// User id of the trainers' processes, as the worker that served the first rank knew it;
    /// `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Limited principals whose processes continued ranks that a worker had served: they may start
    /// others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub continued_by: BTreeSet<String>,
    /// Last generations by number; the last one is the current one.
    pub generations: BTreeMap<u64, Generation>,
    /// Number of generations opened so far.
    pub opened: u64,
    /// Last epochs that were sealed, oldest first.
    pub sealed: VecDeque<SealedEpoch>,
    /// Number of reports that were ignored because their lease or cursor was no longer current.
    pub stale_reports: u64,
    /// Last runs that launchers named, oldest first.
    pub(crate) runs: VecDeque<SeenRun>,
    /// Generations that are not superseded.
    #[serde(skip)]
    pub(crate) usable: BTreeSet<u64>,
    /// Lowest generation number: a removed job of this name may have had lower ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) numbered_from: u64,
    /// Hold of the job; `None`: it is not held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// First corrupt records that its workers found, by sample, at most [`crate::SKIPPED_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedRecord>,
    /// Samples of all further corrupt records, for the count.
    #[serde(default, skip_serializing_if = "SampleRuns::is_empty")]
    pub skipped_more: SampleRuns,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A known run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenRun {
    /// Name of the run.
    pub(crate) run: String,
    /// Last generation of the run.
    pub(crate) generation: u64,
}

/// All jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Jobs {
    pub(crate) by_name: BTreeMap<String, Job>,
    /// Number of ranks in all generations of all jobs.
    #[serde(skip)]
    pub(crate) ranks: u64,
    /// Generations of removed jobs are numbered below this, so that a loader state of one is never
    /// mistaken for that of another job.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) removed_below: u64,
}

impl Job {
    /// Returns the generation that was opened last.
    pub fn current(&self) -> Option<&Generation> {
        self.generations.last_key_value().map(|(_, generation)| generation)
    }

    /// Returns the last generation of a run that a launcher named, if it is kept.
    pub(crate) fn seen(&self, run: &str) -> Option<u64> {
        self.runs.iter().rev().find(|seen| seen.run == run).map(|seen| seen.generation)
    }

    /// Keeps the last generation of a run.
    pub(crate) fn saw(&mut self, run: &str, generation: u64) {
        if let Some(seen) = self.runs.iter_mut().rev().find(|seen| seen.run == run) {
            seen.generation = generation;
            return;
        }
        self.runs.push_back(SeenRun { run: run.to_owned(), generation });
        if self.runs.len() > RUNS_KEPT {
            self.runs.pop_front();
        }
    }

    /// Returns `Superseded` with the generation that took over, if one did.
    pub(crate) fn superseded(&self, generation: u64) -> Option<Refusal> {
        let known = self.generations.get(&generation);
        let by = match known {
            Some(known) => known.superseded_by.clone()?,
            None => self.current().filter(|current| current.number > generation)?.as_successor(),
        };
        Some(by.refusal(&self.name, generation))
    }

    /// Returns the refusal for a rank that is not in a generation: `Superseded`, or `otherwise`.
    pub(crate) fn out_of_place(&self, generation: u64, otherwise: Refusal) -> Refusal {
        if let Some(refusal) = self.superseded(generation) {
            return refusal;
        }
        match self.current().filter(|current| current.number > generation) {
            Some(current) => current.as_successor().refusal(&self.name, generation),
            None => otherwise,
        }
    }

    /// Keeps the last sealed epochs; returns their events.
    #[must_use]
    pub(crate) fn seal(&mut self, sealed: Vec<SealedEpoch>) -> Vec<EventKind> {
        let told = sealed.iter().map(|&SealedEpoch { epoch, generation, .. }| {
            EventKind::EpochSealed { job: self.name.clone(), generation, epoch }
        });
        let told = told.collect();
        self.sealed.extend(sealed);
        let too_many = self.sealed.len().saturating_sub(SEALED_KEPT);
        self.sealed.drain(..too_many);
        told
    }

    /// Recomputes the counts of a dynamic job's sealed epochs after a rank on which the policy had
    /// decided came back.
    pub(crate) fn recount(&mut self, generation: u64) {
        let Some(known) = self.generations.get(&generation) else {
            return;
        };
        for sealed in self.sealed.iter_mut().filter(|sealed| sealed.generation == generation) {
            let pool = known.pools.get(&sealed.epoch);
            sealed.tally = pool.map(Pool::tally).or(sealed.tally);
        }
    }

    /// Removes generations that are no longer kept; returns them.
    ///
    /// A generation whose ranks are moving to the current one is kept regardless of its number of
    /// ranks.
    pub(crate) fn forget(&mut self) -> Vec<Generation> {
        let Some(current) = self.current() else {
            return vec![];
        };
        let (current_number, moving) = (current.number, current.by_move.then_some(current.parent));
        let earlier = self.generations.range(..current_number);
        let (mut kept, mut ranks) = (0, 0);
        let mut dropped = vec![];
        for (number, generation) in earlier.rev() {
            let is_left = moving == Some(Some(*number));
            let fits = ranks + generation.ranks.len() as u64 <= RANKS_KEPT;
            if kept < GENERATIONS_KEPT && (is_left || fits && dropped.is_empty()) {
                kept += 1;
                ranks += generation.ranks.len() as u64;
            } else {
                dropped.push(*number);
            }
        }
        for number in &dropped {
            self.usable.remove(number);
        }
        self.forget_pools();
        dropped.iter().filter_map(|number| self.generations.remove(number)).collect()
    }

    /// Drops the oldest lists, so that restarts of a large dynamic job stay small.
    fn forget_pools(&mut self) {
        let mut pieces = 0;
        for generation in self.generations.values_mut().rev().skip(1) {
            pieces += generation.pieces();
            if pieces > PIECES_KEPT && generation.superseded_by.is_some() {
                generation.pools.clear();
            }
        }
    }

    fn index(&mut self) {
        self.usable.clear();
        for (number, generation) in &mut self.generations {
            generation.index();
            if generation.superseded_by.is_none() {
                self.usable.insert(*number);
            }
        }
    }
}

impl Jobs {
    pub(crate) fn get(&self, name: &str) -> Result<&Job, Refusal> {
        self.by_name.get(name).ok_or_else(|| not_found(name))
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Result<&mut Job, Refusal> {
        self.by_name.get_mut(name).ok_or_else(|| not_found(name))
    }

    /// Number of ranks in all generations of a principal's jobs.
    pub(crate) fn ranks_of(&self, principal: &str) -> u64 {
        let own = |job: &&Job| principal_name(&job.registered_by) == principal;
        let generations =
            self.by_name.values().filter(own).flat_map(|job| job.generations.values());
        generations.map(|generation| generation.ranks.len() as u64).sum()
    }

    /// Number of groups begun in all pools: an estimate of their size.
    pub(crate) fn groups(&self) -> u64 {
        let generations = self.by_name.values().flat_map(|job| job.generations.values());
        generations.flat_map(|generation| generation.pools.values()).map(|pool| pool.next).sum()
    }

    /// Frees a rank whose session ended.
    ///
    /// Returns true if its generation was not superseded.
    pub(crate) fn free(&mut self, rank: &RankRef, end: &LeaseEnd) -> bool {
        let job = self.by_name.get_mut(&rank.job);
        let generation = job.and_then(|job| job.generations.get_mut(&rank.generation));
        generation.is_some_and(|generation| {
            generation.free(rank.rank, end);
            generation.superseded_by.is_none()
        })
    }

    /// Recomputes the indexes from the jobs.
    pub(crate) fn index(&mut self, sessions: &mut Sessions) {
        self.ranks = 0;
        for job in self.by_name.values_mut() {
            job.index();
            for (number, generation) in &job.generations {
                self.ranks += generation.ranks.len() as u64;
                for (session, rank) in generation.leases() {
                    let (job, generation) = (job.name.clone(), *number);
                    sessions.file_lease(session, RankRef { job, generation, rank });
                }
            }
        }
    }
}

impl State {
    pub(crate) fn remove_job(&mut self, name: &str) -> Result<Answer, Refusal> {
        let job = self.jobs.get(name)?;
        let usable = job.usable.iter().filter_map(|number| job.generations.get(number));
        let served = usable.flat_map(|generation| {
            let ranks = generation.leases().map(|(_, rank)| rank);
            ranks.map(|rank| (generation.number, rank))
        });
        if let Some((generation, rank)) = served.into_iter().next() {
            return Err(Refusal::Invalid(format!(
                "rank {rank} of generation {generation} of job `{name}` is served; stop its ranks \
                 first"
            )));
        }
        let Some(job) = self.jobs.by_name.remove(name) else {
            return Err(not_found(name));
        };
        for (number, generation) in &job.generations {
            self.jobs.ranks -= generation.ranks.len() as u64;
            self.jobs.removed_below = self.jobs.removed_below.max(number.saturating_add(1));
            for (session, rank) in generation.leases() {
                let (job, generation) = (name.to_owned(), *number);
                self.sessions.drop_lease(session, &RankRef { job, generation, rank });
            }
        }
        self.events.tell(EventKind::JobRemoved { job: name.to_owned() });
        Ok(Answer::Done)
    }

    pub(crate) fn register_job(
        &mut self,
        moment: Moment,
        Command { principal, scope, .. }: &Command,
        register: &RegisterJob,
    ) -> Result<Answer, Refusal> {
        let RegisterJob { name, identity, dataset, record_spec_chunks } = register;
        check_name("the job's name", name)?;
        check_identity(identity)?;
        let hint = "declare fewer features and operators";
        let chunks = record_spec_chunks.len();
        check_count("chunks of a record spec", chunks, RECORD_SPEC_CHUNKS_MAX, hint)?;
        self.check_dataset(dataset, identity)?;
        if let Some(known) = self.jobs.by_name.get(name) {
            let differences = differences(&known.identity, identity);
            if differences.is_empty() {
                return Ok(Answer::Done);
            }
            return Err(Refusal::OtherIdentity { name: name.clone(), differences });
        }
        let has_spec = matches!(identity.records, Records::RecordSpec(_));
        if has_spec && !dataset.is_empty() && chunks == 0 {
            let reason =
                format!("the record spec of job `{name}` has no chunks; register it again");
            return Err(Refusal::Invalid(reason));
        }
        let held = self.jobs.by_name.len() as u64;
        check_room("jobs", held, JOBS_MAX as u64, "use the names of jobs that exist")?;
        if !scope.is_empty() {
            let own = self.jobs.by_name.values().filter(|job| job.registered_by == *principal);
            let (what, hint) = (format!("jobs of {principal}"), "have an operator remove some");
            check_room(&what, own.count() as u64, PRINCIPAL_JOBS_MAX, hint)?;
        }
        let job = Job {
            name: name.clone(),
            identity: identity.clone(),
            dataset: dataset.clone(),
            record_spec_chunks: record_spec_chunks.clone(),
            registered_ms: moment.now_ms,
            registered_by: principal.clone(),
            owner: None,
            continued_by: BTreeSet::new(),
            generations: BTreeMap::new(),
            opened: 0,
            sealed: VecDeque::new(),
            stale_reports: 0,
            runs: VecDeque::new(),
            usable: BTreeSet::new(),
            numbered_from: self.jobs.removed_below,
            held: None,
            skipped: vec![],
            skipped_more: SampleRuns::default(),
        };
        self.jobs.by_name.insert(name.clone(), job);
        let (job, dataset) = (name.clone(), dataset.clone());
        self.events.tell(EventKind::JobRegistered { job, dataset });
        Ok(Answer::Done)
    }

    fn check_dataset(&self, name: &str, identity: &JobIdentity) -> Result<(), Refusal> {
        if name.is_empty() {
            // In one process no other process needs to find the dataset.
            return Ok(());
        }
        let dataset = self.datasets.get(name)?;
        match &dataset.phase {
            Phase::Ready(ready) => check_content(name, ready, identity.content()),
            Phase::Failed { failure, .. } => {
                let reason = format!("dataset `{name}` failed: {}", failure.message);
                Err(Refusal::Invalid(reason))
            }
            phase => {
                let phase = phase.in_words();
                let reason = format!("dataset `{name}` is {phase}; wait until it is ready");
                Err(Refusal::Invalid(reason))
            }
        }
    }
}

fn not_found(name: &str) -> Refusal {
    Refusal::NotFound { what: "job".to_owned(), name: name.to_owned() }
}

fn check_identity(identity: &JobIdentity) -> Result<(), Refusal> {
    let JobIdentity { shuffle, lanes, records, decoder, .. } = identity;
    if identity.is_dynamic() && *lanes != 1 {
        let reason = format!("lanes={lanes} means nothing with mode=\"dynamic\"; leave it out");
        return Err(Refusal::Invalid(reason));
    }
    if let Records::Operators(line) = records {
        check_length("the list of operators", line, OPERATORS_BYTES_MAX)?;
    }
    check_text("the decoder's id", decoder)?;
    let plan = identity.mode.check_tail(identity.tail).and_then(|()| shuffle.validate());
    let plan = plan.and_then(|()| Segment::start(*lanes, *lanes, 1).map(|_| ()));
    plan.map_err(|error| Refusal::Invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use shardfeed_plan::{Mode, Tail};

    use super::*;
    use crate::Change;
    use crate::fixture::{DATASET, Fixture, JOB, add, digest, identity, register};

    fn with(identity: JobIdentity) -> Change {
        let (name, dataset) = (JOB.to_owned(), DATASET.to_owned());
        Change::RegisterJob(RegisterJob { name, identity, dataset, record_spec_chunks: vec![] })
    }

    #[test]
    fn the_same_identity_under_the_same_name_changes_nothing() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let before = fixture.contents();
        fixture.done(register(Tail::Drop));
        assert_eq!(fixture.contents(), before);
    }

    #[test]
    fn another_identity_under_the_same_name_lists_every_difference() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let mut other = identity(Tail::Pad);
        other.shuffle.seed = 2;
        other.lanes = 4;
        fixture.refused(
            with(other),
            expect![[r#"
            job `train` exists with another identity: seed is 1 there and
            2 here, lanes is 2 there and 4 here, tail is drop there and
            pad here; use another name, or the same values"#]],
        );
    }

    #[test]
    fn numbers_that_decide_nothing_may_differ() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let mut plain = identity(Tail::Drop);
        plain.shuffle.enabled = false;
        let job = |identity: &JobIdentity| {
            let (name, dataset) = ("plain".to_owned(), DATASET.to_owned());
            Change::RegisterJob(RegisterJob {
                name,
                identity: identity.clone(),
                dataset,
                record_spec_chunks: vec![],
            })
        };
        fixture.done(job(&plain));
        plain.shuffle.window = 99;
        fixture.done(job(&plain));
    }

    #[test]
    fn the_dataset_is_ready_and_has_that_content() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.refused(register(Tail::Drop), expect!["there is no dataset `images`"]);
        fixture.done(add());
        fixture.refused(
            register(Tail::Drop),
            expect!["dataset `images` is being listed; wait until it is ready"],
        );
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(crate::fixture::listing(session, fencing, 0));
        fixture.refused(
            register(Tail::Drop),
            expect![[r#"
            dataset `images` failed: no file matches /data/*.tfrecord;
            check the patterns, or add the files first"#]],
        );
        fixture.ready_dataset(session);
        let mut other = identity(Tail::Drop);
        other.shuffle.content = digest(8);
        fixture.refused(
            with(other),
            expect![[r#"
            dataset `images` exists with other content:
            0707070707070707070707070707070707070707070707070707070707070707;
            use another name"#]],
        );
        fixture.done(register(Tail::Drop));
    }

    #[test]
    fn what_makes_no_order_is_refused() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let mut refused = |change: fn(&mut JobIdentity), says| {
            let mut identity = identity(Tail::Drop);
            change(&mut identity);
            fixture.refused(with(identity), says);
        };
        refused(
            |identity| identity.shuffle.window = 0,
            expect!["`shuffle_window` must be at least 1"],
        );
        refused(|identity| identity.lanes = 0, expect!["`lanes` must be at least 1"]);
        refused(
            |identity| identity.lanes = u64::MAX,
            expect!["`lanes` is 18446744073709551615, but may be at most 1048576"],
        );
        refused(
            |identity| identity.records = Records::Operators("x".repeat(20_000)),
            expect![[r#"
            the list of operators has 20000 bytes; at most 16384 are
            allowed"#]],
        );
    }

    #[test]
    fn a_dynamic_job_with_equal_steps_is_refused() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let dynamic =
            |tail, lanes| with(JobIdentity { mode: Mode::Dynamic, lanes, ..identity(tail) });
        fixture.refused(
            dynamic(Tail::Uneven, 2),
            expect![[r#"lanes=2 means nothing with mode="dynamic"; leave it out"#]],
        );
        fixture.refused(
            dynamic(Tail::Drop, 1),
            expect![[r#"
            mode="dynamic" has tail="uneven" only: with equal steps no
            rank could take another's work; pass tail="uneven", or
            mode="deterministic" for tail="drop""#]],
        );
        fixture.refused(
            dynamic(Tail::Pad, 1),
            expect![[r#"
            mode="dynamic" has tail="uneven" only: with equal steps no
            rank could take another's work; pass tail="uneven", or
            mode="deterministic" for tail="pad""#]],
        );
    }

    #[test]
    fn there_is_a_bound_for_jobs() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let job = |number: usize| {
            let (name, dataset) = (number.to_string(), DATASET.to_owned());
            Change::RegisterJob(RegisterJob {
                name,
                identity: identity(Tail::Drop),
                dataset,
                record_spec_chunks: vec![],
            })
        };
        for number in 1..JOBS_MAX {
            let command = fixture.command(job(number));
            fixture.state.apply(fixture.state.applied() + 1, &command).answer.unwrap();
        }
        fixture.refused(job(0), expect!["jobs: at most 10000; use the names of jobs that exist"]);
    }

    #[test]
    fn a_job_that_nobody_is_served_of_is_removed_and_its_generations_do_not_come_again() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let remove = || Change::RemoveJob { name: JOB.to_owned() };
        fixture.start(crate::fixture::first_of_two(session));
        fixture.refused(
            remove(),
            expect![[r#"
                rank 0 of generation 0 of job `train` is served; stop its
                ranks first"#]],
        );
        let lease = fixture.lease(0);
        fixture.done(Change::EndRank { lease, is_told: true, failure: None, position: None });
        fixture.refused(
            Change::RemoveDataset { name: DATASET.to_owned() },
            expect!["job `train` reads dataset `images`; remove the job first"],
        );
        fixture.done(remove());
        fixture.refused(remove(), expect!["there is no job `train`"]);
        fixture.done(register(Tail::Pad));
        let again = fixture.start(crate::fixture::first_of_two(session));
        assert_eq!(again.generation, 1);
    }

    #[test]
    fn a_dataset_that_no_job_reads_is_removed_and_its_attempts_do_not_come_again() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        let remove = || Change::RemoveDataset { name: DATASET.to_owned() };
        fixture.refused(remove(), expect!["there is no dataset `images`"]);
        fixture.done(add());
        fixture.take(session, 1);
        fixture.done(remove());
        assert_eq!(fixture.state.session(session).unwrap().scans.len(), 0);
        assert!(!fixture.state.has_scans());
        fixture.ready_dataset(session);
        assert_eq!(fixture.state.dataset(DATASET).unwrap().attempt, 2);
        fixture.done(remove());
        assert_eq!(fixture.state.datasets().count(), 0);
    }
}
