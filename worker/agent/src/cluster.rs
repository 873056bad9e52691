//! The side that faces a coordinator: the way to it, the session, and `Control` over it.

pub(crate) mod control;
pub(crate) mod coordinator;
pub(crate) mod runtime;
pub(crate) mod session;
pub(crate) mod take;

pub use control::GrpcControl;
pub use coordinator::{COORDINATOR_TIMEOUT, Coordinator};
pub use session::{Session, WorkerInfo};
