//! gRPC services: one function checks, measures, logs and bounds each call; a separate function for
//! each call then reads or proposes.

pub(crate) mod admin;
pub(crate) mod audit;
pub(crate) mod context;
pub(crate) mod guard;
pub(crate) mod peer;
pub(crate) mod rights;
pub(crate) mod serve;
pub(crate) mod who;
pub(crate) mod worker;

mod access;
mod checks;
mod detail;
mod files;
mod register;
mod scans;
