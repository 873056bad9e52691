use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::form::Form;
use crate::dtype::{ColumnNumber, Dtype, with_type};

/// Converts numbers to another type, as `tf.cast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    /// Column of numbers.
    pub input: String,
    pub dtype: Dtype,
}

impl Definition for Cast {
    fn row() -> &'static str {
        "`cast(input, dtype)` | the same numbers in another type | `tf.cast` | bit for bit, \
         10 x 12 types"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn device_form(&self, input: &Form) -> Option<Result<Form, String>> {
        Some(self.form(input))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let (from, to) = (given.forms[0].dtype, self.dtype);
        Ok(OperatorWork::columns(self.form(&given.forms[0])?, move |inputs, _, out| {
            with_type!(from, From => with_type!(to, To => {
                cast(inputs[0].numbers::<From>(), bytemuck::cast_slice_mut::<u8, To>(out));
            }));
            Ok(())
        }))
    }
}

impl Cast {
    fn form(&self, input: &Form) -> Result<Form, String> {
        Form::numbers(self.dtype, input.of_numbers()?.shape.clone())
    }
}

pub(crate) fn cast<From: ColumnNumber, To: ColumnNumber>(from: &[From], to: &mut [To]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = cast_one(*from));
}

#[inline]
pub(super) fn cast_one<From: ColumnNumber, To: ColumnNumber>(from: From) -> To {
    if From::IS_FLOAT { To::from_f64(from.to_f64()) } else { To::from_i64(from.to_i64()) }
}
