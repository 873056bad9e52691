//! Corrupt records: what a job does about them, and what fills their slots.
//! Source: docs/ORDER.md, section 12.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::dynamic::Groups;
use crate::epoch::EpochPlan;
use crate::lane::{Lane, part_of};
use crate::line::Sample;

/// Samples that are looked at on either side of a corrupt one: more corrupt neighbours than that are no
/// accident, and whoever fills a slot must not read a whole lane for it.
pub const FILLERS_MAX: u64 = 64;

/// What happens when a record is corrupt. It decides no order and is no part of a job's identity: where
/// two policies both give a batch it is the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corrupt {
    /// An error, with file, offset and ordinal.
    #[default]
    Error,
    /// Its slot is filled with another record and marked not valid; a file whose framing breaks ends
    /// there.
    SkipRecord,
    /// As `SkipRecord`; but a file with any damage that checksums show has no samples at all.
    SkipFile,
}

impl Corrupt {
    /// Whether anything is skipped.
    pub fn skips(self) -> bool {
        self != Self::Error
    }

    /// As it is left out where it is written.
    pub fn is_error(&self) -> bool {
        *self == Self::Error
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::SkipRecord => "skip-record",
            Self::SkipFile => "skip-file",
        })
    }
}

impl FromStr for Corrupt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "error" => Ok(Self::Error),
            "skip-record" => Ok(Self::SkipRecord),
            "skip-file" => Ok(Self::SkipFile),
            other => Err(format!(
                "corrupt={other:?} is none of \"error\", \"skip-record\", \"skip-file\""
            )),
        }
    }
}

impl EpochPlan {
    /// The samples that may stand in for `sample`, in the order in which they are tried: the nearest
    /// before it on the lane that the line was cut into, then the nearest after it, at most
    /// [`FILLERS_MAX`] of each. Segments, ranks and steps have no say in it.
    ///
    /// # Errors  `NoSuchSample`, `WindowTooLarge`.
    pub fn fillers(&self, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        let position = self.line().position(sample).ok_or_else(|| missing(sample))?;
        let lane = part_of(self.line().samples(), self.lanes(), position);
        self.lane(lane).fillers(sample)
    }
}

impl Groups {
    /// As [`EpochPlan::fillers`], in the order of the sample's group.
    ///
    /// # Errors  `NoSuchSample`, `WindowTooLarge`.
    pub fn fillers(&self, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        let (group, _) = self.place_of(sample)?.ok_or_else(|| missing(sample))?;
        self.lane(group).fillers(sample)
    }
}

impl Lane {
    fn fillers(&self, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        let at = self.output_of(sample)?.ok_or_else(|| missing(sample))?;
        let first = at.saturating_sub(FILLERS_MAX);
        let near = self.outputs(first..self.samples().min(at + 1 + FILLERS_MAX))?;
        let (before, after) = near.split_at((at - first) as usize);
        Ok(before.iter().rev().chain(&after[1..]).copied().collect())
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
        let content = Digest::from_bytes([7; 32]);
        Shuffle { content, seed: 5, enabled, window, interleave: 3, block_length: 2 }
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
            // After a new cut in mid-epoch, and on other ranks.
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
                    let expected: Vec<_> =
                        before.chain(order[at + 1..].iter().take(most)).copied().collect();
                    prop_assert_eq!(&whole.fillers(*sample).unwrap(), &expected);
                    prop_assert_eq!(&cut.fillers(*sample).unwrap(), &expected);
                }
            }
        }

        #[test]
        fn in_a_dynamic_job_fillers_are_of_the_group(
            counts in prop::collection::vec(1u64..90, 1..8),
            window in 1u64..120,
        ) {
            let shuffle = shuffle(true, window);
            let line = Arc::new(Line::new(&counts, &shuffle, 0).unwrap());
            let groups = Groups::new(Arc::clone(&line), shuffle, 0).unwrap();
            for position in 0..line.samples() {
                let sample = line.sample(position);
                let (group, offset) = groups.place_of(sample).unwrap().unwrap();
                let lane = groups.lane(group);
                let fillers = groups.fillers(sample).unwrap();
                let others = (lane.samples() - 1).min(2 * FILLERS_MAX) as usize;
                prop_assert!(fillers.len() <= others && !fillers.contains(&sample));
                if offset > 0 {
                    prop_assert_eq!(fillers[0], lane.output(offset - 1).unwrap());
                }
            }
        }
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
