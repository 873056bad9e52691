//! Where a rank's batches come from.

mod cluster;
mod connect;
mod here;
mod in_process;
mod received;
mod standing;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use shardfeed_agent::{
    Control, Delivered, Demand, EncodedSpec, LoadError, OpenProgress, PrefetchStats,
};
use shardfeed_pipeline::{Batch, Schema};
use shardfeed_plan::{Intent, JobIdentity, Segment, Token};

use crate::contents::Contents;
use crate::options::LoaderOptions;

pub(crate) use cluster::Cluster;
pub use connect::default_worker_socket;
pub(crate) use here::Here;
pub(crate) use worker::{Lost, WorkerLink};

/// Makes the control of a loader that runs in one process.
pub type ControlOf = Box<dyn Fn() -> Arc<dyn Control> + Send>;

/// Told while opening takes its time; returning `false` gives up.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(&OpenProgress) -> bool;

/// Where a rank stands, for whoever starts to read for it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What is asked of control.
    pub(crate) intent: Intent,
    /// Epoch of the first step that is not in hand.
    pub(crate) epoch: u64,
    /// Segments of that epoch.
    pub(crate) segments: Vec<Segment>,
    /// The first step of it that is not in hand.
    pub(crate) step: u64,
}

/// What happened on the link.
#[derive(Debug)]
pub(crate) enum Event {
    /// Nothing yet.
    Pending,
    /// The rank was given a place in this generation.
    Started { generation: u64 },
    /// The next batch, not taken yet.
    Batch(Box<Delivered>),
    /// A dynamic job: the rank gets nothing more of this epoch.
    EpochEnd { epoch: u64, steps: u64 },
}

/// What the batch in hand counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InHand {
    /// It may be consumed.
    Good,
    /// Its lease is not confirmed, or its job is paused: it waits.
    Unconfirmed,
    /// Nothing: what was read under its lease comes again.
    Gone,
}

/// What a job is, for whoever makes it known.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) identity: JobIdentity,
    pub(crate) schema: Arc<Schema>,
    pub(crate) record_spec: Arc<EncodedSpec>,
}

/// What is common to all links of one loader.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) options: LoaderOptions,
    /// One loader of one process.
    pub(crate) trainer: String,
    /// Whether batches say which samples they are made of.
    pub(crate) with_samples: bool,
}

/// Which part of each global batch a loader has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
    /// Samples per rank and step.
    pub(crate) batch_size: u64,
}

impl Deal {
    pub(crate) fn apply(self, options: &mut LoaderOptions) {
        (options.rank, options.world_size) = (self.rank, self.world_size);
        options.batch_size = self.batch_size;
    }
}

/// This process, or a cluster.
pub(crate) enum Link {
    Here(Box<Here>),
    Cluster(Box<Cluster>),
    Closed(Box<LastWords>),
}

/// What a link said of itself when it was closed.
pub(crate) struct LastWords {
    cluster_id: Option<String>,
    stats: Option<PrefetchStats>,
    copied: u64,
    source: String,
}

impl Link {
    /// Ends reading and lets go of everything but what it says of itself.
    pub(crate) fn close(&mut self) {
        if let Self::Closed(_) = self {
            return;
        }
        let (cluster_id, stats) = (self.cluster_id(), self.stats());
        let (copied, source) = (self.copied(), self.source());
        *self = Self::Closed(Box::new(LastWords { cluster_id, stats, copied, source }));
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// Makes the job known.
    pub(crate) fn register(&mut self, job: &Job, progress: Progress<'_>) -> Result<(), LoadError> {
        match self {
            Self::Here(here) => here.register(job, progress),
            Self::Cluster(cluster) => cluster.register(job, progress),
            Self::Closed(_) => Err(LoadError::Closed),
        }
    }

    /// What comes next. `place` is asked for where reading has to start.
    pub(crate) fn poll(
        &mut self,
        place: &mut dyn FnMut(usize) -> Result<Place, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        match self {
            Self::Here(here) => here.poll(place, timeout),
            Self::Cluster(cluster) => cluster.poll(place, timeout),
            Self::Closed(_) => Err(LoadError::Closed),
        }
    }

    /// Shows what is ready of the next `count` batches; never waits.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        match self {
            Self::Here(here) => here.peek(count, see),
            Self::Cluster(cluster) => cluster.peek(count, see),
            Self::Closed(_) => {}
        }
    }

    /// Whether the batch that the last [`Link::poll`] gave may be consumed; what has come from whoever reads is
    /// looked at first, without waiting.
    ///
    /// # Errors  The rank was started again elsewhere.
    pub(crate) fn confirm(&mut self) -> Result<InHand, LoadError> {
        match self {
            Self::Here(here) => here.confirm(),
            Self::Cluster(cluster) => cluster.confirm(),
            Self::Closed(_) => Ok(InHand::Gone),
        }
    }

    /// Tells that a batch was taken, after which the rank stands at (epoch, step).
    pub(crate) fn took(&mut self, epoch: u64, step: u64, demand: Demand) {
        match self {
            Self::Here(here) => here.took(epoch, step, Some(&demand)),
            Self::Cluster(cluster) => cluster.took(epoch, step, Some(demand)),
            Self::Closed(_) => {}
        }
    }

    /// Tells that the trainer, which stands at (epoch, step), has waited for its next batch for so long
    /// by now.
    pub(crate) fn waits(&mut self, epoch: u64, step: u64, waiting: Duration) {
        match self {
            Self::Here(here) => here.waits(waiting),
            Self::Cluster(cluster) => cluster.waits(epoch, step, waiting),
            Self::Closed(_) => {}
        }
    }

    /// Tells where the rank stands without a batch taken: an epoch ended for it.
    pub(crate) fn stands_at(&mut self, epoch: u64, step: u64) {
        match self {
            Self::Here(here) => here.took(epoch, step, None),
            Self::Cluster(cluster) => cluster.stands_at(epoch, step),
            Self::Closed(_) => {}
        }
    }

    /// Forgets what was read ahead: the rank goes elsewhere, or has failed.
    pub(crate) fn stop(&mut self) {
        match self {
            Self::Here(here) => here.stop(),
            Self::Cluster(cluster) => cluster.stop(),
            Self::Closed(_) => {}
        }
    }

    /// Stops for good; `failure`: the error that ends the trainer.
    pub(crate) fn end(&mut self, failure: Option<&str>) {
        match self {
            Self::Here(here) => here.stop(),
            Self::Cluster(cluster) => cluster.end(failure),
            Self::Closed(_) => {}
        }
    }

    /// From the next start on this is another rank.
    pub(crate) fn deal(&mut self, deal: Deal) {
        match self {
            Self::Here(here) => here.deal(deal),
            Self::Cluster(cluster) => cluster.deal(deal),
            Self::Closed(_) => {}
        }
    }

    /// An epoch ended: a good moment to go back to a worker that has come back.
    pub(crate) fn epoch_ended(&mut self) {
        if let Self::Cluster(cluster) = self {
            cluster.epoch_ended();
        }
    }

    /// The token at which all ranks of the job stand.
    pub(crate) fn latest(
        &mut self,
        job: &Job,
        progress: Progress<'_>,
    ) -> Result<Option<Token>, LoadError> {
        match self {
            Self::Here(_) => Err(LoadError::Option(
                "resume=\"latest\" needs a coordinator; pass a state_dict()".into(),
            )),
            Self::Cluster(cluster) => cluster.latest(job, progress),
            Self::Closed(_) => Err(LoadError::Closed),
        }
    }

    /// Id of the cluster, once it is known.
    pub(crate) fn cluster_id(&self) -> Option<String> {
        match self {
            Self::Here(_) => None,
            Self::Cluster(cluster) => cluster.cluster_id(),
            Self::Closed(last) => last.cluster_id.clone(),
        }
    }

    /// What is held, once something is read.
    pub(crate) fn stats(&self) -> Option<PrefetchStats> {
        match self {
            Self::Here(here) => here.stats(),
            Self::Cluster(cluster) => cluster.stats(),
            Self::Closed(last) => last.stats,
        }
    }

    /// Batches that were copied because the trainer holds on to many.
    pub(crate) fn copied(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::Cluster(cluster) => cluster.copied(),
            Self::Closed(last) => last.copied,
        }
    }

    /// Where batches come from, in a word or two.
    pub(crate) fn source(&self) -> String {
        match self {
            Self::Here(_) => "in process".into(),
            Self::Cluster(cluster) => cluster.source(),
            Self::Closed(last) => last.source.clone(),
        }
    }
}

/// What a dataset turned out to be.
pub(crate) type Opened = (Link, Contents);
