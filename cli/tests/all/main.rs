//! The binary as users run it: real processes on real files.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // Fixtures are tests too; clippy sees only functions marked so.

mod fixture;

mod hints;
mod inspect;
mod sidecar;
mod stats;
mod verify;
mod write_csv;
mod write_folder;
mod write_list;

mod batch;
mod plan;
mod put_back;
mod state;

mod cluster;
mod cluster_admin;
mod cluster_cordon;
mod cluster_dataset;
mod cluster_errors;
mod cluster_goodbye;
mod cluster_job;
mod cluster_process;
mod cluster_watched;

mod cluster_restore;
mod cluster_rolling;
mod three;

mod errors;
mod reference;
mod security;
mod speed;
mod streams;
mod trust;
