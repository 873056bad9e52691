//! The commands of `shardfeed` that work on the files of a dataset without a cluster: inspect,
//! index, stats, verify and write. The output and the errors of all commands are here too.
#![forbid(unsafe_code)]

pub mod listing;
pub mod output;
pub mod problem;
pub mod progress;
pub mod size;

pub mod files;
pub mod samples;
mod sidecar;
pub mod source;

pub mod index;
pub mod inspect;
pub mod stats;
pub mod verify;
pub mod write;
