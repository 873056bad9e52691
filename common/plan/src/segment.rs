//! Segments: parts of an epoch with constant lanes and global batch. Source: docs/ORDER.md, section
//! 6.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{PlanError, check_parameters};

/// Maximum number of segments of one epoch; a state contains them all and stays below 1 KiB.
pub const SEGMENTS_MAX: usize = 16;

/// Maximum number of lanes, a hundred times above use: bounds the memory for a hostile state.
pub const LANES_MAX: u64 = 1 << 20;

/// Maximum number of samples per step of all ranks, for the same reason.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 28;

/// Maximum number of ranges of steps that are left out of one epoch. Each takes the place of a segment
/// in a state, which is larger.
pub const LEFT_OUT_MAX: usize = 8;

/// A part of an epoch with one number of lanes and one global batch: `[C, B, steps]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, Steps)", into = "(u64, u64, Steps)")]
pub struct Segment {
    /// Number of lanes, C.
    pub lanes: u64,
    /// Samples per step of all ranks, B.
    pub global_batch: u64,
    /// Steps taken in the segment.
    pub steps: Steps,
}

/// Number of steps taken in a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Steps {
    /// All ranks took the same number of steps.
    All(u64),
    /// Steps of each rank, in a job with `tail="uneven"`.
    PerRank(Vec<u64>),
}

impl From<(u64, u64, Steps)> for Segment {
    fn from((lanes, global_batch, steps): (u64, u64, Steps)) -> Self {
        Self { lanes, global_batch, steps }
    }
}

impl From<Segment> for (u64, u64, Steps) {
    fn from(segment: Segment) -> Self {
        (segment.lanes, segment.global_batch, segment.steps)
    }
}

impl Steps {
    /// Returns the largest number of steps that a rank took.
    pub fn most(&self) -> u64 {
        match self {
            Self::All(steps) => *steps,
            Self::PerRank(steps) => steps.iter().max().copied().unwrap_or(0),
        }
    }

    /// Replaces equal steps of all ranks by a single number.
    pub fn normalized(self) -> Self {
        match self {
            Self::PerRank(steps) if steps.windows(2).all(|pair| pair[0] == pair[1]) => {
                Self::All(steps.first().copied().unwrap_or(0))
            }
            other => other,
        }
    }
}

impl Segment {
    /// Returns a segment without steps.
    ///
    /// # Errors  `LanesDoNotDivide`, with valid values; `Zero`; `TooLarge`.
    pub fn start(lanes: u64, batch_size: u64, world_size: u64) -> Result<Self, PlanError> {
        check_parameters(&[
            ("lanes", lanes, LANES_MAX),
            ("batch_size", batch_size, u64::MAX),
            ("world_size", world_size, u64::MAX),
        ])?;
        let global_batch = batch_size.saturating_mul(world_size);
        check_parameters(&[("batch_size x world_size", global_batch, GLOBAL_BATCH_MAX)])?;
        if !global_batch.is_multiple_of(lanes) {
            return Err(PlanError::LanesDoNotDivide {
                lanes,
                global_batch,
                batch_size,
                world_size,
                batch_sizes: near_batch_sizes(lanes, batch_size, world_size),
                lane_counts: near_divisors(global_batch, lanes),
            });
        }
        Ok(Self { lanes, global_batch, steps: Steps::All(0) })
    }

    /// Returns the number of samples of a step per lane, b.
    pub fn per_lane(&self) -> u64 {
        self.global_batch / self.lanes
    }
}

/// Steps of an epoch that all ranks left out, as `[[first, end], ...]`: ascending and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeftOut(Vec<(u64, u64)>);

impl LeftOut {
    /// Creates it from ranges, which [`LeftOut::fits`] checks.
    pub fn new(ranges: Vec<(u64, u64)>) -> Self {
        Self(ranges)
    }

    /// Returns the first step of each range, and the first one after it.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if an epoch with these segments can be named in a state.
    pub fn fits_beside(&self, segments: &[Segment]) -> bool {
        self.0.len() <= LEFT_OUT_MAX && segments.len() + self.0.len() <= SEGMENTS_MAX
    }

    /// True if the ranges are ascending, apart, and below a rank's next step.
    pub fn fits(&self, step: u64) -> bool {
        self.0.len() <= LEFT_OUT_MAX
            && self.0.iter().all(|(first, end)| first < end && *end <= step)
            && self.0.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    pub fn contains(&self, step: u64) -> bool {
        self.0.iter().any(|(first, end)| (*first..*end).contains(&step))
    }

    /// Iterates over the parts of `steps` that are left out.
    pub(crate) fn within(&self, steps: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let part = move |(first, end): &(u64, u64)| *first.max(&steps.start)..*end.min(&steps.end);
        self.0.iter().map(part).filter(|part| part.start < part.end)
    }

    /// Adds steps after all others.
    pub fn add(&mut self, first: u64, end: u64) {
        match self.0.last_mut() {
            Some(last) if last.1 == first => last.1 = end,
            _ => self.0.push((first, end)),
        }
    }

    /// Removes the steps from `step` on.
    pub fn cut(&mut self, step: u64) {
        self.0.retain(|(first, _)| *first < step);
        if let Some(last) = self.0.last_mut() {
            last.1 = last.1.min(step);
        }
    }

    /// Returns the number of samples of these steps.
    /// - `segments`: of the epoch; every such step is a full one.
    pub fn samples(&self, segments: &[Segment]) -> u64 {
        let mut samples = 0_u64;
        let mut from = 0_u64;
        for (index, segment) in segments.iter().enumerate() {
            let is_open = index + 1 == segments.len();
            let to = if is_open { u64::MAX } else { from.saturating_add(segment.steps.most()) };
            let steps: u64 = self.within(from..to).map(|steps| steps.end - steps.start).sum();
            samples = samples.saturating_add(steps.saturating_mul(segment.global_batch));
            from = to;
        }
        samples
    }
}

/// Returns the nearest batch sizes at or below (else the smallest) and above `batch_size` whose
/// product with `world_size` is divisible by `lanes`.
fn near_batch_sizes(lanes: u64, batch_size: u64, world_size: u64) -> (u64, u64) {
    let step = lanes / gcd(lanes, world_size);
    let above = (batch_size / step + 1) * step;
    ((batch_size / step * step).max(step), above.max(2 * step))
}

/// Returns up to two divisors of `number` on each side of `near`.
fn near_divisors(number: u64, near: u64) -> Vec<u64> {
    const LOOKED_AT_MAX: u64 = 100_000;
    let divides = |candidate: &u64| number.is_multiple_of(*candidate);
    let mut below: Vec<u64> =
        (1..near).rev().take(LOOKED_AT_MAX as usize).filter(divides).take(2).collect();
    below.reverse();
    let end = number.min(near.saturating_add(LOOKED_AT_MAX));
    below.extend((near + 1..=end).filter(divides).take(2));
    if below.is_empty() { vec![1] } else { below }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_steps_are_merged_cut_and_counted() {
        let mut left_out = LeftOut::default();
        for (first, end) in [(2, 4), (4, 5), (9, 12)] {
            left_out.add(first, end);
        }
        assert_eq!(left_out.ranges(), [(2, 5), (9, 12)]);
        let segment =
            |global_batch, steps| Segment { lanes: 1, global_batch, steps: Steps::All(steps) };
        let segments = [segment(10, 4), segment(100, 6), segment(1000, 2)];
        assert_eq!(left_out.samples(&segments), 2 * 10 + 100 + 100 + 2 * 1000);
        assert!(left_out.fits(12) && !left_out.fits(11));
        for odd in [vec![(3, 3)], vec![(5, 6), (1, 2)], vec![(1, 2), (2, 3)]] {
            assert!(!LeftOut::new(odd).fits(20));
        }
        left_out.cut(10);
        assert_eq!(left_out.ranges(), [(2, 5), (9, 10)]);
        left_out.cut(9);
        assert_eq!(left_out.ranges(), [(2, 5)]);
        let many = |ranges| LeftOut::new((0..ranges).map(|at| (2 * at, 2 * at + 1)).collect());
        assert!(many(8).fits_beside(&segments) && !many(9).fits_beside(&segments));
        assert!(many(1).fits_beside(&vec![segment(1, 1); 15]));
        assert!(!many(1).fits_beside(&vec![segment(1, 1); 16]));
    }

    #[test]
    fn lanes_that_do_not_divide_name_values_that_do() {
        let error = Segment::start(4, 10, 3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "lanes=4 does not divide the global batch of 30 (batch_size 10 x world_size 3); use \
             batch_size=8 or 12, or one of lanes=2, 3, 5, 6"
        );
        let PlanError::LanesDoNotDivide { batch_sizes, lane_counts, .. } = error else { panic!() };
        for batch_size in [batch_sizes.0, batch_sizes.1] {
            Segment::start(4, batch_size, 3).unwrap();
        }
        for lanes in lane_counts {
            Segment::start(lanes, 10, 3).unwrap();
        }
        assert!(Segment::start(7, 1, 1).unwrap_err().to_string().contains("batch_size=7 or 14"));
    }

    #[test]
    fn is_three_numbers_in_json() {
        let segment = Segment { lanes: 4, global_batch: 32, steps: Steps::All(7) };
        let json = serde_json::to_string(&segment).unwrap();
        assert_eq!(json, "[4,32,7]");
        assert_eq!(serde_json::from_str::<Segment>(&json).unwrap(), segment);
        let uneven: Segment = serde_json::from_str("[4,32,[3,5]]").unwrap();
        assert_eq!(uneven.steps, Steps::PerRank(vec![3, 5]));
        assert_eq!(Steps::PerRank(vec![5, 5]).normalized(), Steps::All(5));
    }
}
