//! Jobs: the identity that determines an order, and the generations that delivered it.

pub(crate) mod generation;
mod hold;
mod inherit;
pub(crate) mod lease;
mod mixture;
pub(crate) mod origin;
pub(crate) mod phase;
mod place;
mod register;
mod report;
mod skip;
pub(crate) mod skipped;
mod start;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use shardfeed_plan::{Digest, JobIdentity, JobMixture, Sample};

use crate::dynamic::pool::Pool;
use crate::job::generation::{Generation, SealedEpoch};
use crate::job::skipped::SampleRuns;
use crate::log::{
    EventKind, Events, GENERATIONS_KEPT, Hold, PIECES_KEPT, RANKS_KEPT, RUNS_KEPT, Refusal, Result,
    SEALED_KEPT, SKIPPED_KEPT, SkippedRecord, is_zero,
};
use crate::session::{Sessions, principal_name};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub name: String,
    pub identity: JobIdentity,
    pub dataset: String,
    /// Mixtures that it reads instead, by digest, at most [`crate::MIXTURES_KEPT`]: those of
    /// generations that are not superseded, and the last others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixtures: Vec<(Digest, JobMixture)>,
    /// Ordered chunks of its `RecordSpec`; empty in one process and for jobs of earlier releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub record_spec_chunks: Vec<Digest>,
    pub registered_ms: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub registered_by: String,
    /// User id of the trainers' processes, as the first rank's worker knew it; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Limited principals whose processes continued ranks of a worker: they may start others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub continued_by: BTreeSet<String>,
    /// Last generations by number; the last one is the current one.
    pub generations: BTreeMap<u64, Generation>,
    pub opened: u64,
    /// Last epochs that were sealed, oldest first.
    pub sealed: VecDeque<SealedEpoch>,
    /// Number of reports that were ignored because their lease or cursor was no longer current.
    pub stale_reports: u64,
    /// Last runs that launchers named, oldest first.
    pub(crate) runs: VecDeque<SeenRun>,
    /// Lowest generation number: a removed job of this name may have had lower ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) numbered_from: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// First corrupt records that its workers found, by sample, at most [`crate::SKIPPED_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedRecord>,
    /// Samples of all further corrupt records, for the count.
    #[serde(default, skip_serializing_if = "SampleRuns::is_empty")]
    pub skipped_more: SampleRuns,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub hold: Hold,
    pub principal: String,
    /// Reason, for people; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time since which the job is held, Unix ms.
    pub since_ms: u64,
}

impl Held {
    /// Returns the refusal for a rank of a cancelled job.
    pub(crate) fn refusal(&self, job: &str) -> Refusal {
        let Self { principal, reason, .. } = self;
        // The text after a message's first semicolon is the hint; `reason` must not contain one.
        let reason = reason.replace("; ", ", ");
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let (job, by) = (job.to_owned(), principal.clone());
        Refusal::Cancelled { job, by, reason }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenRun {
    pub(crate) run: String,
    /// Last generation of the run.
    pub(crate) generation: u64,
}

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
    pub fn current(&self) -> Option<&Generation> {
        self.generations.last_key_value().map(|(_, generation)| generation)
    }

    /// Generations that are not superseded, oldest first.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &Generation> {
        self.generations.values().filter(|generation| generation.superseded_by.is_none())
    }

    /// Returns the last generation of a run that a launcher named, if it is kept.
    pub(crate) fn seen(&self, run: &str) -> Option<u64> {
        self.runs.iter().rev().find(|seen| seen.run == run).map(|seen| seen.generation)
    }

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

    /// Keeps the last sealed epochs.
    pub(crate) fn seal(&mut self, sealed: Vec<SealedEpoch>, events: &mut Events) {
        for &SealedEpoch { epoch, generation, .. } in &sealed {
            let job = self.name.clone();
            events.tell(EventKind::EpochSealed { job, generation, epoch });
        }
        self.sealed.extend(sealed);
        let too_many = self.sealed.len().saturating_sub(SEALED_KEPT);
        self.sealed.drain(..too_many);
    }

    /// Recounts sealed epochs of a dynamic job after a rank returned on which the policy decided.
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
    /// The generation from which ranks move to the current one is kept regardless of its size, and
    /// one that a rank has neither left nor finished also regardless of its age: at most as many of
    /// these as the job has ranks.
    pub(crate) fn forget(&mut self) -> Vec<Generation> {
        let Some(current) = self.current() else {
            return vec![];
        };
        let moving = current.by_move.then_some(current.parent).flatten();
        let mut continued_most = current.world_size;
        let earlier = self.generations.range(..current.number);
        let (mut kept, mut ranks) = (0, 0);
        let mut dropped = vec![];
        for (number, generation) in earlier.rev() {
            let is_continued = continued_most > 0 && generation.may_continue();
            continued_most -= u64::from(is_continued);
            let fits = kept < GENERATIONS_KEPT
                && ranks + generation.ranks.len() as u64 <= RANKS_KEPT
                && dropped.is_empty();
            if is_continued || fits || moving == Some(*number) {
                kept += 1;
                ranks += generation.ranks.len() as u64;
            } else {
                dropped.push(*number);
            }
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

    /// Number of corrupt records that the job's workers found.
    pub fn skipped_count(&self) -> u64 {
        self.skipped.len() as u64 + self.skipped_more.count()
    }

    /// True if a report of this corrupt record would change anything.
    pub fn learns_of(&self, sample: Sample) -> bool {
        self.skipped.binary_search_by_key(&sample, |known| known.sample).is_err()
            && (self.skipped.len() < SKIPPED_KEPT
                || self.skipped_more.has_room(sample) && !self.skipped_more.contains(sample))
    }
}

impl Jobs {
    pub(crate) fn get(&self, name: &str) -> Result<&Job> {
        self.by_name.get(name).ok_or_else(|| not_found(name))
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Result<&mut Job> {
        self.by_name.get_mut(name).ok_or_else(|| not_found(name))
    }

    /// Jobs that a principal registered, with any of its tokens.
    pub(crate) fn of(&self, principal: &str) -> impl Iterator<Item = &Job> {
        let jobs = self.by_name.values();
        jobs.filter(move |job| principal_name(&job.registered_by) == principal)
    }

    /// Number of ranks in all generations of a principal's jobs.
    pub(crate) fn ranks_of(&self, principal: &str) -> u64 {
        let generations = self.of(principal).flat_map(|job| job.generations.values());
        generations.map(|generation| generation.ranks.len() as u64).sum()
    }

    /// Number of groups begun in all pools: an estimate of their size.
    pub(crate) fn groups(&self) -> u64 {
        let generations = self.by_name.values().flat_map(|job| job.generations.values());
        generations.flat_map(|generation| generation.pools.values()).map(|pool| pool.next).sum()
    }

    pub(crate) fn index(&mut self, sessions: &mut Sessions) {
        self.ranks = 0;
        for job in self.by_name.values_mut() {
            for generation in job.generations.values_mut() {
                generation.index();
                self.ranks += generation.ranks.len() as u64;
                for (session, rank) in generation.leases_of(&job.name) {
                    sessions.file_lease(session, rank);
                }
            }
        }
    }
}

fn not_found(name: &str) -> Refusal {
    Refusal::NotFound { what: "job".to_owned(), name: name.to_owned() }
}
