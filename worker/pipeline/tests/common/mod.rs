//! Records of goldens as the rows of a batch.

use shardfeed_pipeline::{ChunkPool, RawRecord, Row};
use shardfeed_plan::Sample;
use shardfeed_tfrecord::encode_footer;

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let nibble = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}

pub(crate) fn rows(records: impl IntoIterator<Item = Vec<u8>>) -> Vec<Row> {
    let pool = ChunkPool::new(1);
    let row = |(number, mut bytes): (usize, Vec<u8>)| {
        let len = bytes.len();
        bytes.extend_from_slice(&encode_footer(&bytes));
        let sample = Sample { shard: 0, ordinal: number as u64 };
        let record = RawRecord { sample, offset: 0, chunk: pool.share(bytes), start: 0, len };
        Row { record, valid: true }
    };
    records.into_iter().enumerate().map(row).collect()
}
