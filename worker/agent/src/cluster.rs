//! The coordinator-facing side: routing to coordinators, the session, and `Control` over it.

pub(crate) mod address;
pub(crate) mod confirmed;
pub(crate) mod control;
pub(crate) mod coordinator;
pub(crate) mod credentials;
mod job_skips;
pub(crate) mod report;
pub(crate) mod running_scan;
pub(crate) mod runtime;
pub(crate) mod served;
pub(crate) mod session;
mod verdict;
pub(crate) mod whereabouts;

pub use address::{Address, Addresses};
pub use control::GrpcControl;
pub use coordinator::{CallError, Coordinator, Patience, Request, Silence};
pub use credentials::{CredentialOptions, Credentials};
pub use report::{RankReport, WorkerReport};
pub use session::{Session, WorkerInfo};
pub use whereabouts::Whereabouts;
