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
struct Columns {
    first: u64,
    end: u64,
    steps: u64,
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
        for columns in self.columns(lane) {
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

    /// Samples of `lane` that the segment leaves.
    fn rest(&self, lane: u64) -> u64 {
        self.columns(lane)
            .map(|columns| self.all(lane, &columns) - self.taken(lane, &columns))
            .sum()
    }

    /// Position of the item at `place` in the rest of `lane`.
    fn left_at(&self, lane: u64, mut place: u64) -> u64 {
        for columns in self.columns(lane) {
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

    /// Parts of a lane's steps that stopped together.
    fn columns(&self, lane: u64) -> impl Iterator<Item = Columns> + '_ {
        let per_lane = self.segment.per_lane();
        let (ranks, width) = match &self.segment.steps {
            Steps::All(_) => (0..1, 0),
            Steps::PerRank(steps) => {
                let width = self.segment.global_batch / steps.len() as u64;
                (lane * per_lane / width..((lane + 1) * per_lane).div_ceil(width), width)
            }
        };
        ranks.map(move |rank| match &self.segment.steps {
            Steps::All(steps) => Columns { first: 0, end: per_lane, steps: *steps },
            Steps::PerRank(steps) => Columns {
                first: (rank * width).saturating_sub(lane * per_lane),
                end: ((rank + 1) * width - lane * per_lane).min(per_lane),
                steps: steps[rank as usize],
            },
        })
    }

    fn all(&self, lane: u64, columns: &Columns) -> u64 {
        self.below(self.lengths[lane as usize], columns)
    }

    fn taken(&self, lane: u64, columns: &Columns) -> u64 {
        let end = columns.steps.saturating_mul(self.segment.per_lane());
        self.below(self.lengths[lane as usize].min(end), columns)
    }

    /// Positions below `end` that are in `columns`.
    fn below(&self, end: u64, columns: &Columns) -> u64 {
        let per_lane = self.segment.per_lane();
        let width = columns.end - columns.first;
        end / per_lane * width + (end % per_lane).saturating_sub(columns.first).min(width)
    }
}

/// Entries `[r B / W, (r + 1) B / W)` of a global batch, which are rank r's.
pub(crate) fn entries_of(segment: &Segment, rank: u64, world_size: u64) -> Range<u64> {
    let width = segment.global_batch / world_size;
    rank * width..(rank + 1) * width
}
