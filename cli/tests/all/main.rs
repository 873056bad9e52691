//! The binary as users run it: real processes on real files.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // Fixtures are tests too; clippy sees only functions marked so.

mod fixture;

mod inspect;
mod sidecar;
mod stats;
mod verify;
mod write_csv;
mod write_folder;
mod write_list;

mod batch;
mod plan;
mod token;

mod cluster;
mod cluster_admin;
mod cluster_dataset;
mod cluster_errors;
mod cluster_job;
mod cluster_process;
mod cluster_watched;

mod errors;
mod reference;
mod speed;
mod streams;
