use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::fault::{Failed, OperatorFault};
use super::form::{Dim, Form};
use super::image::Chain;
use crate::dtype::Dtype;

/// Interprets the bytes of a string as numbers, as `tf.io.decode_raw`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeRaw {
    /// Column of one string per row, or of a fixed shape of them, which precedes that of the numbers.
    pub input: String,
    pub dtype: Dtype,
    /// Shape of the numbers; with column names that of an image, which differs from row to row.
    pub shape: Vec<Dim>,
    /// True if the least significant byte comes first.
    pub little_endian: bool,
    /// Number of bytes to which each string is truncated, or padded with zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_length: Option<usize>,
}

impl Definition for DecodeRaw {
    fn row() -> &'static str {
        "`decode_raw(input, dtype, shape, little_endian, fixed_length)` | the bytes of a string as \
         numbers | `tf.io.decode_raw` | bit for bit, 11 types"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        let names = self.shape.iter().filter_map(Dim::column);
        Ok(Inputs::Fixed([&self.input].into_iter().chain(names).cloned().collect()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        if self.shape.iter().any(|dim| dim.column().is_some()) {
            return self.images(given.forms).map(OperatorWork::Images);
        }
        let Self { dtype, little_endian, fixed_length, .. } = *self;
        let strings = &given.forms[0];
        if strings.dtype != Dtype::Bytes {
            let (dtype, shape) = (strings.dtype, &strings.shape);
            return Err(format!("it takes byte strings, not {dtype} of shape {shape:?}"));
        }
        let shape: Vec<usize> = self.shape.iter().filter_map(Dim::size).collect();
        let of_string = Form::numbers(dtype, shape)?;
        let form = Form::numbers(dtype, [&strings.shape[..], &of_string.shape].concat())?;
        let of_row = strings.items().max(1);
        let (bytes, shape) = (of_string.row_bytes(), &of_string.shape);
        if let Some(length) = fixed_length.filter(|length| *length != bytes) {
            return Err(format!(
                "fixed_length is {length} bytes, but {dtype} of shape {shape:?} is {bytes}; make them the same"
            ));
        }
        let is_fixed = fixed_length.is_some();
        Ok(OperatorWork::columns(form, move |inputs, _, out| {
            decode(&of_string, inputs[0].strings(), little_endian, is_fixed, out)
                .map_err(|(string, fault)| (string / of_row, fault))
        }))
    }
}

impl DecodeRaw {
    /// Returns images whose size differs from row to row.
    fn images(&self, forms: &[Form]) -> Result<Chain, String> {
        if !self.little_endian && self.dtype.bytes() > 1 || self.fixed_length.is_some() {
            let what = "with names of columns in its shape, bytes are little-endian and no \
                        fixed_length is set";
            return Err(what.to_owned());
        }
        if forms[0].dtype != Dtype::Bytes {
            return Err(format!("it takes byte strings, not {}", forms[0].dtype));
        }
        Chain::sized(self.dtype, &self.shape, forms)
    }
}

fn decode(
    form: &Form,
    strings: &[&[u8]],
    little_endian: bool,
    is_fixed: bool,
    out: &mut [u8],
) -> Result<(), Failed> {
    let Form { dtype, shape } = form;
    let bytes = form.row_bytes();
    for (row, string) in strings.iter().enumerate() {
        if string.len() != bytes && !is_fixed {
            return Err((row, OperatorFault::length(*dtype, shape, bytes, string.len())));
        }
        let len = string.len().min(bytes);
        let (head, tail) = out[row * bytes..(row + 1) * bytes].split_at_mut(len);
        head.copy_from_slice(&string[..len]);
        tail.fill(0);
    }
    if little_endian != cfg!(target_endian = "little") && dtype.bytes() > 1 {
        out.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
    }
    if *dtype == Dtype::Bool {
        out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    Ok(())
}
