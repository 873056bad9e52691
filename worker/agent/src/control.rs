//! The port to whoever assigns work: a coordinator over gRPC, or the local one in this process.

use std::sync::Arc;
use std::time::Duration;

use shardfeed_pipeline::Account;
use shardfeed_plan::dynamic::Piece;
use shardfeed_plan::{Intent, JobIdentity, Mode, Segment, Steps, Token};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_socket::Peer;

use crate::mend::Skipped;
use crate::record_spec::EncodedSpec;

/// How long an epoch waits for nothing but samples in doubt, if nobody says.
pub const IN_DOUBT_GRACE: Duration = Duration::from_secs(60);

/// A job as a rank wants to run it.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Its name, shared by the ranks of a cluster.
    pub name: String,
    /// Name of the dataset that it reads.
    pub dataset: String,
    /// What fixes its order.
    pub identity: JobIdentity,
    /// What becomes of a record; its digest is in the identity.
    pub record_spec: Arc<EncodedSpec>,
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
    /// Who decides which rank delivers a sample.
    pub mode: Mode,
    /// Where from.
    pub intent: Intent,
    /// Where that is, for a control that cannot ask anybody: an epoch and its segments.
    pub epoch: u64,
    /// Segments of that epoch; the last one is open.
    pub segments: Vec<Segment>,
    /// Of a dynamic job: what becomes of samples in doubt.
    pub doubt: DoubtPolicy,
    /// The trainer's process, where it is another one than the worker's.
    pub peer: Option<Peer>,
}

/// What becomes of samples that a trainer which does not come back may have consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubtPolicy {
    /// Whether no rank gets them; else other ranks do.
    pub is_drop: bool,
    /// How long an epoch waits for nothing else before that is decided.
    pub grace: Duration,
}

impl DoubtPolicy {
    /// As a trainer says; `grace_ms`: the default if it does not.
    pub(crate) fn new(is_drop: bool, grace_ms: Option<u64>) -> Self {
        Self { is_drop, grace: grace_ms.map_or(IN_DOUBT_GRACE, Duration::from_millis) }
    }
}

impl Default for DoubtPolicy {
    fn default() -> Self {
        Self::new(false, None)
    }
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

/// A rank of a dynamic job says what it has begun of an epoch, and asks for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The epoch.
    pub epoch: u64,
    /// Samples of its list that it has begun; those are not revoked.
    pub started: u64,
    /// Pieces of its list that it has.
    pub known: u64,
    /// Samples that it would like to have beyond `started`; 0: it only tells.
    pub wants: u64,
    /// Samples beyond what its trainer consumed that shall lie before the horizon; a batch always does.
    pub ahead: u64,
    /// Answer to a revocation: it keeps its list up to this position.
    pub released: Option<u64>,
    /// The answer may wait so long for something to tell.
    pub wait: Duration,
}

/// What it has been granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Number of the first of `pieces` in the list; below what was known if the list is told anew.
    pub first: u64,
    /// Pieces of the list from there on, all or the first ones.
    pub pieces: Vec<Piece>,
    /// Samples of the whole list.
    pub samples: u64,
    /// Position of the list up to which samples may be delivered to the trainer.
    pub horizon: u64,
    /// Version of the list that the horizon counts for.
    pub version: u64,
    /// Positions at which a short batch ends, ascending.
    pub closed: Vec<u64>,
    /// What is not begun is asked back from this position on.
    pub revoke_from: Option<u64>,
    /// Whether it gets nothing more in this epoch.
    pub ended: bool,
    /// Step of the epoch that the list's first batch is.
    pub first_step: u64,
}

/// What happens to the lease of a rank of a dynamic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Something that was granted is asked back.
    Revoked,
    /// The trainer consumed everything before a step.
    Consumed {
        /// The epoch.
        epoch: u64,
        /// The step.
        step: u64,
    },
    /// The lease is no longer good.
    Ended,
}

/// Told what happens to a lease; never waits.
#[derive(Clone)]
pub struct Bell(Arc<dyn Fn(News) + Send + Sync>);

impl Bell {
    /// A bell that calls `ringing`.
    pub fn new(ringing: impl Fn(News) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ringing))
    }

    /// Tells.
    pub fn ring(&self, news: News) {
        (self.0)(news);
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
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

    /// Tells of corrupt records of a job that were skipped. Never waits.
    fn report_skipped(&self, _job: &str, _skipped: &[Skipped]) {}

    /// Tells where the rank's time went. Never waits.
    fn report_account(&self, _lease: &Lease, _account: &Account) {}

    /// Says what a rank of a dynamic job has begun, and what it was granted. Waits up to `take.wait`
    /// for something to tell, and for whoever answers; `waiting` giving up is `Retry`.
    ///
    /// # Errors  The lease is no longer good; there is nobody who grants.
    fn take(
        &self,
        lease: &Lease,
        _take: &Take,
        _waiting: Waiting<'_>,
    ) -> Result<Grant, ControlError> {
        let message = format!(
            "job `{}` has mode=\"dynamic\", whose samples a coordinator hands out; pass \
             coordinator=\"host:port\", or use mode=\"deterministic\"",
            lease.job
        );
        Err(WireError::new(ErrorKind::Invalid, message))
    }

    /// From now on `bell` is told what happens to the lease of a rank of a dynamic job.
    fn watch(&self, _lease: &Lease, _bell: Bell) {}

    /// How long what the lease was granted may still be delivered without hearing from whoever
    /// grants; `None`: for ever, as the order does not depend on anybody.
    fn good_for(&self, _lease: &Lease) -> Option<Duration> {
        None
    }

    /// Why nothing may be handed out to the rank now, if somebody paused its job.
    fn paused(&self, _lease: &Lease) -> Option<String> {
        None
    }

    /// Notes the error with which the rank ends, for [`Control::release`] to report. Never waits.
    fn report_failure(&self, _lease: &Lease, _failure: &str) {}

    /// The rank is no longer served. Never waits.
    /// - `is_told`: its trainer has said how far it came; else what it was given beyond that is in doubt.
    fn release(&self, lease: &Lease, is_told: bool);

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
