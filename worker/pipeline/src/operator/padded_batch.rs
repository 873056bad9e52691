use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::pad::{PadSide, Padding};

/// Pads rows with a variable number of values to one length, as `tf.data`'s `padded_batch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaddedBatch {
    /// Column of rows with a variable number of values.
    pub input: String,
    /// Numbers of each row of the output.
    pub length: usize,
    pub value: f64,
    /// True if longer rows are truncated; otherwise they are errors.
    pub truncate: bool,
}

impl Definition for PaddedBatch {
    fn row() -> &'static str {
        "`padded_batch(input, length, value, truncate)` | rows of a `VarLenFeature` padded to one \
         length | `tf.data`'s `padded_batch` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Rows(self.input.clone()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let Self { length, value, truncate, .. } = *self;
        let padding = Padding { size: vec![length], value, side: PadSide::End, truncate };
        padding.prepare(&given, |padding, have| {
            let (found, length) = (have[0], padding.size[0]);
            format!(
                "{found} numbers, more than the {length} of padded_batch; raise length, or set truncate"
            )
        })
    }
}
