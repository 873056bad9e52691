//! Looks up columns by key in a table beside the records.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use shardfeed_table::{Column, Digest, Key, KeyKind, Table, TableError};

use super::Form;
use super::run::{Failed, Input, OperatorFault};
use crate::dtype::{Dtype, Number, with_type};

/// Maximum characters of a key that an error shows.
const KEY_CHARS_MAX: usize = 60;

/// Reference to a table: its content and its local path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRef {
    /// Digest of the content; part of a job's identity.
    pub digest: Digest,
    /// Path; not part of the identity, because it may differ between hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Error that makes a table unusable; no record causes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TableFault {
    /// Path of the table; empty if none was given.
    pub file: String,
    /// Position of the error in the file, in bytes.
    pub offset: Option<u64>,
    /// Kind of error.
    pub cause: TableCause,
    /// Description of the error, and what to do.
    pub what: String,
}

/// Kind of error of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableCause {
    /// The file does not exist.
    NotFound,
    /// The table is not the one that was declared.
    Another,
    /// The file is damaged, or cannot be read.
    Unreadable,
}

impl From<TableError> for TableFault {
    fn from(error: TableError) -> Self {
        let cause = if error.is_missing() { TableCause::NotFound } else { TableCause::Unreadable };
        let what = match cause {
            TableCause::NotFound => {
                format!("{error}; workers open tables under the same path as trainers do")
            }
            _ => error.to_string(),
        };
        Self { file: error.file().to_owned(), offset: error.offset(), cause, what }
    }
}

/// A table of a job, opened once for all operators that use it.
#[derive(Debug)]
pub(crate) struct Side {
    wanted: TableRef,
    opened: OnceLock<Table>,
}

impl Side {
    pub(crate) fn new(wanted: TableRef) -> Self {
        Self { wanted, opened: OnceLock::new() }
    }

    pub(crate) fn is(&self, other: &TableRef) -> bool {
        self.wanted == *other
    }

    fn open(&self) -> Result<&Table, TableFault> {
        if let Some(table) = self.opened.get() {
            return Ok(table);
        }
        let TableRef { digest, path } = &self.wanted;
        let another = |file: &str, what| TableFault {
            file: file.to_owned(),
            offset: None,
            cause: TableCause::Another,
            what,
        };
        let Some(path) = path else {
            let what = format!(
                "the job looks things up in the table {digest:.12}, and its path is unknown; name \
                 it with --table"
            );
            return Err(another("", what));
        };
        let table = Table::open(path)?;
        if table.digest() != *digest {
            let what = format!(
                "{path}: is the table {:.12}, but the job was declared with {digest:.12}; give all hosts \
                 the same table, under a new name if its content is new",
                table.digest()
            );
            return Err(another(path, what));
        }
        Ok(self.opened.get_or_init(|| table))
    }
}

/// A lookup, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    side: Arc<Side>,
    column: Column,
    kind: KeyKind,
    dtype: Dtype,
    /// Value for missing keys, as the bytes of one number.
    missing: Option<Vec<u8>>,
}

impl Lookup {
    /// Creates a lookup.
    /// - `input`: form of the keys. `form`: form of one row of the table's column.
    pub(crate) fn new(
        side: Arc<Side>,
        column: &str,
        input: &Form,
        form: &Form,
        missing: Option<f64>,
    ) -> Self {
        let kind = if input.dtype == Dtype::Bytes { KeyKind::Bytes } else { KeyKind::Int64 };
        let column = Column {
            name: column.to_owned(),
            dtype: form.dtype.name().to_owned(),
            shape: form.shape.clone(),
            bytes: form.row_bytes(),
        };
        let number =
            |value| with_type!(form.dtype, T => bytemuck::bytes_of(&T::from_f64(value)).to_vec());
        Self { side, column, kind, dtype: form.dtype, missing: missing.map(number) }
    }

    /// Opens the table and returns the byte range of the column in its rows.
    ///
    /// # Errors  The table does not exist, or is not the one that was declared.
    pub(crate) fn open(&self) -> Result<(&Table, Range<usize>), TableFault> {
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
    /// - `from`: type of numeric keys. `row_keys`: keys per row.
    pub(crate) fn run(
        &self,
        input: Input<'_>,
        from: Dtype,
        row_keys: usize,
        out: &mut [u8],
    ) -> Result<(), Failed> {
        let (table, range) = self.open().map_err(|fault| (0, fault.into()))?;
        let cells = out.chunks_exact_mut(self.column.bytes).enumerate();
        let at = |key: usize| move |fault| (key / row_keys.max(1), fault);
        let find = |key: Key<'_>, out: &mut [u8]| self.find(table, key, &range, out);
        if let Input::Strings(strings) = input {
            let mut cells = cells.zip(strings);
            return cells.try_for_each(|((number, out), key)| {
                find(Key::Bytes(key), out).map_err(at(number))
            });
        }
        with_type!(from, T => {
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

/// Form of a lookup's result: the shape of the keys, followed by that of a table row.
pub(super) fn form(
    input: &Form,
    dtype: Dtype,
    shape: &[usize],
    missing: Option<f64>,
) -> Result<Form, String> {
    if dtype == Dtype::Bytes || shape.contains(&0) {
        return Err(format!("no table has columns of {dtype} {shape:?}"));
    }
    let is_key = input.dtype == Dtype::Bytes || input.dtype.is_integer();
    if !is_key {
        return Err(format!("keys are int64 or byte strings, not {}; cast them", input.dtype));
    }
    if let Some(value) = missing {
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
