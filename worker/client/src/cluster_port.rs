//! The port to a cluster for a trainer's process that becomes a worker itself.

use std::fmt::Debug;
use std::sync::Arc;

use shardfeed_reader::Control;
use shardfeed_source::{LoadError, OnProgress, OpenSource};

use crate::options::{ClusterOptions, LoaderOptions};
use crate::request::DatasetRequest;

/// Access to a cluster's coordinators. This crate reaches workers only, by their socket;
/// `shardfeed-cluster` implements the port over gRPC.
///
/// The callback `progress` is called during waits, and cancels them by returning `false`. The id
/// `trainer` is that of a loader in a process.
pub trait ClusterPort: Debug + Send + Sync {
    /// Waits until the coordinators' addresses are known, which a file may contain.
    ///
    /// # Errors  The options are invalid; the file is missing for the coordinator timeout.
    fn await_addresses(
        &self,
        cluster: &ClusterOptions,
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError>;

    /// Returns the coordinators' addresses to send to a worker; empty: unknown at the moment.
    fn addresses(&self, coordinator: &str) -> String;

    /// Becomes a worker, registers the requested datasets and scans for them.
    ///
    /// # Errors  A dataset cannot be opened; no coordinator answers.
    fn open(
        &self,
        options: &LoaderOptions,
        requests: &[DatasetRequest],
        trainer: &str,
        progress: OnProgress<'_>,
    ) -> Result<Joined, LoadError>;

    /// Becomes a worker for a dataset that is open already; waits for no coordinator.
    ///
    /// # Errors  The options are invalid.
    fn join(
        &self,
        options: &LoaderOptions,
        trainer: &str,
    ) -> Result<Box<dyn InProcessWorker>, LoadError>;
}

/// A worker in the trainer's process. Dropping it ends its session, and waits for that for a
/// bounded time, because the process may exit right after.
pub trait InProcessWorker: Send {
    /// Control of the ranks that it serves.
    fn control(&self) -> Arc<dyn Control>;

    /// Id of the cluster, once a coordinator has answered.
    fn cluster_id(&self) -> Option<String>;
}

/// A worker in the trainer's process, and the datasets that it opened, in the order of the requests.
pub struct Joined {
    pub worker: Box<dyn InProcessWorker>,
    pub datasets: Vec<OpenSource>,
}
