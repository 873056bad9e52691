//! Operators that compute with one value for each channel: `scale` and `normalize`.

use serde::{Deserialize, Serialize};

use super::cast::cast_one;
use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::form::{Form, Input};
use crate::dtype::{ColumnNumber, Dtype, with_type};

/// Maximum values of a row for which channel values are repeated over the entire row.
const PERIOD_MAX: usize = 1 << 14;

/// `x * scale + offset`, in the output's type; one value, or one per index of the last dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Column of numbers.
    pub input: String,
    pub scale: Vec<f64>,
    pub offset: Vec<f64>,
    /// Type of the output: float32 or float64.
    pub dtype: Dtype,
}

impl Definition for Scale {
    fn row() -> &'static str {
        "`scale(input, scale, offset, dtype)` | `x * scale + offset` | the same in TensorFlow | \
         bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let Self { scale, offset, dtype, .. } = self;
        let input = &given.forms[0];
        let form = form(input, &[("scale", scale), ("offset", offset)], *dtype)?;
        let values = Channels::new(input, &form, scale, offset);
        Ok(OperatorWork::columns(form, move |inputs, _, out| {
            values.run(inputs[0], out, |x, a, b| x * a + b, |x, a, b| x * a + b);
            Ok(())
        }))
    }
}

/// `(x - mean) / std`, as [`Scale`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// Column of numbers.
    pub input: String,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
    /// Type of the output: float32 or float64.
    pub dtype: Dtype,
}

impl Definition for Normalize {
    fn row() -> &'static str {
        "`normalize(input, mean, std, dtype)` | `(x - mean) / std` | the same in TensorFlow | \
         bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn device_form(&self, input: &Form) -> Option<Result<Form, String>> {
        Some(self.form(input))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let form = self.form(&given.forms[0])?;
        let values = Channels::new(&given.forms[0], &form, &self.mean, &self.std);
        Ok(OperatorWork::columns(form, move |inputs, _, out| {
            values.run(inputs[0], out, |x, a, b| (x - a) / b, |x, a, b| (x - a) / b);
            Ok(())
        }))
    }
}

impl Normalize {
    fn form(&self, input: &Form) -> Result<Form, String> {
        let Self { mean, std, dtype, .. } = self;
        input.of_numbers()?;
        let is_zero = |value: &&f64| match dtype {
            Dtype::Float32 => **value as f32 == 0.0,
            _ => **value == 0.0,
        };
        if let Some(zero) = std.iter().find(is_zero) {
            return Err(format!("std has {zero}, which is 0 as {dtype}: nothing is divided by it"));
        }
        form(input, &[("mean", mean), ("std", std)], *dtype)
    }
}

fn form(input: &Form, values: &[(&str, &[f64])], dtype: Dtype) -> Result<Form, String> {
    let last = input.of_numbers()?.shape.last().copied().unwrap_or(1);
    for (name, values) in values {
        if values.is_empty() || values.len() != 1 && values.len() != last {
            let count = values.len();
            return Err(format!(
                "{name} has {count} values; it needs one, or one for each of the last dimension's {last}"
            ));
        }
    }
    if !matches!(dtype, Dtype::Float32 | Dtype::Float64) {
        return Err(format!("dtype is float32 or float64, not {dtype}; cast afterwards"));
    }
    Form::numbers(dtype, input.shape.clone())
}

/// Two values for each number of a period.
#[derive(Debug)]
struct Channels {
    from: Dtype,
    to: Dtype,
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Channels {
    /// Repeats the values over a longer period: a short last dimension makes no short loops.
    fn new(input: &Form, form: &Form, first: &[f64], second: &[f64]) -> Self {
        let last = form.shape.last().copied().unwrap_or(1).max(1);
        let items = form.items().max(1);
        let period = if items <= PERIOD_MAX { items } else { last };
        let spread = |values: &[f64]| -> Vec<f64> {
            let value = |at: usize| values[if values.len() == 1 { 0 } else { at % last }];
            (0..period).map(value).collect()
        };
        Self { from: input.dtype, to: form.dtype, first: spread(first), second: spread(second) }
    }

    fn run(
        &self,
        input: Input<'_>,
        out: &mut [u8],
        in_f32: impl Fn(f32, f32, f32) -> f32,
        in_f64: impl Fn(f64, f64, f64) -> f64,
    ) {
        let Self { from, to, first, second } = self;
        with_type!(*from, From => {
            let numbers = input.numbers::<From>();
            if *to == Dtype::Float32 {
                let narrow = |values: &[f64]| -> Vec<f32> {
                    values.iter().map(|&value| value as f32).collect()
                };
                let out = bytemuck::cast_slice_mut::<u8, f32>(out);
                each(numbers, &narrow(first), &narrow(second), out, in_f32);
            } else {
                each(numbers, first, second, bytemuck::cast_slice_mut::<u8, f64>(out), in_f64);
            }
        });
    }
}

fn each<From: ColumnNumber, To: ColumnNumber>(
    numbers: &[From],
    first: &[To],
    second: &[To],
    out: &mut [To],
    compute: impl Fn(To, To, To) -> To,
) {
    let numbers = numbers.chunks_exact(first.len());
    for (out, numbers) in out.chunks_exact_mut(first.len()).zip(numbers) {
        let values = first.iter().zip(second);
        for ((out, number), (a, b)) in out.iter_mut().zip(numbers).zip(values) {
            *out = compute(cast_one(*number), *a, *b);
        }
    }
}
