//! The simulated machine: implements [`shardfeed_host::Host`] for the coordinators.

mod disk;
mod host;
mod process;

pub use disk::{DiskFaults, DiskFired, SimDisk, SimDisks};
pub use host::{BEGIN_MS, SimHost, SimTime};
pub use process::simulate;
