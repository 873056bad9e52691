//! Types and shapes of columns, and the values that an operator gets.

use serde::{Deserialize, Serialize};

use crate::dtype::{ColumnNumber, Dtype, items, with_type};

/// Maximum values of one row of a column; more is treated as a mistake or an attack.
const ROW_ITEMS_MAX: usize = 1 << 26;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim<N = usize> {
    /// The same for all rows.
    Size(N),
    /// The value of this column.
    Column(String),
}

impl<N: Copy> Dim<N> {
    pub(crate) fn size(&self) -> Option<N> {
        if let Self::Size(size) = self { Some(*size) } else { None }
    }

    pub(crate) fn column(&self) -> Option<&String> {
        if let Self::Column(name) = self { Some(name) } else { None }
    }
}

/// Type and shape of one row of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl Form {
    pub(crate) fn items(&self) -> usize {
        items(&self.shape)
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.items() * self.dtype.bytes()
    }

    /// Returns this form, unless it is that of byte strings.
    pub(crate) fn of_numbers(&self) -> Result<&Self, String> {
        if self.dtype == Dtype::Bytes {
            return Err(format!(
                "it takes numbers, but its input is byte strings of shape {:?}; decode them first",
                self.shape
            ));
        }
        Ok(self)
    }

    /// Checks that this is one byte string per row.
    pub(crate) fn of_one_string(&self) -> Result<(), String> {
        if self.dtype == Dtype::Bytes && self.items() == 1 {
            return Ok(());
        }
        Err(format!("it takes one byte string a row, not {} of shape {:?}", self.dtype, self.shape))
    }

    /// Creates a form of numbers, of which a row has at most [`ROW_ITEMS_MAX`].
    pub(crate) fn numbers(dtype: Dtype, shape: Vec<usize>) -> Result<Self, String> {
        let count = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size.max(1)));
        match count {
            _ if dtype == Dtype::Bytes => Err("its numbers cannot be byte strings".to_owned()),
            Some(count) if count <= ROW_ITEMS_MAX => Ok(Self { dtype, shape }),
            _ => Err(format!(
                "a row of shape {shape:?} has more than {ROW_ITEMS_MAX} numbers; make it smaller"
            )),
        }
    }
}

/// Checks that numbers of a type can have a value.
pub(crate) fn check_value(what: &str, value: f64, dtype: Dtype) -> Result<(), String> {
    // The largest int64 is 2^63 as a float64, so that 2^63 would pass as itself.
    let is_above = dtype == Dtype::Int64 && value >= 9_223_372_036_854_775_808.0;
    let is_held = with_type!(dtype, T => {
        let held = T::from_f64(value).to_f64();
        held == value || T::IS_FLOAT && held.is_finite()
    });
    if is_held && !is_above {
        return Ok(());
    }
    Err(format!("{what} is {value}, which {dtype} cannot hold"))
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Input<'a> {
    /// Rows end to end, with the bytes of one row.
    Numbers(&'a [u8], usize),
    /// Rows end to end, with the number of values of each.
    Rows(&'a [u8], &'a [i64]),
    /// One string per row.
    Strings(&'a [&'a [u8]]),
}

impl<'a> Input<'a> {
    pub(crate) fn numbers<T: ColumnNumber>(self) -> &'a [T] {
        match self {
            Self::Numbers(bytes, _) | Self::Rows(bytes, _) => bytemuck::cast_slice(bytes),
            Self::Strings(_) => unreachable!("forms were checked: these are numbers"),
        }
    }

    /// Numbers of one row.
    pub(crate) fn row(self, row: usize) -> &'a [u8] {
        let Self::Numbers(bytes, row_bytes) = self else {
            unreachable!("forms were checked: these are numbers");
        };
        &bytes[row * row_bytes..(row + 1) * row_bytes]
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.numbers::<u8>()
    }

    pub(crate) fn strings(self) -> &'a [&'a [u8]] {
        let Self::Strings(strings) = self else {
            unreachable!("forms were checked: these are strings");
        };
        strings
    }
}
