use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_table::{Column, Key, KeyKind, Table};

use super::definition::{ColumnOperator, Definition, Given, Inputs, OperatorWork, Strings};
use super::fault::{Failed, OperatorFault};
use super::form::{Form, Input, check_value};
use super::table::{Side, TableCause, TableFault, TableRef};
use crate::dtype::{ColumnNumber, Dtype, items, with_type};

/// Maximum characters of a key that an error shows.
const KEY_CHARS_MAX: usize = 60;

/// Looks up keys in a table, as `tf.lookup.StaticHashTable`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    /// Column of integers or strings.
    pub input: String,
    pub table: TableRef,
    /// Column of the table.
    pub column: String,
    /// Type of the table column.
    pub dtype: Dtype,
    /// Shape of one row of the table column.
    pub shape: Vec<usize>,
    /// Value for missing keys; `None`: they are errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Missing {
    Number(f64),
    /// A string in UTF-8.
    Text(String),
}

impl Definition for Lookup {
    fn row() -> &'static str {
        "`lookup(input, table, column, missing)` | values of a side table by key | \
         `tf.lookup.StaticHashTable` | bit for bit, 100 cases"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let form = self.form(&given.forms[0])?;
        let side = given.side.expect("the operator has a table");
        let finder = Arc::new(Finder::new(side, self, &given.forms[0]));
        if self.dtype == Dtype::Bytes {
            return Ok(OperatorWork::Strings { from: Strings::Table(finder), shape: form.shape });
        }
        let opened = Arc::clone(&finder);
        Ok(OperatorWork::Columns(ColumnOperator {
            form,
            run: Box::new(move |inputs, _, out| finder.run(inputs[0], out)),
            open: Some(Box::new(move || opened.open().map(drop))),
        }))
    }
}

impl Lookup {
    /// The shape of the keys, followed by that of a table row.
    fn form(&self, input: &Form) -> Result<Form, String> {
        let (dtype, shape) = (self.dtype, &self.shape[..]);
        if shape.contains(&0) {
            return Err(format!("no table has columns of {dtype} {shape:?}"));
        }
        let is_key = input.dtype == Dtype::Bytes || input.dtype.is_integer();
        if !is_key {
            return Err(format!("keys are int64 or byte strings, not {}; cast them", input.dtype));
        }
        match (&self.missing, dtype) {
            (Some(Missing::Number(_)), Dtype::Bytes) => {
                return Err("missing is a number, but the column has strings".to_owned());
            }
            (Some(Missing::Text(text)), dtype) if dtype != Dtype::Bytes => {
                return Err(format!("missing is {text:?}, but the column has {dtype}"));
            }
            (Some(Missing::Number(value)), _) => check_value("missing", *value, dtype)?,
            _ => {}
        }
        if dtype == Dtype::Bytes {
            return Ok(Form { dtype, shape: [&input.shape[..], shape].concat() });
        }
        // A single table row must also be within the limits.
        Form::numbers(dtype, shape.to_vec())?;
        Form::numbers(dtype, [&input.shape[..], shape].concat())
    }
}

/// A lookup in its table.
#[derive(Debug)]
pub(crate) struct Finder {
    side: Arc<Side>,
    column: Column,
    kind: KeyKind,
    /// Type and number of the keys in a row.
    from: Dtype,
    row_keys: usize,
    dtype: Dtype,
    /// Value for missing keys: the bytes of one number, or a string.
    missing: Option<Vec<u8>>,
}

impl Finder {
    fn new(side: Arc<Side>, lookup: &Lookup, input: &Form) -> Self {
        let Lookup { column, dtype, shape, missing, .. } = lookup;
        let dtype = *dtype;
        let kind = if input.dtype == Dtype::Bytes { KeyKind::Bytes } else { KeyKind::Int64 };
        let column = Column {
            name: column.clone(),
            dtype: dtype.name().to_owned(),
            shape: shape.clone(),
            bytes: items(shape) * dtype.bytes(),
        };
        let bytes = |value: &Missing| match value {
            Missing::Number(value) => {
                with_type!(dtype, T => bytemuck::bytes_of(&T::from_f64(*value)).to_vec())
            }
            Missing::Text(text) => text.clone().into_bytes(),
        };
        let (from, row_keys, missing) = (input.dtype, input.items(), missing.as_ref().map(bytes));
        Self { side, column, kind, from, row_keys, dtype, missing }
    }

    /// Opens the table and returns the byte range of the column in its rows.
    ///
    /// # Errors  The table does not exist, or is not the one that was declared.
    pub(crate) fn open(&self) -> Result<(&Table, Range<usize>), TableFault> {
        let table = self.side.open()?;
        let another = |what: String| fault(table, TableCause::Another, &what);
        if table.key() != self.kind {
            return Err(another(format!(
                "its keys are {}, but they are looked up with {}",
                table.key(),
                self.kind
            )));
        }
        let mut from = 0;
        for column in table.columns() {
            // A string takes the bytes of the longest one.
            let bytes = if self.dtype == Dtype::Bytes { column.bytes } else { self.column.bytes };
            if *column == (Column { bytes, ..self.column.clone() }) {
                return Ok((table, from..from + column.bytes));
            }
            from += column.bytes;
        }
        let Column { name, dtype, shape, .. } = &self.column;
        let form =
            |column: &Column| format!("`{}` {} {:?}", column.name, column.dtype, column.shape);
        let columns: Vec<_> = table.columns().iter().map(form).collect();
        Err(another(format!(
            "has no column `{name}` {dtype} {shape:?}; it has {}",
            columns.join(", ")
        )))
    }

    /// Looks up all keys of some rows.
    fn run(&self, input: Input<'_>, out: &mut [u8]) -> Result<(), Failed> {
        let (table, range) = self.open().map_err(|fault| (0, fault.into()))?;
        let mut cells = out.chunks_exact_mut(self.column.bytes);
        self.each_key(input, |key| {
            let out = cells.next().expect("a row for each key");
            self.find(table, key, &range, out)
        })
    }

    /// Looks up the strings of all keys of some rows.
    pub(crate) fn strings(&self, input: Input<'_>) -> Result<Vec<Vec<u8>>, Failed> {
        let (table, range) = self.open().map_err(|fault| (0, fault.into()))?;
        let (count, mut found) = (items(&self.column.shape), vec![]);
        self.each_key(input, |key| {
            let split = |row: &[u8]| strings_of(&row[range.clone()], count);
            match (table.find(key, split).map_err(TableFault::from)?, &self.missing) {
                (Some(Some(strings)), _) => found.extend(strings),
                (Some(None), _) => {
                    let what = format!(
                        "column `{}` has a string that is longer than its place; write the table again",
                        self.column.name
                    );
                    return Err(fault(table, TableCause::Unreadable, &what).into());
                }
                (None, Some(missing)) => found.extend(std::iter::repeat_n(missing.clone(), count)),
                (None, None) => return Err(no_key(key, table)),
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn each_key(
        &self,
        input: Input<'_>,
        mut visit: impl FnMut(Key<'_>) -> Result<(), OperatorFault>,
    ) -> Result<(), Failed> {
        let at = |key: usize| move |fault| (key / self.row_keys.max(1), fault);
        if let Input::Strings(strings) = input {
            let mut keys = strings.iter().enumerate();
            return keys.try_for_each(|(number, key)| visit(Key::Bytes(key)).map_err(at(number)));
        }
        with_type!(self.from, T => {
            let mut keys = input.numbers::<T>().iter().enumerate();
            keys.try_for_each(|(number, key)| visit(Key::Int64(key.to_i64())).map_err(at(number)))
        })
    }

    fn find(
        &self,
        table: &Table,
        key: Key<'_>,
        range: &Range<usize>,
        out: &mut [u8],
    ) -> Result<(), OperatorFault> {
        let found = table.find(key, |row| out.copy_from_slice(&row[range.clone()]));
        if found.map_err(TableFault::from)?.is_some() {
            // Numbers in a table are little-endian.
            if cfg!(target_endian = "big") {
                out.chunks_exact_mut(self.dtype.bytes()).for_each(<[u8]>::reverse);
            }
            if self.dtype == Dtype::Bool {
                out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
            return Ok(());
        }
        let Some(missing) = &self.missing else {
            return Err(no_key(key, table));
        };
        out.chunks_exact_mut(missing.len()).for_each(|number| number.copy_from_slice(missing));
        Ok(())
    }
}

/// Splits a cell of a table into its strings: each has a length of 4 bytes, little-endian, its
/// bytes, and zeros up to the bytes of the longest string of the column.
/// - Returns `None` if a string is longer than its place.
fn strings_of(cell: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let string = |place: &[u8]| {
        let (length, bytes) = place.split_first_chunk::<4>()?;
        Some(bytes.get(..u32::from_le_bytes(*length) as usize)?.to_vec())
    };
    cell.chunks_exact((cell.len() / count.max(1)).max(1)).map(string).collect()
}

fn fault(table: &Table, cause: TableCause, what: &str) -> TableFault {
    let what = format!("{}: {what}", table.name());
    TableFault { file: table.name().to_owned(), offset: None, cause, what }
}

fn no_key(key: Key<'_>, table: &Table) -> OperatorFault {
    OperatorFault::Record(format!(
        "{} has no key {}; write the table with it, or give missing a value",
        table.name(),
        shown(key)
    ))
}

/// Formats a key for an error; long ones are truncated.
fn shown(key: Key<'_>) -> String {
    match key {
        Key::Int64(number) => number.to_string(),
        Key::Bytes(bytes) => {
            let text = bytes[..bytes.len().min(4 * KEY_CHARS_MAX)].escape_ascii().to_string();
            let end = if text.len() > KEY_CHARS_MAX { " ..." } else { "" };
            format!("\"{text:.KEY_CHARS_MAX$}\"{end}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_strings_up_to_its_bytes() {
        let cell = [2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0, 0, 0];
        assert_eq!(strings_of(&cell, 2), Some(vec![b"ab".to_vec(), vec![]]));
        assert_eq!(strings_of(&cell, 1), Some(vec![b"ab".to_vec()]));
        assert_eq!(strings_of(&[0; 4], 1), Some(vec![vec![]]));
        assert_eq!(strings_of(&[0; 8], 2), Some(vec![vec![], vec![]]));
        // Lengths beyond the place, and places without a length.
        assert_eq!(strings_of(&[3, 0, 0, 0, b'a', b'b'], 1), None);
        assert_eq!(strings_of(&[0xff, 0xff, 0xff, 0xff, b'a', b'b'], 1), None);
        assert_eq!(strings_of(&[0, 0, 0], 1), None);
    }
}
