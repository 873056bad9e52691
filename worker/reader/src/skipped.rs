//! Corrupt records that were skipped.

use shardfeed_pipeline::{RowError, RowFault};
use shardfeed_plan::Sample;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_source::Files;
use shardfeed_tfrecord::{DataCrcMismatch, ReadErrorKind};

/// Maximum bytes of the reason for a skipped record: an error may quote the record.
const REASON_BYTES_MAX: usize = 300;

/// A planned sample that was not delivered because its record is corrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub sample: Sample,
    /// Index of the record in its shard.
    pub record: u64,
    /// Offset of its header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// Human-readable fault of the record.
    pub reason: String,
}

impl Skipped {
    /// Describes a sample by the fault of its row.
    pub(crate) fn of(error: &RowError, files: &Files) -> Self {
        let RowError { sample, offset, part, len, .. } = *error;
        let record = files.dataset().record_at(sample, part);
        let mut reason = match &error.fault {
            // The same text as that of the error.
            RowFault::Data(DataCrcMismatch { stored, computed }) => {
                let (stored, computed) = (*stored, *computed);
                ReadErrorKind::DataCrc { length: len as u64, stored, computed }.to_string()
            }
            fault => fault.to_string(),
        };
        if reason.len() > REASON_BYTES_MAX {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            reason.push_str(" ...");
        }
        Self { sample, record, offset, reason }
    }
}

impl From<Skipped> for wire::Skipped {
    fn from(skipped: Skipped) -> Self {
        let Skipped { sample, record, offset, reason } = skipped;
        let (shard, ordinal, record) = (sample.shard.into(), sample.ordinal, Some(record));
        Self { shard, ordinal, offset, reason, record }
    }
}

impl From<wire::Skipped> for Skipped {
    fn from(message: wire::Skipped) -> Self {
        let wire::Skipped { shard, ordinal, offset, reason, record } = message;
        let sample = Sample { shard: shard as u32, ordinal };
        Self { sample, record: record.unwrap_or(ordinal), offset, reason }
    }
}
