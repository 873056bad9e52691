use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::form::Form;
use crate::dtype::{ColumnNumber, Dtype, with_type};

/// Appends a dimension of `depth`, with `on` at the index given by the number and `off`
/// elsewhere, as `tf.one_hot`; an index out of range gives only `off`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneHot {
    /// Column of integers.
    pub input: String,
    /// Number of indices.
    pub depth: usize,
    /// Value at the index.
    pub on: f64,
    /// Value elsewhere.
    pub off: f64,
    pub dtype: Dtype,
}

impl Definition for OneHot {
    fn row() -> &'static str {
        "`one_hot(input, depth, on, off, dtype)` | one more dimension | `tf.one_hot` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let Self { depth, on, off, dtype: to, .. } = *self;
        let input = given.forms[0].of_numbers()?;
        let from = input.dtype;
        if !from.is_integer() {
            return Err(format!("it takes integers, not {from}; cast them"));
        }
        let form = Form::numbers(to, [&input.shape[..], &[depth]].concat())?;
        Ok(OperatorWork::columns(form, move |inputs, _, out| {
            with_type!(from, From => with_type!(to, To => {
                let (on, off) = (To::from_f64(on), To::from_f64(off));
                let out = bytemuck::cast_slice_mut::<u8, To>(out);
                out.fill(off);
                for (at, number) in inputs[0].numbers::<From>().iter().enumerate() {
                    let place = usize::try_from(number.to_i64()).ok();
                    if let Some(place) = place.filter(|place| *place < depth) {
                        out[at * depth + place] = on;
                    }
                }
            }));
            Ok(())
        }))
    }
}
