//! Source of a rank's batches: this process or a cluster.

mod alone;
mod cluster;
pub(crate) mod connect;
pub(crate) mod exchange;
mod in_process_link;
mod lease_validity;
pub(crate) mod outcome;
mod received;
pub(crate) mod worker;

use std::sync::Arc;
use std::time::Duration;

use shardfeed_pipeline::Batch;
use shardfeed_plan::{LoaderState, Start};
use shardfeed_reader::{Demand, JobSpec, PrefetchStats, StartPosition};
use shardfeed_source::{LoadError, OnProgress, OpenProgress, ScanProgress};

use crate::contents::Contents;
use crate::request;
use cluster::Cluster;
use exchange::{Event, InHand, Setting};
use in_process_link::InProcessLink;

/// Source of a rank's batches. The defaults are those of a link that is closed.
pub(crate) trait Link: Send {
    fn is_closed(&self) -> bool {
        false
    }

    fn register(&mut self, _job: &JobSpec, _progress: OnProgress<'_>) -> Result<(), LoadError> {
        Err(LoadError::Closed)
    }

    /// Returns the next event. `position` is called for the position where reading has to start.
    fn poll(
        &mut self,
        _position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
        _timeout: Duration,
    ) -> Result<Event, LoadError> {
        Err(LoadError::Closed)
    }

    /// Shows the ready batches of the next `count`; never waits.
    fn peek(&mut self, _count: usize, _see: &mut dyn FnMut(&mut Batch)) {}

    /// Checks whether the batch returned by the last [`Link::poll`] may be consumed.
    ///
    /// Messages that have arrived from the reader are processed first, without waiting.
    ///
    /// # Errors  The rank was started again elsewhere.
    fn confirm(&mut self) -> Result<InHand, LoadError> {
        Ok(InHand::Gone)
    }

    /// Reports that a batch was consumed, and the rank's new position (epoch, step).
    /// - `demand`: `None`: an epoch ended for the rank without a batch.
    fn took(&mut self, _epoch: u64, _step: u64, _demand: Option<Demand>) {}

    /// Reports how long the trainer at (epoch, step) has waited for its next batch.
    fn waits(&mut self, _epoch: u64, _step: u64, _waiting: Duration) {}

    /// Discards prefetched batches: the rank moves elsewhere, or has failed.
    fn stop(&mut self) {
        self.end(None);
    }

    /// Stops for good; `failure`: the error that ends the trainer.
    fn end(&mut self, _failure: Option<&str>) {}

    /// Changes the rank and its part of each batch from the next start on.
    fn set_part(&mut self, _start: &Start) {}

    /// An epoch ended: the link may return to a worker that is available again.
    fn epoch_ended(&mut self) {}

    /// Returns the state at the latest position that all ranks of the job reached.
    fn latest(
        &mut self,
        _job: &JobSpec,
        _progress: OnProgress<'_>,
    ) -> Result<Option<LoaderState>, LoadError> {
        Err(LoadError::Closed)
    }

    fn report(&self) -> LinkReport;
}

/// Report of a link, the last one when it is closed.
#[derive(Clone)]
pub(crate) struct LinkReport {
    /// Id of the cluster, once it is known.
    pub(crate) cluster_id: Option<String>,
    /// Statistics of the prefetcher, once reading has started.
    pub(crate) stats: Option<PrefetchStats>,
    /// Batches that were copied because the trainer holds many.
    pub(crate) copied: u64,
    /// Source of the batches, in one or two words.
    pub(crate) source: String,
}

/// Opens the dataset in the cluster of the options, or in this process.
pub(crate) fn open(
    mut setting: Setting,
    progress: OnProgress<'_>,
) -> Result<(Box<dyn Link>, Contents), LoadError> {
    if setting.options.cluster.is_some() {
        setting.options.cache.index = request::common_index(&setting.requests)?;
        let (cluster, contents) = Cluster::open(setting, progress)?;
        return Ok((Box::new(cluster), contents));
    }
    let options = &setting.options;
    let mut scanning = |scan: ScanProgress| progress(&OpenProgress { note: String::new(), scan });
    let dataset = request::open_all(options, &setting.requests, &mut scanning)?;
    let contents = Contents::of("", options.file_rules(), &dataset);
    let link = InProcessLink::alone(setting, Arc::new(dataset));
    Ok((Box::new(link), contents))
}

/// A link that is closed, with its last report.
pub(crate) struct Closed(pub(crate) LinkReport);

impl Link for Closed {
    fn is_closed(&self) -> bool {
        true
    }

    fn report(&self) -> LinkReport {
        self.0.clone()
    }
}
