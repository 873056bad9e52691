//! Random draws of operators. Source: docs/ORDER.md, section 11.

use shardfeed_plan::{ContentDigest, Draws, Sample, stream_key};

/// Key of the draws that is the same for all rows of a batch.
#[derive(Clone, Copy, Debug)]
pub struct DrawKey {
    /// Content digest of the dataset.
    pub content: ContentDigest,
    /// The job's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
}

/// Constants: datasets are not mixed yet, and operators make one output per sample.
const SOURCE: u64 = 0;
const OUTPUT: u64 = 0;

impl DrawKey {
    /// Returns the draws of one operator for one sample, independent of where and when it is read.
    /// - `occurrence`: occurrence of the sample in the epoch, from 0. `position`: index of the
    ///   operator in the job.
    pub(crate) fn draws(&self, sample: Sample, occurrence: u32, position: usize) -> Draws {
        let numbers = [
            self.seed,
            self.epoch,
            SOURCE,
            u64::from(sample.shard),
            sample.ordinal,
            u64::from(occurrence),
            OUTPUT,
            position as u64,
        ];
        Draws::new(stream_key("operator", &self.content, &numbers), 0)
    }
}

/// A uniform number in `[0, 1)`: 53 bits of one draw.
pub(crate) fn unit(draws: &mut Draws) -> f64 {
    (draws.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
