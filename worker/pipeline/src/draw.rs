//! Random draws of operators. Source: docs/ORDER.md, section 11.

use std::sync::Arc;

use shardfeed_plan::{Draws, OrderDigest, stream_key};

use crate::record::Row;

/// Key of the draws that is the same for all rows of a batch.
#[derive(Clone, Debug)]
pub struct DrawKey {
    /// Order digest of the dataset; without meaning in a mixture.
    pub digest: OrderDigest,
    pub seed: u64,
    pub epoch: u64,
    /// Sources of a mixture, in the order of their numbers; empty for one dataset.
    pub sources: Arc<[DrawSource]>,
}

/// Key of the draws for the samples of one source of a mixture.
#[derive(Clone, Copy, Debug)]
pub struct DrawSource {
    pub digest: OrderDigest,
    /// Key of its name.
    pub number: u64,
    /// Shard ordinal of its first shard.
    pub first_shard: u32,
}

/// Constant: operators make one output per sample.
const OUTPUT: u64 = 0;

impl DrawKey {
    /// Returns the draws of one operator for one sample, independent of where and when it is read.
    /// - `position`: index of the operator in the job.
    pub(crate) fn draws(&self, row: &Row<'_>, position: usize) -> Draws {
        let Row { portion, sample, occurrence, .. } = *row;
        let (source, epoch) = match self.sources.get(portion.source as usize) {
            Some(source) => (*source, portion.epoch),
            None => (DrawSource { digest: self.digest, number: 0, first_shard: 0 }, self.epoch),
        };
        let numbers = [
            self.seed,
            epoch,
            source.number,
            u64::from(sample.shard - source.first_shard),
            sample.ordinal,
            u64::from(occurrence),
            OUTPUT,
            position as u64,
        ];
        Draws::new(stream_key("operator", &source.digest, &numbers), 0)
    }
}

/// A uniform number in `[0, 1)`: 53 bits of one draw.
pub(crate) fn unit(draws: &mut Draws) -> f64 {
    (draws.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
