//! Epoch sequence: all samples of an epoch, permuted shards end to end. Source: docs/ORDER.md,
//! section 2.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::digest::ContentDigest;
use crate::random::{Draws, stream_key};

/// Identity of a sample: the ordinal of its shard in manifest order and its ordinal in the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sample {
    /// Ordinal of the shard.
    pub shard: u32,
    /// Ordinal in the shard.
    pub ordinal: u64,
}

/// Maximum of a parameter: far above any use, and small enough that its products with counts fit
/// into 64 bits.
const PARAMETER_MAX: u64 = 1 << 40;

/// Shuffle parameters of a job.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shuffle {
    /// Content digest of the dataset.
    pub content: ContentDigest,
    /// The user's seed.
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
    /// Checks that an order can have these parameters.
    pub fn validate(&self) -> Result<(), PlanError> {
        let parameters = [
            ("shuffle_window", self.window),
            ("interleave", self.interleave),
            ("block_length", self.block_length),
        ];
        match parameters.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(PlanError::Zero { name }),
            None => match parameters.iter().find(|(_, value)| *value > PARAMETER_MAX) {
                Some(&(name, value)) => {
                    Err(PlanError::TooLarge { name, value, most: PARAMETER_MAX })
                }
                None => Ok(()),
            },
        }
    }
}

/// Epoch sequence of one epoch: 12 bytes per shard, 16 after the first inverse lookup.
#[derive(Debug)]
pub struct Line {
    /// Shards with samples, in the order of the sequence.
    shards: Vec<u32>,
    /// Start position of each of them, and the length of the sequence at the end.
    starts: Vec<u64>,
    /// Shards of the dataset, with and without samples.
    shards_total: usize,
    /// Index in `shards` of each shard of the dataset; `u32::MAX` for a shard without samples.
    places: OnceLock<Vec<u32>>,
}

impl Line {
    /// Returns the sequence of `epoch` over shards with `counts` samples each, in manifest order.
    ///
    /// # Errors
    /// `NoSamples` if all are empty.
    pub fn new(counts: &[u64], shuffle: &Shuffle, epoch: u64) -> Result<Self, PlanError> {
        let mut shards = if shuffle.enabled {
            let key = stream_key("line", &shuffle.content, &[shuffle.seed, epoch]);
            Draws::new(key, 0).permutation(counts.len() as u64)?
        } else {
            (0..counts.len() as u32).collect()
        };
        shards.retain(|&shard| counts[shard as usize] > 0);
        if shards.is_empty() {
            return Err(PlanError::NoSamples { shards: counts.len() });
        }
        let mut starts = Vec::with_capacity(shards.len() + 1);
        let mut start = 0;
        for &shard in &shards {
            starts.push(start);
            start += counts[shard as usize];
        }
        starts.push(start);
        Ok(Self { shards, starts, shards_total: counts.len(), places: OnceLock::new() })
    }

    /// Returns the number of samples of the sequence.
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
        let place = *self.places().get(sample.shard as usize)? as usize;
        let start = *self.starts.get(place)?;
        let end = *self.starts.get(place + 1)?;
        (sample.ordinal < end - start).then(|| start + sample.ordinal)
    }

    /// Returns the number of shards of the dataset, with and without samples.
    pub(crate) fn shards_total(&self) -> usize {
        self.shards_total
    }

    /// Returns the shards with samples, in the order of the sequence.
    pub(crate) fn shards(&self) -> &[u32] {
        &self.shards
    }

    /// Returns the index in [`Line::shards`] of the shard that contains `position`.
    pub(crate) fn place(&self, position: u64) -> usize {
        self.starts.partition_point(|&start| start <= position) - 1
    }

    /// Returns the start position of the shard at `place`; for one past the last, the length of the
    /// sequence.
    pub(crate) fn start(&self, place: usize) -> u64 {
        self.starts[place]
    }

    pub(crate) fn sample_in(&self, place: usize, ordinal: u64) -> Sample {
        Sample { shard: self.shards[place], ordinal }
    }

    fn places(&self) -> &[u32] {
        self.places.get_or_init(|| {
            let mut places = vec![u32::MAX; self.shards_total];
            for (place, &shard) in self.shards.iter().enumerate() {
                places[shard as usize] = place as u32;
            }
            places
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn shuffle(enabled: bool) -> Shuffle {
        let content = Digest::from_bytes([0; 32]);
        Shuffle { content, seed: 1, enabled, window: 1, interleave: 1, block_length: 1 }
    }

    #[test]
    fn empty_shards_are_left_out() {
        let line = Line::new(&[0, 2, 0, 1, 0], &shuffle(false), 0).unwrap();
        let samples: Vec<_> = (0..3).map(|p| line.sample(p)).collect();
        let sample = |shard, ordinal| Sample { shard, ordinal };
        assert_eq!(samples, [sample(1, 0), sample(1, 1), sample(3, 0)]);
        assert_eq!(line.position(sample(3, 0)), Some(2));
        assert_eq!(line.position(sample(3, 1)), None);
        assert_eq!(line.position(sample(0, 0)), None);
        assert_eq!(line.position(sample(9, 0)), None);
    }

    #[test]
    fn a_dataset_without_samples_is_refused() {
        let error = Line::new(&[0, 0], &shuffle(true), 0).unwrap_err();
        assert_eq!(error, PlanError::NoSamples { shards: 2 });
    }
}
