//! Groups: ranges of whole shards, each with a closed-form order. Source: docs/ORDER.md, section
//! 10.

use std::ops::Range;
use std::sync::Arc;

use crate::PlanError;
use crate::lane::{Lane, Portion};
use crate::line::{Line, Sample, Shuffle};
use crate::window::Permutations;

/// Groups of one epoch.
#[derive(Clone, Debug)]
pub struct Groups {
    line: Arc<Line>,
    shuffle: Shuffle,
    epoch: u64,
    /// Number of shards per group.
    size: usize,
}

impl Groups {
    /// Returns the groups of `epoch`, whose epoch sequence is `line`.
    ///
    /// # Errors  As [`Shuffle::validate`].
    ///
    /// # Panics
    /// If `line` is not from [`Line::unrotated`].
    pub fn new(line: Arc<Line>, shuffle: Shuffle, epoch: u64) -> Result<Self, PlanError> {
        assert!(!line.is_rotated(), "groups are of whole shards");
        shuffle.validate()?;
        let size = usize::try_from(shuffle.interleave).unwrap_or(usize::MAX);
        Ok(Self { line, shuffle, epoch, size })
    }

    /// Returns the number of groups, at least one.
    pub fn count(&self) -> u64 {
        self.line.shards().len().div_ceil(self.size) as u64
    }

    pub fn samples(&self) -> u64 {
        self.line.samples()
    }

    /// Returns the number of samples of a group, which is below [`Groups::count`].
    pub fn samples_of(&self, group: u64) -> u64 {
        let range = self.range(group);
        range.end - range.start
    }

    /// Returns the order of a group below [`Groups::count`]: that of a lane over its shards.
    ///
    /// Offsets in group ranges count its outputs.
    pub fn lane(&self, group: u64) -> Lane {
        Lane::of_group(&self.line, &self.shuffle, self.epoch, group, self.range(group))
    }

    /// Returns the shards of a group, in the order of the epoch sequence.
    pub fn shards(&self, group: u64) -> &[u32] {
        &self.line.shards()[self.places(group)]
    }

    /// Returns a sample's group and offset in its order; `None` if the dataset has no such sample.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn place_of(&self, sample: Sample) -> Result<Option<(u64, u64)>, PlanError> {
        self.place_with(sample, &mut Permutations::default())
    }

    /// As [`Groups::place_of`], for many lookups: `known` caches what neighbours share.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn place_with(
        &self,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<(u64, u64)>, PlanError> {
        let Some(position) = self.line.position(sample) else {
            return Ok(None);
        };
        let group = (self.line.place(position) / self.size) as u64;
        let offset = self.lane(group).output_with(Portion::default(), sample, known)?;
        Ok(offset.map(|offset| (group, offset)))
    }

    fn places(&self, group: u64) -> Range<usize> {
        let shards = self.line.shards().len();
        let start = usize::try_from(group).unwrap_or(usize::MAX).saturating_mul(self.size);
        start.min(shards)..start.saturating_add(self.size).min(shards)
    }

    fn range(&self, group: u64) -> Range<u64> {
        let places = self.places(group);
        self.line.start(places.start)..self.line.start(places.end)
    }
}
