//! Native half of Python's `TFRecordWriter` and `read_records`.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;
use shardfeed_tfrecord::example::{self, Value};
use shardfeed_tfrecord::{
    Chunk, ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, FileRecordWriter,
    RecordSpan, create, open_source,
};

use crate::errors::{config_error, load_error};

/// A file that is written under a temporary name until it is finished.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeWriter {
    path: PathBuf,
    writer: Mutex<Option<FileRecordWriter>>,
}

impl NativeWriter {
    fn failed(&self, action: &str, error: &std::io::Error) -> PyErr {
        PyOSError::new_err(format!("{}: cannot {action}: {error}", self.path.display()))
    }
}

#[pymethods]
impl NativeWriter {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, compression: &str) -> PyResult<Self> {
        let compression = compression.parse::<Compression>().map_err(config_error(py))?;
        let writer = py.detach(|| create(&path, compression)).map_err(|error| {
            PyOSError::new_err(format!("{}: cannot create: {error}", path.display()))
        })?;
        Ok(Self { path, writer: Mutex::new(Some(writer)) })
    }

    fn write(&self, py: Python<'_>, record: &[u8]) -> PyResult<()> {
        let result = py.detach(|| {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.as_mut().map(|writer| writer.write(record))
        });
        match result {
            None => Err(PyValueError::new_err(format!("{}: is closed", self.path.display()))),
            Some(result) => result.map_err(|error| self.failed("write", &error)),
        }
    }

    /// Completes the file and gives it its name; does nothing on a second call.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let result = py.detach(|| {
            let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
            writer.map(FileRecordWriter::finish)
        });
        result.unwrap_or(Ok(())).map_err(|error| self.failed("finish", &error))
    }

    /// Discards the file; nothing is left under either name.
    fn abort(&self, py: Python<'_>) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(writer));
    }
}

/// One value of an Example: its name, `int64`, `float32` or `bytes`, and its data.
type ValueTuple<'py> = (String, String, Bound<'py, PyAny>);

/// A value's data, copied from Python.
enum Data {
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Bytes(Vec<Vec<u8>>),
    Nothing,
}

/// Serializes a `tf.train.Example`.
#[pyfunction]
pub(crate) fn encode_example<'py>(
    py: Python<'py>,
    values: Vec<ValueTuple<'py>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let owned = values.into_iter().map(|value| OwnedValue::new(py, value));
    let owned = owned.collect::<PyResult<Vec<_>>>()?;
    let slices: Vec<_> = owned.iter().map(OwnedValue::slices).collect();
    let features: Vec<_> =
        owned.iter().zip(&slices).filter_map(|(owned, s)| owned.feature(s)).collect();
    let mut record = Vec::new();
    example::encode_example(&features, &mut record);
    Ok(PyBytes::new(py, &record))
}

/// Serializes a `tf.train.SequenceExample`.
/// - `lists`: name of each feature list, and the values of its steps.
#[pyfunction]
pub(crate) fn encode_sequence_example<'py>(
    py: Python<'py>,
    context: Vec<ValueTuple<'py>>,
    lists: Vec<(String, Vec<ValueTuple<'py>>)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let own = |values: Vec<ValueTuple<'py>>| {
        values.into_iter().map(|value| OwnedValue::new(py, value)).collect::<PyResult<Vec<_>>>()
    };
    let context = own(context)?;
    let context_slices: Vec<_> = context.iter().map(OwnedValue::slices).collect();
    let context: Vec<_> =
        context.iter().zip(&context_slices).filter_map(|(owned, s)| owned.feature(s)).collect();
    let lists = lists.into_iter().map(|(name, steps)| Ok((name, own(steps)?)));
    let lists = lists.collect::<PyResult<Vec<_>>>()?;
    let slices: Vec<Vec<_>> =
        lists.iter().map(|(_, steps)| steps.iter().map(OwnedValue::slices).collect()).collect();
    let values: Vec<Vec<Option<Value<'_>>>> = lists
        .iter()
        .zip(&slices)
        .map(|((_, steps), slices)| steps.iter().zip(slices).map(|(o, s)| o.value(s)).collect())
        .collect();
    let lists: Vec<(&str, &[Option<Value<'_>>])> =
        lists.iter().zip(&values).map(|((name, _), values)| (name.as_str(), &values[..])).collect();
    let mut record = Vec::new();
    example::encode_sequence_example(&context, &lists, &mut record);
    Ok(PyBytes::new(py, &record))
}

/// A value copied from Python.
struct OwnedValue {
    name: String,
    data: Data,
}

impl OwnedValue {
    fn new<'py>(py: Python<'py>, (name, kind, data): ValueTuple<'py>) -> PyResult<Self> {
        let data = match kind.as_str() {
            "int64" => Data::Int64(PyBuffer::get(&data)?.to_vec(py)?),
            "float32" => Data::Float32(PyBuffer::get(&data)?.to_vec(py)?),
            "bytes" => Data::Bytes(data.extract()?),
            _ => Data::Nothing,
        };
        Ok(Self { name, data })
    }

    fn slices(&self) -> Vec<&[u8]> {
        match &self.data {
            Data::Bytes(values) => values.iter().map(Vec::as_slice).collect(),
            Data::Int64(_) | Data::Float32(_) | Data::Nothing => vec![],
        }
    }

    /// - `slices`: result of `slices()`.
    fn value<'a>(&'a self, slices: &'a [&'a [u8]]) -> Option<Value<'a>> {
        match &self.data {
            Data::Int64(values) => Some(Value::Int64(values)),
            Data::Float32(values) => Some(Value::Float32(values)),
            Data::Bytes(_) => Some(Value::Bytes(slices)),
            Data::Nothing => None,
        }
    }

    fn feature<'a>(&'a self, slices: &'a [&'a [u8]]) -> Option<(&'a str, Value<'a>)> {
        Some((&self.name, self.value(slices)?))
    }
}

/// The records of a file, in order.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeRecords {
    state: Mutex<Records>,
}

struct Records {
    reader: ChunkReader<Decoder<File>>,
    chunk: Option<Chunk>,
    spans: VecDeque<RecordSpan>,
}

#[pymethods]
impl NativeRecords {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, compression: &str) -> PyResult<Self> {
        let choice = compression.parse::<CompressionChoice>().map_err(config_error(py))?;
        let source = py
            .detach(|| open_source(&path, choice))
            .map_err(|error| load_error(py, &error.into()))?;
        let reader = ChunkReader::new(source, path.to_string_lossy(), ChunkOptions::default());
        let state = Records { reader, chunk: None, spans: VecDeque::new() };
        Ok(Self { state: Mutex::new(state) })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if state.spans.is_empty() {
            let state = &mut *state;
            py.detach(|| state.fill()).map_err(|error| load_error(py, &error.into()))?;
        }
        let Some(span) = state.spans.pop_front() else {
            return Ok(None);
        };
        let chunk = state.chunk.as_ref().expect("spans are of a chunk");
        Ok(Some(PyBytes::new(py, span.of(&chunk.bytes))))
    }
}

impl Records {
    fn fill(&mut self) -> Result<(), shardfeed_tfrecord::ReadError> {
        if let Some(used) = self.chunk.take() {
            self.reader.recycle(used.bytes);
        }
        self.chunk = self.reader.next_chunk().inspect_err(|_| {
            // The next call returns the record after the damaged one, if it can be found.
            self.reader.resume_after_error();
        })?;
        if let Some(chunk) = &mut self.chunk {
            self.spans = std::mem::take(&mut chunk.records).into();
        }
        Ok(())
    }
}
