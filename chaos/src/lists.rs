//! Samples that trainers of dynamic jobs received, and the invariants about them.
//!
//! As `oracle`, but the assignment of samples to ranks depends on the order of requests, so only
//! the total is known in advance.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use shardfeed_plan::Sample;
use shardfeed_proto::coordinator::v1::InDoubt;

use crate::breach::Breaches;
use crate::world::catalog::{GRACE_MS, JobFacts, policy_of};

/// Precision of the observed times, ms.
const SLACK_MS: u64 = 150;

/// Time within which a decision for an operator is observed after its answer, ms.
const GONE_MS: u64 = 10_000;

/// (epoch, step)
type Place = (u64, u64);

/// A lease: job, generation, rank, fencing token.
type LeaseKey = (String, u64, u64, u64);

/// Samples that the trainers of dynamic jobs received.
#[derive(Debug)]
pub struct Lists {
    breaches: Breaches,
    seen: RefCell<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    jobs: BTreeMap<String, Ledger>,
    /// Last known position of a rank when the session that served it ended.
    ended: BTreeMap<LeaseKey, Place>,
    /// Leases in `ended` that ended because an operator cancelled the job. Their sessions live on
    /// and learn of it with the next heartbeat.
    cancelled: BTreeSet<LeaseKey>,
    /// Last time at which a rank of a generation lost its lease, ms, by job, generation and rank.
    unserved: BTreeMap<(String, u64, u64), u64>,
    /// Ranks that an operator declares gone, by job and rank. `None`: without an answer yet; else the
    /// time of the answer that the policy decided, ms.
    gone: BTreeMap<(String, u64), Option<u64>>,
    decided: Decided,
    /// Number of decisions.
    decisions: u64,
}

/// In-doubt samples that the policy decided on, by job, generation and epoch: the number
/// redelivered to other ranks and the number dropped.
type Decided = BTreeMap<(String, u64, u64), (u64, u64)>;

#[derive(Debug)]
struct Ledger {
    job: Rc<JobFacts>,
    generations: BTreeMap<u64, Received>,
}

/// Decision of the policy about in-doubt samples.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// Rank that the samples had been granted to.
    pub rank: u64,
    /// Epoch of the samples.
    pub epoch: u64,
    /// Number of samples.
    pub samples: u64,
    /// True if the samples are dropped; false if they are redelivered.
    pub is_dropped: bool,
}

/// Start of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Generation whose states it started from.
    pub parent: Option<u64>,
    /// Positions of the parent's ranks according to these states. One position for all ranks if it
    /// is common to them.
    pub stood: BTreeMap<u64, Place>,
    /// Number of ranks of the generation.
    pub world_size: u64,
}

#[derive(Debug)]
struct Received {
    begin: Beginning,
    batches: BTreeMap<(Place, u64), Vec<Sample>>,
    /// Epochs whose end was reported to a rank.
    ended: BTreeSet<u64>,
}

impl Lists {
    /// Returns a ledger without any deliveries.
    pub fn new(breaches: Breaches) -> Self {
        Self { breaches, seen: RefCell::default() }
    }

    /// Records that a rank was admitted to a generation.
    pub fn begins(&self, job: &Rc<JobFacts>, generation: u64, begin: &Beginning) {
        let mut seen = self.seen.borrow_mut();
        let new = || Ledger { job: Rc::clone(job), generations: BTreeMap::new() };
        let ledger = seen.jobs.entry(job.name.clone()).or_insert_with(new);
        let (batches, ended) = (BTreeMap::new(), BTreeSet::new());
        let new = || Received { begin: begin.clone(), batches, ended };
        let known = ledger.generations.entry(generation).or_insert_with(new);
        self.breaches.check(known.begin == *begin, "I8", || {
            let (job, known) = (&job.name, &known.begin);
            format!("ranks of generation {generation} of {job} begin at {known:?} and {begin:?}")
        });
    }

    /// Records that a rank received a batch.
    pub fn delivered(&self, lease: &LeaseKey, place: Place, samples: Vec<Sample>) {
        let mut seen = self.seen.borrow_mut();
        let (job, generation, rank, _) = lease;
        let over = seen.ended.get(lease).filter(|_| !seen.cancelled.contains(lease)).copied();
        let ledger = seen.jobs.get_mut(job);
        self.breaches.check(over.is_none(), "I3", || {
            format!("{lease:?} delivers {place:?} after the session that had it ended")
        });
        let received = ledger.and_then(|ledger| ledger.generations.get_mut(generation));
        let Some(received) = received else {
            return self.breaches.note("I4", format!("{lease:?} delivers before it began"));
        };
        let twice = received.batches.insert((place, *rank), samples).is_some();
        self.breaches.check(!twice, "I4", || {
            format!("rank {rank} of {job} received {place:?} twice in generation {generation}")
        });
    }

    /// Records that the end of an epoch was reported to a rank.
    pub fn epoch_ended(&self, job: &str, generation: u64, epoch: u64) {
        let mut seen = self.seen.borrow_mut();
        let ledger = seen.jobs.get_mut(job);
        if let Some(received) = ledger.and_then(|ledger| ledger.generations.get_mut(&generation)) {
            received.ended.insert(epoch);
        }
    }

    /// Records that a lease ended, with the last known position of its rank.
    pub fn lease_ended(&self, lease: LeaseKey, known: Place) {
        self.seen.borrow_mut().ended.entry(lease).or_insert(known);
    }

    /// Same as [`Lists::lease_ended`], for a lease that ended because its job was cancelled.
    pub fn lease_cancelled(&self, lease: LeaseKey, known: Place) {
        self.seen.borrow_mut().cancelled.insert(lease.clone());
        self.lease_ended(lease, known);
    }

    /// Records that an operator is about to declare a rank gone.
    pub fn declares_gone(&self, job: &str, rank: u64) {
        self.seen.borrow_mut().gone.insert((job.to_owned(), rank), None);
    }

    /// Records the answer to the operator: the number of samples that the policy decided on.
    pub fn declared_gone(&self, job: &str, rank: u64, samples: u64, now_ms: u64) {
        let (mut seen, key) = (self.seen.borrow_mut(), (job.to_owned(), rank));
        match samples {
            0 => seen.gone.remove(&key),
            _ => seen.gone.insert(key, Some(now_ms)),
        };
    }

    /// Records that a rank lost its lease.
    pub fn unserved(&self, (job, generation): (&str, u64), rank: u64, now_ms: u64) {
        self.seen.borrow_mut().unserved.insert((job.to_owned(), generation, rank), now_ms);
    }

    /// Returns the rank of a job that lost its lease last.
    pub fn last_unserved(&self, job: &str) -> Option<u64> {
        let seen = self.seen.borrow();
        let of_job = seen.unserved.iter().filter(|((of, ..), _)| of == job);
        of_job.max_by_key(|(_, at_ms)| **at_ms).map(|((.., rank), _)| *rank)
    }

    /// Records a decision of the policy about in-doubt samples.
    pub fn decided(&self, (job, generation): (&str, u64), decision: &Decision, now_ms: u64) {
        let Decision { rank, epoch, samples, is_dropped } = *decision;
        let mut seen = self.seen.borrow_mut();
        let since = seen.unserved.get(&(job.to_owned(), generation, rank)).copied().unwrap_or(0);
        let ago = |since: u64| now_ms.saturating_sub(since);
        let is_gone = seen.gone.get(&(job.to_owned(), rank));
        let is_gone = is_gone.is_some_and(|at| at.is_none_or(|at| ago(at) < GONE_MS));
        let in_time = is_gone || ago(since) + SLACK_MS >= GRACE_MS;
        self.breaches.check(in_time, "I21", || {
            format!("{decision:?} of {job} came {} ms after its lease ended", now_ms - since)
        });
        let is_drop = policy_of(job) == InDoubt::Drop;
        self.breaches.check(is_dropped == is_drop, "I21", || {
            format!("{decision:?} of {job} contradicts its policy")
        });
        seen.decisions += 1;
        let sums = seen.decided.entry((job.to_owned(), generation, epoch)).or_default();
        sums.0 += if is_dropped { 0 } else { samples };
        sums.1 += if is_dropped { samples } else { 0 };
    }

    /// Returns the number of times that the policy decided.
    pub fn decisions(&self) -> u64 {
        self.seen.borrow().decisions
    }

    /// Counts all deliveries and checks the totals.
    /// - Returns the number of epochs that ended and the number of samples.
    pub fn recount(&self) -> (u64, u64) {
        let seen = self.seen.borrow();
        let counted = seen.jobs.values().map(|ledger| self.recount_job(ledger, &seen.decided));
        counted.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn recount_job(&self, ledger: &Ledger, decided: &Decided) -> (u64, u64) {
        let name = &ledger.job.name;
        let mut epochs: BTreeMap<u64, Delivered> = BTreeMap::new();
        let delivers = |(_, received): &(&u64, &Received)| !received.batches.is_empty();
        let mut next = ledger.generations.iter().rev().find(delivers).map(|(number, _)| *number);
        // Positions of a generation's ranks when the next generation of the lineage began.
        let mut stood: Option<&BTreeMap<u64, Place>> = None;
        while let Some(number) = next {
            let Some(received) = ledger.generations.get(&number) else {
                self.breaches.note("I4", format!("generation {number} of {name} is unknown"));
                break;
            };
            for ((place, rank), samples) in &received.batches {
                if stood.is_some_and(|stood| stood.get(rank).is_none_or(|end| place >= end)) {
                    continue;
                }
                let epoch = epochs.entry(place.0).or_default();
                for sample in samples {
                    epoch.times.entry(*sample).or_default().push((number, *rank, *place));
                }
            }
            let (first, last) = ((name.clone(), number, 0), (name.clone(), number, u64::MAX));
            for ((_, _, epoch), (redelivered, dropped)) in decided.range(first..=last) {
                let epoch = epochs.entry(*epoch).or_default();
                epoch.redelivered += redelivered;
                epoch.dropped += dropped;
            }
            for epoch in &received.ended {
                let is_ours = stood.is_none_or(|stood| stood.values().all(|end| end.0 > *epoch));
                epochs.entry(*epoch).or_default().is_over |= is_ours;
            }
            (next, stood) = (received.begin.parent, Some(&received.begin.stood));
        }
        let total = ledger.job.samples(None, 0);
        for (number, epoch) in &epochs {
            let again = epoch.times.values().map(|times| times.len() as u64 - 1).sum::<u64>();
            let twice = epoch.times.iter().find(|(_, times)| times.len() > 1);
            self.breaches.check(again <= epoch.redelivered, "I4", || {
                let most = epoch.redelivered;
                format!("epoch {number} of {name} delivered {again} again, of {most}: {twice:?}")
            });
            let delivered = epoch.times.len() as u64;
            let left = total - delivered.min(total);
            self.breaches.check(!epoch.is_over || left <= epoch.dropped, "I4", || {
                format!("epoch {number} of {name} ended with {delivered} of {total} delivered")
            });
        }
        let over = epochs.values().filter(|epoch| epoch.is_over).count() as u64;
        (over, epochs.values().map(|epoch| epoch.times.len() as u64).sum())
    }
}

/// Generation, rank and position of a batch.
type Delivery = (u64, u64, Place);

/// Deliveries of an epoch.
#[derive(Debug, Default)]
struct Delivered {
    /// Deliveries of each sample.
    times: BTreeMap<Sample, Vec<Delivery>>,
    /// In-doubt samples that were redelivered to other ranks, and that were dropped.
    redelivered: u64,
    dropped: u64,
    is_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::world::catalog::Catalog;
    use shardfeed_plan::{Mode, Tail};

    fn recounted(tell: impl FnOnce(&Lists, Vec<Sample>)) -> Option<&'static str> {
        let breaches = Breaches::default();
        let lists = Lists::new(breaches.clone());
        let manifest = Catalog::new(&Dice::new(1, 0)).manifest();
        let job = JobFacts::of(("job", "images"), &manifest, (Tail::Uneven, Mode::Dynamic), 1);
        let begin = Beginning { world_size: 2, ..Beginning::default() };
        lists.begins(&job, 0, &begin);
        let groups = job.groups(0);
        let all = (0..groups.count()).flat_map(|group| {
            let lane = groups.lane(group);
            (0..lane.samples()).map(move |offset| lane.output(offset).unwrap()).collect::<Vec<_>>()
        });
        tell(&lists, all.collect());
        lists.recount();
        breaches.first().map(|breach| breach.id)
    }

    fn lease(rank: u64, fencing: u64) -> LeaseKey {
        ("job".into(), 0, rank, fencing)
    }

    #[test]
    fn everything_comes_once_but_what_the_policy_gave_to_others() {
        let told = |missing: usize, again: usize, decided: Option<u64>| {
            move |lists: &Lists, all: Vec<Sample>| {
                lists.delivered(&lease(0, 5), (0, 0), all[..4].to_vec());
                if let Some(samples) = decided {
                    let decision = Decision { rank: 0, epoch: 0, samples, is_dropped: false };
                    lists.decided(("job", 0), &decision, GRACE_MS);
                }
                lists.delivered(&lease(1, 6), (0, 0), all[4 - again..all.len() - missing].to_vec());
                lists.epoch_ended("job", 0, 0);
            }
        };
        assert_eq!(recounted(told(0, 0, None)), None);
        assert_eq!(recounted(told(1, 0, None)), Some("I4"));
        assert_eq!(recounted(told(0, 2, None)), Some("I4"));
        assert_eq!(recounted(told(0, 2, Some(1))), Some("I4"));
        assert_eq!(recounted(told(0, 2, Some(2))), None);
        assert_eq!(recounted(told(1, 0, Some(1))), Some("I4"), "given to others is not dropped");
    }

    #[test]
    fn the_policy_decides_after_the_grace_or_for_an_operator() {
        let decided = |at: u64, is_dropped: bool, says: Option<u64>| {
            recounted(move |lists: &Lists, _| {
                lists.unserved(("job", 0), 0, 5_000);
                if let Some(samples) = says {
                    lists.declares_gone("job", 0);
                    lists.declared_gone("job", 0, samples, 5_500);
                }
                let decision = Decision { rank: 0, epoch: 0, samples: 4, is_dropped };
                lists.decided(("job", 0), &decision, at);
            })
        };
        assert_eq!(decided(5_000 + GRACE_MS, false, None), None);
        assert_eq!(decided(6_000, false, None), Some("I21"));
        assert_eq!(decided(6_000, false, Some(4)), None);
        assert_eq!(decided(6_000, false, Some(0)), Some("I21"), "the operator was refused");
        assert_eq!(decided(6_000, true, Some(4)), Some("I21"), "its policy gives them to others");
    }

    #[test]
    fn nothing_is_delivered_after_the_session_ended() {
        let late = |lists: &Lists, all: Vec<Sample>| {
            lists.lease_ended(lease(0, 5), (0, 0));
            lists.delivered(&lease(0, 5), (0, 0), all[..4].to_vec());
        };
        assert_eq!(recounted(late), Some("I3"));
    }
}
