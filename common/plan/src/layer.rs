//! The lanes of each segment, and their mapping to the lanes of the first segment. Source:
//! docs/ORDER.md, section 6.

use std::ops::Range;

use crate::lane::{cut, part_of};
use crate::segment::{Segment, Steps};

/// A position on a lane of the first segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePosition {
    pub lane: u64,
    pub output: u64,
}

/// Effect of a segment on a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The position is consumed in this step of the segment.
    Taken { step: u64 },
    /// The position is left over: at this index in the rest of its lane.
    Left { place: u64 },
}

/// The lanes of one segment at its start.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) segment: Segment,
    /// Length of each lane in samples.
    pub(crate) lengths: Vec<u64>,
    /// Smallest and largest length.
    pub(crate) shortest: u64,
    pub(crate) longest: u64,
    /// Derivation of the lanes from the layer below.
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// Cut from the epoch sequence.
    First,
    /// Rests of the lanes below.
    Continued,
    /// Concatenated rests of the lanes below, cut again: the start of each rest and their sum.
    Cut { starts: Vec<u64> },
}

/// Columns of a lane's steps that belong to one rank, and the number of steps it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    first: u64,
    end: u64,
    steps: u64,
}

impl Columns {
    /// Returns the number of consumed positions of the lane below `end`.
    pub(crate) fn taken(&self, per_lane: u64, end: u64) -> u64 {
        self.below(per_lane, end.min(self.steps.saturating_mul(per_lane)))
    }

    /// Returns the number of positions of these columns below `end`.
    fn below(&self, per_lane: u64, end: u64) -> u64 {
        let width = self.end - self.first;
        end / per_lane * width + (end % per_lane).saturating_sub(self.first).min(width)
    }
}

impl Layer {
    pub(crate) fn first(samples: u64, segment: Segment) -> Self {
        let range = |lane| cut(samples, segment.lanes, lane);
        let lengths = (0..segment.lanes).map(range).map(|r| r.end - r.start).collect();
        Self::new(segment, lengths, Form::First)
    }

    fn new(segment: Segment, lengths: Vec<u64>, form: Form) -> Self {
        let shortest = lengths.iter().min().copied().unwrap_or(0);
        let longest = lengths.iter().max().copied().unwrap_or(0);
        Self { segment, lengths, shortest, longest, form }
    }

    /// Returns the layer of `segment`, which continues where this one stopped.
    pub(crate) fn next(&self, segment: Segment) -> Self {
        let rests: Vec<u64> = (0..self.segment.lanes).map(|lane| self.rest(lane)).collect();
        if segment.lanes == self.segment.lanes && matches!(self.segment.steps, Steps::All(_)) {
            return Self::new(segment, rests, Form::Continued);
        }
        let starts = sums(rests.iter().copied());
        let left = starts[rests.len()];
        let range = |lane| cut(left, segment.lanes, lane);
        let lengths = (0..segment.lanes).map(range).map(|r| r.end - r.start).collect();
        Self::new(segment, lengths, Form::Cut { starts })
    }

    /// Returns the lane and position below for `position` of `lane`; `None` on the first layer.
    pub(crate) fn down(
        &self,
        below: Option<&Self>,
        lane: u64,
        position: u64,
    ) -> Option<(u64, u64)> {
        let below = below?;
        let (lane, place) = match &self.form {
            Form::First => return None,
            Form::Continued => (lane, position),
            Form::Cut { starts } => {
                let left = starts[starts.len() - 1];
                let item = cut(left, self.segment.lanes, lane).start + position;
                let lane = starts.partition_point(|&start| start <= item) - 1;
                (lane as u64, item - starts[lane])
            }
        };
        Some((lane, below.left_at(lane, place)))
    }

    /// Returns the lanes and ranges in the layer below for `positions` of `lane`, in any order.
    pub(crate) fn down_all(
        &self,
        below: &Self,
        lane: u64,
        positions: Range<u64>,
    ) -> Vec<(u64, Range<u64>)> {
        let mut found = Vec::new();
        let starts = match &self.form {
            Form::First => return found,
            Form::Continued => {
                below.left_all(lane, positions, &mut found);
                return found;
            }
            Form::Cut { starts } => starts,
        };
        let first = cut(starts[starts.len() - 1], self.segment.lanes, lane).start;
        let (mut item, end) = (first + positions.start, first + positions.end);
        while item < end {
            let lane = starts.partition_point(|&start| start <= item) - 1;
            let stop = end.min(starts[lane + 1]);
            below.left_all(lane as u64, item - starts[lane]..stop - starts[lane], &mut found);
            item = stop;
        }
        found
    }

    /// Returns the lane and position here of the item at `place` in the rest of `lane` below.
    pub(crate) fn up(&self, lane: u64, place: u64) -> (u64, u64) {
        match &self.form {
            Form::First | Form::Continued => (lane, place),
            Form::Cut { starts } => {
                let left = starts[starts.len() - 1];
                let item = starts[lane as usize] + place;
                let lane = part_of(left, self.segment.lanes, item);
                (lane, item - cut(left, self.segment.lanes, lane).start)
            }
        }
    }

    /// Returns the effect of this segment on `position` of `lane`.
    pub(crate) fn fate(&self, lane: u64, position: u64) -> Fate {
        let per_lane = self.segment.per_lane();
        let (step, column) = (position / per_lane, position % per_lane);
        let mut before = 0;
        for columns in columns(&self.segment, &self.segment.steps, lane) {
            let taken = self.taken(lane, &columns);
            if (columns.first..columns.end).contains(&column) {
                if step < columns.steps {
                    return Fate::Taken { step };
                }
                let width = columns.end - columns.first;
                let place = before + step * width + (column - columns.first) - taken;
                return Fate::Left { place };
            }
            before += self.all(lane, &columns) - taken;
        }
        unreachable!("the columns of lane {lane} cover column {column}")
    }

    /// Appends the positions of the items at `places` in the rest of `lane`.
    fn left_all(&self, lane: u64, places: Range<u64>, found: &mut Vec<(u64, Range<u64>)>) {
        let per_lane = self.segment.per_lane();
        let mut before = 0;
        for columns in columns(&self.segment, &self.segment.steps, lane) {
            let taken = self.taken(lane, &columns);
            let rest = self.all(lane, &columns) - taken;
            let start = places.start.clamp(before, before + rest) - before;
            let end = places.end.clamp(before, before + rest) - before;
            before += rest;
            let (mut item, end) = (taken + start, taken + end);
            let width = columns.end - columns.first;
            if width == per_lane {
                found.push((lane, item..end));
                continue;
            }
            while item < end {
                let length = (width - item % width).min(end - item);
                let position = item / width * per_lane + columns.first + item % width;
                found.push((lane, position..position + length));
                item += length;
            }
        }
    }

    /// Returns the number of samples of `lane` that the segment leaves.
    pub(crate) fn rest(&self, lane: u64) -> u64 {
        columns(&self.segment, &self.segment.steps, lane)
            .map(|columns| self.all(lane, &columns) - self.taken(lane, &columns))
            .sum()
    }

    /// Returns the position of the item at `place` in the rest of `lane`.
    fn left_at(&self, lane: u64, mut place: u64) -> u64 {
        for columns in columns(&self.segment, &self.segment.steps, lane) {
            let taken = self.taken(lane, &columns);
            let rest = self.all(lane, &columns) - taken;
            if place < rest {
                let width = columns.end - columns.first;
                let item = taken + place;
                let step = item / width;
                return step * self.segment.per_lane() + columns.first + item % width;
            }
            place -= rest;
        }
        unreachable!("lane {lane} leaves less than that")
    }

    fn all(&self, lane: u64, columns: &Columns) -> u64 {
        columns.below(self.segment.per_lane(), self.lengths[lane as usize])
    }

    fn taken(&self, lane: u64, columns: &Columns) -> u64 {
        columns.taken(self.segment.per_lane(), self.lengths[lane as usize])
    }
}

/// Iterates over the parts of a lane's steps that stopped together, if its segment took `steps`.
pub(crate) fn columns<'a>(
    segment: &Segment,
    steps: &'a Steps,
    lane: u64,
) -> impl Iterator<Item = Columns> + use<'a> {
    let per_lane = segment.per_lane();
    let (ranks, width) = match steps {
        Steps::All(_) => (0..1, 0),
        Steps::PerRank(steps) => {
            let width = segment.global_batch / steps.len() as u64;
            (lane * per_lane / width..((lane + 1) * per_lane).div_ceil(width), width)
        }
    };
    ranks.map(move |rank| match steps {
        Steps::All(steps) => Columns { first: 0, end: per_lane, steps: *steps },
        Steps::PerRank(steps) => Columns {
            first: (rank * width).saturating_sub(lane * per_lane),
            end: ((rank + 1) * width - lane * per_lane).min(per_lane),
            steps: steps[rank as usize],
        },
    })
}

/// Returns the positions of a lane below `end` that `columns` consumed, ascending: a complete range
/// at the start, then ranges of the steps that only some of the columns took.
pub(crate) fn taken_of(per_lane: u64, columns: &[Columns], end: u64) -> Vec<Range<u64>> {
    let all = columns.iter().map(|columns| columns.steps).min().unwrap_or(0);
    let some = columns.iter().map(|columns| columns.steps).max().unwrap_or(0);
    let mut taken = Vec::new();
    taken.push(0..all.saturating_mul(per_lane).min(end));
    for step in all..some.min(end.div_ceil(per_lane)) {
        let start = step * per_lane;
        for columns in columns.iter().filter(|columns| columns.steps > step) {
            taken.push(start + columns.first..end.min(start + columns.end));
        }
    }
    taken
}

/// Returns the entries of a rank r in a global batch: `[r B / W, (r + 1) B / W)`.
pub(crate) fn entries_of(segment: &Segment, rank: u64, world_size: u64) -> Range<u64> {
    let width = segment.global_batch / world_size;
    rank * width..(rank + 1) * width
}

/// Returns the start of each part in a concatenation of these lengths, and the total.
pub(crate) fn sums(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut starts = vec![0];
    starts.extend(lengths.scan(0, |sum, length| {
        *sum += length;
        Some(*sum)
    }));
    starts
}
