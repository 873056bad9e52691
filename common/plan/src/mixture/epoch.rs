//! One mixture epoch: the ranges of its sources and their portions. Source: docs/ORDER.md, section
//! 13, The sequence of a source and Lanes of a mixture.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::stage::{SourceStart, StageSource};
use super::{MergedLane, Mixture, MixtureError, Source, mixture_digest};
use crate::lane::{Part, Portion, SplitRun, last_where};
use crate::line::{Line, Sample, Shuffle};
use crate::{PlanError, check_epoch};

/// Sequences of a source that are kept. Lanes at different positions need few at a time.
const LINES_KEPT: usize = 4;

/// One epoch of a mixture: maps positions to samples and back without iterating over them.
///
/// It costs a few numbers per source. The sequence of a source epoch is computed when a sample of it
/// is requested, and costs 12 bytes per shard.
#[derive(Debug)]
pub struct MixtureEpoch {
    epoch: u64,
    shuffle: Shuffle,
    samples: u64,
    ranges: Vec<SourceRange>,
}

/// Range of a source's endless sequence that a mixture epoch has.
///
/// It consists of *portions*, one per source epoch, which are counted from 0 here: the rest of one
/// source epoch, whole source epochs, the beginning of another one.
#[derive(Debug)]
pub(super) struct SourceRange {
    source: Arc<Source>,
    number: u32,
    /// Key and parameters of the source's order.
    shuffle: Shuffle,
    mixture_epoch: u64,
    first: u64,
    /// Samples of the first source epoch before the range.
    skipped: u64,
    count: u64,
    /// Position of the range in the epoch sequence.
    start: u64,
    /// Samples that the version before left in its last source epoch, if this one begins here.
    rest_dropped: u64,
    /// Ordinal of the source's first shard when the shards of all sources are counted together.
    first_shard: usize,
    /// The last sequences used, by source epoch.
    lines: Mutex<Vec<(u64, Arc<Line>)>>,
}

/// Division of a range's portions among lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub(super) lanes: u64,
    /// Lane that gets the first odd sample of the range.
    pub(super) next_lane: u64,
}

impl MixtureEpoch {
    /// Returns an epoch of a mixture.
    /// - `sources`: at least those of its stage, in any order.
    /// - `shuffle`: the parameters of the job; their digest is replaced by [`mixture_digest`].
    ///
    /// # Errors  `OtherSource`, `SourceEpochs`, `Plan`.
    pub fn new(
        mixture: &Mixture,
        sources: &[Arc<Source>],
        shuffle: &Shuffle,
        epoch: u64,
    ) -> Result<Self, MixtureError> {
        check_epoch(epoch)?;
        shuffle.validate()?;
        let stage_index = mixture.stage_of(epoch);
        let stage = &mixture.stages()[stage_index];
        let shuffle = Shuffle { digest: mixture_digest(), ..shuffle.clone() };
        let samples = stage.samples();
        let mut this = Self { epoch, shuffle, samples, ranges: Vec::new() };
        let passed = epoch - stage.first_epoch;
        let (mut start, mut first_shard) = (0, 0);
        for (fixed, begin) in stage.sources.iter().zip(mixture.starts(stage_index)) {
            let source = source_of(sources, fixed, epoch)?;
            let shards = source.counts().len();
            let range = this.range(source, fixed.count, begin, passed, (start, first_shard))?;
            this.ranges.push(range);
            (start, first_shard) = (start + fixed.count, first_shard + shards);
        }
        Ok(this)
    }

    fn range(
        &self,
        source: Arc<Source>,
        count: u64,
        begin: &SourceStart,
        passed: u64,
        (start, first_shard): (u64, usize),
    ) -> Result<SourceRange, MixtureError> {
        let (epoch, samples) = (self.epoch, u128::from(source.samples()));
        let from = begin.taken + u128::from(passed) * u128::from(count);
        let last = begin.first + (from + u128::from(count) - 1) / samples;
        if u64::try_from(last).is_err() {
            return Err(MixtureError::SourceEpochs { epoch, name: source.name().to_owned() });
        }
        let share = |all: u64| {
            let share = u128::from(all) * u128::from(count) / u128::from(self.samples);
            share.max(1) as u64
        };
        let shuffle = Shuffle {
            digest: source.source_digest(),
            window: share(self.shuffle.window),
            interleave: share(self.shuffle.interleave),
            ..self.shuffle
        };
        Ok(SourceRange {
            number: self.ranges.len() as u32,
            source,
            shuffle,
            mixture_epoch: epoch,
            first: (begin.first + from / samples) as u64,
            skipped: (from % samples) as u64,
            count,
            start,
            rest_dropped: if passed == 0 { begin.dropped } else { 0 },
            first_shard,
            lines: Mutex::default(),
        })
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn shuffle(&self) -> &Shuffle {
        &self.shuffle
    }

    /// Iterates over the number of samples of each source, ordered by name.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = u64> {
        self.ranges.iter().map(|range| range.count)
    }

    /// Iterates over the rests of the sources, ordered by name: samples that no epoch delivers, because
    /// a later version begins in this one before the last source epoch of the version before ended.
    pub fn rests_dropped(&self) -> impl ExactSizeIterator<Item = u64> {
        self.ranges.iter().map(|range| range.rest_dropped)
    }

    pub fn sources(&self) -> impl ExactSizeIterator<Item = &Arc<Source>> {
        self.ranges.iter().map(|range| &range.source)
    }

    /// Returns the source epochs that a source has in this epoch, each whole or in part.
    pub fn source_epochs(&self, source: u32) -> Range<u64> {
        let range = self.ranges.get(source as usize);
        range.map_or(0..0, |range| range.first..range.first + range.portions())
    }

    /// Returns the sample at a position of the epoch sequence below [`MixtureEpoch::samples`].
    pub(crate) fn at(&self, position: u64) -> SplitRun {
        let range = &self.ranges[self.ranges.partition_point(|range| range.start <= position) - 1];
        let portion = range.portion_at(position - range.start);
        let at = range.portion(portion).start + (position - range.start) - range.offset(portion);
        let line = range.line(portion);
        let portion = range.name_of(portion);
        SplitRun { portion, split: line.place(at), first: line.sample(at), samples: 1 }
    }

    pub(crate) fn shards_total(&self) -> usize {
        self.ranges.last().map_or(0, |last| last.first_shard + last.source.counts().len())
    }

    pub(crate) fn lane(self: &Arc<Self>, lanes: u64, index: u64) -> MergedLane {
        MergedLane::new(Arc::clone(self), lanes, index)
    }

    /// Returns the lane of `lanes` that contains a sample of a portion.
    ///
    /// # Errors  `NotInEpoch`.
    pub(crate) fn lane_of(
        &self,
        portion: Portion,
        sample: Sample,
        lanes: u64,
    ) -> Result<u64, PlanError> {
        let found = self.portion_of(portion).and_then(|(range, index)| {
            let positions = range.portion(index);
            let position = range.line(index).position(sample)?;
            let offset = position.checked_sub(positions.start)?;
            let division = self.divisions(lanes)[portion.source as usize];
            (position < positions.end).then(|| range.lane_of(index, offset, division))
        });
        found.ok_or(PlanError::NotInEpoch {
            source_number: portion.source,
            source_epoch: portion.epoch,
            shard: sample.shard,
            ordinal: sample.ordinal,
            epoch: self.epoch,
        })
    }

    /// Returns the range and the index of a portion.
    pub(super) fn portion_of(&self, portion: Portion) -> Option<(&SourceRange, u64)> {
        let range = self.ranges.get(portion.source as usize)?;
        let index = portion.epoch.checked_sub(range.first)?;
        (index < range.portions()).then_some((range, index))
    }

    pub(super) fn ranges(&self) -> &[SourceRange] {
        &self.ranges
    }

    pub(super) fn divisions(&self, lanes: u64) -> Vec<Division> {
        let mut next_lane = 0;
        let division = |range: &SourceRange| {
            let division = Division { lanes, next_lane };
            let odd = range.odd(range.portions(), lanes) % u128::from(lanes);
            next_lane = (next_lane + odd as u64) % lanes;
            division
        };
        self.ranges.iter().map(division).collect()
    }
}

impl SourceRange {
    pub(super) fn first_shard(&self) -> usize {
        self.first_shard
    }

    /// Returns the number of portions, at least 1.
    pub(super) fn portions(&self) -> u64 {
        let of_first = self.source.samples() - self.skipped;
        1 + self.count.saturating_sub(of_first).div_ceil(self.source.samples())
    }

    /// Returns the source and source epoch of a portion.
    pub(super) fn name_of(&self, portion: u64) -> Portion {
        Portion { source: self.number, epoch: self.first + portion }
    }

    /// Returns the portion that contains a sample of the range.
    fn portion_at(&self, offset: u64) -> u64 {
        let of_first = self.source.samples() - self.skipped;
        match offset.checked_sub(of_first) {
            None => 0,
            Some(rest) => 1 + rest / self.source.samples(),
        }
    }

    /// Returns the number of samples of the range before a portion.
    fn offset(&self, portion: u64) -> u64 {
        match portion.checked_sub(1) {
            None => 0,
            Some(whole) => self.source.samples() * (whole + 1) - self.skipped,
        }
    }

    /// Returns the positions of a portion in the sequence of its source epoch.
    fn portion(&self, portion: u64) -> Range<u64> {
        let start = if portion == 0 { self.skipped } else { 0 };
        let left = self.count - self.offset(portion);
        start..self.source.samples().min(start + left)
    }

    /// Returns the sequence of the source epoch of a portion.
    fn line(&self, portion: u64) -> Arc<Line> {
        let epoch = self.first + portion;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = lines.iter().find(|(known, _)| *known == epoch) {
            return Arc::clone(line);
        }
        let line = Line::new(self.source.counts(), &self.shuffle, epoch);
        let line = Arc::new(line.expect("a source is checked when it is made"));
        lines.insert(0, (epoch, Arc::clone(&line)));
        lines.truncate(LINES_KEPT);
        line
    }

    /// Returns the sum of a number over the portions before `portion`, where `of` maps the samples
    /// of a portion to the number.
    fn sum_before(&self, portion: u64, of: impl Fn(u64) -> u64) -> u128 {
        let (portions, size) = (self.portions(), |portion| {
            let positions = self.portion(portion);
            positions.end - positions.start
        });
        if portion == 0 {
            return 0;
        }
        let whole = portion.min(portions - 1).saturating_sub(1);
        let last = if portion == portions && portions > 1 { of(size(portions - 1)) } else { 0 };
        let whole = u128::from(whole) * u128::from(of(self.source.samples()));
        u128::from(of(size(0))) + whole + u128::from(last)
    }

    /// Returns the odd samples of the portions before `portion`: those that only some lanes get.
    fn odd(&self, portion: u64, lanes: u64) -> u128 {
        self.sum_before(portion, |samples| samples % lanes)
    }

    /// Returns the number of samples in a lane's queue before `portion`.
    pub(super) fn queue_start(&self, portion: u64, division: Division, lane: u64) -> u64 {
        let Division { lanes, next_lane } = division;
        let even = self.sum_before(portion, |samples| samples / lanes);
        // The odd samples go to the next lane and those that follow, round after round.
        let distance = (lane + lanes - next_lane) % lanes;
        let odd = self.odd(portion, lanes) + u128::from(lanes - 1 - distance);
        (even + odd / u128::from(lanes)) as u64
    }

    /// Returns the number of samples of a portion that the lanes before `lane` get.
    fn before_lane(&self, portion: u64, division: Division, lane: u64) -> u64 {
        let Division { lanes, next_lane } = division;
        let positions = self.portion(portion);
        let samples = positions.end - positions.start;
        let first = (u128::from(next_lane) + self.odd(portion, lanes)) % u128::from(lanes);
        let (first, odd) = (first as u64, samples % lanes);
        // Odd samples go to the lanes from `first` on, and from lane 0 on after the last one.
        let wrapped = (first + odd).saturating_sub(lanes);
        let odd_before = lane.min(wrapped) + lane.clamp(first, first + odd - wrapped) - first;
        lane * (samples / lanes) + odd_before
    }

    /// Returns the lane that gets the sample at an offset of a portion.
    fn lane_of(&self, portion: u64, offset: u64, division: Division) -> u64 {
        let is_before = |lane| self.before_lane(portion, division, lane) <= offset;
        last_where(0..division.lanes, is_before)
    }

    /// Returns the samples of a portion that a lane gets.
    pub(super) fn part(&self, portion: u64, division: Division, lane: u64) -> Part {
        let start = self.portion(portion).start;
        let range = start + self.before_lane(portion, division, lane)
            ..start + self.before_lane(portion, division, lane + 1);
        let name = self.name_of(portion);
        let numbers = [self.shuffle.seed, name.epoch, self.mixture_epoch, division.lanes, lane];
        Part::of_portion(name, &self.line(portion), &self.shuffle, range, &numbers)
    }
}

fn source_of(
    sources: &[Arc<Source>],
    fixed: &StageSource,
    epoch: u64,
) -> Result<Arc<Source>, MixtureError> {
    let StageSource { name, order_digest, samples, .. } = fixed;
    let same_name = || sources.iter().filter(|source| source.name() == name);
    let is_it = |source: &&Arc<Source>| {
        (source.order_digest(), source.samples()) == (*order_digest, *samples)
    };
    same_name().find(is_it).map(Arc::clone).ok_or_else(|| MixtureError::OtherSource {
        epoch,
        name: name.clone(),
        digest: *order_digest,
        found: same_name().next().map(|source| source.order_digest()),
    })
}
