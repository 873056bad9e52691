//! Calls of other coordinators: identification, messages of the log, chunks. Every node answers
//! them, leader or not, and answers identification even before there is a log.

use std::sync::Arc;

use shardfeed_proto::coordinator::v1::peer_service_server::PeerService;
use shardfeed_proto::coordinator::v1::{
    ExchangeRequest, ExchangeResponse, IntroduceRequest, IntroduceResponse, PullChunkRequest,
    PullChunkResponse, PushChunkRequest, PushChunkResponse,
};
use shardfeed_proto::{ErrorKind, PEER_PROTOCOL, WireError, digest_from};
use tonic::{Request, Response, Status};

use super::guard::{Seen, check_peer};
use super::rights::Rpc;
use super::serve::outcome_of;
use crate::error::Result;
use crate::leader::core::{Core, blocking};
use crate::metrics::Outcome;
use crate::net::front::Front;
use crate::net::links::wire_error;
use crate::storage::chunks::ChunkStoreError;

#[derive(Debug)]
pub(crate) struct PeerCalls {
    pub(crate) front: Arc<Front>,
}

/// Implements the service: each call runs the function of its name, measured.
macro_rules! calls {
    ($($name:ident: $rpc:ident, $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl PeerService for PeerCalls {
            $(
                async fn $name(
                    &self,
                    request: Request<$request>,
                ) -> Result<Response<$response>, Status> {
                    let seen = Seen::of(&request);
                    self.measured(Rpc::$rpc, &seen, $name(&self.front, request.into_inner())).await
                }
            )*
        }
    };
}

calls! {
    introduce: Introduce, IntroduceRequest => IntroduceResponse;
    exchange: Exchange, ExchangeRequest => ExchangeResponse;
    push_chunk: PushChunk, PushChunkRequest => PushChunkResponse;
    pull_chunk: PullChunk, PullChunkRequest => PullChunkResponse;
}

impl PeerCalls {
    async fn measured<T>(
        &self,
        rpc: Rpc,
        seen: &Seen,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Response<T>, Status> {
        let began = self.front.host.now();
        let answer = match check_peer(&self.front, seen) {
            Ok(()) => work.await,
            Err(error) => Err(error),
        };
        let outcome = answer.as_ref().map_or_else(outcome_of, |_| Outcome::Done);
        let took = self.front.host.now().saturating_duration_since(began);
        self.front.metrics.called(rpc, outcome, took);
        answer.map(Response::new).map_err(|error| error.to_status())
    }
}

async fn introduce(front: &Front, request: IntroduceRequest) -> Result<IntroduceResponse> {
    if request.protocol != PEER_PROTOCOL {
        let message = format!(
            "node {} speaks version {} of the peers' protocol, node {} speaks version {PEER_PROTOCOL}; \
             upgrade the older one",
            request.node, request.protocol, front.options.node_id
        );
        return Err(WireError::new(ErrorKind::WrongVersion, message));
    }
    Ok(front.introduce(&request))
}

async fn exchange(front: &Front, request: ExchangeRequest) -> Result<ExchangeResponse> {
    let ExchangeRequest { cluster_id, from, to, message } = request;
    let core = member(front, &cluster_id)?;
    if to != core.options.node_id {
        let message =
            format!("this is node {}, not node {to}; look at the addresses", core.options.node_id);
        return Err(WireError::new(ErrorKind::Conflict, message));
    }
    core.hears(from);
    let message = core.node.handle(from, &message).await.map_err(wire_error)?;
    Ok(ExchangeResponse { message })
}

async fn push_chunk(front: &Front, request: PushChunkRequest) -> Result<PushChunkResponse> {
    let core = named(front, &request.cluster_id)?;
    let put = move |core: &Core| Ok(core.chunks.put(&request.content, "", core.host.now())?);
    blocking(core, "storing a chunk", put).await?;
    Ok(PushChunkResponse {})
}

async fn pull_chunk(front: &Front, request: PullChunkRequest) -> Result<PullChunkResponse> {
    let core = named(front, &request.cluster_id)?;
    let digest = digest_from("digest", &request.digest)?;
    let read = move |core: &Core| match core.chunks.read(&digest) {
        Ok(content) => Ok(Some(content)),
        Err(error @ ChunkStoreError::Io { .. }) => Err(error.into()),
        Err(_) => Ok(None),
    };
    let content = blocking(core, "reading a chunk", read).await?;
    Ok(PullChunkResponse { content })
}

/// Returns the coordinator, for a caller that names the same cluster.
fn named<'a>(front: &'a Front, cluster_id: &str) -> Result<&'a Arc<Core>> {
    let core = member(front, cluster_id)?;
    match cluster_id.is_empty() {
        true => Err(WireError::new(ErrorKind::WrongCluster, "the message names no cluster")),
        false => Ok(core),
    }
}

/// Returns the coordinator, for a caller of the same cluster.
/// - `cluster_id`: the caller's; empty while it opens its log, whose messages contain the id.
fn member<'a>(front: &'a Front, cluster_id: &str) -> Result<&'a Arc<Core>> {
    let core = front.core().map_err(|error| WireError { kind: ErrorKind::Unreachable, ..error })?;
    let ours = core.node.cluster_id();
    if !cluster_id.is_empty() && cluster_id != ours {
        let theirs: String = cluster_id.chars().take(64).collect();
        let message = format!(
            "it is for cluster {theirs}, node {} is of cluster {ours}; look at the addresses",
            core.options.node_id
        );
        return Err(WireError::new(ErrorKind::WrongCluster, message));
    }
    Ok(core)
}
