//! Operators on whole columns: `rename`, `concat` and `constant`.

use serde::{Deserialize, Serialize};
use shardfeed_tfrecord::example::DefaultValue;

use super::definition::{Definition, Given, Inputs, OperatorWork, Strings};
use super::form::{Form, check_value};
use crate::dtype::{ColumnNumber, Dtype, items, with_type};

/// Gives a column of any kind the name of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Name of the column before.
    pub input: String,
}

impl Definition for Rename {
    fn row() -> &'static str {
        "`rename(input, output)` | another name for a column of any kind | none | by its values"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Any(self.input.clone()))
    }

    fn prepare(&self, _: Given<'_>) -> Result<OperatorWork, String> {
        unreachable!("a name is changed while operators are declared, and nothing runs")
    }
}

/// Concatenates columns along a dimension, as `np.concatenate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concat {
    /// Columns of numbers.
    pub inputs: Vec<String>,
    /// Dimension; the number of dimensions: a new last one, as `np.stack`.
    pub axis: usize,
}

impl Definition for Concat {
    fn row() -> &'static str {
        "`concat(inputs, output, axis)` | columns end to end, along a dimension or as a new last \
         one | `np.concatenate`, `np.stack(axis=-1)` | bit for bit, with numpy"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        if self.inputs.is_empty() {
            return Err("inputs is empty; name one column or more".to_owned());
        }
        Ok(Inputs::Fixed(self.inputs.clone()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let form = self.form(given.forms)?;
        let outer = items(&form.shape[..self.axis]);
        let parts: Vec<usize> = given
            .forms
            .iter()
            .map(|form| form.row_bytes().checked_div(outer).unwrap_or(0))
            .collect();
        let total: usize = parts.iter().sum();
        Ok(OperatorWork::columns(form, move |inputs, _, out| {
            let mut from = 0;
            for (input, &part) in inputs.iter().zip(&parts).filter(|(_, part)| **part > 0) {
                let places = out.chunks_exact_mut(total).zip(input.bytes().chunks_exact(part));
                places.for_each(|(out, part)| out[from..][..part.len()].copy_from_slice(part));
                from += part;
            }
            Ok(())
        }))
    }
}

impl Concat {
    fn form(&self, forms: &[Form]) -> Result<Form, String> {
        let axis = self.axis;
        let first = forms[0].of_numbers()?;
        if axis > first.shape.len() {
            return Err(format!(
                "axis {axis} is beyond the dimensions of {:?}; at most {} is",
                first.shape,
                first.shape.len()
            ));
        }
        let whole = |form: &Form| {
            let mut shape = form.shape.clone();
            if shape.len() == axis {
                shape.push(1);
            }
            shape
        };
        let mut shape = whole(first);
        for (name, form) in self.inputs.iter().zip(forms).skip(1) {
            let own = whole(form.of_numbers()?);
            let fits = form.dtype == first.dtype
                && form.shape.len() == first.shape.len()
                && (0..own.len()).all(|at| at == axis || own[at] == shape[at]);
            if !fits {
                return Err(format!(
                    "`{name}` is {} of shape {:?}, but `{}` is {} of shape {:?}; they need one type, and \
                     one shape except for dimension {axis}",
                    form.dtype, form.shape, self.inputs[0], first.dtype, first.shape
                ));
            }
            shape[axis] += own[axis];
        }
        Form::numbers(first.dtype, shape)
    }
}

/// Adds a column with the same value in every row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Values of a row, row-major.
    pub value: Constants,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Constants {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    /// Strings in UTF-8.
    Texts(Vec<String>),
}

impl Definition for Constant {
    fn row() -> &'static str {
        "`constant(output, value, dtype)` | the same value in every row: numbers or strings of any \
         shape | `np.broadcast_to` | bit for bit, with numpy"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![]))
    }

    fn prepare(&self, _: Given<'_>) -> Result<OperatorWork, String> {
        let Self { value, shape, dtype } = self;
        let count = match value {
            Constants::Integers(values) => values.len(),
            Constants::Floats(values) => values.len(),
            Constants::Texts(values) => values.len(),
        };
        if shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size)) != Some(count) {
            return Err(format!("{count} values do not fill shape {shape:?}"));
        }
        if let (Constants::Texts(texts), Dtype::Bytes) = (value, dtype) {
            let strings = texts.iter().map(|text| text.clone().into_bytes()).collect();
            let values = DefaultValue::Bytes(strings);
            let from = Strings::Constant(values);
            return Ok(OperatorWork::Strings { from, shape: shape.clone() });
        }
        let form = Form::numbers(*dtype, shape.clone())?;
        let row = self.row_of_numbers()?;
        Ok(OperatorWork::columns(form, move |_, _, out| {
            if !row.is_empty() {
                out.chunks_exact_mut(row.len()).for_each(|out| out.copy_from_slice(&row));
            }
            Ok(())
        }))
    }
}

impl Constant {
    /// Returns the bytes of a row.
    fn row_of_numbers(&self) -> Result<Vec<u8>, String> {
        let dtype = self.dtype;
        with_type!(dtype, T => {
            let numbers: Vec<T> = match &self.value {
                Constants::Integers(values) => {
                    let is_kept = |value: &&i64| T::IS_FLOAT || T::from_i64(**value).to_i64() == **value;
                    if let Some(value) = values.iter().find(|value| !is_kept(value)) {
                        return Err(format!("value has {value}, which {dtype} cannot hold"));
                    }
                    values.iter().map(|&value| T::from_i64(value)).collect()
                }
                Constants::Floats(values) => {
                    values.iter().try_for_each(|&value| check_value("value", value, dtype))?;
                    values.iter().map(|&value| T::from_f64(value)).collect()
                }
                Constants::Texts(_) => {
                    return Err(format!("value is strings, which {dtype} cannot hold; leave dtype out"));
                }
            };
            Ok(bytemuck::cast_slice(&numbers).to_vec())
        })
    }
}
