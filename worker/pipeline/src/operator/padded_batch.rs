use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::fault::{Failed, OperatorFault};
use super::form::{Form, Input};
use crate::dtype::{ColumnNumber, with_type};

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
        let dtype = given.forms[0].of_numbers()?.dtype;
        Ok(OperatorWork::columns(Form::numbers(dtype, vec![length])?, move |inputs, _, out| {
            let Input::Rows(_, lengths) = inputs[0] else {
                unreachable!("forms were checked: these are rows");
            };
            with_type!(dtype, T => {
                let out = bytemuck::cast_slice_mut::<u8, T>(out);
                pad(inputs[0].numbers::<T>(), lengths, length, T::from_f64(value), truncate, out)
            })
        }))
    }
}

fn pad<T: ColumnNumber>(
    mut numbers: &[T],
    lengths: &[i64],
    length: usize,
    value: T,
    truncate: bool,
    out: &mut [T],
) -> Result<(), Failed> {
    for (row, found) in lengths.iter().map(|&length| length as usize).enumerate() {
        if found > length && !truncate {
            let what = format!(
                "{found} numbers, more than the {length} of padded_batch; raise length, or set truncate"
            );
            return Err((row, OperatorFault::Record(what)));
        }
        let (own, rest) = numbers.split_at(found);
        let (head, tail) = out[row * length..(row + 1) * length].split_at_mut(found.min(length));
        head.copy_from_slice(&own[..head.len()]);
        tail.fill(value);
        numbers = rest;
    }
    Ok(())
}
