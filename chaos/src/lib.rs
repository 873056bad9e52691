//! Seeded simulation of a whole cluster.
//!
//! It runs the real coordinators (server, raft, scheduler) on simulated machines, model workers and
//! trainers that follow the protocol, fault injection, and an oracle that counts the samples that
//! trainers received. One seed determines every event.
//!
//! The crate is empty unless it is built with `--cfg tokio_unstable`, as `.cargo/config.toml` does:
//! without that flag tokio's internal randomness cannot be seeded. Start at `simulation`.
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

/// Records panics, including those of tasks whose result is never awaited.
#[cfg(tokio_unstable)]
mod panics {
    use std::sync::OnceLock;

    static FIRST: OnceLock<String> = OnceLock::new();

    /// Installs a panic hook that records the first panic of this process.
    pub fn watch_panics() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Later panics may be consequences of the first.
            let _ = FIRST.set(panic.to_string().replace('\n', " "));
            before(panic);
        }));
    }

    /// Returns the first panic, if any.
    pub fn panicked() -> Option<String> {
        FIRST.get().cloned()
    }
}
