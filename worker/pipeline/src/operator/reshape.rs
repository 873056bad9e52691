use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::form::{Dim, Form};
use super::image::Chain;
use crate::dtype::Dtype;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reshape {
    /// Column of numbers.
    pub input: String,
    /// The new shape; one size may be -1, for the remaining size. With column names it is that of an
    /// image, and differs from row to row.
    pub shape: Vec<Dim<i64>>,
}

impl Definition for Reshape {
    fn row() -> &'static str {
        "`reshape(input, shape)` | another shape; one size may be -1 | `tf.reshape` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        let names = self.shape.iter().filter_map(Dim::column);
        Ok(Inputs::Fixed([&self.input].into_iter().chain(names).cloned().collect()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        if self.shape.iter().any(|dim| dim.column().is_some()) {
            return self.images(given.forms).map(OperatorWork::Images);
        }
        let shape: Vec<i64> = self.shape.iter().filter_map(Dim::size).collect();
        let form = reshaped(given.forms[0].of_numbers()?, &shape)?;
        Ok(OperatorWork::columns(form, |inputs, _, out| {
            out.copy_from_slice(inputs[0].bytes());
            Ok(())
        }))
    }
}

impl Reshape {
    /// Returns images whose size differs from row to row.
    fn images(&self, forms: &[Form]) -> Result<Chain, String> {
        let dim = |dim: &Dim<i64>| match dim {
            Dim::Size(size) => usize::try_from(*size).ok().map(Dim::Size),
            Dim::Column(name) => Some(Dim::Column(name.clone())),
        };
        let Some(shape) = self.shape.iter().map(dim).collect::<Option<Vec<_>>>() else {
            return Err("-1 and names of columns are not both in a shape".to_owned());
        };
        if forms[0].dtype == Dtype::Bytes {
            let what = "it takes numbers; decode_raw takes strings, with names in its shape";
            return Err(what.to_owned());
        }
        Chain::sized(forms[0].dtype, &shape, forms)
    }
}

fn reshaped(input: &Form, shape: &[i64]) -> Result<Form, String> {
    let items = input.items();
    let refuse =
        || Err(format!("shape {:?} of {items} numbers cannot become {shape:?}", input.shape));
    if shape.iter().any(|&size| size < -1) || shape.iter().filter(|&&size| size == -1).count() > 1 {
        return refuse();
    }
    let mut known = shape.iter().filter(|&&size| size >= 0);
    let known = known.try_fold(1_usize, |count, &size| count.checked_mul(size as usize));
    let free = match known {
        Some(0) if items == 0 => Some(0),
        Some(known) if known > 0 && items.is_multiple_of(known) => Some(items / known),
        _ => None,
    };
    let Some(free) = free else { return refuse() };
    let shape: Vec<usize> =
        shape.iter().map(|&size| if size == -1 { free } else { size as usize }).collect();
    if shape.iter().product::<usize>() != items {
        return Err(format!("{items} numbers of shape {:?} do not fill {shape:?}", input.shape));
    }
    Form::numbers(input.dtype, shape)
}
