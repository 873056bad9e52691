//! Corrupt records that were not delivered to trainers: reported by workers, counted by
//! coordinators, and bounded by each rank's budget.
//!
//! The expected counts come from the records that trainers encountered.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use shardfeed_plan::Sample;
use shardfeed_proto::coordinator::v1 as wire;

use crate::breach::Breaches;
use crate::oracle::Begin;
use crate::sources;
use crate::world::catalog::JobFacts;
use crate::world::mixture::Mix;

/// Corrupt records that were encountered, reported and listed.
#[derive(Debug)]
pub struct Skips {
    breaches: Breaches,
    seen: RefCell<Seen>,
}

/// Records by job and by the datasets whose shards are numbered.
pub type Known = BTreeMap<(String, String), BTreeSet<Sample>>;

#[derive(Debug, Default)]
struct Seen {
    /// Records that a worker reported, by job and by the datasets whose shards are numbered.
    told: BTreeMap<(String, String), BTreeSet<Sample>>,
    /// Reported records whose report was answered.
    known: Known,
    /// Records of an epoch that were skipped for one start of a rank, by trainer and epoch.
    skipped: BTreeMap<(String, u64), u64>,
    counted: BTreeMap<&'static str, u64>,
}

impl Skips {
    /// Returns a checker without any records.
    pub fn new(breaches: Breaches) -> Self {
        Self { breaches, seen: RefCell::default() }
    }

    /// Returns the number of occurrences of each observed event, by name.
    pub fn counted(&self) -> BTreeMap<&'static str, u64> {
        self.seen.borrow().counted.clone()
    }

    /// Records that a report is about to be sent.
    pub fn tells(&self, (job, mix): (&JobFacts, Mix), records: &BTreeSet<Sample>) {
        let mut seen = self.seen.borrow_mut();
        let of = (job.name.clone(), job.numbering(mix));
        seen.told.entry(of).or_default().extend(records);
        *seen.counted.entry("skip-reports").or_default() += 1;
    }

    /// Records that a report was answered.
    pub fn knows(&self, (job, mix): (&JobFacts, Mix), records: &BTreeSet<Sample>) {
        let of = (job.name.clone(), job.numbering(mix));
        self.seen.borrow_mut().known.entry(of).or_default().extend(records);
    }

    /// Records that a trainer received a batch from which `skipped` records were removed.
    /// - `allowed`: maximum per epoch since the trainer started.
    pub fn handed_out(&self, trainer: &str, epoch: u64, skipped: u64, allowed: u64) {
        let mut seen = self.seen.borrow_mut();
        let of_epoch = seen.skipped.entry((trainer.to_owned(), epoch)).or_default();
        *of_epoch += skipped;
        let all = *of_epoch;
        self.breaches.check(skipped == 0 || all <= allowed, "I20", || {
            format!("trainer {trainer} skipped {all} records of epoch {epoch}, allowed {allowed}")
        });
        *seen.counted.entry("records-skipped").or_default() += skipped;
    }

    /// Records that a trainer rejected a batch because it would have exceeded the budget.
    pub fn refused(&self, trainer: &str, epoch: u64, skipped: u64, allowed: u64) {
        let mut seen = self.seen.borrow_mut();
        let before = seen.skipped.get(&(trainer.to_owned(), epoch)).copied().unwrap_or(0);
        self.breaches.check(before + skipped > allowed, "I20", || {
            format!("trainer {trainer} refuses record {before} + {skipped} of {allowed} allowed")
        });
        *seen.counted.entry("budgets-refused").or_default() += 1;
    }

    /// Records that an epoch of a job is about to be requested.
    /// - Returns the records to compare the answer with in [`Skips::listed`].
    pub fn asks(&self) -> Known {
        self.seen.borrow().known.clone()
    }

    /// Checks the skipped records that an answer lists for an epoch.
    /// - `known`: records whose reports had been answered before the request was sent.
    /// - `begin`: start of the generation that the answer names.
    pub fn listed(&self, job: &JobFacts, begin: &Begin, known: &Known, epoch: &wire::Epoch) {
        let left_out = begin.left_out_of(epoch.epoch);
        self.check_sources(job, begin, epoch);
        let mut seen = self.seen.borrow_mut();
        let (name, number, records) = (&job.name, epoch.epoch, &epoch.skipped_records);
        let of = (name.clone(), job.numbering(begin.mix));
        let corrupt = job.corrupt_of(begin.mix);
        let sample = |record: &wire::SkippedRecord| {
            let sample = Sample { shard: record.shard as u32, ordinal: record.ordinal };
            job.of_stage((begin.mix, number), sample)
        };
        let listed: BTreeSet<Sample> = records.iter().filter_map(sample).collect();
        // A mixture epoch may have a record several times.
        let is_counted = match begin.mix {
            None => records.len() as u64 == epoch.skipped,
            Some(_) => records.len() as u64 <= epoch.skipped,
        };
        let is_once = listed.len() == records.len() && is_counted;
        self.breaches.check(is_once, "I20", || {
            let skipped = epoch.skipped;
            format!("epoch {number} of {name} has {skipped} skipped, and lists {records:?}")
        });
        let told = seen.told.get(&of).cloned().unwrap_or_default();
        let as_met = |record: &&wire::SkippedRecord| {
            let sample = sample(record).filter(|sample| told.contains(sample));
            sample.and_then(|sample| corrupt.get(&sample)).is_some_and(|(path, offset, reason)| {
                record.path.ends_with(path.as_str())
                    && (record.offset, &record.reason) == (*offset, reason)
            })
        };
        let other = records.iter().find(|record| !as_met(record));
        self.breaches.check(other.is_none(), "I20", || {
            format!("epoch {number} of {name} lists {other:?}, which no trainer reported so")
        });
        *seen.counted.entry("skips-listed").or_default() += records.len() as u64;
        if epoch.state() != wire::EpochState::Sealed {
            return;
        }
        let deliveries = |sample: &Sample| {
            let steps = || job.steps_of((begin.mix, number), *sample);
            let is_delivered = |step: &u64| !left_out.contains(*step);
            if job.identity.is_dynamic() {
                1
            } else {
                steps().iter().filter(|of| is_delivered(of)).count()
            }
        };
        let delivers = |sample: &Sample| deliveries(sample) > 0;
        // A generation whose mixture numbers the shards otherwise makes the coordinators forget them.
        let is_kept = begin.mix.is_none() || job.numbers_alike();
        let known = known.get(&of).filter(|_| is_kept).into_iter().flatten();
        let missing = known.clone().find(|known| delivers(known) && !listed.contains(known));
        *seen.counted.entry("skips-expected").or_default() += known.count() as u64;
        let times: usize = listed.iter().map(deliveries).sum();
        self.breaches.check(times as u64 == epoch.skipped, "I20", || {
            let skipped = epoch.skipped;
            format!(
                "epoch {number} of {name} skips {skipped} samples, but has {times} of {records:?}"
            )
        });
        self.breaches.check(missing.is_none(), "I20", || {
            format!("epoch {number} of {name} is over, and lacks {missing:?} of {records:?}")
        });
        let extra = listed.iter().find(|listed| !delivers(listed));
        self.breaches.check(extra.is_none(), "I20", || {
            format!("epoch {number} of {name} lists {extra:?}, which was dropped or left out")
        });
        let wire::Epoch { total, delivered, dropped, skipped, lost, .. } = *epoch;
        let is_whole = delivered + dropped + skipped + epoch.left_out == total && lost == 0;
        self.breaches.check(is_whole && total == job.samples(begin.mix, number), "I20", || {
            format!(
                "epoch {number} of {name} is over with {total} samples: {delivered} delivered, {dropped} \
                 dropped, {skipped} skipped, {} left out, {lost} lost",
                epoch.left_out
            )
        });
        let steps: u64 = left_out.ranges().iter().map(|(first, end)| end - first).sum();
        // Each of these steps is a full one.
        let samples = steps * job.global_batch;
        self.breaches.check(epoch.left_out == samples, "I22", || {
            let said = epoch.left_out;
            format!("epoch {number} of {name} left out {samples} samples, and lists {said}")
        });
        *seen.counted.entry("left-out-listed").or_default() += samples;
        *seen.counted.entry("epochs-listed").or_default() += 1;
    }

    /// Checks the sources of a mixture's epoch.
    fn check_sources(&self, job: &JobFacts, begin: &Begin, epoch: &wire::Epoch) {
        let Some(mixture) = job.mixture(begin.mix) else {
            return;
        };
        let (name, number) = (&job.name, epoch.epoch);
        let counts = sources::names(&mixture, number);
        let total = |of: &wire::EpochSource| (of.name.clone(), of.total);
        let is_over = epoch.state() == wire::EpochState::Sealed;
        let is_whole = |of: &wire::EpochSource| {
            !is_over || of.delivered + of.dropped + of.left_out == of.total
        };
        let left_out: u64 = epoch.sources.iter().map(|of| of.left_out).sum();
        let is_right = epoch.sources.iter().map(total).eq(counts.iter().cloned())
            && epoch.sources.iter().all(is_whole)
            && (!is_over || left_out == epoch.left_out);
        self.breaches.check(is_right, "I23", || {
            let listed = &epoch.sources;
            format!("epoch {number} of {name} has {counts:?} of its sources, and lists {listed:?}")
        });
        *self.seen.borrow_mut().counted.entry("sources-listed").or_default() += counts.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use shardfeed_plan::Tail;

    use super::*;
    use crate::dice::Dice;
    use crate::world::catalog::Catalog;

    struct Fixture {
        breaches: Breaches,
        skips: Skips,
        job: Rc<JobFacts>,
        corrupt: BTreeSet<Sample>,
    }

    impl Fixture {
        fn new() -> Self {
            let breaches = Breaches::default();
            let manifest = Catalog::new(&Dice::new(1, 0)).manifest();
            let job = JobFacts::new("job", "images", &manifest, Tail::Pad, 1);
            let corrupt: BTreeSet<Sample> = job.corrupt.keys().copied().collect();
            assert!(corrupt.len() > 2);
            Self { skips: Skips::new(breaches.clone()), breaches, job, corrupt }
        }

        fn epoch(&self, of: impl IntoIterator<Item = Sample>) -> wire::Epoch {
            let record = |sample| {
                let (path, offset, reason) = self.job.corrupt[&sample].clone();
                let (shard, ordinal) = (sample.shard.into(), sample.ordinal);
                wire::SkippedRecord { shard, ordinal, offset, reason, path }
            };
            let skipped_records: Vec<_> = of.into_iter().map(record).collect();
            let (total, skipped) = (self.job.samples(None, 0), skipped_records.len() as u64);
            wire::Epoch {
                state: wire::EpochState::Sealed.into(),
                total,
                delivered: total - skipped,
                skipped,
                skipped_records,
                ..wire::Epoch::default()
            }
        }

        /// Reports every corrupt record and returns the breach that listing `epoch` causes.
        fn breach(&self, epoch: &wire::Epoch) -> Option<&'static str> {
            self.skips.tells((&self.job, None), &self.corrupt);
            self.skips.knows((&self.job, None), &self.corrupt);
            self.skips.listed(&self.job, &Begin::default(), &self.skips.asks(), epoch);
            self.breaches.first().map(|breach| breach.id)
        }
    }

    #[test]
    fn each_record_is_listed_once_as_it_was_told() {
        let right = Fixture::new();
        assert_eq!(right.breach(&right.epoch(right.corrupt.clone())), None);

        let missing = Fixture::new();
        let all_but_one = missing.corrupt.iter().skip(1).copied();
        assert_eq!(missing.breach(&missing.epoch(all_but_one)), Some("I20"));

        let twice = Fixture::new();
        let again = twice.corrupt.iter().chain(&twice.corrupt).copied();
        assert_eq!(twice.breach(&twice.epoch(again)), Some("I20"));

        let moved = Fixture::new();
        let mut epoch = moved.epoch(moved.corrupt.clone());
        epoch.skipped_records[0].offset += 1;
        assert_eq!(moved.breach(&epoch), Some("I20"));

        let lost = Fixture::new();
        let mut epoch = lost.epoch(lost.corrupt.clone());
        (epoch.delivered, epoch.lost) = (epoch.delivered - 1, 1);
        assert_eq!(lost.breach(&epoch), Some("I20"));

        let untold = Fixture::new();
        let epoch = untold.epoch(untold.corrupt.clone());
        untold.skips.listed(&untold.job, &Begin::default(), &Known::new(), &epoch);
        assert_eq!(untold.breaches.first().map(|breach| breach.id), Some("I20"));
    }

    #[test]
    fn a_budget_is_of_one_start_and_one_epoch() {
        let fixture = Fixture::new();
        fixture.skips.handed_out("t", 0, 2, 2);
        fixture.skips.handed_out("t", 1, 2, 2);
        fixture.skips.handed_out("u", 0, 2, 2);
        fixture.skips.refused("t", 0, 1, 2);
        assert_eq!(fixture.breaches.first(), None);
        fixture.skips.handed_out("t", 1, 1, 2);
        assert_eq!(fixture.breaches.first().map(|breach| breach.id), Some("I20"));

        let early = Fixture::new();
        early.skips.refused("t", 0, 1, 1);
        assert_eq!(early.breaches.first().map(|breach| breach.id), Some("I20"));
    }
}
