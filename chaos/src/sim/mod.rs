//! The simulated machine: what a coordinator asks of a [`shardfeed_host::Host`].

mod disk;
mod host;
mod process;

pub use disk::{DiskFaults, DiskFired, SimDisk, SimDisks};
pub use host::{BEGIN_MS, SimHost, SimTime};
pub use process::simulate;
