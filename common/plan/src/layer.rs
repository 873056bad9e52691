//! The lanes of each segment, and how they lie on the lanes that the line was cut into first.
//! Source: docs/ORDER.md, section 6.

use std::ops::Range;

use crate::lane::{cut, part_of};
use crate::segment::{Segment, Steps};

/// A place on one of the lanes that the line was cut into at the epoch's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePosition {
    /// Which lane.
    pub lane: u64,
    /// Which of its outputs.
    pub output: u64,
}

/// What became of a position in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Consumed in this step of the segment.
    Taken { step: u64 },
    /// Left over: this place in the rest of its lane.
    Left { place: u64 },
}

/// The lanes of one segment, at its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) segment: Segment,
    /// Samples of each lane.
    pub(crate) lengths: Vec<u64>,
    /// The smallest and the largest of them.
    pub(crate) shortest: u64,
    pub(crate) longest: u64,
    /// How the lanes were made of the layer below.
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// Cut from the line.
    First,
    /// The rests of the lanes below.
    Continued,
    /// The rests below, end to end, cut anew; where each of them starts, and their sum.
    Cut { starts: Vec<u64> },
}

/// The columns of a lane's steps that one rank takes, and how many steps it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    first: u64,
    end: u64,
    steps: u64,
}

impl Columns {
    /// Positions of the lane below `end` that are taken.
    pub(crate) fn taken(&self, per_lane: u64, end: u64) -> u64 {
        self.below(per_lane, end.min(self.steps.saturating_mul(per_lane)))
    }

    /// Positions of the lane below `end`.
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

    /// The lanes with which `segment` goes on where this one stopped.
    pub(crate) fn next(&self, segment: Segment) -> Self {
        let rests: Vec<u64> = (0..self.segment.lanes).map(|lane| self.rest(lane)).collect();
        if segment.lanes == self.segment.lanes && matches!(self.segment.steps, Steps::All(_)) {
            return Self::new(segment, rests, Form::Continued);
        }
        let mut starts = vec![0];
        starts.extend(rests.iter().scan(0, |sum, rest| {
            *sum += rest;
            Some(*sum)
        }));
        let left = starts[rests.len()];
        let range = |lane| cut(left, segment.lanes, lane);
        let lengths = (0..segment.lanes).map(range).map(|r| r.end - r.start).collect();
        Self::new(segment, lengths, Form::Cut { starts })
    }

    /// Where `position` of `lane` comes from in the layer below; `None` on the first layer.
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

    /// Where `positions` of `lane` lie in the layer below, in no order: lanes and stretches of them.
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

    /// Where the item at `place` in the rest of `lane` below comes to stand in this layer.
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

    /// What this segment does with `position` of `lane`.
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

    /// Positions of the items at `places` in the rest of `lane`.
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

    /// Samples of `lane` that the segment leaves.
    pub(crate) fn rest(&self, lane: u64) -> u64 {
        columns(&self.segment, &self.segment.steps, lane)
            .map(|columns| self.all(lane, &columns) - self.taken(lane, &columns))
            .sum()
    }

    /// Position of the item at `place` in the rest of `lane`.
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

/// Parts of a lane's steps that stopped together, if its segment went on for `steps`.
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

/// Positions of a lane below `end` that its `columns` took: a whole beginning, then stretches of
/// the steps that some of them took and some did not. Ascending.
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

/// Entries `[r B / W, (r + 1) B / W)` of a global batch, which are rank r's.
pub(crate) fn entries_of(segment: &Segment, rank: u64, world_size: u64) -> Range<u64> {
    let width = segment.global_batch / world_size;
    rank * width..(rank + 1) * width
}
