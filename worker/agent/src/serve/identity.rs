//! Jobs that this worker would read otherwise than the trainer: in another order, to other pixels.

use shardfeed_pipeline::PIXEL_CONTRACT;
use shardfeed_plan::{DECODER_NONE, ORDER_VERSION};
use shardfeed_proto::common::v1::JobIdentity;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_source::LoadError;

/// Rejects a job of a trainer whose release computes another order.
pub(super) fn check_order(identity: Option<&JobIdentity>) -> Result<(), LoadError> {
    match identity.map_or(ORDER_VERSION, |identity| identity.order_version) {
        ORDER_VERSION => Ok(()),
        theirs => {
            let message = format!(
                "the trainer computes order version {theirs}, its worker order version \
                 {ORDER_VERSION}; use the same version of shardfeed for both"
            );
            Err(WireError::new(ErrorKind::WrongVersion, message).into())
        }
    }
}

/// Rejects a job whose images this worker would decode to other pixels.
/// - `pinned`: the pixel contract of the job's identity.
pub(super) fn check_decoder(worker: &str, pinned: &str) -> Result<(), LoadError> {
    if matches!(pinned, DECODER_NONE | PIXEL_CONTRACT) {
        return Ok(());
    }
    let message = format!(
        "worker {worker} decodes images by the pixel contract `{PIXEL_CONTRACT}`, but the job pins `{pinned}`; run a \
         version of shardfeed on the worker that has the job's contract, or start another job"
    );
    Err(WireError::new(ErrorKind::WrongVersion, message).into())
}
