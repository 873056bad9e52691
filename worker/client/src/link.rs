//! Source of a rank's batches: this process or a cluster.

mod cluster;
pub(crate) mod connect;
pub(crate) mod exchange;
mod in_process;
mod in_process_link;
mod lease_validity;
pub(crate) mod outcome;
mod received;
pub(crate) mod worker;

use std::sync::Arc;
use std::time::Duration;

use shardfeed_pipeline::Batch;
use shardfeed_plan::LoaderState;
use shardfeed_reader::{Demand, PrefetchStats};
use shardfeed_source::{LoadError, OpenProgress, ScanProgress};

use crate::contents::Contents;
use crate::request;
use cluster::Cluster;
use exchange::{ControlOf, Event, InHand, Job, Partition, Progress, Setting, StartPosition};
use in_process_link::InProcessLink;

pub(crate) enum Link {
    InProcess(Box<InProcessLink>),
    Cluster(Box<Cluster>),
    Closed(Box<FinalReport>),
}

/// Last report of a link, made when it was closed.
pub(crate) struct FinalReport {
    cluster_id: Option<String>,
    stats: Option<PrefetchStats>,
    copied: u64,
    source: String,
}

impl Link {
    /// Opens the dataset in the cluster of the options, or in this process.
    /// - `control_of`: makes the control of a loader without a cluster.
    pub(crate) fn open(
        setting: Setting,
        control_of: ControlOf,
        progress: Progress<'_>,
    ) -> Result<(Self, Contents), LoadError> {
        if setting.options.cluster.is_some() {
            let mut setting = setting;
            setting.options.cache.index = request::common_index(&setting.requests)?;
            let (cluster, contents) = Cluster::open(setting, progress)?;
            return Ok((Self::Cluster(Box::new(cluster)), contents));
        }
        let options = &setting.options;
        let mut scanning =
            |scan: ScanProgress| progress(&OpenProgress { note: String::new(), scan });
        let dataset = request::open_all(options, &setting.requests, &mut scanning)?;
        let contents = Contents::of("", options.file_rules(), &dataset);
        let link = InProcessLink::embedded(setting, control_of, Arc::new(dataset));
        Ok((Self::InProcess(Box::new(link)), contents))
    }

    /// Ends reading and releases everything except the last report.
    pub(crate) fn close(&mut self) {
        if let Self::Closed(_) = self {
            return;
        }
        let (cluster_id, stats) = (self.cluster_id(), self.stats());
        let (copied, source) = (self.copied(), self.source());
        *self = Self::Closed(Box::new(FinalReport { cluster_id, stats, copied, source }));
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    pub(crate) fn register(&mut self, job: &Job, progress: Progress<'_>) -> Result<(), LoadError> {
        match self {
            Self::InProcess(link) => link.register(job, progress),
            Self::Cluster(cluster) => cluster.register(job, progress),
            Self::Closed(_) => Err(LoadError::Closed),
        }
    }

    /// Returns the next event. `position` is called for the position where reading has to start.
    pub(crate) fn poll(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        match self {
            Self::InProcess(link) => link.poll(position, timeout),
            Self::Cluster(cluster) => cluster.poll(position, timeout),
            Self::Closed(_) => Err(LoadError::Closed),
        }
    }

    /// Shows the ready batches of the next `count`; never waits.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        match self {
            Self::InProcess(link) => link.peek(count, see),
            Self::Cluster(cluster) => cluster.peek(count, see),
            Self::Closed(_) => {}
        }
    }

    /// Checks whether the batch returned by the last [`Link::poll`] may be consumed.
    ///
    /// Messages that have arrived from the reader are processed first, without waiting.
    ///
    /// # Errors  The rank was started again elsewhere.
    pub(crate) fn confirm(&mut self) -> Result<InHand, LoadError> {
        match self {
            Self::InProcess(link) => link.confirm(),
            Self::Cluster(cluster) => cluster.confirm(),
            Self::Closed(_) => Ok(InHand::Gone),
        }
    }

    /// Reports that a batch was consumed, and the rank's new position (epoch, step).
    /// - `demand`: `None`: an epoch ended for the rank without a batch.
    pub(crate) fn took(&mut self, epoch: u64, step: u64, demand: Option<Demand>) {
        match self {
            Self::InProcess(link) => link.took(epoch, step, demand.as_ref()),
            Self::Cluster(cluster) => cluster.took(epoch, step, demand),
            Self::Closed(_) => {}
        }
    }

    /// Reports how long the trainer at (epoch, step) has waited for its next batch.
    pub(crate) fn waits(&mut self, epoch: u64, step: u64, waiting: Duration) {
        match self {
            Self::InProcess(link) => link.waits(waiting),
            Self::Cluster(cluster) => cluster.waits(epoch, step, waiting),
            Self::Closed(_) => {}
        }
    }

    /// Discards prefetched batches: the rank moves elsewhere, or has failed.
    pub(crate) fn stop(&mut self) {
        self.end(None);
    }

    /// Stops for good; `failure`: the error that ends the trainer.
    pub(crate) fn end(&mut self, failure: Option<&str>) {
        match self {
            Self::InProcess(link) => link.stop(),
            Self::Cluster(cluster) => cluster.end(failure),
            Self::Closed(_) => {}
        }
    }

    /// Changes the rank and its part of each batch from the next start on.
    pub(crate) fn set_partition(&mut self, partition: Partition) {
        match self {
            Self::InProcess(link) => link.set_partition(partition),
            Self::Cluster(cluster) => cluster.set_partition(partition),
            Self::Closed(_) => {}
        }
    }

    /// An epoch ended: the link may return to a worker that is available again.
    pub(crate) fn epoch_ended(&mut self) {
        if let Self::Cluster(cluster) = self {
            cluster.epoch_ended();
        }
    }

    pub(crate) fn is_in_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the state at the latest position that all ranks of the job reached.
    pub(crate) fn latest(
        &mut self,
        job: &Job,
        progress: Progress<'_>,
    ) -> Result<Option<LoaderState>, LoadError> {
        match self {
            Self::InProcess(_) => Err(LoadError::Option(
                "resume=\"latest\" needs a coordinator; pass a state_dict()".into(),
            )),
            Self::Cluster(cluster) => cluster.latest(job, progress),
            Self::Closed(_) => Err(LoadError::Closed),
        }
    }

    /// Id of the cluster, once it is known.
    pub(crate) fn cluster_id(&self) -> Option<String> {
        match self {
            Self::InProcess(_) => None,
            Self::Cluster(cluster) => cluster.cluster_id(),
            Self::Closed(last) => last.cluster_id.clone(),
        }
    }

    /// Statistics of the prefetcher, once reading has started.
    pub(crate) fn stats(&self) -> Option<PrefetchStats> {
        match self {
            Self::InProcess(link) => link.stats(),
            Self::Cluster(cluster) => cluster.stats(),
            Self::Closed(last) => last.stats,
        }
    }

    /// Batches that were copied because the trainer holds many.
    pub(crate) fn copied(&self) -> u64 {
        match self {
            Self::InProcess(_) => 0,
            Self::Cluster(cluster) => cluster.copied(),
            Self::Closed(last) => last.copied,
        }
    }

    /// Source of the batches, in one or two words.
    pub(crate) fn source(&self) -> String {
        match self {
            Self::InProcess(_) => "in process".into(),
            Self::Cluster(cluster) => cluster.source(),
            Self::Closed(last) => last.source.clone(),
        }
    }
}
