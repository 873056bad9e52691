//! Values that a loader and its link exchange.

use std::sync::mpsc::{Receiver, sync_channel};

use shardfeed_reader::Delivery;
use shardfeed_source::LoadError;

use crate::options::{ClusterOptions, LoaderOptions};
use crate::request::DatasetRequest;

/// Result of polling the link.
#[derive(Debug)]
pub(crate) enum Event {
    /// The rank joined this generation.
    Started { generation: u64 },
    /// The next batch, not consumed yet. Only a dynamic job's reader ends an epoch.
    Delivery(Delivery),
}

impl Event {
    pub(crate) const PENDING: Self = Self::Delivery(Delivery::Pending);
}

/// Validity of the offered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InHand {
    /// It may be consumed.
    Good,
    /// Its lease is not confirmed, or its job is paused: it has to wait.
    Unconfirmed,
    /// It is invalid: samples that were read under its lease are delivered again.
    Gone,
}

/// Settings common to all links of one loader.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) options: LoaderOptions,
    /// Unique id of a loader in a process.
    pub(crate) trainer: String,
    pub(crate) with_samples: bool,
    /// Datasets that it opens: one, or the sources of its mixture.
    pub(crate) requests: Vec<DatasetRequest>,
}

impl Setting {
    pub(crate) fn cluster(&self) -> &ClusterOptions {
        self.options.cluster.as_ref().expect("only a link in a cluster asks")
    }

    /// True if records of a dataset are made samples by a program.
    pub(crate) fn has_program(&self) -> bool {
        self.requests.iter().any(|request| request.program.is_some())
    }
}

/// Runs an attempt on a thread; a thread that cannot be created is a failed attempt.
pub(crate) fn in_background<T: Send + 'static, E: From<LoadError> + Send + 'static>(
    name: &str,
    run: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Receiver<Result<T, E>> {
    let (sender, receiver) = sync_channel(1);
    let own = sender.clone();
    let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
        // The receiver is gone if the loader was closed in the meantime.
        let _ = own.send(run());
    });
    if let Err(source) = spawned {
        let _ = sender.send(Err(LoadError::Io { file: "threads".into(), source }.into()));
    }
    receiver
}
