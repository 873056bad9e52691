//! Permissions for the calls between coordinators, and messages that are rejected unread.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use shardfeed_coordinator::{Coordinator, Running};
use shardfeed_plan::Digest;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use shardfeed_proto::coordinator::v1::{
    ExchangeAccessRequest, ExchangeRequest, GetStatusRequest, IntroduceRequest, PullChunkRequest,
    PushChunkRequest,
};
use shardfeed_proto::{ErrorKind, PEER_PROTOCOL};
use shardfeed_tls::{Authority, ClientTls, Folder, Identity, Role, Subject};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::fixture::{context, options, refused};
use crate::http::page;

/// A coordinator with certificates, and clients of several kinds.
pub(crate) struct Secure {
    home: tempfile::TempDir,
    pub(crate) running: Running,
}

impl Secure {
    pub(crate) async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let authority = Authority::create(home.path().join("pki"), "test").unwrap();
        for (role, name, hosts) in [
            (Role::Coordinator, "c1", vec!["127.0.0.1".to_owned()]),
            (Role::Worker, "w1", vec![]),
            (Role::Admin, "ada", vec![]),
        ] {
            let subject = Subject { identity: Identity { role, name: name.into() }, hosts };
            authority.issue(&subject, 1, &home.path().join("pki").join(name)).unwrap();
        }
        let anonymous = home.path().join("pki/nobody");
        std::fs::create_dir(&anonymous).unwrap();
        std::fs::copy(home.path().join("pki/ca.crt"), anonymous.join("ca.crt")).unwrap();
        let mut options = options(&home.path().join("data"));
        options.tls = Some(home.path().join("pki/c1"));
        let running = Coordinator::start(options).await.unwrap();
        Self { home, running }
    }

    pub(crate) async fn channel(&self, who: &str) -> Channel {
        connect(&self.home.path().join("pki").join(who), self.running.grpc_address()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_coordinators_ask_what_coordinators_ask_of_each_other() {
    let cluster = Secure::start().await;
    let introduce = || IntroduceRequest { protocol: PEER_PROTOCOL, node: 2, ..Default::default() };
    for who in ["nobody", "w1", "ada"] {
        let mut peer = PeerServiceClient::new(cluster.channel(who).await);
        let (kind, message) = refused(peer.introduce(introduce()).await);
        assert_eq!(kind, ErrorKind::Denied, "{who}: {message}");
        let (kind, _) = refused(peer.exchange(ExchangeRequest::default()).await);
        assert_eq!(kind, ErrorKind::Denied, "{who}");
        let chunk = PushChunkRequest { content: vec![0; 1 << 20], ..Default::default() };
        let (kind, _) = refused(peer.push_chunk(chunk).await);
        assert_eq!(kind, ErrorKind::Denied, "{who}");
        let (kind, _) = refused(peer.pull_chunk(PullChunkRequest::default()).await);
        assert_eq!(kind, ErrorKind::Denied, "{who}");
    }
    let mut peer = PeerServiceClient::new(cluster.channel("c1").await);
    assert_eq!(peer.introduce(introduce()).await.unwrap().into_inner().node, 1);
    // A message that names no cluster is rejected.
    let (kind, _) = refused(peer.pull_chunk(PullChunkRequest::default()).await);
    assert_eq!(kind, ErrorKind::WrongCluster);
    let (_, text) = page(cluster.running.http_address().unwrap(), "/metrics").await;
    for line in [
        "shardfeed_coordinator_auth_failures_total{reason=\"Node\"} 12\n",
        "shardfeed_coordinator_audit_events_total{outcome=\"Denied\"} 12\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    cluster.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_meant_for_another_cluster_is_refused_and_changes_nothing() {
    let cluster = Secure::start().await;
    let ours = cluster.running.cluster_id().to_owned();
    let mut peer = PeerServiceClient::new(cluster.channel("c1").await);
    let content = b"of another cluster".to_vec();
    let digest = Digest::of_parts([content.as_slice()]).as_bytes().to_vec();
    let pull = |cluster_id: &str| PullChunkRequest {
        cluster_id: cluster_id.to_owned(),
        digest: digest.clone(),
    };
    // A message that names no cluster is rejected, too.
    for theirs in ["", "67e55044-10b1-426f-9247-bb680e5fe0c8", "nonsense"] {
        let push = PushChunkRequest { cluster_id: theirs.to_owned(), content: content.clone() };
        let (kind, message) = refused(peer.push_chunk(push).await);
        assert_eq!(kind, ErrorKind::WrongCluster, "{message}");
        assert_eq!(refused(peer.pull_chunk(pull(theirs)).await).0, ErrorKind::WrongCluster);
        let (cluster_id, message) = (theirs.to_owned(), vec![]);
        let request = ExchangeRequest { cluster_id, from: 2, to: 1, message };
        let (kind, message) = refused(peer.exchange(request).await);
        // A message of the log contains its cluster, for a node that does not know it yet.
        let expected = match theirs.is_empty() {
            true => ErrorKind::Conflict,
            false => ErrorKind::WrongCluster,
        };
        assert_eq!(kind, expected, "{message}");
        let names_both = message.contains(theirs) && message.contains(&ours);
        assert!(theirs.is_empty() || names_both, "{message}");
    }
    let kept = peer.pull_chunk(pull(&ours)).await.unwrap().into_inner();
    assert_eq!(kept.content, None, "the refused content was not stored");
    let push = PushChunkRequest { cluster_id: ours.clone(), content: content.clone() };
    peer.push_chunk(push).await.unwrap();
    let kept = peer.pull_chunk(pull(&ours)).await.unwrap().into_inner();
    assert_eq!(kept.content, Some(content));
    // A message for another node of this cluster.
    let (cluster_id, message) = (ours, vec![]);
    let request = ExchangeRequest { cluster_id, from: 2, to: 3, message };
    let (kind, message) = refused(peer.exchange(request).await);
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(message.contains("this is node 1, not node 3"), "{message}");
    cluster.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_from_who_is_nobody() {
    let cluster = Secure::start().await;
    let mut nobody = AdminServiceClient::new(cluster.channel("nobody").await);
    let request = || GetStatusRequest { context: context() };
    let (kind, message) = refused(nobody.get_status(request()).await);
    assert_eq!(kind, ErrorKind::Denied);
    assert!(message.contains("authenticates callers"), "{message}");
    let mut ada = AdminServiceClient::new(cluster.channel("ada").await);
    ada.get_status(request()).await.unwrap();
    // Without a join token no caller can exchange anything.
    let exchange = ExchangeAccessRequest {
        context: context(),
        id: "abcd1234".into(),
        digest: vec![0; 32],
        name: "w".into(),
    };
    let (kind, message) = refused(ada.exchange_access(exchange).await);
    assert_eq!(kind, ErrorKind::Denied);
    assert!(message.contains("by showing it"), "{message}");
    let (_, text) = page(cluster.running.http_address().unwrap(), "/metrics").await;
    for line in [
        "shardfeed_coordinator_auth_failures_total{reason=\"Nothing\"} 1\n",
        "shardfeed_coordinator_auth_failures_total{reason=\"State\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    cluster.running.stop().await;
}

/// Connects with the certificates of a folder.
pub(crate) async fn connect(folder: &Path, address: SocketAddr) -> Channel {
    try_connect(folder, address).await.unwrap()
}

/// Like [`connect`]; returns an error if the other side rejects the connection.
pub(crate) async fn try_connect(
    folder: &Path,
    address: SocketAddr,
) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTls::open(Folder::new(folder)).unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect_with_connector(Connector { tls, address }).await
}

/// A connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[derive(Clone)]
struct Connector {
    tls: ClientTls,
    address: SocketAddr,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { tls, address } = self.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream = tls.connect(&address.to_string(), stream).await?;
            Ok(TokioIo::new(Box::new(stream) as Box<dyn Stream>))
        }
        .boxed()
    }
}
