//! Processes of a cluster: `coordinator start`, `worker start`, and both in one for a first try.
//!
//! `shardfeed-coordinator` and `shardfeed-agent` implement them; this module has the options, the
//! signals, and the line on stdout that reports that a process is ready.

mod config;
mod coordinator;
mod endpoint;
mod manager;
mod measures;
mod places;
#[cfg(test)]
mod reference;
mod runtime;
mod settings;
mod stop;
mod up;
mod worker;

pub(crate) use coordinator::CoordinatorCommand;
pub(crate) use places::{Places, places, usual_ports};
pub(crate) use runtime::runtime;
pub(crate) use settings::ConfigCommand;
pub(crate) use stop::Stop;
pub(crate) use up::{UpArgs, run as up};
pub(crate) use worker::{WorkerStartArgs, start as start_worker};
