//! Chunks of a coordinator: fetched and stored by digest. The callback `waiting` is called before
//! each request, too: a dataset has many chunks, and requests with quick answers do not call it.

use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::coordinator::gave_up;
use crate::cluster::session::Session;

pub(crate) fn get_chunk(
    session: &Session,
    digest: &[u8],
    waiting: &mut dyn FnMut(&str) -> bool,
) -> Result<Vec<u8>, WireError> {
    proceed(waiting)?;
    let request = wire::GetChunkRequest { context: None, digest: digest.to_vec() };
    Ok(session.coordinator().call(waiting, &request)?.content)
}

pub(crate) fn put_chunk(
    session: &Session,
    content: &[u8],
    waiting: &mut dyn FnMut(&str) -> bool,
) -> Result<Vec<u8>, WireError> {
    proceed(waiting)?;
    let request = wire::PutChunkRequest { context: None, content: content.to_vec() };
    Ok(session.coordinator().call(waiting, &request)?.digest)
}

fn proceed(waiting: &mut dyn FnMut(&str) -> bool) -> Result<(), WireError> {
    if waiting("") { Ok(()) } else { Err(gave_up()) }
}
