//! A record that was read: its row in a batch, and the errors of a row.

use std::io;

use shardfeed_plan::{Portion, Sample};
use shardfeed_tfrecord::example::{FoundFeature, ParseError, features_of};
use shardfeed_tfrecord::{DataCrcMismatch, FOOTER_BYTES};

use crate::operator::OperatorFault;

/// One row of a batch: a record in the memory that it was read into.
///
/// Its length was checked; its data is checked where it is used, while it is in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Source and source epoch of the sample, in a mixture.
    pub portion: Portion,
    /// Its shard ordinal is that among the shards of all sources.
    pub sample: Sample,
    /// Offset of the record's header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// Data of the record, followed by the stored checksum.
    pub stored: &'a [u8],
    /// `false` for padding.
    pub valid: bool,
    /// Row of the record that is the sample, where rows are samples. Of a pack: the index of its first
    /// record in the shard. Otherwise 0.
    pub part: u32,
    /// Occurrence of this sample in the epoch: 0, or 1 as padding. Keys the operators' draws.
    pub occurrence: u32,
}

impl<'a> Row<'a> {
    /// Creates the row of a whole record at the beginning of a shard, outside of a mixture.
    /// - `stored`: as in [`Row`].
    pub fn of_record(sample: Sample, stored: &'a [u8]) -> Self {
        let portion = Portion::default();
        Self { portion, sample, offset: 0, stored, valid: true, part: 0, occurrence: 0 }
    }

    /// Data of the record, unchecked.
    pub fn data(&self) -> &'a [u8] {
        &self.stored[..self.len()]
    }

    /// Length of the data in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a record without data is one like any other")]
    pub fn len(&self) -> usize {
        self.stored.len() - FOOTER_BYTES
    }

    /// Stored masked CRC-32C of the data.
    pub fn stored_crc(&self) -> u32 {
        let footer = self.stored.last_chunk().expect("a record was read with its checksum");
        u32::from_le_bytes(*footer)
    }
}

#[derive(Debug)]
pub struct RowError {
    pub sample: Sample,
    /// Offset of the record's header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// As in [`Row`].
    pub part: u32,
    /// Bytes of the record's data.
    pub len: usize,
    pub fault: RowFault,
}

impl RowError {
    pub(crate) fn at(row: &Row<'_>, fault: impl Into<RowFault>) -> Self {
        let Row { sample, offset, part, .. } = *row;
        Self { sample, offset, part, len: row.len(), fault: fault.into() }
    }

    /// Adds the names of the record's features, as a missing name is usually a misspelt one.
    pub(crate) fn parse(row: &Row<'_>, error: &ParseError) -> Self {
        const NAMES_MAX: usize = 40;
        let held = features_of(row.data()).unwrap_or_default();
        let name = |feature: &FoundFeature<'_>| String::from_utf8_lossy(feature.name).into_owned();
        let holds: Vec<String> = held.iter().take(NAMES_MAX).map(name).collect();
        let holds = match &holds[..] {
            [] => String::new(),
            names => format!("; the record holds `{}`", names.join("`, `")),
        };
        Self::at(row, RowFault::Record(format!("{error}{holds}")))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RowFault {
    #[error(transparent)]
    Data(#[from] DataCrcMismatch),
    /// The features of the record do not fit.
    #[error("{0}")]
    Record(String),
    #[error("column `{output}`: {fault}")]
    Operator { output: Box<str>, fault: OperatorFault },
    #[error("no memory for a batch of {bytes} bytes: {source}")]
    Memory {
        /// Bytes of the slot.
        bytes: usize,
        source: io::Error,
    },
}

impl RowFault {
    /// Returns the error of a row that its record does not have.
    /// - `rows`: number of rows of the column.
    pub(crate) fn no_row(column: &str, row: usize, rows: usize) -> Self {
        Self::Record(format!(
            "column `{column}` has {rows} rows, without row {row} that was counted"
        ))
    }

    /// - `most`: maximum number of rows.
    pub(crate) fn too_many_rows(rows: usize, most: usize) -> Self {
        Self::Record(format!(
            "the record has {rows} rows, and unbatch takes at most {most} of one record"
        ))
    }

    /// True if the record causes the error, so that another record may be substituted.
    pub fn is_of_record(&self) -> bool {
        match self {
            Self::Data(_) | Self::Record(_) => true,
            Self::Operator { fault, .. } => fault.is_of_record(),
            Self::Memory { .. } => false,
        }
    }
}
