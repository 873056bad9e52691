//! The port to the component that assigns work: a coordinator over gRPC; without a cluster, the
//! loader itself.

mod account;
mod lease_time;

use std::sync::Arc;
use std::time::Duration;

use shardfeed_pipeline::{Account, ShardSchemas};
use shardfeed_plan::dynamic::GroupRange;
use shardfeed_plan::{
    Digest, Intent, JobIdentity, JobMixture, LeftOut, LoaderState, Mode, Segment, Steps,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_socket::Peer;

use crate::record_spec::EncodedSpec;
use crate::skipped::Skipped;

pub use account::{account_from, account_to};
pub use lease_time::LeaseTime;

/// Default time that an epoch waits for samples in doubt once nothing else is left.
pub const IN_DOUBT_GRACE: Duration = Duration::from_secs(60);

/// A job as a rank wants to run it.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Job name, shared by the ranks of a cluster.
    pub name: String,
    /// Name of the dataset that the job reads; empty with a mixture.
    pub dataset: String,
    /// Mixture of datasets that the job reads instead.
    pub mixture: Option<Arc<JobMixture>>,
    pub identity: JobIdentity,
    /// Features, operators and outputs of its records; the digest is part of the identity.
    pub record_spec: Arc<EncodedSpec>,
    /// Features, operators and outputs of its shards' records.
    pub schemas: ShardSchemas,
}

/// Request for the right to serve one rank from a given position.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    pub job: String,
    /// Start of the ranks that this rank belongs to, as named by the launcher.
    pub run: Option<String>,
    /// Id of one loader of one process; the same loader may reconnect with it.
    pub trainer: String,
    pub rank: u64,
    pub world_size: u64,
    /// Maximum number of entries in an epoch.
    pub limit: Option<u64>,
    /// Mode of the job, which decides how samples are assigned to ranks.
    pub mode: Mode,
    /// Digest of the job's mixture, if it has one.
    pub mixture: Option<Digest>,
    pub at: StartPosition,
    /// Dynamic jobs only: policy for samples in doubt.
    pub doubt: DoubtPolicy,
    /// The trainer's process, if it differs from the worker's.
    pub peer: Option<Peer>,
}

/// Position where a rank starts to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartPosition {
    /// Position at the control, and kind of start.
    pub intent: Intent,
    /// Dynamic jobs only, when the trainer leaves an epoch early: that epoch, and its first step
    /// that the trainer did not consume.
    pub left: Option<(u64, u64)>,
    /// Steps of the intent's epoch that were left out.
    pub left_out: LeftOut,
    /// Epoch of the first step that the trainer has not received.
    pub epoch: u64,
    /// Segments of that epoch; the last one is open.
    pub segments: Vec<Segment>,
    /// First step of that epoch that the trainer has not received.
    pub step: u64,
}

/// Policy for samples in doubt: those that a trainer which does not return may have consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubtPolicy {
    /// True if no rank gets them; otherwise other ranks do.
    pub is_drop: bool,
    /// Time that an epoch waits for nothing else before the policy applies.
    pub grace: Duration,
}

impl DoubtPolicy {
    /// Creates a policy from a trainer's options; default of `grace_ms`: [`IN_DOUBT_GRACE`].
    pub fn new(is_drop: bool, grace_ms: Option<u64>) -> Self {
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
    pub job: Arc<str>,
    pub generation: u64,
    pub rank: u64,
    /// Fencing token: grows with every grant; older ones are rejected. 0: not confirmed yet.
    pub fencing: u64,
    /// Number of this lease among those of the control that returned it.
    pub serial: u64,
    /// Digest of the job's mixture, if it has one.
    pub mixture: Option<Digest>,
    pub epoch: u64,
    /// Segments of that epoch; the last one is open.
    pub segments: Vec<Segment>,
}

impl Lease {
    /// Returns the segments with which `epoch` begins, or continues where the lease started.
    pub fn lanes(&self, epoch: u64) -> Vec<Segment> {
        if epoch == self.epoch {
            return self.segments.clone();
        }
        // A later epoch begins with the lanes and the batch size that the previous one ended with.
        let last = self.segments.last().cloned();
        last.into_iter().map(|open| Segment { steps: Steps::All(0), ..open }).collect()
    }
}

/// Claim of a dynamic job's rank: reports the samples begun in an epoch, and requests more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub epoch: u64,
    /// Samples of its list that it has begun; these are not revoked.
    pub started: u64,
    /// Group ranges of its list that it knows.
    pub known: u64,
    /// Requested number of samples beyond `started`; 0: the claim only reports.
    pub wants: u64,
    /// Samples beyond the consumed ones that should lie before the horizon; at least a batch does.
    pub ahead: u64,
    pub released: Option<Release>,
    /// Version of its list.
    pub version: u64,
    /// Maximum time that the answer may wait for a change to report.
    pub wait: Duration,
}

/// Answer to a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Position up to which the rank keeps its list.
    pub from: u64,
    /// Version of the list that it cuts.
    pub version: u64,
}

/// Result of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Number of the first of `pieces`; below the known number if the list is sent again.
    pub first: u64,
    /// Group ranges of the list from `first` on: all of them, or the first ones.
    pub pieces: Vec<GroupRange>,
    /// Samples of the whole list.
    pub samples: u64,
    /// Position of the list up to which samples may be delivered to the trainer.
    pub horizon: u64,
    /// Version of the list that the horizon applies to.
    pub version: u64,
    /// Positions at which a short batch ends, ascending.
    pub closed: Vec<u64>,
    /// Samples that are not begun from this position on are revoked.
    pub revoke_from: Option<u64>,
    /// True if the rank gets no more samples in this epoch.
    pub ended: bool,
    /// Step of the epoch that the list's first batch has.
    pub first_step: u64,
}

/// Event of the lease of a rank of a dynamic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// Some of the granted samples are revoked.
    Revoked,
    /// The trainer consumed everything before a step.
    Consumed {
        epoch: u64,
        /// First step that was not consumed.
        step: u64,
    },
    /// The lease is no longer valid.
    Ended,
}

/// Notifier for the events of a lease; never waits.
#[derive(Clone)]
pub struct Notifier(Arc<dyn Fn(LeaseUpdate) + Send + Sync>);

impl Notifier {
    pub fn new(ringing: impl Fn(LeaseUpdate) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ringing))
    }

    pub fn ring(&self, news: LeaseUpdate) {
        (self.0)(news);
    }
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notifier")
    }
}

/// Reason why control rejected a call or could not be reached. A rejected call changes nothing.
pub type ControlError = WireError;

/// Callback while control cannot be reached, with a readable note; returning `false` cancels.
pub type Waiting<'a> = &'a mut dyn FnMut(&str) -> bool;

/// Interface of the component that assigns work: register, lease, report.
pub trait Control: Send + Sync {
    /// Registers the job. Repeating it with the same identity changes nothing.
    ///
    /// # Errors  The name already belongs to another identity; no coordinator answers in time.
    fn register(&self, job: &JobSpec, waiting: Waiting<'_>) -> Result<(), ControlError>;

    /// Grants a rank from a position on, and fences its previous holder. If no coordinator answers,
    /// a reconnect is granted provisionally: the order does not depend on a coordinator.
    ///
    /// # Errors  Violations of the start rules (docs/ARCHITECTURE.md); no coordinator answers.
    fn lease(&self, request: &LeaseRequest, waiting: Waiting<'_>) -> Result<Lease, ControlError>;

    /// Checks that the lease is not known to be invalid. Sends no request.
    ///
    /// # Errors  The lease is known to be invalid.
    fn check(&self, lease: &Lease) -> Result<(), ControlError>;

    /// Reports the first step that the rank has not consumed. Never waits.
    ///
    /// # Errors  The lease is known to be invalid.
    fn report(&self, lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError>;

    /// Reports the number of ready batches and the shards of the batches in flight. Never waits.
    fn report_ahead(&self, _lease: &Lease, _ready: u64, _reading: &[u32]) {}

    /// Reports corrupt records of a job that were skipped. Never waits.
    /// - `mixture`: digest of the mixture whose shards the samples name, if the job has one.
    fn report_skipped(&self, _job: &str, _mixture: Option<Digest>, _skipped: &[Skipped]) {}

    /// Reports the rank's time breakdown. Never waits.
    fn report_account(&self, _lease: &Lease, _account: &Account) {}

    /// Reports the samples that a rank of a dynamic job has begun, and returns its grants. Waits up
    /// to `take.wait` for a change, and for the granting component; if `waiting` cancels: `Retry`.
    ///
    /// # Errors  The lease is no longer valid; this control grants no samples.
    fn take(
        &self,
        lease: &Lease,
        _take: &Claim,
        _waiting: Waiting<'_>,
    ) -> Result<Grant, ControlError> {
        let message = format!(
            "job `{}` has mode=\"dynamic\", whose samples a coordinator hands out; pass \
             coordinator=\"host:port\", or use mode=\"deterministic\"",
            lease.job
        );
        Err(WireError::new(ErrorKind::Invalid, message))
    }

    /// Registers `bell` for the events of the lease of a rank of a dynamic job.
    fn watch(&self, _lease: &Lease, _bell: Notifier) {}

    /// Returns the time for which granted samples may still be delivered without a confirmation
    /// from the coordinator; `None`: unlimited, as the order does not depend on a coordinator.
    fn good_for(&self, _lease: &Lease) -> Option<Duration> {
        None
    }

    /// Returns why nothing may be delivered to the rank now, if its job is paused.
    fn paused(&self, _lease: &Lease) -> Option<String> {
        None
    }

    /// Records the error with which the rank ends, for [`Control::release`] to report. Never waits.
    fn report_failure(&self, _lease: &Lease, _failure: &str) {}

    /// Stops serving the rank. Never waits.
    /// - `is_told`: its trainer reported its final position; otherwise samples delivered beyond the
    ///   reported position are in doubt.
    fn release(&self, lease: &Lease, is_told: bool);

    /// True if it has provisional grants that it could not report yet. Only this control can report
    /// them, so its ranks stay with it until then.
    fn has_untold(&self) -> bool {
        false
    }

    /// Returns the state at which all ranks of the job are; `None` if the job has not started.
    ///
    /// # Errors  The job is not known, or has no such state; no coordinator answers in time.
    fn latest(&self, job: &str, waiting: Waiting<'_>) -> Result<Option<LoaderState>, ControlError>;
}
