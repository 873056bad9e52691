//! Errors of record specs.

use shardfeed_tfrecord::example::SpecError;

use crate::operator::OperatorError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// The filter is not an expression over features of the record.
    #[error("filter: {0}")]
    Filter(String),
    #[error("unbatch: {0}")]
    Unbatch(String),
    #[error("pack: {0}")]
    Pack(String),
    #[error("window: {0}")]
    Window(String),
    #[error("balance: {0}")]
    Balance(String),
    #[error("outputs name `{name}`, {what}")]
    Output { name: String, what: String },
    #[error(
        "the sources of a mixture make different columns: {left} and {right}; cast, reshape, pad or select \
         columns so that all sources have the same"
    )]
    OtherColumns {
        /// A column of a source.
        left: String,
        /// The column at the same place of another one.
        right: String,
    },
    #[error(
        "balance: the cost `{cost}` is an integer in one source of the mixture and a float in another; write \
         an expression of one type, such as `1.0 * ...`"
    )]
    OtherCosts {
        /// Expression of the cost.
        cost: String,
    },
}

impl SchemaError {
    /// Returns the description without the method that has the error.
    pub(crate) fn what(self) -> String {
        match self {
            Self::Filter(what)
            | Self::Unbatch(what)
            | Self::Pack(what)
            | Self::Window(what)
            | Self::Balance(what) => what,
            other => other.to_string(),
        }
    }
}
