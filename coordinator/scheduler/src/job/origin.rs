//! Start positions of generations.

use serde::{Deserialize, Serialize};
use shardfeed_plan::{LANES_MAX, PlanError, SEGMENTS_MAX, Segment, Steps, Tail, check_epoch};

use crate::log::{RankCursor, Refusal, Result, STEP_MAX, shortened};

/// A position to start from: an epoch and the steps that were consumed of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub epoch: u64,
    /// Segments of that epoch; the last one is open and holds the consumed steps.
    pub segments: Vec<Segment>,
}

impl Origin {
    /// Returns a position that a rank of `world_size` may start from.
    pub(crate) fn new(
        epoch: u64,
        segments: &[Segment],
        world_size: u64,
        tail: Tail,
    ) -> Result<Self> {
        let invalid = |reason: String| Err(Refusal::Invalid(reason));
        check_epoch(epoch).map_err(|error| plan_error(&error))?;
        let Some((open, closed)) = segments.split_last() else {
            return invalid("a start has at least one segment".to_owned());
        };
        if segments.len() > SEGMENTS_MAX {
            return Err(plan_error(&PlanError::TooManySegments));
        }
        check_open(open, world_size).map_err(|error| plan_error(&error))?;
        for segment in closed {
            check_closed(segment, tail).map_err(|error| plan_error(&error))?;
        }
        let steps = segments.iter().try_fold(0u64, |sum, s| sum.checked_add(s.steps.most()));
        if steps.is_none_or(|steps| steps > STEP_MAX) {
            return invalid(format!("more than {STEP_MAX} steps of an epoch were taken"));
        }
        let normalized =
            |segment: &Segment| Segment { steps: segment.steps.clone().normalized(), ..*segment };
        Ok(Self { epoch, segments: segments.iter().map(normalized).collect() })
    }

    pub(crate) fn cursor(&self) -> RankCursor {
        RankCursor { epoch: self.epoch, step: self.step() }
    }

    /// Step of the epoch at which the position lies.
    pub fn step(&self) -> u64 {
        self.segments.iter().map(|segment| segment.steps.most()).sum()
    }

    /// Number of lanes of the open segment.
    pub fn lanes(&self) -> u64 {
        self.segments.last().map_or(0, |open| open.lanes)
    }

    /// Number of samples of one step of all ranks, in the open segment.
    pub fn global_batch(&self) -> u64 {
        self.segments.last().map_or(0, |open| open.global_batch)
    }

    /// The segments as in a loader state, for people.
    pub(crate) fn segments_text(&self) -> String {
        shortened(&serde_json::to_string(&self.segments).expect("segments are plain data"))
    }

    /// True if ranks that start from both positions start together.
    ///
    /// Ranks of an uneven job may have consumed a different number of steps in the open segment.
    pub(crate) fn fits(&self, other: &Self, tail: Tail) -> bool {
        let alike = self.epoch == other.epoch && alike(&self.segments, &other.segments);
        alike && (tail == Tail::Uneven || self.step() == other.step())
    }
}

/// True if the segments are the same except for the steps of the open one.
pub(crate) fn alike(left: &[Segment], right: &[Segment]) -> bool {
    let (Some((left, left_closed)), Some((right, right_closed))) =
        (left.split_last(), right.split_last())
    else {
        return false;
    };
    let numbers = |open: &Segment| (open.lanes, open.global_batch);
    left_closed == right_closed && numbers(left) == numbers(right)
}

/// Returns the segments with the steps of the open one set so that the position is `step`.
pub(crate) fn at_step(mut segments: Vec<Segment>, step: u64) -> Vec<Segment> {
    if let Some((open, closed)) = segments.split_last_mut() {
        let before: u64 = closed.iter().map(|segment| segment.steps.most()).sum();
        open.steps = Steps::All(step.saturating_sub(before));
    }
    segments
}

fn check_open(open: &Segment, world_size: u64) -> Result<(), PlanError> {
    let Segment { lanes, global_batch, .. } = *open;
    check_world(global_batch, world_size)?;
    Segment::start(lanes, global_batch / world_size, world_size)?;
    match open.steps {
        Steps::All(_) => Ok(()),
        Steps::PerRank(_) => Err(PlanError::UnevenSteps),
    }
}

fn check_closed(segment: &Segment, tail: Tail) -> Result<(), PlanError> {
    let Segment { lanes, global_batch, ref steps } = *segment;
    Segment::start(lanes, global_batch, 1)?;
    match steps {
        Steps::All(_) => Ok(()),
        Steps::PerRank(_) if tail != Tail::Uneven => Err(PlanError::UnevenSteps),
        Steps::PerRank(steps) => check_world(global_batch, steps.len() as u64),
    }
}

fn check_world(global_batch: u64, world_size: u64) -> Result<(), PlanError> {
    let name = "world_size";
    if world_size == 0 {
        return Err(PlanError::Zero { name });
    }
    if world_size > LANES_MAX {
        return Err(PlanError::TooLarge { name, value: world_size, most: LANES_MAX });
    }
    if !global_batch.is_multiple_of(world_size) {
        return Err(PlanError::WorldDoesNotDivide { world_size, global_batch });
    }
    Ok(())
}

fn plan_error(error: &PlanError) -> Refusal {
    Refusal::Invalid(error.to_string())
}
