//! The coordinator process: gRPC for workers and people, HTTP for monitors, and the timers, around
//! the replicated state of `shardfeed-scheduler`.
//!
//! Calls are checked, then read from the applied state or proposed as commands; nothing else changes
//! what is kept. Renewals of sessions and progress are in the leader's memory only. This crate must
//! never decide what a command does, and never write what a log holds.
//!
//! Start at [`Coordinator::start`], then `rpc` (each call), `timers` and `keeper` (what nobody asks for), `core`
//! (what they share) and `views` (what people see).
#![forbid(unsafe_code)]

mod config;
mod error;

mod core;
mod keeper;
mod machine;
mod server;
mod timers;

mod progress;
mod rpc;
mod sessions;
mod standing;

mod chunks;
mod manifests;
mod plans;
mod views;

mod http;
mod metrics;
mod net;

pub use config::{CoordinatorOptions, InvalidOption};
pub use error::StartError;
pub use server::{Coordinator, Running, run};
