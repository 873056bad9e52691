//! Records of goldens as the rows of a batch.

use shardfeed_pipeline::{ChunkPool, DrawKey, RawRecord, Row};
use shardfeed_plan::{ContentDigest, Sample};
use shardfeed_tfrecord::encode_footer;

/// As a job's first epoch has it.
pub(crate) fn key() -> DrawKey {
    DrawKey { content: ContentDigest::of_parts([b"goldens".as_slice()]), seed: 7, epoch: 0 }
}

pub(crate) fn rows(records: impl IntoIterator<Item = Vec<u8>>) -> Vec<Row> {
    let pool = ChunkPool::new(1, 1 << 20);
    let row = |(number, mut bytes): (usize, Vec<u8>)| {
        let len = bytes.len();
        bytes.extend_from_slice(&encode_footer(&bytes));
        let sample = Sample { shard: 0, ordinal: number as u64 };
        let record = RawRecord { sample, offset: 0, chunk: pool.share(bytes), start: 0, len };
        Row { record, valid: true, occurrence: 0 }
    };
    records.into_iter().enumerate().map(row).collect()
}
