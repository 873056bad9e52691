//! Corrupt records: the policies of jobs, and the substitutes for corrupt records. Source:
//! docs/ORDER.md, section 12.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::dynamic::Groups;
use crate::epoch::EpochPlan;
use crate::job::named;
use crate::lane::{Part, PartOutputs, Portion};
use crate::line::Sample;
use crate::window::Permutations;

/// Number of samples that are tried as a substitute on either side of a corrupt one. More corrupt
/// neighbours are no accident, and a substitute must not require reading a whole lane.
pub const FILLERS_MAX: u64 = 64;

/// Policy for corrupt records. It does not affect the order and is not part of a job's identity:
/// batches that two policies both return are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corrupt {
    /// Return an error with file, offset and ordinal.
    #[default]
    Error,
    /// Substitute another record, marked not valid; a file whose framing breaks ends there.
    SkipRecord,
    /// As `SkipRecord`, but a file with any damage detected by checksums has no samples at all.
    SkipFile,
}

impl Corrupt {
    pub fn skips(self) -> bool {
        self != Self::Error
    }

    /// Returns true for the default, which is omitted when serialized.
    pub fn is_error(&self) -> bool {
        *self == Self::Error
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Corrupt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        named(text).ok_or_else(|| {
            format!("corrupt={text:?} is none of \"error\", \"skip-record\", \"skip-file\"")
        })
    }
}

/// Number of records that a rank skipped in an epoch. It counts from the rank's last start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipCount {
    /// Files, or records of a filter, that are left out; they count in every epoch.
    left_out: u64,
    epoch: u64,
    in_epoch: u64,
}

impl SkipCount {
    /// Returns a count without skipped records, except `left_out` files or records.
    pub fn new(left_out: u64) -> Self {
        Self { left_out, epoch: 0, in_epoch: 0 }
    }

    /// Checks that a batch of an epoch with `more` skipped records may be delivered.
    /// - `allowed`: maximum number of records to skip in the epoch.
    ///
    /// # Errors  The total, which is more than allowed.
    pub fn admit(&self, epoch: u64, more: u64, allowed: u64) -> Result<(), u64> {
        let skipped = self.left_out + self.before(epoch) + more;
        if more == 0 || skipped <= allowed { Ok(()) } else { Err(skipped) }
    }

    /// Counts such a batch as delivered.
    pub fn add(&mut self, epoch: u64, more: u64) {
        (self.in_epoch, self.epoch) = (self.before(epoch) + more, epoch);
    }

    /// Restarts the count after the rank moved to another position.
    pub fn moved(&mut self) {
        self.in_epoch = 0;
    }

    /// Returns the number of skipped records in the epoch of the last batch.
    pub fn in_epoch(&self) -> u64 {
        self.in_epoch
    }

    fn before(&self, epoch: u64) -> u64 {
        if epoch == self.epoch { self.in_epoch } else { 0 }
    }
}

impl EpochPlan {
    /// Returns the candidates to substitute for `sample` of `portion`, in the order in which they
    /// are tried. They are of the same portion.
    ///
    /// These are the nearest samples before it on its first-segment lane of the epoch sequence (in
    /// a mixture: in the lane's part of the portion), the nearest after it, and the next ones of
    /// the epoch sequence, whose end its start follows; at most [`FILLERS_MAX`] of each. Later
    /// segments, ranks and steps have no influence.
    ///
    /// # Errors  `NoSuchSample`, in a mixture `NotInEpoch`; `WindowTooLarge`.
    pub fn fillers(&self, portion: Portion, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        let lane = self.lane(self.lane_of(portion, sample)?);
        lane.part_of(portion).ok_or_else(|| missing(sample))?.fillers(sample)
    }
}

impl Groups {
    /// As [`EpochPlan::fillers`], in the order of the sample's group.
    ///
    /// # Errors  `NoSuchSample`, `WindowTooLarge`.
    pub fn fillers(&self, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        let (group, _) = self.place_of(sample)?.ok_or_else(|| missing(sample))?;
        let part = self.lane(group).part_of(Portion::default());
        part.ok_or_else(|| missing(sample))?.fillers(sample)
    }
}

impl Part {
    fn fillers(&self, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        let at = self.output_with(sample, &mut Permutations::default())?;
        let at = at.ok_or_else(|| missing(sample))?;
        let first = at.saturating_sub(FILLERS_MAX);
        let (mut lookup, end) = (PartOutputs::new(self), self.samples().min(at + 1 + FILLERS_MAX));
        let near = (first..end).map(|output| Ok(lookup.planned(output)?.sample));
        let near = near.collect::<Result<Vec<_>, PlanError>>()?;
        let (before, after) = near.split_at((at - first) as usize);
        let near = before.iter().rev().chain(&after[1..]).copied();
        let (line, most) = (self.line(), FILLERS_MAX.min(self.line().samples() - 1));
        let here = line.position(sample).ok_or_else(|| missing(sample))?;
        let next = (1..=most).map(|more| line.sample((here + more) % line.samples()));
        Ok(near.chain(next).collect())
    }
}

fn missing(sample: Sample) -> PlanError {
    PlanError::NoSuchSample { shard: sample.shard, ordinal: sample.ordinal }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{Digest, Line, Segment, Shuffle, Steps, Tail};

    fn shuffle(enabled: bool, window: u64) -> Shuffle {
        let digest = Digest::from_bytes([7; 32]);
        Shuffle { digest, seed: 5, enabled, window, interleave: 3, block_length: 2 }
    }

    fn plan(line: &Arc<Line>, shuffle: &Shuffle, segments: &[Segment], world: u64) -> EpochPlan {
        let rules = (Tail::Pad, None);
        EpochPlan::new(Arc::clone(line), shuffle.clone(), 1, rules, segments, world).unwrap()
    }

    proptest! {
        #[test]
        fn fillers_are_the_nearest_before_then_after_whatever_the_ranks(
            counts in prop::collection::vec(0u64..90, 1..8),
            enabled: bool,
            window in 1u64..120,
            lanes in prop::sample::select(vec![1u64, 2, 3, 4, 6, 12]),
            steps in 1u64..4,
            other in prop::sample::select(vec![1u64, 2, 4]),
        ) {
            prop_assume!(counts.iter().sum::<u64>() >= 48);
            let shuffle = shuffle(enabled, window);
            let line = Arc::new(Line::new(&counts, &shuffle, 1).unwrap());
            let start = Segment::start(lanes, 12, 1).unwrap();
            let whole = plan(&line, &shuffle, std::slice::from_ref(&start), 1);
            // After resharding in mid-epoch, and on other ranks.
            let before = Segment { steps: Steps::All(steps), ..start };
            let cut = [before, Segment::start(other, 12, 1).unwrap()];
            let cut = plan(&line, &shuffle, &cut, 12);
            for number in 0..lanes {
                let lane = whole.lane(number);
                let order: Vec<Sample> =
                    (0..lane.samples()).map(|at| lane.output(at).unwrap()).collect();
                for (at, sample) in order.iter().enumerate() {
                    let most = FILLERS_MAX as usize;
                    let before = order[..at].iter().rev().take(most);
                    let here = line.position(*sample).unwrap();
                    let next = (1..line.samples().min(1 + FILLERS_MAX))
                        .map(|more| line.sample((here + more) % line.samples()));
                    let near = before.chain(order[at + 1..].iter().take(most)).copied();
                    let expected: Vec<_> = near.chain(next).collect();
                    prop_assert_eq!(&whole.fillers(Portion::default(), *sample).unwrap(), &expected);
                    prop_assert_eq!(&cut.fillers(Portion::default(), *sample).unwrap(), &expected);
                }
            }
        }

        #[test]
        fn in_a_dynamic_job_fillers_are_of_the_group(
            counts in prop::collection::vec(1u64..90, 1..8),
            window in 1u64..120,
        ) {
            let shuffle = shuffle(true, window);
            let line = Arc::new(Line::unrotated(&counts, &shuffle, 0).unwrap());
            let groups = Groups::new(Arc::clone(&line), shuffle, 0).unwrap();
            for position in 0..line.samples() {
                let sample = line.sample(position);
                let (group, offset) = groups.place_of(sample).unwrap().unwrap();
                let lane = groups.lane(group);
                let fillers = groups.fillers(sample).unwrap();
                let of_group = (lane.samples() - 1).min(2 * FILLERS_MAX);
                let most = of_group + (line.samples() - 1).min(FILLERS_MAX);
                prop_assert!(fillers.len() as u64 <= most && !fillers.contains(&sample));
                prop_assert_eq!(fillers.is_empty(), line.samples() == 1);
                if offset > 0 {
                    prop_assert_eq!(fillers[0], lane.output(offset - 1).unwrap());
                }
            }
        }
    }

    #[test]
    fn a_count_is_of_one_epoch_and_files_count_in_each() {
        let mut count = SkipCount::new(1);
        assert_eq!((count.admit(0, 3, 4), count.admit(0, 4, 4)), (Ok(()), Err(5)));
        count.add(0, 2);
        let both = (count.admit(0, 1, 4), count.admit(0, 2, 4));
        assert_eq!((both, count.in_epoch()), ((Ok(()), Err(5)), 2));
        assert_eq!((count.admit(1, 3, 4), count.admit(1, 4, 4)), (Ok(()), Err(5)));
        count.moved();
        assert_eq!(count.admit(0, 3, 4), Ok(()));
        // A rank that skips no more records is admitted.
        assert_eq!(SkipCount::new(1).admit(0, 0, 0), Ok(()));
    }

    #[test]
    fn a_policy_reads_as_it_is_written() {
        for policy in [Corrupt::Error, Corrupt::SkipRecord, Corrupt::SkipFile] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(json, format!("\"{policy}\""));
        }
        let refused = "skip".parse::<Corrupt>().unwrap_err();
        assert_eq!(
            refused,
            "corrupt=\"skip\" is none of \"error\", \"skip-record\", \"skip-file\""
        );
    }
}
