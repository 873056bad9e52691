//! Windows: samples of consecutive records of a shard. Source: docs/ORDER.md, section 16.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::samples::pack::{PACKS_MAX, PackError, PackSegment};
use crate::{PlanError, check_parameters};

/// Maximum number of records of a window.
pub const WINDOW_SIZE_MAX: u64 = 4096;

/// Settings that determine the windows of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSettings {
    /// Records of a window.
    pub size: u64,
    /// Records from the start of a window to that of the next one.
    pub stride: u64,
    /// Treatment of windows that begin less than `size` records before the end of their group.
    pub partial: PartialWindows,
}

/// Treatment of windows that lack records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartialWindows {
    /// They are no samples.
    Drop,
    /// They are samples, filled up with their last record.
    Pad,
    /// They are samples with fewer records.
    Keep,
}

/// The windows of one shard.
///
/// Its *sequences* are the shard's records that pass the filter, in order. Groups of consecutive
/// sequences have windows; no window has sequences of two groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    settings: WindowSettings,
    /// First sequence and first window of each group with windows, and the ends of the last one.
    groups: Vec<(u64, u64)>,
    /// Number of windows that are opened together.
    block: u64,
}

impl WindowSettings {
    /// Checks the settings.
    ///
    /// # Errors  `Zero`, `TooLarge`.
    pub fn validate(&self) -> Result<(), PlanError> {
        check_parameters(&[
            ("window size", self.size, WINDOW_SIZE_MAX),
            ("window stride", self.stride, u64::MAX),
        ])
    }

    fn windows(&self, sequences: u64) -> u64 {
        match self.partial {
            PartialWindows::Pad | PartialWindows::Keep => sequences.div_ceil(self.stride),
            PartialWindows::Drop if sequences < self.size => 0,
            PartialWindows::Drop => (sequences - self.size) / self.stride + 1,
        }
    }
}

impl Windows {
    /// Returns the windows of a shard.
    /// - `starts`: for each sequence whether it begins a group; the first one does. `block`: number
    ///   of windows that are opened together, at least 1.
    ///
    /// # Errors  A setting is out of range, or there are too many windows.
    pub fn new(
        settings: WindowSettings,
        starts: impl Iterator<Item = bool>,
        block: u64,
    ) -> Result<Self, PackError> {
        settings.validate()?;
        let (mut groups, mut sequences, mut windows) = (vec![(0, 0)], 0, 0);
        for is_start in starts {
            if is_start && sequences > 0 {
                let (first, before) = groups[groups.len() - 1];
                windows += settings.windows(sequences - first);
                if windows == before {
                    // A group without windows needs no place: no window ends in it.
                    groups.pop();
                }
                groups.push((sequences, windows));
            }
            sequences += 1;
        }
        let (first, _) = groups[groups.len() - 1];
        windows += settings.windows(sequences - first);
        groups.push((sequences, windows));
        if windows > PACKS_MAX {
            return Err(PackError::TooManyWindows { windows });
        }
        Ok(Self { settings, groups, block: block.max(1) })
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&self.groups[..])
    }

    pub fn settings(&self) -> &WindowSettings {
        &self.settings
    }

    pub fn windows(&self) -> u64 {
        self.groups[self.groups.len() - 1].1
    }

    pub fn sequences(&self) -> u64 {
        self.groups[self.groups.len() - 1].0
    }

    /// Returns the sequences of a window, which is below [`Windows::windows`]: fewer than its size
    /// if it lacks some.
    pub fn window(&self, window: u64) -> Range<u64> {
        let group = self.groups.partition_point(|(_, first)| *first <= window) - 1;
        let ((sequence, first), (end, _)) = (self.groups[group], self.groups[group + 1]);
        let start = sequence + (window - first) * self.settings.stride;
        start..end.min(start + self.settings.size)
    }

    pub fn blocks(&self) -> u64 {
        self.windows().div_ceil(self.block)
    }

    /// Returns the windows of a block, which is below [`Windows::blocks`].
    pub fn windows_of(&self, block: u64) -> Range<u64> {
        block * self.block..self.windows().min((block + 1) * self.block)
    }

    /// Returns the block to open for a window, which is below [`Windows::windows`].
    pub fn block_of(&self, window: u64) -> u64 {
        window / self.block
    }

    /// Returns the first sequence that the windows of a block or of a later one need.
    pub fn first_sequence(&self, block: u64) -> u64 {
        self.window(block * self.block).start
    }

    /// Returns the segments of each window of [`Windows::windows_of`]: one for each sequence.
    pub fn open(&self, block: u64) -> Vec<Vec<PackSegment>> {
        let segment = |sequence| PackSegment { sequence, first: 0, tokens: 1 };
        self.windows_of(block).map(|window| self.window(window).map(segment).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the windows of each group, one after the other.
    fn expected(settings: &WindowSettings, starts: &[bool]) -> Vec<Range<u64>> {
        let mut groups: Vec<Vec<u64>> = vec![];
        for (sequence, is_start) in (0..).zip(starts) {
            if *is_start || sequence == 0 {
                groups.push(vec![]);
            }
            groups.last_mut().unwrap().push(sequence);
        }
        let mut found = vec![];
        for group in groups {
            for start in (0..group.len()).step_by(settings.stride as usize) {
                let end = group.len().min(start + settings.size as usize);
                let is_whole = end - start == settings.size as usize;
                if is_whole || settings.partial != PartialWindows::Drop {
                    found.push(group[start]..group[end - 1] + 1);
                }
            }
        }
        found
    }

    proptest! {
        #[test]
        fn windows_are_cut_out_of_groups(
            starts in prop::collection::vec(prop::bool::weighted(0.2), 0..60),
            (size, stride, block) in (1u64..9, 1u64..9, 1u64..5),
            partial in prop::sample::select(&[
                PartialWindows::Drop,
                PartialWindows::Pad,
                PartialWindows::Keep,
            ][..]),
        ) {
            let settings = WindowSettings { size, stride, partial };
            let windows = Windows::new(settings.clone(), starts.iter().copied(), block).unwrap();
            let all: Vec<_> = (0..windows.windows()).map(|one| windows.window(one)).collect();
            prop_assert_eq!(&all, &expected(&settings, &starts));
            let mut opened = vec![];
            for block in 0..windows.blocks() {
                let first = windows.first_sequence(block);
                for (window, segments) in windows.windows_of(block).zip(windows.open(block)) {
                    prop_assert_eq!(windows.block_of(window), block);
                    let sequences: Vec<_> = segments.iter().map(|one| one.sequence).collect();
                    prop_assert!(sequences.iter().all(|sequence| *sequence >= first));
                    opened.push(sequences[0]..sequences[sequences.len() - 1] + 1);
                }
            }
            prop_assert_eq!(opened, all);
        }
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let refused = |size, stride| {
            let settings = WindowSettings { size, stride, partial: PartialWindows::Drop };
            Windows::new(settings, std::iter::empty(), 1).unwrap_err().to_string()
        };
        for (size, stride) in [(0, 1), (1, 0), (WINDOW_SIZE_MAX + 1, 1)] {
            assert!(refused(size, stride).contains("window"), "{size} {stride}");
        }
    }
}
