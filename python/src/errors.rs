//! Maps shardfeed's errors to the Python exceptions of `shardfeed/errors.py`.

use std::fmt::Display;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use shardfeed_embedded::LoadError;
use shardfeed_proto::{ErrorKind, WireError};

/// Returns the exception for a loader's error.
pub(crate) fn load_error(py: Python<'_>, error: &LoadError) -> PyErr {
    match error {
        LoadError::Interrupted => PyKeyboardInterrupt::new_err(error.to_string()),
        LoadError::Device(message) => named(py, "DeviceError", message),
        // As if another process had raised it.
        _ => wire_error(py, &error.to_wire()),
    }
}

/// Returns the exception for an error of another process.
fn wire_error(py: Python<'_>, error: &WireError) -> PyErr {
    let class = match error.kind {
        ErrorKind::Corrupt => "CorruptRecordError",
        ErrorKind::Changed => "ShardChangedError",
        ErrorKind::Data => "DataError",
        ErrorKind::Feature => "FeatureError",
        ErrorKind::NotFound => "DatasetNotFoundError",
        ErrorKind::State => "StateError",
        ErrorKind::Invalid | ErrorKind::Memory => "ConfigError",
        ErrorKind::Identity => "JobIdentityError",
        ErrorKind::Conflict => "ConflictError",
        ErrorKind::Superseded => "SupersededError",
        ErrorKind::Cancelled => "JobCancelledError",
        ErrorKind::Denied => "DeniedError",
        ErrorKind::Fenced | ErrorKind::Replaced => "FencedError",
        ErrorKind::Retry
        | ErrorKind::NotLeader
        | ErrorKind::Unreachable
        | ErrorKind::Storage
        | ErrorKind::Cordoned
        | ErrorKind::WrongCluster
        | ErrorKind::WrongVersion => "ClusterError",
        ErrorKind::Unspecified => "ShardfeedError",
    };
    raise(py, class, &error.message, Some(error))
}

/// Returns a function that makes a `ConfigError` of an error.
pub(crate) fn config_error<E: Display>(py: Python<'_>) -> impl Fn(E) -> PyErr + '_ {
    move |error| named(py, "ConfigError", &error.to_string())
}

/// Returns an exception of `shardfeed.errors` by name.
pub(crate) fn named(py: Python<'_>, class: &str, message: &str) -> PyErr {
    raise(py, class, message, None)
}

/// - `located`: an error whose place in a dataset is that of the exception.
fn raise(py: Python<'_>, class: &str, message: &str, located: Option<&WireError>) -> PyErr {
    let make = || {
        let class = py.import("shardfeed.errors")?.getattr(class)?;
        let exception = class.call1((message,))?;
        if let Some(WireError { file: Some(file), offset, ordinal, .. }) = located {
            exception.setattr("file", file)?;
            exception.setattr("offset", offset)?;
            exception.setattr("ordinal", ordinal)?;
        }
        Ok(PyErr::from_value(exception))
    };
    make().unwrap_or_else(|error| error)
}
