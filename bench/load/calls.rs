//! Common parts of all loads: connections to the leader, contexts, percentiles.

use std::time::{Duration, Instant};

use shardfeed_proto::COORDINATOR_PROTOCOL;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::{Context, GetStatusRequest, JoinRequest};
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

pub(crate) type Clients = WorkerServiceClient<Channel>;

/// Time after which a coordinator that does not answer is skipped.
const ATTEMPT: Duration = Duration::from_millis(100);

pub(crate) fn context() -> Option<Context> {
    Some(Context {
        request_id: Uuid::new_v4().to_string(),
        principal: "bench:load".into(),
        cluster_id: String::new(),
        protocol: COORDINATOR_PROTOCOL,
    })
}

/// Connects to the leader with a separate connection, as workers do.
async fn leader(addresses: &[&str]) -> Channel {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if let Some(channel) = try_leader(addresses).await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no node leads among {addresses:?}");
}

/// Tries to connect to the leader, asking every coordinator once.
pub(crate) async fn try_leader(addresses: &[&str]) -> Option<Channel> {
    for address in addresses {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .unwrap()
            .tcp_nodelay(true)
            .connect_timeout(ATTEMPT);
        let Ok(channel) = endpoint.connect().await else { continue };
        let mut admin = AdminServiceClient::new(channel.clone());
        let status = admin.get_status(GetStatusRequest { context: context() });
        if let Ok(Ok(status)) = tokio::time::timeout(ATTEMPT, status).await
            && status.get_ref().leader == Some(status.get_ref().node)
        {
            return Some(channel);
        }
    }
    None
}

pub(crate) async fn admin(addresses: &[&str]) -> AdminServiceClient<Channel> {
    AdminServiceClient::new(leader(addresses).await)
}

pub(crate) async fn connections(addresses: &[&str], count: usize) -> Vec<Clients> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(Clients::new(leader(addresses).await));
    }
    clients
}

pub(crate) async fn join(client: &mut Clients, worker: String) -> u64 {
    let join = JoinRequest {
        context: context(),
        worker,
        host: "load".into(),
        incarnation: Uuid::new_v4().to_string(),
        version: "0".into(),
        in_process: false,
        endpoint: String::new(),
        decoders: vec![],
        data_roots: vec![],
    };
    client.join(join).await.unwrap().into_inner().session
}

/// Returns a percentile of call durations, in ms.
/// - `sorted`: durations in ns.
pub(crate) fn percentile_ms(sorted: &[u64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * part).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or(0) as f64 / 1e6
}
