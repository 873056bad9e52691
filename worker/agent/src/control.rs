//! The port to whoever assigns work: a coordinator over gRPC, or the local one in this process.

use std::sync::Arc;

use shardfeed_plan::{Intent, JobIdentity, Segment, Steps, Token};
use shardfeed_proto::WireError;

/// A job as a rank wants to run it.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Its name, shared by the ranks of a cluster.
    pub name: String,
    /// Name of the dataset that it reads.
    pub dataset: String,
    /// What fixes its order.
    pub identity: JobIdentity,
}

/// Asks for the right to serve one rank from one position on.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The job.
    pub job: String,
    /// The start of the ranks that this one belongs to, as the launcher names it.
    pub run: Option<String>,
    /// One loader of one process: the same one may come back.
    pub trainer: String,
    /// Data-parallel rank.
    pub rank: u64,
    /// Data-parallel ranks.
    pub world_size: u64,
    /// Slots of an epoch that exist at most.
    pub limit: Option<u64>,
    /// Where from.
    pub intent: Intent,
    /// Where that is, for a control that cannot ask anybody: an epoch and its segments.
    pub epoch: u64,
    /// Segments of that epoch; the last one is open.
    pub segments: Vec<Segment>,
}

/// The right of one incarnation of a worker to serve one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub job: Arc<str>,
    /// The generation that the rank is in.
    pub generation: u64,
    /// Rank that is served.
    pub rank: u64,
    /// Grows with every grant; an older one is refused. 0: the coordinator could not be asked yet.
    pub fencing: u64,
    /// Which of its leases this is to the control that gave it.
    pub serial: u64,
    /// Epoch that it starts in.
    pub epoch: u64,
    /// Segments of that epoch; the last one is open.
    pub segments: Vec<Segment>,
}

impl Lease {
    /// The segments with which `epoch` begins, or goes on where the lease started.
    pub fn lanes(&self, epoch: u64) -> Vec<Segment> {
        if epoch == self.epoch {
            return self.segments.clone();
        }
        // A later epoch begins with the lanes and the batch that the last one ended with.
        let last = self.segments.last().cloned();
        last.into_iter().map(|open| Segment { steps: Steps::All(0), ..open }).collect()
    }
}

/// Why control refused, or could not be asked. Nothing is changed by a refused call.
pub type ControlError = WireError;

/// Told while control cannot be reached, in words; returning `false` gives up.
pub type Waiting<'a> = &'a mut dyn FnMut(&str) -> bool;

/// Register, lease, lanes, report: all that a worker asks of whoever assigns work.
pub trait Control: Send + Sync {
    /// Makes the job known. Repeating it with the same identity changes nothing.
    ///
    /// # Errors  The name stands for another identity; nobody answers in time.
    fn register(&self, job: &JobSpec, waiting: Waiting<'_>) -> Result<(), ControlError>;

    /// Grants a rank from a position on, and fences whoever served it before. A reconnect is granted
    /// for the time being when nobody answers: the order does not depend on anybody.
    ///
    /// # Errors  The rules of starts (docs/ARCHITECTURE.md); nobody answers in time.
    fn lease(&self, request: &LeaseRequest, waiting: Waiting<'_>) -> Result<Lease, ControlError>;

    /// The segments with which `epoch` begins, or goes on where the lease started. Answers without
    /// asking anybody.
    ///
    /// # Errors  The lease is known to be no longer good.
    fn lanes(&self, lease: &Lease, epoch: u64) -> Result<Vec<Segment>, ControlError>;

    /// Tells the first step that the rank has not consumed. Never waits.
    ///
    /// # Errors  The lease is known to be no longer good.
    fn report(&self, lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError>;

    /// Tells what is ahead of the trainer: how many batches are ready, and which shards the batches on
    /// their way are made of. Never waits.
    fn report_ahead(&self, _lease: &Lease, _ready: u64, _reading: &[u32]) {}

    /// The rank is no longer served. Never waits.
    fn release(&self, lease: &Lease);

    /// Whether it has granted something without the word of whoever assigns work, and could not tell of
    /// it yet: only this control can, so its ranks stay with it until then.
    fn has_untold(&self) -> bool {
        false
    }

    /// The token at which all ranks of the job stand; `None` if it has not started.
    ///
    /// # Errors  The job is not known, or has no such token; nobody answers in time.
    fn latest(&self, job: &str, waiting: Waiting<'_>) -> Result<Option<Token>, ControlError>;
}
