//! Extension module of the Python package `shardfeed`: loaders, batches and record files for the
//! public API in `python/shardfeed`. Releases the GIL during every wait.
#![deny(unsafe_code)]
// Python passes its arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod errors;

mod buffer;
mod dlpack;

mod changes;
mod device;

mod batch;
mod epoch;
mod loader;
mod mixture;
mod spec;

mod records;

mod table;

use pyo3::prelude::*;
use shardfeed_pipeline::{JPEG_LIBRARY, PIXEL_CONTRACT};

/// Returns the versions for decoding images: the version of the pixel contract, which jobs pin, and
/// the library that decodes JPEGs.
#[pyfunction]
fn decoders() -> [&'static str; 2] {
    [PIXEL_CONTRACT, JPEG_LIBRARY]
}

/// Native half of `shardfeed`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A process with its own logger keeps it, and an invalid variable must not fail the import.
    // Waits are reported by exceptions and Python's logging.
    let _ = shardfeed_telemetry::init("warn,shardfeed_waiting=off");
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("EPOCHS", shardfeed_plan::EPOCHS)?;
    module.add_class::<loader::NativeLoader>()?;
    module.add_class::<epoch::NativeEpoch>()?;
    module.add_class::<spec::NativeOutline>()?;
    module.add_class::<batch::NativeBatch>()?;
    module.add_class::<buffer::NativeBuffer>()?;
    module.add_class::<device::DeviceArray>()?;
    module.add_class::<records::NativeWriter>()?;
    module.add_class::<records::NativeRecords>()?;
    module.add_function(wrap_pyfunction!(decoders, module)?)?;
    module.add_function(wrap_pyfunction!(loader::default_budget_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(mixture::check_mixture, module)?)?;
    module.add_function(wrap_pyfunction!(spec::encoded_record_spec, module)?)?;
    module.add_function(wrap_pyfunction!(table::write_table, module)?)?;
    module.add_function(wrap_pyfunction!(table::describe_table, module)?)?;
    module.add_function(wrap_pyfunction!(records::encode_sequence_example, module)?)?;
    module.add_function(wrap_pyfunction!(records::encode_example, module)?)
}
