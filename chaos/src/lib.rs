//! A seeded simulation of a whole cluster: the real coordinators (server, raft, scheduler) on simulated
//! machines, model workers and trainers that keep to the protocol, faults, and an oracle that counts what
//! trainers received. One seed decides everything.
//!
//! It is empty unless the build says `--cfg tokio_unstable`, which `make chaos` does: without that
//! tokio's own randomness follows no seed.
#![forbid(unsafe_code)]

#[cfg(tokio_unstable)]
pub mod dice;
#[cfg(tokio_unstable)]
pub mod sim;
