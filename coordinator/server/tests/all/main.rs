//! Real servers on free ports, real clients, and processes that are killed.
#![allow(clippy::unwrap_used)]

mod fixture;
mod worker;

mod datasets;
mod hostile;
mod http;
mod jobs;
mod refusals;
mod restart;
mod sessions;
mod storage;
