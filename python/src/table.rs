//! Native half of Python's `write_table` and `operators.lookup`.

use std::io;
use std::path::PathBuf;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use shardfeed_embedded::LoadError;
use shardfeed_pipeline::TableFault;
use shardfeed_table::{Column, KeyKind, Keys, Layout, Table, WriteError};

use crate::errors::{config_error, load_error};

/// A column: name, type, shape and bytes of a row.
type TableColumnTuple = (String, String, Vec<usize>, usize);

/// Keys copied from Python.
enum OwnedKeys {
    Int64(Vec<i64>),
    Bytes(Vec<PyBackedBytes>),
}

/// Writes a table.
/// - `keys`: contiguous int64, or a list of bytes.
/// - `gather`: returns the bytes of the rows with the given numbers, int64; the columns of a row
///   are adjacent.
/// - Returns its digest.
#[pyfunction]
pub(crate) fn write_table(
    py: Python<'_>,
    path: PathBuf,
    keys: &Bound<'_, PyAny>,
    is_int64: bool,
    columns: Vec<TableColumnTuple>,
    gather: Py<PyAny>,
) -> PyResult<String> {
    let keys = match is_int64 {
        true => OwnedKeys::Int64(PyBuffer::get(keys)?.to_vec(py)?),
        false => OwnedKeys::Bytes(keys.extract()?),
    };
    let columns = columns.into_iter();
    let columns = columns.map(|(name, dtype, shape, bytes)| Column { name, dtype, shape, bytes });
    let columns = columns.collect();
    let written = py.detach(|| {
        let layout = match &keys {
            OwnedKeys::Int64(keys) => Layout::new(Keys::Int64(keys), columns),
            OwnedKeys::Bytes(keys) => {
                let slices: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                Layout::new(Keys::Bytes(&slices), columns)
            }
        }?;
        layout.write(&path, |rows, out| fill(&gather, rows, out).map_err(io::Error::other))
    });
    written.map(|digest| digest.to_string()).map_err(|error| match error {
        WriteError::Io(error) => match error.downcast::<PyErr>() {
            Ok(error) => error,
            Err(error) => {
                let what = format!("{}: cannot write the table: {error}", path.display());
                PyOSError::new_err(what)
            }
        },
        error => config_error(py)(format!("{}: {error}", path.display())),
    })
}

/// Requests these rows from Python.
fn fill(gather: &Py<PyAny>, rows: &[usize], out: &mut [u8]) -> PyResult<()> {
    let numbers: Vec<u8> = rows.iter().flat_map(|&row| (row as i64).to_ne_bytes()).collect();
    Python::attach(|py| {
        py.check_signals()?;
        let gathered = gather.call1(py, (PyBytes::new(py, &numbers),))?;
        let bytes = gathered.extract::<PyBackedBytes>(py)?;
        if bytes.len() != out.len() {
            let what = format!("{} bytes of rows were given, {} asked for", bytes.len(), out.len());
            return Err(PyValueError::new_err(what));
        }
        out.copy_from_slice(&bytes);
        Ok(())
    })
}

/// Description of a table: digest, kind of keys, number of keys, columns.
#[derive(IntoPyObject)]
pub(crate) struct Described(String, &'static str, u64, Vec<(String, String, Vec<usize>)>);

#[pyfunction]
pub(crate) fn describe_table(py: Python<'_>, path: PathBuf) -> PyResult<Described> {
    let table = py
        .detach(|| Table::open(path))
        .map_err(|error| load_error(py, &LoadError::from(TableFault::from(error))))?;
    let key = match table.key() {
        KeyKind::Int64 => "int64",
        KeyKind::Bytes => "bytes",
    };
    let columns = table.columns().iter();
    let columns = columns.map(|one| (one.name.clone(), one.dtype.clone(), one.shape.clone()));
    Ok(Described(table.digest().to_string(), key, table.keys(), columns.collect()))
}
