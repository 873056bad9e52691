//! Extension module of the Python package `shardfeed`: loaders, batches and record files for
//! `python/shardfeed`, which users see. Never holds the interpreter's lock while it waits.
#![deny(unsafe_code)]
// Python hands its arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod errors;

mod buffer;
mod dlpack;

mod changes;
mod device;

mod batch;
mod loader;

mod records;

mod table;

use pyo3::prelude::*;
use shardfeed_pipeline::JpegDecoder;

/// Ids of the decoders of JPEGs that this build has, for `decode_image(decoder=...)`.
#[pyfunction]
fn decoders() -> Vec<&'static str> {
    JpegDecoder::built().map(JpegDecoder::name).collect()
}

/// The native half of `shardfeed`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A process that logs by itself keeps what it has set up; a wrong variable must not end an import.
    let _ = shardfeed_telemetry::init("warn");
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<loader::NativeLoader>()?;
    module.add_class::<batch::NativeBatch>()?;
    module.add_class::<buffer::NativeBuffer>()?;
    module.add_class::<device::DeviceArray>()?;
    module.add_class::<records::NativeWriter>()?;
    module.add_class::<records::NativeRecords>()?;
    module.add_function(wrap_pyfunction!(decoders, module)?)?;
    module.add_function(wrap_pyfunction!(loader::default_budget_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(table::write_table, module)?)?;
    module.add_function(wrap_pyfunction!(table::describe_table, module)?)?;
    module.add_function(wrap_pyfunction!(records::encode_sequence_example, module)?)?;
    module.add_function(wrap_pyfunction!(records::encode_example, module)?)
}
