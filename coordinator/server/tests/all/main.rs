//! Real servers on free ports, real clients, and processes that are killed.
#![allow(clippy::unwrap_used)]

mod access;
mod cluster;
mod fixture;
mod worker;

mod backup;
mod bootstrap;
mod certificates;
mod datasets;
mod failover;
mod format;
mod granted;
mod groups;
mod hostile;
mod http;
mod jobs;
mod limits;
mod members;
mod record_spec;
mod refusals;
mod restart;
mod sessions;
mod storage;
mod wording;
