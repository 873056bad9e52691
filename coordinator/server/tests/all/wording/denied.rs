//! Messages to callers that are denied.

use expect_test::expect;
use shardfeed_plan::Digest;
use shardfeed_proto::PEER_PROTOCOL;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use super::Table;
use crate::access::Secure;
use crate::fixture::{context, eventually};
use crate::worker::{beat, join};

/// Returns a request with this header in place of a certificate.
fn shows<T>(message: T, header: &[u8]) -> Request<T> {
    let mut request = Request::new(message);
    // Another server may send bytes that are not text; the client accepts them.
    let value = MetadataValue::try_from(header).unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// Returns the header of an access token.
fn bearer(id: &str) -> Vec<u8> {
    format!("Bearer shardfeed_{id}_secret").into_bytes()
}

async fn create(
    ada: &mut AdminServiceClient<Channel>,
    id: &str,
    role: &str,
    change: impl FnOnce(&mut CreateAccessRequest),
) {
    let mut create = CreateAccessRequest {
        context: context(),
        id: id.into(),
        digest: Digest::of_parts([b"secret".as_slice()]).as_bytes().to_vec(),
        name: id.into(),
        role: role.into(),
        ttl_ms: 3_600_000,
        ..CreateAccessRequest::default()
    };
    change(&mut create);
    ada.create_access(create).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_denial_says_who_may_or_what_to_show() {
    let cluster = Secure::start().await;
    let mut table = Table::default();
    let mut ada = AdminServiceClient::new(cluster.channel("ada").await);
    let mut worker = WorkerServiceClient::new(cluster.channel("w1").await);
    let mut nobody = AdminServiceClient::new(cluster.channel("nobody").await);
    let mut nobodys = WorkerServiceClient::new(cluster.channel("nobody").await);
    let list = || ListJobsRequest { context: context() };
    let long = format!("Bearer shardfeed_a_{}", "x".repeat(600));

    table.refused("who shows nothing", nobody.list_jobs(list()).await);
    for (what, header) in [
        ("who shows no text", &b"Bearer \xff\xfe"[..]),
        ("who shows a password", b"Basic YTpi"),
        ("who shows too much", long.as_bytes()),
        ("who shows something else", b"Bearer secret"),
        ("who shows a token that is not known", &bearer("none")),
    ] {
        table.refused(what, nobody.list_jobs(shows(list(), header)).await);
    }
    create(&mut ada, "gone", "viewer", |_| {}).await;
    let revoke = RevokeAccessRequest { context: context(), id: "gone".into() };
    ada.revoke_access(revoke).await.unwrap();
    let revoked = shows(list(), &bearer("gone"));
    table.refused("who shows a token that was revoked", nobody.list_jobs(revoked).await);
    create(&mut ada, "short", "viewer", |create| create.ttl_ms = 1).await;
    eventually("it expires", || async {
        let told = nobody.clone().list_jobs(shows(list(), &bearer("short"))).await;
        told.is_err().then_some(())
    })
    .await;
    let expired = shows(list(), &bearer("short"));
    table.refused("who shows a token that has expired", nobody.list_jobs(expired).await);
    create(&mut ada, "join", "worker", |create| create.join_ttl_ms = Some(60_000)).await;
    let joins = shows(list(), &bearer("join"));
    table.refused("who shows a join token", nobody.list_jobs(joins).await);
    let exchange = |id: &str| ExchangeAccessRequest {
        context: context(),
        id: id.into(),
        digest: vec![0; 32],
        name: "w".into(),
    };
    nobody.exchange_access(shows(exchange("made"), &bearer("join"))).await.unwrap();
    let again = nobody.exchange_access(shows(exchange("other"), &bearer("join"))).await;
    table.refused("who exchanges a join token again", again);
    let again = shows(list(), &bearer("join"));
    table.refused("who shows a join token that was used", nobody.list_jobs(again).await);
    create(&mut ada, "plain", "viewer", |_| {}).await;
    let plain = nobody.exchange_access(shows(exchange("other"), &bearer("plain"))).await;
    table.refused("who exchanges a token that is none to join with", plain);
    table.refused("who exchanges nothing", ada.exchange_access(exchange("other")).await);

    let remove = RemoveJobRequest { context: context(), name: "train".into() };
    let removed = nobody.remove_job(shows(remove, &bearer("plain"))).await;
    table.refused("a viewer who removes a job", removed);
    create(&mut ada, "some", "operator", |create| create.jobs = vec!["eval-*".into()]).await;
    let job = GetJobRequest { context: context(), job: "train".into() };
    let asked = nobody.get_job(shows(job, &bearer("some"))).await;
    table.refused("an operator of some jobs who looks at another", asked);
    let events = ListEventsRequest { context: context(), ..ListEventsRequest::default() };
    let asked = nobody.list_events(shows(events, &bearer("some"))).await;
    table.refused("an operator of some jobs who looks at all", asked);

    let session = join(&mut worker, "w1").await.session;
    table.name(format!("session {session} "), "session N ");
    create(&mut ada, "other", "worker", |_| {}).await;
    let leave = LeaveRequest { context: context(), session };
    let left = nobodys.leave(shows(leave, &bearer("other"))).await;
    table.refused("a worker who speaks for another", left);
    let joins = JoinRequest {
        context: context(),
        worker: "w1".into(),
        host: "h".into(),
        incarnation: "another".into(),
        version: "0.1.0".into(),
        ..JoinRequest::default()
    };
    let joined = nobodys.join(shows(joins, &bearer("other"))).await;
    table.refused("a worker under the name of another", joined);
    beat(&mut worker, session, vec![]).await.unwrap();

    let introduce =
        || IntroduceRequest { protocol: PEER_PROTOCOL, node: 2, ..IntroduceRequest::default() };
    for who in ["nobody", "w1"] {
        let mut peer = PeerServiceClient::new(cluster.channel(who).await);
        let asked = format!("{who}, as if it were a coordinator");
        table.refused(&asked, peer.introduce(introduce()).await);
    }
    table.check(&expect![[r#"
        who shows nothing
            Denied: this cluster authenticates callers; give --tls DIR (SHARDFEED_TLS) with tls.crt and tls.key of a certificate of it, or --token-file FILE (SHARDFEED_TOKEN_FILE) with an access token
        who shows no text: Denied
        who shows a password: Denied
        who shows too much: Denied
        who shows something else: Denied
        who shows a token that is not known: Denied
        who shows a token that was revoked: Denied
        who shows a token that has expired: Denied
        who shows a join token: Denied
        who exchanges a join token again: Denied
        who shows a join token that was used: Denied
        who exchanges a token that is none to join with: Denied
        who exchanges nothing: Denied
        a viewer who removes a job: Denied
        an operator of some jobs who looks at another: Denied
        an operator of some jobs who looks at all: Denied
        a worker who speaks for another: Denied
        a worker under the name of another: Denied
        nobody, as if it were a coordinator: Denied
        w1, as if it were a coordinator: Denied
    "#]]);
    cluster.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_another_coordinator_says_what_does_not_fit() {
    let cluster = Secure::start().await;
    let mut table = Table::default();
    table.name(cluster.running.cluster_id(), "OURS");
    let mut peer = PeerServiceClient::new(cluster.channel("c1").await);
    let older = IntroduceRequest { protocol: 99, node: 2, ..IntroduceRequest::default() };
    table.refused("one of another release", peer.introduce(older).await);
    let pull =
        |cluster: &str, digest: Vec<u8>| PullChunkRequest { cluster_id: cluster.into(), digest };
    table.refused("one of no cluster", peer.pull_chunk(pull("", vec![0; 32])).await);
    table.refused("one of another cluster", peer.pull_chunk(pull("THEIRS", vec![0; 32])).await);
    let ours = cluster.running.cluster_id();
    table.refused("one that asks for no chunk", peer.pull_chunk(pull(ours, vec![])).await);
    let push = PushChunkRequest { cluster_id: ours.into(), content: vec![] };
    table.refused("one that brings nothing", peer.push_chunk(push).await);
    let exchange = |from: u64, to: u64, message: &[u8]| ExchangeRequest {
        cluster_id: ours.into(),
        from,
        to,
        message: message.to_vec(),
    };
    table.refused("one that means another node", peer.exchange(exchange(2, 3, b"")).await);
    table.refused("one that says nothing", peer.exchange(exchange(2, 1, b"")).await);
    table.refused("one that says nonsense", peer.exchange(exchange(2, 1, &[7; 99])).await);
    table.check(&expect![[r#"
        one of another release
            WrongVersion: node 2 speaks version 99 of the peers' protocol, node 1 speaks version 1; upgrade the older one
        one of no cluster
            WrongCluster: the message names no cluster
        one of another cluster: WrongCluster
        one that asks for no chunk
            Invalid: `digest` has 0 bytes, a digest has 32
        one that brings nothing: Invalid
        one that means another node
            Conflict: this is node 1, not node 3; look at the addresses
        one that says nothing: Conflict
        one that says nonsense: Conflict
    "#]]);
    cluster.running.stop().await;
}
