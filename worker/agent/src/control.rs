//! The port to whoever assigns work: a coordinator over gRPC, or the local one in this process.

use shardfeed_plan::{Difference, JobIdentity, Segment};

/// A job as a rank wants to run it.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Its name, shared by the ranks of a cluster.
    pub name: Option<String>,
    /// What fixes its order.
    pub identity: JobIdentity,
}

/// Asks for the right to serve one rank from one position on.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Data-parallel rank.
    pub rank: u64,
    /// Data-parallel ranks.
    pub world_size: u64,
    /// Generation that starts.
    pub generation: u64,
    /// Epoch that it starts in.
    pub epoch: u64,
    /// Segments of that epoch; the last one is open.
    pub segments: Vec<Segment>,
}

/// The right of one incarnation of a worker to serve one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Grows with every grant; an older one is refused.
    pub fencing: u64,
    /// Rank that is served.
    pub rank: u64,
}

/// Why control refused. Nothing is changed by a refused call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The job's name stands for another job.
    #[error(
        "job `{name}` exists with another identity: {}; use another name, or the same values",
        describe(.differences)
    )]
    OtherIdentity {
        /// The name.
        name: String,
        /// The registered one on the left, this one on the right.
        differences: Vec<Difference>,
    },
    /// Another start took the rank over.
    #[error("rank {rank} was started again elsewhere; this loader no longer speaks for it")]
    Fenced {
        /// The rank.
        rank: u64,
    },
    /// Nothing was registered before.
    #[error("no job was registered")]
    NotRegistered,
}

/// Register, lease, lanes, report: all that a worker asks of whoever assigns work.
pub trait Control: Send + Sync {
    /// Makes the job known. Repeating it with the same identity changes nothing.
    ///
    /// # Errors  `OtherIdentity`.
    fn register(&self, job: &JobSpec) -> Result<(), ControlError>;

    /// Grants a rank from a position on, and fences whoever served it before.
    ///
    /// # Errors  `NotRegistered`.
    fn lease(&self, request: &LeaseRequest) -> Result<Lease, ControlError>;

    /// The segments with which `epoch` begins, or goes on where the lease started.
    ///
    /// # Errors  `Fenced`.
    fn lanes(&self, lease: &Lease, epoch: u64) -> Result<Vec<Segment>, ControlError>;

    /// Tells the first step that the rank has not consumed.
    ///
    /// # Errors  `Fenced`.
    fn report(&self, lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError>;
}

fn describe(differences: &[Difference]) -> String {
    let one = |d: &Difference| format!("{} is {} there and {} here", d.field, d.left, d.right);
    differences.iter().map(one).collect::<Vec<_>>().join(", ")
}
