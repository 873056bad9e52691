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
mod epoch;
mod loader;

mod records;

mod table;

use pyo3::prelude::*;
use shardfeed_pipeline::{JPEG_LIBRARY, PIXEL_CONTRACT};

/// What this build decodes images with: the version of the pixel contract, which jobs pin, and the library that
/// decodes JPEGs.
#[pyfunction]
fn decoders() -> [&'static str; 2] {
    [PIXEL_CONTRACT, JPEG_LIBRARY]
}

/// The native half of `shardfeed`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A process that logs by itself keeps what it has set up; a wrong variable must not end an import.
    // What is waited for is said by exceptions and by Python's logging.
    let _ = shardfeed_telemetry::init("warn,shardfeed_waiting=off");
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("EPOCHS", shardfeed_plan::EPOCHS)?;
    module.add_class::<loader::NativeLoader>()?;
    module.add_class::<epoch::NativeEpoch>()?;
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
