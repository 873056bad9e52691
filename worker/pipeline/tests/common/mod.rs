//! Records of golden files as the rows of a batch.

use shardfeed_pipeline::{DrawKey, Row};
use shardfeed_plan::{OrderDigest, Sample};
use shardfeed_tfrecord::encode_footer;

/// Draw key as in a job's first epoch.
pub(crate) fn key() -> DrawKey {
    let digest = OrderDigest::of_parts([b"goldens".as_slice()]);
    DrawKey { digest, seed: 7, epoch: 0, sources: [].into() }
}

/// Records, each followed by its checksum.
pub(crate) struct Stored(Vec<Vec<u8>>);

pub(crate) fn stored(records: impl IntoIterator<Item = Vec<u8>>) -> Stored {
    let with_footer = |mut bytes: Vec<u8>| {
        bytes.extend_from_slice(&encode_footer(&bytes));
        bytes
    };
    Stored(records.into_iter().map(with_footer).collect())
}

impl Stored {
    /// Returns each record as a separate row.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let rows = self.0.iter().enumerate().map(|(number, stored)| {
            Row::of_record(Sample { shard: 0, ordinal: number as u64 }, stored)
        });
        rows.collect()
    }
}
