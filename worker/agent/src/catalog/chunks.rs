//! Chunks of a coordinator: fetched and stored by digest.

use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::coordinator::Clients;
use crate::cluster::session::Session;

/// Fetches a chunk by its digest.
pub(crate) fn get_chunk(
    session: &Session,
    digest: &[u8],
    waiting: &mut dyn FnMut(&str) -> bool,
) -> Result<Vec<u8>, WireError> {
    let response: wire::GetChunkResponse =
        session.coordinator().call(waiting, |mut clients: Clients, context| {
            let request = wire::GetChunkRequest { context, digest: digest.to_vec() };
            Box::pin(async move { clients.worker.get_chunk(request).await })
        })?;
    Ok(response.content)
}

/// Stores a chunk; returns its digest.
pub(crate) fn put_chunk(
    session: &Session,
    content: &[u8],
    waiting: &mut dyn FnMut(&str) -> bool,
) -> Result<Vec<u8>, WireError> {
    let response: wire::PutChunkResponse =
        session.coordinator().call(waiting, |mut clients: Clients, context| {
            let request = wire::PutChunkRequest { context, content: content.to_vec() };
            Box::pin(async move { clients.worker.put_chunk(request).await })
        })?;
    Ok(response.digest)
}
