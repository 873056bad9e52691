//! Dynamic jobs: ranks claim groups from a pool for each epoch.
//! Source: docs/ORDER.md, section 10; docs/ARCHITECTURE.md, Dynamic jobs.

pub(crate) mod balance;
mod claim;
mod decide;
mod doubt;
pub(crate) mod history;
pub(crate) mod pool;
