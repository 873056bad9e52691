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
    #[error(transparent)]
    Table(#[from] Box<TableFault>),
    /// The record causes the error.
    #[error("{0}")]
    Record(String),
}

impl From<ImageError> for OperatorFault {
    fn from(error: ImageError) -> Self {
        Self::Record(error.to_string())
    }
}

impl From<TableFault> for OperatorFault {
    fn from(fault: TableFault) -> Self {
        Self::Table(Box::new(fault))
    }
}

impl OperatorFault {
    /// Returns the error of a part that does not lie in its image.
    /// - `from`: first row, and first pixel in a row.
    pub(crate) fn no_part(part: Size, from: (usize, usize), image: Size) -> Self {
        Self::Record(format!(
            "a part of {}x{} pixels from {from:?} does not lie in an image of {}x{}; resize it before",
            part.height, part.width, image.height, image.width
        ))
    }

    /// Returns the error of a string that has not the bytes of its numbers.
    pub(crate) fn length(dtype: Dtype, shape: &[usize], expected: usize, found: usize) -> Self {
        Self::Record(format!(
            "decode_raw: the string has {found} bytes, but {dtype} of shape {shape:?} takes {expected}; \
             correct dtype or shape, or set fixed_length"
        ))
    }

    /// True if the record causes the error, so that another record may be substituted.
    pub(crate) fn is_of_record(&self) -> bool {
        matches!(self, Self::Record(_))
    }
}

/// Row in which an operator failed, and the error.
pub(crate) type Failed = (usize, OperatorFault);
