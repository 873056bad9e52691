//! A seeded simulation of a whole cluster: the real coordinators (server, raft, scheduler) on simulated
//! machines, model workers and trainers that keep to the protocol, faults, and an oracle that counts what
//! trainers received. One seed decides everything.
//!
//! It is empty unless the build says `--cfg tokio_unstable`, as `.cargo/config.toml` does: without that
//! tokio's own randomness follows no seed. Start at `simulation`.
#![deny(unsafe_code)]

#[cfg(tokio_unstable)]
pub mod breach;
#[cfg(tokio_unstable)]
pub mod dice;
#[cfg(tokio_unstable)]
pub mod holds;
#[cfg(tokio_unstable)]
pub mod invariants;
#[cfg(tokio_unstable)]
pub mod lists;
#[cfg(tokio_unstable)]
pub mod nemesis;
#[cfg(tokio_unstable)]
pub mod oracle;
#[cfg(tokio_unstable)]
pub mod sim;
#[cfg(tokio_unstable)]
pub mod simulation;
#[cfg(tokio_unstable)]
pub mod skips;
#[cfg(tokio_unstable)]
pub mod trace;
#[cfg(tokio_unstable)]
pub mod world;

#[cfg(tokio_unstable)]
pub use panics::{panicked, watch_panics};

/// Panics, also of tasks whose result nobody asks for.
#[cfg(tokio_unstable)]
mod panics {
    use std::sync::OnceLock;

    static FIRST: OnceLock<String> = OnceLock::new();

    /// Remembers the first panic of this process from now on.
    pub fn watch_panics() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // A later one may follow from the first.
            let _ = FIRST.set(panic.to_string().replace('\n', " "));
            before(panic);
        }));
    }

    /// The first panic.
    pub fn panicked() -> Option<String> {
        FIRST.get().cloned()
    }
}
