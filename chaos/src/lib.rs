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
pub mod sources;
#[cfg(tokio_unstable)]
pub mod trace;
#[cfg(tokio_unstable)]
pub mod world;

/// Ends the process at the first panic, including one of a task whose result is never awaited, after
/// it was passed to `report`.
///
/// The stack is not unwound: destructors of simulated hosts panic in turn while the simulation below
/// them is in use, and a panic during unwinding aborts the process without a report.
#[cfg(tokio_unstable)]
pub fn end_on_panic(report: impl Fn(&str) + Send + Sync + 'static) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        report(&panic.to_string().replace('\n', " "));
        std::process::exit(1);
    }));
}
