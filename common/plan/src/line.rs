//! Epoch sequence: all samples of an epoch, permuted shards end to end, rotated. Source:
//! docs/ORDER.md, section 2.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::digest::OrderDigest;
use crate::random::{Draws, stream_key};
use crate::{PlanError, check_parameters};

/// Identity of a sample: the ordinal of its shard in manifest order and its ordinal in the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sample {
    pub shard: u32,
    pub ordinal: u64,
}

/// Maximum number of samples of a dataset: positions beyond the end of the epoch sequence, by up to a
/// parameter's maximum, still fit into 64 bits.
pub const SAMPLES_MAX: u64 = (1 << 63) - 1;

/// Maximum of a parameter: far above any use; its products with counts fit into 64 bits.
const PARAMETER_MAX: u64 = 1 << 40;

/// Shuffle parameters of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shuffle {
    /// Order digest of the dataset: see [`crate::order_digest`].
    pub digest: OrderDigest,
    pub seed: u64,
    /// True if anything is permuted; otherwise the window has no effect.
    pub enabled: bool,
    /// Length of a shuffle block in samples of one lane, at least 1.
    pub window: u64,
    /// Splits that are read in turn, at least 1.
    pub interleave: u64,
    /// Consecutive samples taken from a split in its turn, at least 1.
    pub block_length: u64,
}

impl Shuffle {
    pub fn validate(&self) -> Result<(), PlanError> {
        check_parameters(&[
            ("shuffle_window", self.window, PARAMETER_MAX),
            ("interleave", self.interleave, PARAMETER_MAX),
            ("block_length", self.block_length, PARAMETER_MAX),
        ])
    }
}

/// Epoch sequence of one epoch: 12 bytes per shard, 16 after the first inverse lookup.
///
/// It consists of *stretches*: one per shard, and two of one inside which a rotation begins.
#[derive(Debug)]
pub struct Line {
    /// Shard of each stretch, in the order of the sequence.
    shards: Vec<u32>,
    /// Start position of each of them, and the length of the sequence at the end.
    starts: Vec<u64>,
    /// Ordinal of the first sample of the sequence. The other stretches begin with ordinal 0.
    first_ordinal: u64,
    /// True if the sequence is that of a deterministic job.
    rotated: bool,
    /// Shards of the dataset, with and without samples.
    shards_total: usize,
    /// Index of the first stretch of each shard; `u32::MAX` for a shard without samples.
    places: OnceLock<Vec<u32>>,
}

impl Line {
    /// Returns the sequence of `epoch` of a deterministic job, over shards with `counts` samples
    /// each, in manifest order. With a shuffle it is rotated.
    ///
    /// # Errors
    /// `NoSamples` if all are empty; `TooManySamples`.
    pub fn new(counts: &[u64], shuffle: &Shuffle, epoch: u64) -> Result<Self, PlanError> {
        let mut line = Self::unrotated(counts, shuffle, epoch)?;
        line.rotated = true;
        if shuffle.enabled {
            let key = stream_key("rotate", &shuffle.digest, &[shuffle.seed, epoch]);
            line.rotate(Draws::new(key, 0).below(line.samples()));
        }
        Ok(line)
    }

    /// Returns the sequence of `epoch` of a dynamic job, which is not rotated.
    ///
    /// # Errors
    /// As [`Line::new`].
    pub fn unrotated(counts: &[u64], shuffle: &Shuffle, epoch: u64) -> Result<Self, PlanError> {
        let mut shards = if shuffle.enabled {
            let key = stream_key("line", &shuffle.digest, &[shuffle.seed, epoch]);
            Draws::new(key, 0).permutation(counts.len() as u64)?
        } else {
            (0..counts.len() as u32).collect()
        };
        shards.retain(|&shard| counts[shard as usize] > 0);
        if shards.is_empty() {
            return Err(PlanError::NoSamples { shards: counts.len() });
        }
        let mut starts = Vec::with_capacity(shards.len() + 2);
        let mut start = 0_u64;
        for &shard in &shards {
            starts.push(start);
            let end = start.checked_add(counts[shard as usize]).filter(|end| *end <= SAMPLES_MAX);
            start = end.ok_or(PlanError::TooManySamples { shards: counts.len() })?;
        }
        starts.push(start);
        let shards_total = counts.len();
        let (first_ordinal, rotated, places) = (0, false, OnceLock::new());
        Ok(Self { shards, starts, first_ordinal, rotated, shards_total, places })
    }

    /// Makes an unrotated sequence begin at its sample at `position`.
    fn rotate(&mut self, position: u64) {
        let (place, samples) = (self.place(position), self.samples());
        self.first_ordinal = position - self.starts[place];
        self.starts.pop();
        self.shards.rotate_left(place);
        self.starts.rotate_left(place);
        for start in &mut self.starts {
            *start =
                if *start >= position { *start - position } else { *start + samples - position };
        }
        if self.first_ordinal > 0 {
            // Its shard began before `position`, so that is where its other stretch begins now.
            self.shards.push(self.shards[0]);
            self.starts.push(self.starts[0]);
            self.starts[0] = 0;
        }
        self.starts.push(samples);
    }

    pub fn samples(&self) -> u64 {
        self.starts[self.shards.len()]
    }

    /// Returns the sample at `position`, which is below [`Line::samples`].
    pub fn sample(&self, position: u64) -> Sample {
        let place = self.place(position);
        self.sample_in(place, position - self.starts[place])
    }

    /// Returns the position of `sample`, or `None` if the dataset has no such sample.
    pub fn position(&self, sample: Sample) -> Option<u64> {
        let first = *self.places().get(sample.shard as usize)? as usize;
        let (place, offset) = match sample.ordinal.checked_sub(self.first_ordinal) {
            Some(offset) if first == 0 => (first, offset),
            None if first == 0 => (self.shards.len() - 1, sample.ordinal),
            _ => (first, sample.ordinal),
        };
        let start = *self.starts.get(place)?;
        let end = *self.starts.get(place + 1)?;
        (offset < end - start).then(|| start + offset)
    }

    /// Returns the number of shards of the dataset, with and without samples.
    pub(crate) fn shards_total(&self) -> usize {
        self.shards_total
    }

    /// Returns the shard of each stretch, in the order of the sequence.
    pub(crate) fn shards(&self) -> &[u32] {
        &self.shards
    }

    /// Returns true if the sequence is that of a deterministic job.
    pub(crate) fn is_rotated(&self) -> bool {
        self.rotated
    }

    /// Returns the last stretch if it is the second one of its shard.
    pub(crate) fn second_stretch(&self) -> Option<usize> {
        (self.first_ordinal > 0).then(|| self.shards.len() - 1)
    }

    /// Returns the stretch that contains `position`, which is below [`Line::samples`].
    pub fn place(&self, position: u64) -> usize {
        self.starts.partition_point(|&start| start <= position) - 1
    }

    /// Returns the start of stretch `place`; for one past the last, the length of the sequence.
    pub(crate) fn start(&self, place: usize) -> u64 {
        self.starts[place]
    }

    /// Returns a sample of the stretch `place`: `offset` is its position in it.
    pub(crate) fn sample_in(&self, place: usize, offset: u64) -> Sample {
        let skipped = if place == 0 { self.first_ordinal } else { 0 };
        Sample { shard: self.shards[place], ordinal: skipped + offset }
    }

    fn places(&self) -> &[u32] {
        self.places.get_or_init(|| {
            let mut places = vec![u32::MAX; self.shards_total];
            for (place, &shard) in self.shards.iter().enumerate().rev() {
                places[shard as usize] = place as u32;
            }
            places
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::order_digest;

    fn shuffle(counts: &[u64], seed: u64, enabled: bool) -> Shuffle {
        let digest = order_digest(counts.iter().copied());
        Shuffle { digest, seed, enabled, window: 1, interleave: 1, block_length: 1 }
    }

    fn sample(shard: u32, ordinal: u64) -> Sample {
        Sample { shard, ordinal }
    }

    #[test]
    fn empty_shards_are_left_out() {
        let counts = [0, 2, 0, 1, 0];
        let line = Line::new(&counts, &shuffle(&counts, 1, false), 0).unwrap();
        let samples: Vec<_> = (0..3).map(|p| line.sample(p)).collect();
        assert_eq!(samples, [sample(1, 0), sample(1, 1), sample(3, 0)]);
        assert_eq!(line.position(sample(3, 0)), Some(2));
        assert_eq!(line.position(sample(3, 1)), None);
        assert_eq!(line.position(sample(0, 0)), None);
        assert_eq!(line.position(sample(9, 0)), None);
    }

    #[test]
    fn the_check_vector_begins_inside_a_shard_and_wraps_around() {
        let counts = [3, 0, 5];
        let line = Line::new(&counts, &shuffle(&counts, 1, true), 2).unwrap();
        let samples: Vec<_> = (0..8).map(|position| line.sample(position)).collect();
        let of_2 = (0..5).map(|ordinal| sample(2, ordinal));
        let expected = [sample(0, 1), sample(0, 2)].into_iter().chain(of_2).chain([sample(0, 0)]);
        assert_eq!(samples, expected.collect::<Vec<_>>());
        assert_eq!((line.starts.as_slice(), line.shards.len()), ([0, 2, 7, 8].as_slice(), 3));
        assert_eq!(line.position(sample(0, 3)), None);
        let dynamic = Line::unrotated(&counts, &shuffle(&counts, 1, true), 2).unwrap();
        assert_eq!((dynamic.sample(0), dynamic.sample(6)), (sample(2, 0), sample(0, 1)));
    }

    proptest! {
        #[test]
        fn a_rotated_sequence_is_the_unrotated_one_from_another_start(
            counts in prop::collection::vec(0u64..6, 1..6),
            seed in 0u64..1000,
        ) {
            prop_assume!(counts.iter().any(|count| *count > 0));
            let shuffle = shuffle(&counts, seed, true);
            let plain = Line::unrotated(&counts, &shuffle, 3).unwrap();
            let line = Line::new(&counts, &shuffle, 3).unwrap();
            let samples = plain.samples();
            prop_assert_eq!(line.samples(), samples);
            let from = plain.position(line.sample(0)).unwrap();
            for position in 0..samples {
                let found = line.sample(position);
                prop_assert_eq!(found, plain.sample((position + from) % samples));
                prop_assert_eq!(line.position(found), Some(position));
            }
            for (shard, &count) in counts.iter().enumerate() {
                prop_assert_eq!(line.position(sample(shard as u32, count)), None);
            }
        }
    }

    #[test]
    fn a_dataset_without_samples_is_refused() {
        let error = Line::new(&[0, 0], &shuffle(&[0, 0], 1, true), 0).unwrap_err();
        assert_eq!(error, PlanError::NoSamples { shards: 2 });
    }

    #[test]
    fn more_samples_than_positions_are_refused() {
        let line = |counts: &[u64]| Line::new(counts, &shuffle(counts, 1, true), 0);
        assert_eq!(line(&[SAMPLES_MAX - 1, 1]).unwrap().samples(), SAMPLES_MAX);
        for counts in [[SAMPLES_MAX, 1], [u64::MAX, u64::MAX], [1, u64::MAX]] {
            assert_eq!(line(&counts).unwrap_err(), PlanError::TooManySamples { shards: 2 });
        }
    }
}
