//! What the trainers of dynamic jobs received, and what must be true of it: as `oracle`, but which rank has
//! what follows from who asked when, so only the sum is known beforehand.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use shardfeed_plan::{Sample, Tail};

use crate::breach::Breaches;
use crate::world::catalog::JobFacts;

/// (epoch, step)
type Place = (u64, u64);

/// A lease: job, generation, rank, fencing token.
type LeaseKey = (String, u64, u64, u64);

/// What the trainers of dynamic jobs received.
#[derive(Debug)]
pub struct Lists {
    breaches: Breaches,
    seen: RefCell<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    jobs: BTreeMap<String, Ledger>,
    /// Where ranks stood, as far as was known, when the sessions that served them ended.
    ended: BTreeMap<LeaseKey, Place>,
    /// Those of them that ended because somebody cancelled the job: the session lives, and hears of it with
    /// its next heartbeat.
    cancelled: BTreeSet<LeaseKey>,
}

#[derive(Debug)]
struct Ledger {
    job: Rc<JobFacts>,
    generations: BTreeMap<u64, Received>,
}

/// Where a generation begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// The generation whose tokens it began with.
    pub parent: Option<u64>,
    /// Where the ranks of the parent stood by these tokens. One place for all of them if there is one.
    pub stood: BTreeMap<u64, Place>,
    /// Its ranks.
    pub world_size: u64,
}

#[derive(Debug)]
struct Received {
    begin: Beginning,
    batches: BTreeMap<(Place, u64), (u64, Vec<Sample>)>,
    /// Ranks that were told that an epoch ended.
    ended: BTreeMap<u64, BTreeSet<u64>>,
}

impl Lists {
    /// Nothing was received yet.
    pub fn new(breaches: Breaches) -> Self {
        Self { breaches, seen: RefCell::default() }
    }

    /// A rank has its place in a generation.
    pub fn begins(&self, job: &Rc<JobFacts>, generation: u64, begin: &Beginning) {
        let mut seen = self.seen.borrow_mut();
        let new = || Ledger { job: Rc::clone(job), generations: BTreeMap::new() };
        let ledger = seen.jobs.entry(job.name.clone()).or_insert_with(new);
        let (batches, ended) = (BTreeMap::new(), BTreeMap::new());
        let new = || Received { begin: begin.clone(), batches, ended };
        let known = ledger.generations.entry(generation).or_insert_with(new);
        self.breaches.check(known.begin == *begin, "I8", || {
            let (job, known) = (&job.name, &known.begin);
            format!("ranks of generation {generation} of {job} begin at {known:?} and {begin:?}")
        });
    }

    /// A rank received a batch.
    pub fn delivered(&self, lease: &LeaseKey, place: Place, samples: Vec<Sample>) {
        let mut seen = self.seen.borrow_mut();
        let (job, generation, rank, fencing) = lease;
        let over = seen.ended.get(lease).filter(|_| !seen.cancelled.contains(lease)).copied();
        let ledger = seen.jobs.get_mut(job);
        let is_shared = ledger.as_ref().is_some_and(|l| l.job.identity.tail == Tail::Uneven);
        self.breaches.check(over.is_none() || !is_shared, "I3", || {
            format!("{lease:?} delivers {place:?} after the session that had it ended")
        });
        let received = ledger.and_then(|ledger| ledger.generations.get_mut(generation));
        let Some(received) = received else {
            return self.breaches.note("I4", format!("{lease:?} delivers before it began"));
        };
        let twice = received.batches.insert((place, *rank), (*fencing, samples)).is_some();
        self.breaches.check(!twice, "I4", || {
            format!("rank {rank} of {job} received {place:?} twice in generation {generation}")
        });
    }

    /// A rank was told that an epoch ended for it.
    pub fn epoch_ended(&self, job: &str, (generation, rank): (u64, u64), epoch: u64) {
        let mut seen = self.seen.borrow_mut();
        let ledger = seen.jobs.get_mut(job);
        if let Some(received) = ledger.and_then(|ledger| ledger.generations.get_mut(&generation)) {
            received.ended.entry(epoch).or_default().insert(rank);
        }
    }

    /// A lease ended, with its rank at a place, as far as was known.
    pub fn lease_ended(&self, lease: LeaseKey, known: Place) {
        self.seen.borrow_mut().ended.entry(lease).or_insert(known);
    }

    /// The same, because somebody cancelled its job.
    pub fn lease_cancelled(&self, lease: LeaseKey, known: Place) {
        self.seen.borrow_mut().cancelled.insert(lease.clone());
        self.lease_ended(lease, known);
    }

    /// Counts everything.
    /// - Returns epochs that ended, and samples.
    pub fn recount(&self) -> (u64, u64) {
        let seen = self.seen.borrow();
        let counted = seen.jobs.values().map(|ledger| self.recount_job(ledger, &seen.ended));
        counted.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn recount_job(&self, ledger: &Ledger, ended: &BTreeMap<LeaseKey, Place>) -> (u64, u64) {
        let name = &ledger.job.name;
        let is_shared = ledger.job.identity.tail == Tail::Uneven;
        let mut epochs: BTreeMap<u64, Delivered> = BTreeMap::new();
        let delivers = |(_, received): &(&u64, &Received)| !received.batches.is_empty();
        let mut next = ledger.generations.iter().rev().find(delivers).map(|(number, _)| *number);
        // Where the ranks of a generation stood when the next one of the lineage began.
        let mut stood: Option<&BTreeMap<u64, Place>> = None;
        while let Some(number) = next {
            let Some(received) = ledger.generations.get(&number) else {
                self.breaches.note("I4", format!("generation {number} of {name} is unknown"));
                break;
            };
            for ((place, rank), (fencing, samples)) in &received.batches {
                if stood.is_some_and(|stood| stood.get(rank).is_none_or(|end| place >= end)) {
                    continue;
                }
                // What nobody had heard of when its session ended is delivered again.
                let lease = (name.clone(), number, *rank, *fencing);
                let is_known = ended.get(&lease).is_none_or(|known| place < known);
                let epoch = epochs.entry(place.0).or_default();
                for sample in samples {
                    let times = epoch.times.entry(*sample).or_default();
                    times.0 += u64::from(is_known || !is_shared);
                    times.1.push((number, *rank, *place));
                }
            }
            for (epoch, ranks) in &received.ended {
                let is_ours = stood.is_none_or(|stood| stood.values().all(|end| end.0 > *epoch));
                let all = is_shared || ranks.len() as u64 == received.begin.world_size;
                epochs.entry(*epoch).or_default().is_over |= is_ours && all;
            }
            (next, stood) = (received.begin.parent, Some(&received.begin.stood));
        }
        let total = ledger.job.samples();
        for (number, epoch) in &epochs {
            let twice = epoch.times.iter().find(|(_, times)| times.0 > 1);
            self.breaches.check(twice.is_none(), "I4", || {
                format!("epoch {number} of {name} delivered {twice:?} more than once")
            });
            let delivered = epoch.times.len() as u64;
            let left = total - delivered.min(total);
            let fine = if is_shared { left == 0 } else { left < ledger.job.global_batch };
            self.breaches.check(!epoch.is_over || fine, "I4", || {
                format!("epoch {number} of {name} ended with {delivered} of {total} delivered")
            });
        }
        let over = epochs.values().filter(|epoch| epoch.is_over).count() as u64;
        (over, epochs.values().map(|epoch| epoch.times.len() as u64).sum())
    }
}

/// What was delivered of an epoch.
#[derive(Debug, Default)]
struct Delivered {
    /// How often, without what may come again, and by whom.
    times: BTreeMap<Sample, (u64, Vec<(u64, u64, Place)>)>,
    is_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::world::catalog::Catalog;
    use shardfeed_plan::Mode;

    fn recounted(tail: Tail, tell: impl FnOnce(&Lists, Vec<Sample>)) -> Option<&'static str> {
        let breaches = Breaches::default();
        let lists = Lists::new(breaches.clone());
        let manifest = Catalog::new(&Dice::new(1, 0)).manifest();
        let job = JobFacts::of(("job", "images"), &manifest, (tail, Mode::Dynamic), 1);
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
    fn everything_comes_once_but_what_nobody_had_heard_of() {
        let told = |missing: usize, again: usize, known: Option<u64>| {
            move |lists: &Lists, all: Vec<Sample>| {
                lists.delivered(&lease(0, 5), (0, 0), all[..4].to_vec());
                if let Some(step) = known {
                    lists.lease_ended(lease(0, 5), (0, step));
                }
                lists.delivered(&lease(1, 6), (0, 0), all[4 - again..all.len() - missing].to_vec());
                lists.epoch_ended("job", (0, 1), 0);
            }
        };
        assert_eq!(recounted(Tail::Uneven, told(0, 0, None)), None);
        assert_eq!(recounted(Tail::Uneven, told(1, 0, None)), Some("I4"));
        assert_eq!(recounted(Tail::Uneven, told(0, 2, None)), Some("I4"));
        // The step was known when the session ended, or not.
        assert_eq!(recounted(Tail::Uneven, told(0, 2, Some(1))), Some("I4"));
        assert_eq!(recounted(Tail::Uneven, told(0, 2, Some(0))), None);
        // Who has a quota keeps its list.
        assert_eq!(recounted(Tail::Drop, told(0, 2, Some(0))), Some("I4"));
    }

    #[test]
    fn nothing_is_delivered_after_the_session_ended() {
        let late = |lists: &Lists, all: Vec<Sample>| {
            lists.lease_ended(lease(0, 5), (0, 0));
            lists.delivered(&lease(0, 5), (0, 0), all[..4].to_vec());
        };
        assert_eq!(recounted(Tail::Uneven, late), Some("I3"));
        assert_eq!(recounted(Tail::Drop, late), None);
    }
}
