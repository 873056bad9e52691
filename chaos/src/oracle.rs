//! Client observations and the invariants about them. The oracle uses only the batches that
//! trainers received and the answers to requests; it knows nothing of the coordinators'
//! implementation.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::{Intent, LeftOut, LoaderState, Planned, Portion, Sample, Segment, Tail};
use shardfeed_proto::coordinator::v1 as wire;

use crate::breach::Breaches;
use crate::holds::Holds;
use crate::lists::Lists;
use crate::sim::SimTime;
use crate::skips::Skips;
use crate::sources::{self, SourceEpoch};
use crate::world::catalog::JobFacts;
use crate::world::mixture::Mix;
use crate::world::node::TTL_MS;
use crate::world::session::Asked;

/// (epoch, step)
type Place = (u64, u64);

/// Job, generation and rank.
type RankKey = (String, u64, u64);

/// Observations of all clients.
#[derive(Debug)]
pub struct Oracle {
    breaches: Breaches,
    seen: RefCell<Seen>,
    /// Samples that the trainers of dynamic jobs received.
    pub lists: Lists,
    /// Jobs that were paused or cancelled.
    pub holds: Holds,
    /// Corrupt records.
    pub skips: Skips,
}

#[derive(Debug, Default)]
struct Seen {
    /// First definite answer to each request, by request id.
    answers: BTreeMap<String, String>,
    /// Highest fencing token in an answer so far.
    granted: u64,
    grants: u64,
    /// Positions that were sent to a coordinator, by rank and lease.
    told: BTreeMap<RankKey, BTreeMap<u64, Place>>,
    /// Positions at which ranks asked to reconnect.
    came_back: BTreeMap<RankKey, Place>,
    /// Highest (generation, epoch, step) that was read of each job.
    latest: BTreeMap<String, (u64, Place)>,
    ledgers: BTreeMap<String, Ledger>,
    counted: BTreeMap<&'static str, u64>,
}

/// Batches that the trainers of a job received.
#[derive(Debug)]
struct Ledger {
    job: Rc<JobFacts>,
    generations: BTreeMap<u64, Received>,
    /// Global batches, as received the first time, by the stages of the mixture that fix them.
    batches: BTreeMap<(String, Place), Vec<Planned>>,
}

/// Start of a generation, as its trainers know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// Epoch in which it starts.
    pub epoch: u64,
    /// Segments of that epoch.
    pub segments: Vec<Segment>,
    /// Number of ranks.
    pub world_size: u64,
    /// Mixture that it reads.
    pub mix: Mix,
    /// Steps of that epoch that were left out.
    pub left_out: LeftOut,
}

impl Begin {
    fn place(&self) -> Place {
        (self.epoch, self.segments.iter().map(|segment| segment.steps.most()).sum())
    }

    /// Returns the position up to which the generation before it counts: its trainers left out the
    /// steps from there on.
    fn parent_end(&self) -> Place {
        let (epoch, step) = self.place();
        match self.left_out.ranges().last() {
            Some((first, end)) if *end == step => (epoch, *first),
            _ => (epoch, step),
        }
    }

    /// Returns the steps of an epoch that were left out before the generation's start.
    pub fn left_out_of(&self, epoch: u64) -> LeftOut {
        if epoch == self.epoch { self.left_out.clone() } else { LeftOut::default() }
    }
}

#[derive(Debug)]
struct Received {
    /// Generation whose state it started from.
    parent: Option<u64>,
    begin: Begin,
    slots: BTreeMap<Place, BTreeMap<u64, Vec<Planned>>>,
}

/// Final counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Epochs that were delivered completely.
    pub epochs: u64,
    /// Samples of the surviving lineage.
    pub samples: u64,
    /// Steps of all lineages.
    pub steps: u64,
    /// Samples of the surviving lineage in steps that were left out.
    pub left_out: u64,
    /// Source epochs of mixtures in the surviving lineage that were counted.
    pub source_epochs: u64,
    /// Number of generations.
    pub generations: u64,
    /// Epochs of dynamic jobs that ended.
    pub shared_epochs: u64,
    /// Samples of dynamic jobs.
    pub shared_samples: u64,
}

impl Oracle {
    /// Returns an oracle without any observations.
    pub fn new(breaches: Breaches, time: SimTime) -> Rc<Self> {
        let lists = Lists::new(breaches.clone());
        let holds = Holds::new(breaches.clone(), time);
        let skips = Skips::new(breaches.clone());
        Rc::new(Self { breaches, seen: RefCell::default(), lists, holds, skips })
    }

    /// Records that a request is about to be sent.
    /// - Returns the highest fencing token so far; a token in the answer must be higher.
    pub fn sends(&self) -> u64 {
        self.seen.borrow().granted
    }

    /// Checks that a request always receives the same definite answer.
    pub fn answered(&self, id: &str, _sent: u64, answer: &str) {
        let mut seen = self.seen.borrow_mut();
        let first = seen.answers.entry(id.to_owned()).or_insert_with(|| answer.to_owned());
        self.breaches.check(first == answer, "I11", || {
            format!("request {id} was answered `{first}` and then `{answer}`")
        });
    }

    /// Returns the number of granted leases.
    pub fn grants(&self) -> u64 {
        self.seen.borrow().grants
    }

    /// Returns the highest position that was ever sent for a rank of a generation.
    ///
    /// It covers reports under leases not below `since`, and positions at which the rank asked to
    /// reconnect.
    pub fn told_since(&self, rank: &RankKey, since: u64) -> Option<Place> {
        let seen = self.seen.borrow();
        let told = seen.told.get(rank).into_iter().flat_map(|told| told.range(since..));
        told.map(|(_, place)| *place).max().max(seen.came_back.get(rank).copied())
    }

    /// Records that a heartbeat is about to be sent.
    pub fn tells(&self, ranks: &[wire::RankProgress]) {
        let mut seen = self.seen.borrow_mut();
        for wire::RankProgress { lease, epoch, step, .. } in ranks {
            let Some(wire::Lease { job, generation, rank, fencing }) = lease.clone() else {
                continue;
            };
            let told = seen.told.entry((job, generation, rank)).or_default();
            let last = told.entry(fencing).or_default();
            *last = (*last).max((*epoch, *step));
        }
    }

    /// Records that a rank is about to request a start or a reconnect.
    pub fn asks(&self, asked: &Asked, intent: &Intent) {
        if let Intent::Reconnect { generation, epoch, step } = intent {
            let mut seen = self.seen.borrow_mut();
            let key = (asked.job.clone(), *generation, asked.rank);
            let last = seen.came_back.entry(key).or_default();
            *last = (*last).max((*epoch, *step));
        }
    }

    /// Records that a rank was granted a lease.
    pub fn granted(
        &self,
        asked: &Asked,
        intent: &Intent,
        started: &wire::StartRankResponse,
        sent: u64,
    ) {
        let mut seen = self.seen.borrow_mut();
        let fencing = started.fencing;
        self.breaches.check(fencing > sent, "I2", || {
            format!("lease {fencing} was granted after lease {sent} was answered")
        });
        if let Intent::Reconnect { generation, .. } = intent {
            self.breaches.check(*generation == started.generation, "I6", || {
                format!("a rank of generation {generation} came back to {}", started.generation)
            });
        }
        seen.granted = seen.granted.max(fencing);
        seen.grants += 1;
        let told = (asked.job.clone(), started.generation, asked.rank);
        seen.told.entry(told).or_default().entry(fencing).or_default();
    }

    /// Checks that a session ended no sooner than its TTL after the last answered heartbeat.
    ///
    /// - `silence`: time since that heartbeat was sent. Here no two live workers share a name, and
    ///   no worker leaves.
    pub fn session_ended(&self, worker: &str, session: u64, silence: Duration) {
        self.breaches.check(silence >= Duration::from_millis(TTL_MS), "I10", || {
            format!("session {session} of {worker} ended {silence:?} after a heartbeat")
        });
    }

    /// Records that a trainer was admitted to a generation.
    /// - `parent`: generation that its state came from.
    /// - `is_reshard`: the generation begins with a reshard.
    pub fn begins(
        &self,
        job: &Rc<JobFacts>,
        (generation, parent): (u64, Option<u64>),
        (begin, is_reshard): (&Begin, bool),
    ) {
        let mut seen = self.seen.borrow_mut();
        let new = || Ledger {
            job: Rc::clone(job),
            generations: BTreeMap::new(),
            batches: BTreeMap::new(),
        };
        let ledger = seen.ledgers.entry(job.name.clone()).or_insert_with(new);
        let is_by_skip = begin.parent_end() != begin.place();
        let slots = BTreeMap::new();
        let new = || Received { parent, begin: begin.clone(), slots };
        let is_new = !ledger.generations.contains_key(&generation);
        let known = ledger.generations.entry(generation).or_insert_with(new);
        self.breaches.check(known.begin == *begin && known.parent == parent, "I8", || {
            let job = &job.name;
            format!(
                "ranks of generation {generation} of {job} begin at {:?} and {begin:?}",
                known.begin
            )
        });
        self.breaches.check(!is_reshard || Some(generation) > parent, "I8", || {
            format!("{}: a reshard of generation {parent:?} stays in {generation}", job.name)
        });
        for (what, is_so) in [("skips", is_by_skip), ("reshards", is_reshard)] {
            *seen.counted.entry(what).or_default() += u64::from(is_new && is_so);
        }
    }

    /// Returns the start of a generation, if one of its trainers is known.
    pub fn begin_of(&self, job: &str, generation: u64) -> Option<Begin> {
        let seen = self.seen.borrow();
        Some(seen.ledgers.get(job)?.generations.get(&generation)?.begin.clone())
    }

    /// Counts an event.
    pub fn count(&self, what: &'static str) {
        *self.seen.borrow_mut().counted.entry(what).or_default() += 1;
    }

    /// Returns the number of occurrences of each observed event, by name.
    pub fn counted(&self) -> BTreeMap<&'static str, u64> {
        self.seen.borrow().counted.clone()
    }

    /// Records that a trainer received a batch.
    pub fn delivered(
        &self,
        job: &str,
        (generation, rank, world_size): (u64, u64, u64),
        place: Place,
        rows: Vec<Planned>,
    ) {
        let mut seen = self.seen.borrow_mut();
        let Some(ledger) = seen.ledgers.get_mut(job) else {
            return self.breaches.note("I4", format!("{job} delivers before it began"));
        };
        let Some(received) = ledger.generations.get_mut(&generation) else {
            return self.breaches.note("I4", format!("{job} delivers outside every generation"));
        };
        let ranks = received.slots.entry(place).or_default();
        let twice = ranks.insert(rank, rows).is_some();
        self.breaches.check(!twice, "I4", || {
            format!("rank {rank} of {job} received {place:?} twice in generation {generation}")
        });
        if ranks.len() as u64 == world_size {
            let batch: Vec<Planned> = ranks.values().flatten().copied().collect();
            let order = ledger.job.stages_to(received.begin.mix, place.0);
            let first = ledger.batches.entry((order, place)).or_insert_with(|| batch.clone());
            self.breaches.check(*first == batch, "I9", || {
                format!("the global batch {place:?} of {job} was another one before")
            });
        }
    }

    /// Checks that the states that all ranks saved at the same step are equal.
    pub fn saved(&self, job: &str, states: &BTreeMap<u64, LoaderState>) {
        let mut all = states.values();
        let first = all.next();
        self.breaches.check(all.all(|state| Some(state) == first), "I7", || {
            format!("states of {job} differ at one step: {states:?}")
        });
    }

    /// Returns the latest state known of a job, to compare the answer to a read with.
    pub fn reads_latest(&self, job: &str) -> Option<(u64, Place)> {
        self.seen.borrow().latest.get(job).copied()
    }

    /// Checks that the latest state of a job that was read is not older than `before`.
    pub fn latest(&self, job: &str, state: &LoaderState, before: Option<(u64, Place)>) {
        let mut seen = self.seen.borrow_mut();
        let read = (state.generation, (state.epoch, state.step()));
        self.breaches.check(Some(read) >= before, "I15", || {
            format!("the latest state of {job} is {read:?}, but it was {before:?} before")
        });
        let reached = seen.ledgers.get(job).and_then(|ledger| {
            let Received { begin, slots, .. } = ledger.generations.get(&state.generation)?;
            let began = begin.place();
            let after = slots.keys().next_back().map(|(epoch, step)| {
                let ends = step + 1 >= ledger.job.steps(begin.mix, *epoch);
                if ends { (epoch + 1, 0) } else { (*epoch, step + 1) }
            });
            Some(after.unwrap_or(began).max(began))
        });
        self.breaches.check(reached.is_none_or(|reached| read.1 <= reached), "I5", || {
            format!("the latest state of {job} is {read:?}, but its ranks are at {reached:?}")
        });
        if let Some(ledger) = seen.ledgers.get(job)
            && let Some(Received { begin, .. }) = ledger.generations.get(&state.generation)
        {
            let left_out = begin.left_out_of(state.epoch);
            self.breaches.check(state.left_out == left_out, "I22", || {
                let (job, said) = (&ledger.job.name, &state.left_out);
                format!("the latest state of {job} at {read:?} lacks {left_out:?}: {said:?}")
            });
            let stages = ledger.job.stages_digest(begin.mix, read.1);
            self.breaches.check(state.stages == stages, "I23", || {
                let (job, said) = (&ledger.job.name, &state.stages);
                format!("the latest state of {job} at {read:?} is of {said:?}, not {stages:?}")
            });
        }
        let latest = seen.latest.entry(job.to_owned()).or_default();
        *latest = (*latest).max(read);
    }

    /// Counts and checks all batches that trainers received.
    pub fn recount(&self) -> Counted {
        let seen = self.seen.borrow();
        let mut counted = Counted::default();
        for ledger in seen.ledgers.values() {
            counted.generations += ledger.generations.len() as u64;
            let steps = ledger.generations.values().map(|received| received.slots.len() as u64);
            counted.steps += steps.sum::<u64>();
            self.recount_job(ledger, &mut counted);
        }
        (counted.shared_epochs, counted.shared_samples) = self.lists.recount();
        counted
    }

    fn recount_job(&self, ledger: &Ledger, counted: &mut Counted) {
        let name = &ledger.job.name;
        let (slots, left_out) = self.lineage(ledger);
        let Some(last) = slots.keys().next_back().copied() else {
            return;
        };
        // A rank that is not stopped continues alone. Only batches that all ranks received belong
        // to the job, and these come first.
        let mut alone: Option<BTreeSet<u64>> = None;
        let mut of_sources = SourceSamples::default();
        for epoch in 0..=last.0 {
            let mut valid: BTreeMap<Sampled, u64> = BTreeMap::new();
            let of_epoch = slots.range((epoch, 0)..(epoch + 1, 0));
            let left_out = left_out.get(&epoch).cloned().unwrap_or_default();
            let (mut next, mut mix) = (0, None);
            for (place, (generation, begin, ranks)) in of_epoch {
                let world_size = &begin.world_size;
                mix = begin.mix;
                while left_out.contains(next) {
                    next += 1;
                }
                let whole = ranks.len() as u64 == *world_size;
                let goes_on = match &alone {
                    None => true,
                    Some(alone) => !whole && ranks.keys().all(|rank| alone.contains(rank)),
                };
                self.breaches.check(place.1 == next && goes_on, "I4", || {
                    format!(
                        "{name} lacks something before {place:?} of generation {generation}: step \
                         {next} comes next, {} of {world_size} ranks have it, {alone:?} continued",
                        ranks.len()
                    )
                });
                next += 1;
                if !whole {
                    alone = Some(ranks.keys().copied().collect());
                    continue;
                }
                for row in ranks.values().flatten().filter(|row| row.valid) {
                    *valid.entry((row.portion, row.sample)).or_default() += 1;
                }
                let batch: Vec<_> = ranks.values().flatten().copied().collect();
                self.breaches.check(batch == ledger.job.global_batch(mix, *place), "I9", || {
                    format!("{place:?} of {name} differs from the plan")
                });
            }
            let delivered = valid.len() as u64;
            let steps = left_out.ranges().iter().flat_map(|(first, end)| *first..*end);
            for step in steps {
                let rows = ledger.job.global_batch(mix, (epoch, step));
                for row in rows.iter().filter(|row| row.valid) {
                    *valid.entry((row.portion, row.sample)).or_default() += 1;
                }
            }
            counted.samples += delivered;
            counted.left_out += valid.len() as u64 - delivered;
            let twice = valid.iter().find(|(_, times)| **times > 1);
            self.breaches.check(twice.is_none(), "I4", || {
                format!("epoch {epoch} of {name} had {twice:?} more than once")
            });
            let is_whole =
                alone.is_none() && (epoch < last.0 || next == ledger.job.steps(mix, epoch));
            if is_whole {
                counted.epochs += 1;
                self.check_whole(&ledger.job, (mix, epoch), (next, valid.len() as u64));
            }
            if mix.is_some() {
                let samples = valid.keys().copied();
                self.count_sources(&ledger.job, (mix, epoch), (samples, is_whole), &mut of_sources);
            }
        }
        counted.source_epochs += of_sources.0.len() as u64;
        let known: BTreeSet<Place> = slots.keys().copied().collect();
        self.breaches.check(known.contains(&(0, 0)), "I4", || format!("{name} lost its beginning"));
    }

    /// Counts the samples of each source epoch that a mixture epoch had, delivered or left out.
    fn count_sources(
        &self,
        job: &JobFacts,
        (mix, epoch): (Mix, u64),
        (samples, is_whole): (impl Iterator<Item = Sampled>, bool),
        of_sources: &mut SourceSamples,
    ) {
        let Some(mixture) = job.mixture(mix) else {
            return;
        };
        let (name, names) = (&job.name, sources::names(&mixture, epoch));
        let mut had: BTreeMap<SourceEpoch, u64> = BTreeMap::new();
        for (portion, sample) in samples {
            let source = names.get(portion.source as usize).map(|(name, _)| name.clone());
            let of = (source.unwrap_or_default(), portion.epoch);
            *had.entry(of.clone()).or_default() += 1;
            let is_new = of_sources.0.entry(of.clone()).or_default().insert(sample);
            self.breaches.check(is_new, "I23", || {
                format!("epoch {epoch} of {name} had {sample:?} of {of:?}, as an earlier one")
            });
        }
        let counts = sources::portions(&mixture, epoch);
        let beyond =
            had.iter().find(|(of, samples)| counts.get(of).is_none_or(|all| all < samples));
        let is_full = !is_whole || job.identity.tail == Tail::Drop || had == counts;
        self.breaches.check(beyond.is_none() && is_full, "I23", || {
            format!("epoch {epoch} of {name} had {had:?} of its sources instead of {counts:?}")
        });
    }

    /// Returns the deliveries of the last generation that delivered a batch and of its ancestors,
    /// and the steps of each epoch that they left out.
    ///
    /// Of each ancestor only the deliveries before its child's start count.
    fn lineage<'a>(&self, ledger: &'a Ledger) -> (Slots<'a>, BTreeMap<u64, LeftOut>) {
        let delivers = |(_, received): &(&u64, &Received)| !received.slots.is_empty();
        let mut next = ledger.generations.iter().rev().find(delivers).map(|(number, _)| *number);
        let (mut slots, mut end) = (Slots::new(), (u64::MAX, 0));
        let mut left_out = BTreeMap::new();
        while let Some(number) = next {
            let Some(received) = ledger.generations.get(&number) else {
                let name = &ledger.job.name;
                self.breaches.note(
                    "I4",
                    format!("generation {number} of {name} made a state and is unknown"),
                );
                break;
            };
            let Received { parent, begin, slots: own } = received;
            for (place, ranks) in own.range(..end) {
                slots.insert(*place, (number, begin, ranks));
            }
            // A later start in the same epoch names these steps, too.
            left_out.entry(begin.epoch).or_insert_with(|| begin.left_out.clone());
            (next, end) = (*parent, begin.parent_end().min(end));
        }
        (slots, left_out)
    }

    /// Checks a whole epoch: its steps, and its samples that were delivered or left out.
    fn check_whole(&self, job: &JobFacts, (mix, epoch): (Mix, u64), (steps, had): (u64, u64)) {
        let (total, batch) = (job.samples(mix, epoch), job.global_batch);
        let fine = match job.identity.tail {
            Tail::Drop => had <= total && total - had < batch,
            Tail::Pad | Tail::Uneven => had == total,
        };
        self.breaches.check(fine && steps == job.steps(mix, epoch), "I4", || {
            let name = &job.name;
            format!("epoch {epoch} of {name} had {had} of {total} samples in {steps} steps")
        });
    }
}

/// Global batches, with the generation that delivered them, its start, and the entries of each rank.
type Slots<'a> = BTreeMap<Place, (u64, &'a Begin, &'a BTreeMap<u64, Vec<Planned>>)>;

/// A sample in its source and source epoch.
type Sampled = (Portion, Sample);

/// Samples of each source epoch that the mixture epochs of a lineage had.
#[derive(Debug, Default)]
struct SourceSamples(BTreeMap<SourceEpoch, BTreeSet<Sample>>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::world::catalog::Catalog;

    struct Fixture {
        breaches: Breaches,
        oracle: Rc<Oracle>,
        job: Rc<JobFacts>,
    }

    impl Fixture {
        fn new(tail: Tail) -> Self {
            let breaches = Breaches::default();
            let manifest = Catalog::new(&Dice::new(1, 0)).manifest();
            let job = JobFacts::new("job", "images", &manifest, tail, 1);
            let oracle = Oracle::new(breaches.clone(), SimTime::default());
            Self { oracle, breaches, job }
        }

        fn begin(&self, generation: u64, parent: Option<u64>, step: u64, world_size: u64) {
            let steps = shardfeed_plan::Steps::All(step);
            let segments = vec![Segment { lanes: 4, global_batch: 8, steps }];
            let begin = Begin { segments, world_size, ..Begin::default() };
            self.oracle.begins(&self.job, (generation, parent), (&begin, false));
        }

        /// Delivers these steps of epoch 0 to all ranks of a generation.
        fn take(&self, generation: u64, world_size: u64, steps: std::ops::Range<u64>) {
            let ranks: Vec<u64> = (0..world_size).collect();
            self.take_of(generation, world_size, steps, &ranks);
        }

        /// Delivers these steps to some ranks.
        fn take_of(
            &self,
            generation: u64,
            world_size: u64,
            steps: std::ops::Range<u64>,
            ranks: &[u64],
        ) {
            let open = [Segment::start(4, 8, 1).unwrap()];
            let plan = self.job.plan((None, 0), &open, world_size).unwrap();
            for step in steps {
                for &rank in ranks {
                    let rows = plan.batch(step, rank).unwrap();
                    let who = (generation, rank, world_size);
                    self.oracle.delivered("job", who, (0, step), rows);
                }
            }
        }

        fn breach(&self) -> Option<&'static str> {
            self.breaches.first().map(|breach| breach.id)
        }
    }

    #[test]
    fn an_epoch_in_two_generations_is_whole_and_branches_do_not_count() {
        for tail in [Tail::Drop, Tail::Pad] {
            let fixture = Fixture::new(tail);
            let steps = fixture.job.steps(None, 0);
            fixture.begin(0, None, 0, 2);
            fixture.take(0, 2, 0..10);
            fixture.begin(1, Some(0), 2, 1);
            fixture.begin(2, Some(0), 5, 4);
            fixture.take(2, 4, 5..steps);
            // A rank that was not notified continues.
            fixture.take(0, 2, 10..12);
            let counted = fixture.oracle.recount();
            assert_eq!(fixture.breaches.first(), None);
            assert_eq!((counted.epochs, counted.generations), (1, 3));
        }
    }

    #[test]
    fn what_is_missing_doubled_or_other_is_seen() {
        let missing = Fixture::new(Tail::Drop);
        missing.begin(0, None, 0, 2);
        missing.take(0, 2, 0..3);
        missing.begin(1, Some(0), 4, 2);
        missing.take(1, 2, 4..6);
        missing.oracle.recount();
        assert_eq!(missing.breach(), Some("I4"));

        let doubled = Fixture::new(Tail::Drop);
        doubled.begin(0, None, 0, 2);
        doubled.take(0, 2, 0..3);
        doubled.take(0, 2, 2..3);
        assert_eq!(doubled.breach(), Some("I4"));

        // A rank of an abandoned run continues alone; its batches do not belong to the job.
        let alone = |then: u64| {
            let fixture = Fixture::new(Tail::Drop);
            fixture.begin(0, None, 0, 2);
            fixture.take(0, 2, 0..3);
            fixture.take_of(0, 2, 3..6, &[1]);
            fixture.take_of(0, 2, then..7, &[0, 1]);
            fixture.oracle.recount();
            fixture.breach()
        };
        assert_eq!((alone(7), alone(6)), (None, Some("I4")));

        let other = Fixture::new(Tail::Drop);
        other.begin(0, None, 0, 1);
        let rows = other.job.global_batch(None, (0, 1));
        other.oracle.delivered("job", (0, 0, 1), (0, 0), rows);
        other.oracle.recount();
        assert_eq!(other.breach(), Some("I9"));
    }

    #[test]
    fn steps_that_were_left_out_are_not_delivered_and_count_once() {
        let skipped = |then: u64, named: bool| {
            let fixture = Fixture::new(Tail::Pad);
            let steps = fixture.job.steps(None, 0);
            fixture.begin(0, None, 0, 2);
            fixture.take(0, 2, 0..4);
            // A rank that did not learn of it continues.
            fixture.take_of(0, 2, 4..5, &[1]);
            let open = Segment { lanes: 4, global_batch: 8, steps: shardfeed_plan::Steps::All(7) };
            let left_out = if named { LeftOut::new(vec![(4, 7)]) } else { LeftOut::default() };
            let (segments, world_size) = (vec![open], 2);
            let begin = Begin { segments, world_size, left_out, ..Begin::default() };
            fixture.oracle.begins(&fixture.job, (1, Some(0)), (&begin, false));
            fixture.take(1, 2, then..steps);
            let counted = fixture.oracle.recount();
            (fixture.breach(), counted.left_out, counted.epochs)
        };
        assert_eq!(skipped(7, true), (None, 24, 1));
        assert_eq!(skipped(6, true).0, Some("I4"), "a step that was left out is delivered");
        assert_eq!(skipped(8, true).0, Some("I4"), "a step after them is missing");
        assert_eq!(skipped(7, false).0, Some("I4"), "the steps are forgotten");
    }

    #[test]
    fn a_sample_of_a_source_epoch_comes_in_one_mixture_epoch() {
        use crate::world::mixture::SourceVersion;
        let mixed = |lost: bool| {
            let breaches = Breaches::default();
            let oracle = Oracle::new(breaches.clone(), SimTime::default());
            let job = JobFacts::mixed("job", &SourceVersion::all(&Dice::new(1, 0)), Tail::Pad, 1);
            let variants = job.variants.as_ref().unwrap();
            let mix = Some(variants.change(&Dice::new(2, 0), None, (0, 0)));
            let begin = Begin { mix, world_size: 1, ..Begin::default() };
            oracle.begins(&job, (0, None), (&begin, false));
            for epoch in 0..6 {
                for step in 0..job.steps(mix, epoch) {
                    // The first samples of another epoch would come a second time.
                    let from = if lost && epoch == 3 { 2 } else { epoch };
                    let rows = job.global_batch(mix, (from, step));
                    oracle.delivered("job", (0, 0, 1), (epoch, step), rows);
                }
            }
            let counted = oracle.recount();
            (breaches.first().map(|breach| breach.id), counted.epochs, counted.source_epochs > 0)
        };
        assert_eq!(mixed(false), (None, 6, true));
        assert!(matches!(mixed(true).0, Some("I4" | "I9" | "I23")));
    }

    #[test]
    fn answers_that_differ_and_reads_that_go_back_are_seen() {
        let fixture = Fixture::new(Tail::Drop);
        fixture.oracle.answered("a", 0, "no");
        fixture.oracle.answered("a", 0, "no");
        assert_eq!(fixture.breach(), None);
        fixture.oracle.answered("a", 0, "yes");
        assert_eq!(fixture.breach(), Some("I11"));

        let fixture = Fixture::new(Tail::Drop);
        let silence = Duration::from_millis(TTL_MS);
        fixture.oracle.session_ended("w", 1, silence);
        assert_eq!(fixture.breach(), None);
        fixture.oracle.session_ended("w", 1, silence / 2);
        assert_eq!(fixture.breach(), Some("I10"));
    }
}
