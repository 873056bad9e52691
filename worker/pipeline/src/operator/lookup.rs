//! The operator `lookup`.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_table::{Column, Key, KeyKind, Table};

use super::definition::{ColumnOperator, Definition, Given, Inputs, OperatorWork};
use super::fault::{Failed, OperatorFault};
use super::form::{Form, Input};
use super::table::{Side, TableCause, TableFault, TableRef};
use crate::column::items;
use crate::dtype::{ColumnNumber, Dtype, with_type};

/// Maximum characters of a key that an error shows.
const KEY_CHARS_MAX: usize = 60;

/// Looks up keys in a table, as `tf.lookup.StaticHashTable`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    /// Column of integers or strings.
    pub input: String,
    /// The table.
    pub table: TableRef,
    /// Column of the table.
    pub column: String,
    /// Type of the table column.
    pub dtype: Dtype,
    /// Shape of one row of the table column.
    pub shape: Vec<usize>,
    /// Value for missing keys; `None`: they are errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<f64>,
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
        if dtype == Dtype::Bytes || shape.contains(&0) {
            return Err(format!("no table has columns of {dtype} {shape:?}"));
        }
        let is_key = input.dtype == Dtype::Bytes || input.dtype.is_integer();
        if !is_key {
            return Err(format!("keys are int64 or byte strings, not {}; cast them", input.dtype));
        }
        if let Some(value) = self.missing {
            let same = with_type!(dtype, T => T::IS_FLOAT || T::from_f64(value).to_f64() == value);
            if !same {
                return Err(format!(
                    "missing is {value}, which no {dtype} is; use a number that is one"
                ));
            }
        }
        // A single table row must also be within the limits.
        Form::numbers(dtype, shape.to_vec())?;
        Form::numbers(dtype, [&input.shape[..], shape].concat())
    }
}

/// A lookup in its table.
#[derive(Debug)]
struct Finder {
    side: Arc<Side>,
    column: Column,
    kind: KeyKind,
    /// Type and number of the keys in a row.
    from: Dtype,
    row_keys: usize,
    dtype: Dtype,
    /// Value for missing keys, as the bytes of one number.
    missing: Option<Vec<u8>>,
}

impl Finder {
    /// - `input`: form of the keys.
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
        let number =
            |value| with_type!(dtype, T => bytemuck::bytes_of(&T::from_f64(value)).to_vec());
        let (from, row_keys, missing) = (input.dtype, input.items(), missing.map(number));
        Self { side, column, kind, from, row_keys, dtype, missing }
    }

    /// Opens the table and returns the byte range of the column in its rows.
    ///
    /// # Errors  The table does not exist, or is not the one that was declared.
    fn open(&self) -> Result<(&Table, Range<usize>), TableFault> {
        let table = self.side.open()?;
        let another = |what: String| TableFault {
            file: table.name().to_owned(),
            offset: None,
            cause: TableCause::Another,
            what: format!("{}: {what}", table.name()),
        };
        if table.key() != self.kind {
            return Err(another(format!(
                "its keys are {}, but they are looked up with {}",
                table.key(),
                self.kind
            )));
        }
        let mut from = 0;
        for column in table.columns() {
            if *column == self.column {
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
        let cells = out.chunks_exact_mut(self.column.bytes).enumerate();
        let at = |key: usize| move |fault| (key / self.row_keys.max(1), fault);
        let find = |key: Key<'_>, out: &mut [u8]| self.find(table, key, &range, out);
        if let Input::Strings(strings) = input {
            let mut cells = cells.zip(strings);
            return cells.try_for_each(|((number, out), key)| {
                find(Key::Bytes(key), out).map_err(at(number))
            });
        }
        with_type!(self.from, T => {
            let mut cells = cells.zip(input.numbers::<T>());
            cells.try_for_each(|((number, out), key)| {
                find(Key::Int64(key.to_i64()), out).map_err(at(number))
            })
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
            return Err(OperatorFault::NoKey { key: shown(key), table: table.name().to_owned() });
        };
        out.chunks_exact_mut(missing.len()).for_each(|number| number.copy_from_slice(missing));
        Ok(())
    }
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
