//! The worker's side of the trainer socket: one trainer on one connection.

mod budget;
mod flight;
mod running;
mod trainer;

pub(crate) use budget::Budget;
pub(crate) use trainer::{Hub, serve};

use std::os::fd::BorrowedFd;

use shardfeed_proto::trainer::v1 as wire;
use shardfeed_socket::{Sender, SocketError};

/// Sends a message; one that could not be sent for want of room is tried again for as long as the
/// trainer lives.
fn send(
    sender: &Sender<wire::ToTrainer>,
    message: wire::to_trainer::Message,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), SocketError> {
    sender.send(&wire::ToTrainer { message: Some(message) }, descriptor)
}
