//! The worker's side of the trainer socket: one trainer on one connection.

mod budget;
mod describe;
mod flight;
mod identity;
mod running;
mod send;
mod sources;
mod trainer;

pub(crate) use budget::Budget;
pub(crate) use sources::Mixtures;
pub(crate) use trainer::{Hub, serve};
