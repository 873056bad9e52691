//! The worker process: its session with the coordinators, the datasets that it opens and scans for
//! its cluster, and the trainers that it serves.
//!
//! Files are read by `shardfeed-source`, batches are made by `shardfeed-reader`; this crate is the
//! [`Control`](shardfeed_reader::Control) over gRPC, and the other side of the trainer socket.
//!
//! Start at [`Worker`].
#![forbid(unsafe_code)]

mod traced;

mod cluster;

mod catalog;

mod pulse;
mod serve;
mod view;
mod worker;

pub use catalog::{Catalog, Opened, SampleSource, Scanner, ShardMaps, Source, maps_of_shards};
pub use cluster::{
    Address, Addresses, CallError, Coordinator, CredentialOptions, Credentials, GrpcControl,
    Patience, RankReport, Request, Session, Silence, Whereabouts, WorkerInfo, WorkerReport,
};
pub use view::WorkerView;
pub use worker::{Worker, WorkerError, WorkerOptions};
