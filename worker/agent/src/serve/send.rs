//! Messages to a trainer.

use std::os::fd::BorrowedFd;

use shardfeed_proto::trainer::v1 as wire;
use shardfeed_socket::{Sender, SocketError};

/// Sends a message. If the trainer does not read, because it is paused or evaluates a model, this
/// waits while its process lives and `wanted` returns true.
pub(super) fn send(
    sender: &Sender<wire::ToTrainer>,
    message: wire::to_trainer::Message,
    descriptor: Option<BorrowedFd<'_>>,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<(), SocketError> {
    sender.send_while(&wire::ToTrainer { message: Some(message) }, descriptor, wanted)
}
