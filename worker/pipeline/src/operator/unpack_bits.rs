use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::form::Form;
use crate::dtype::Dtype;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BitOrder {
    /// Most significant bit first.
    #[default]
    Big,
    /// Least significant bit first.
    Little,
}

/// Unpacks each byte to eight numbers, 0 or 1; the last dimension becomes eight times as long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnpackBits {
    /// Column of uint8.
    pub input: String,
    #[serde(default)]
    pub bit_order: BitOrder,
}

impl Definition for UnpackBits {
    fn row() -> &'static str {
        "`unpack_bits(input, bit_order)` | eight numbers, 0 or 1, for each uint8 | \
         `np.unpackbits(axis=-1)` | bit for bit, by shifts"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let order = self.bit_order;
        Ok(OperatorWork::columns(unpacked(given.forms[0].of_numbers()?)?, move |inputs, _, out| {
            unpack(inputs[0].bytes(), order, out);
            Ok(())
        }))
    }
}

fn unpacked(input: &Form) -> Result<Form, String> {
    let mut shape = input.shape.clone();
    if input.dtype != Dtype::Uint8 {
        return Err(format!("it takes uint8, not {}; cast or decode to uint8", input.dtype));
    }
    let Some(last) = shape.last_mut() else {
        return Err("it takes columns with a dimension; reshape to [1] first".to_owned());
    };
    *last = last.saturating_mul(8);
    Form::numbers(Dtype::Uint8, shape)
}

fn unpack(bytes: &[u8], order: BitOrder, out: &mut [u8]) {
    for (byte, bits) in bytes.iter().zip(out.as_chunks_mut::<8>().0) {
        for (at, bit) in bits.iter_mut().enumerate() {
            *bit = match order {
                BitOrder::Big => byte >> (7 - at) & 1,
                BitOrder::Little => byte >> at & 1,
            };
        }
    }
}
