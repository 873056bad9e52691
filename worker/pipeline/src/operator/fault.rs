//! Errors of operators: in the declaration of one, and in a row.

use shardfeed_image::{ImageError, Size};

use super::table::TableFault;
use crate::dtype::Dtype;

/// Error in the declaration of an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator {operator} (output `{output}`): {what}")]
pub struct OperatorError {
    /// Index among the operators, from 0.
    pub operator: usize,
    pub output: String,
    pub what: String,
}

/// Error of a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorFault {
    #[error("no memory for {bytes} bytes of it; use smaller batches or shapes")]
    Memory { bytes: usize },
    #[error(
        "{found} numbers, more than the {length} of padded_batch; raise length, or set truncate"
    )]
    TooLong {
        found: usize,
        /// Maximum numbers.
        length: usize,
    },
    #[error("rows of `{first}` and `{second}` have different lengths, {found:?}")]
    Lengths {
        first: Box<str>,
        second: Box<str>,
        /// Lengths of a row in both.
        found: [i64; 2],
    },
    #[error(
        "its shape is {found:?}, larger than size {size:?} of pad; raise size, or set truncate"
    )]
    TooLarge {
        /// The dimensions that are padded.
        found: Vec<usize>,
        /// Their padded sizes.
        size: Vec<usize>,
    },
    #[error("{table} has no key {key}; write the table with it, or give missing a value")]
    NoKey {
        /// The key, or its beginning.
        key: String,
        /// Path of the table.
        table: String,
    },
    #[error(transparent)]
    Table(#[from] Box<TableFault>),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(
        "an image of {}x{} pixels, but all are said to have {}x{}; leave size out, and resize or crop",
        .size.height, .size.width, .wanted.height, .wanted.width
    )]
    ImageSize { size: Size, wanted: Size },
    #[error(
        "a part of {}x{} pixels from {from:?} does not lie in an image of {}x{}; resize it before",
        .size.height, .size.width, .image.height, .image.width
    )]
    Part {
        size: Size,
        /// First row, and first pixel in a row.
        from: (usize, usize),
        image: Size,
    },
    #[error("the box {numbers} of `{column}` for an image of {}x{} {what}", .image.height, .image.width)]
    Bounds { column: Box<str>, numbers: Box<str>, image: Box<Size>, what: &'static str },
    #[error("column `{column}` says {number} for a size")]
    Side { column: String, number: i64 },
    #[error(
        "decode_raw: the string has {found} bytes, but {dtype} of shape {shape:?} takes {expected}; correct \
         dtype or shape, or set fixed_length"
    )]
    Length {
        dtype: Dtype,
        shape: Vec<usize>,
        /// Bytes of the numbers.
        expected: usize,
        /// Bytes of the string.
        found: usize,
    },
}

impl From<TableFault> for OperatorFault {
    fn from(fault: TableFault) -> Self {
        Self::Table(Box::new(fault))
    }
}

impl OperatorFault {
    /// True if the record causes the error, so that another record may be substituted.
    pub(crate) fn is_of_record(&self) -> bool {
        !matches!(self, Self::Memory { .. } | Self::Table(_))
    }
}

/// Row in which an operator failed, and the error.
pub(crate) type Failed = (usize, OperatorFault);
