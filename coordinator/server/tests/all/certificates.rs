//! Three nodes with certificates: members, outsiders, and changes while they run.

use std::path::{Path, PathBuf};

use futures::future::join_all;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, PEER_PROTOCOL};
use shardfeed_tls::{Authority, Identity, Role, Subject};
use tonic::transport::Channel;

use crate::access::{connect, try_connect};
use crate::cluster::{Cluster, members};
use crate::fixture::{context, eventually, refused};
use crate::http::page;
use crate::worker::{beat, join};

/// Validity of certificates, until they are renewed for longer.
const DAYS: u32 = 1;

/// Nodes 1 to 3, an authority, and the holders of its certificates.
struct Guarded {
    cluster: Cluster,
    authority: Authority,
}

impl Guarded {
    /// Creates nodes with certificates that are to found a cluster; none runs yet.
    fn new() -> Self {
        let mut cluster = Cluster::new();
        cluster.founders(3);
        let authority = Authority::create(cluster.folder.path().join("pki"), "test").unwrap();
        let mut this = Self { cluster, authority };
        for node in 1..=3 {
            let folder = this.folder(&format!("c{node}"));
            this.authority.issue(&this.node(node), DAYS, &folder).unwrap();
            this.cluster.options.get_mut(&node).unwrap().tls = Some(folder);
        }
        for (role, name) in [(Role::Worker, "w1"), (Role::Admin, "ada")] {
            let subject = Subject { identity: Identity { role, name: name.into() }, hosts: vec![] };
            this.authority.issue(&subject, DAYS, &this.folder(name)).unwrap();
        }
        this
    }

    /// Starts nodes; on return they have founded a cluster.
    async fn start() -> Self {
        let mut this = Self::new();
        let started = join_all([1, 2, 3].map(|node| this.cluster.start_node(node))).await;
        for (node, running) in (1..).zip(started) {
            this.cluster.running.insert(node, running.unwrap());
        }
        this
    }

    fn folder(&self, who: &str) -> PathBuf {
        self.cluster.folder.path().join("pki").join(who)
    }

    /// Returns the subject of a node's certificate, for any authority.
    fn node(&self, node: u64) -> Subject {
        let identity = Identity { role: Role::Coordinator, name: format!("c{node}") };
        Subject { identity, hosts: vec![self.cluster.address(node).ip().to_string()] }
    }

    /// Gives a node a certificate of another authority; returns its folder.
    fn estrange(&mut self, node: u64) -> PathBuf {
        let home = self.cluster.folder.path().join("other");
        let other = Authority::create(&home, "other").unwrap();
        let folder = home.join(format!("c{node}"));
        other.issue(&self.node(node), DAYS, &folder).unwrap();
        self.cluster.options.get_mut(&node).unwrap().tls = Some(folder.clone());
        folder
    }

    async fn channel(&self, who: &str, node: u64) -> Channel {
        connect(&self.folder(who), self.cluster.address(node)).await
    }

    async fn admin(&self, node: u64) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel("ada", node).await)
    }

    async fn worker(&self, node: u64) -> WorkerServiceClient<Channel> {
        WorkerServiceClient::new(self.channel("w1", node).await)
    }

    /// Returns the leader, as soon as a running node answers as the leader.
    async fn leader(&self) -> u64 {
        eventually("a node leads", || async {
            for node in self.cluster.running.keys() {
                // A node whose certificate was just replaced may still present the old one.
                let address = self.cluster.address(*node);
                let Ok(channel) = try_connect(&self.folder("ada"), address).await else {
                    continue;
                };
                let list = ListJobsRequest { context: context() };
                if AdminServiceClient::new(channel).list_jobs(list).await.is_ok() {
                    return Some(*node);
                }
            }
            None
        })
        .await
    }

    async fn page(&self, node: u64, path: &str) -> (u16, String) {
        page(self.cluster.running[&node].http_address().unwrap(), path).await
    }

    /// Returns the expiry of the certificate that a node presents, Unix seconds.
    async fn not_after(&self, node: u64) -> u64 {
        let (_, text) = self.page(node, "/metrics").await;
        let name = "shardfeed_coordinator_certificate_not_after_seconds ";
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
    }

    /// Returns the time since the leader's last contact with a node, ms.
    async fn heard_ms(&self, leader: u64, node: u64) -> Option<u64> {
        let said = members(&mut self.admin(leader).await).await;
        said.members.iter().find(|member| member.node == node)?.heard_ms
    }
}

fn introduction(node: u64) -> IntroduceRequest {
    IntroduceRequest { protocol: PEER_PROTOCOL, node, ..IntroduceRequest::default() }
}

/// Identifies as another node to a node, with a folder of certificates; returns the node's answer.
/// `Err`: the details of a rejection; empty if the connection itself was rejected.
async fn introduce(folder: &Path, cluster: &Cluster, node: u64) -> Result<u64, Vec<u8>> {
    let channel = try_connect(folder, cluster.address(node)).await.map_err(|_| vec![])?;
    let answer = PeerServiceClient::new(channel).introduce(introduction(2)).await;
    answer.map(|answer| answer.into_inner().node).map_err(|status| status.details().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_founded_with_certificates_and_fails_over_to_a_node_whose_was_renewed() {
    let mut guarded = Guarded::start().await;
    let id = guarded.cluster.running[&1].cluster_id().to_owned();
    assert!(guarded.cluster.running.values().all(|running| running.cluster_id() == id));
    let leader = guarded.leader().await;
    let session = join(&mut guarded.worker(leader).await, "w1").await.session;

    // Calls for nodes are rejected for a worker, on any node, even if it knows the cluster.
    for node in 1..=3 {
        let mut peer = PeerServiceClient::new(guarded.channel("w1", node).await);
        let (kind, message) = refused(peer.introduce(introduction(2)).await);
        assert_eq!(kind, ErrorKind::Denied, "{message}");
        assert!(message.contains("worker:w1 may not call"), "{message}");
        let (cluster_id, message) = (id.clone(), vec![]);
        let request = ExchangeRequest { cluster_id, from: leader, to: node, message };
        assert_eq!(refused(peer.exchange(request).await).0, ErrorKind::Denied);
    }

    // Renewed on the disk of a follower: it is read without a restart.
    let renewed = [1, 2, 3].into_iter().find(|node| *node != leader).unwrap();
    let before = guarded.not_after(renewed).await;
    let folder = guarded.folder(&format!("c{renewed}"));
    guarded.authority.renew(&folder, 30 * DAYS).unwrap();
    eventually("it is read", || async {
        (guarded.not_after(renewed).await > before).then_some(())
    })
    .await;
    // The earlier connections end, so that all further messages use the new certificate.
    guarded.cluster.cut(renewed);
    eventually("the leader misses it", || async {
        guarded.heard_ms(leader, renewed).await.filter(|ms| *ms > 1_500)
    })
    .await;
    guarded.cluster.heal();
    eventually("the leader reaches it", || async {
        guarded.heard_ms(leader, renewed).await.filter(|ms| *ms < 1_000)
    })
    .await;

    // Two are left; neither leads without the other.
    guarded.cluster.kill(leader);
    let next = guarded.leader().await;
    beat(&mut guarded.worker(next).await, session, vec![]).await.unwrap();
    if next != renewed {
        let request = TransferLeaderRequest { context: context(), to: Some(renewed) };
        guarded.admin(next).await.transfer_leader(request).await.unwrap();
    }
    eventually("it leads", || async { (guarded.leader().await == renewed).then_some(()) }).await;
    beat(&mut guarded.worker(renewed).await, session, vec![]).await.unwrap();
    guarded.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_founds_a_cluster_with_a_node_of_another_authority() {
    let mut guarded = Guarded::new();
    let folder = guarded.estrange(3);
    let mut waiting = Vec::new();
    for node in 1..=3 {
        let starting = guarded.cluster.listen_node(node).await;
        let http = starting.http_address().unwrap();
        waiting.push((node, http, tokio::spawn(starting.open())));
    }
    let address = |node| guarded.cluster.address(node).to_string();
    for (node, http, _) in &waiting {
        let (missing, found): (Vec<_>, Vec<_>) =
            [1, 2, 3].into_iter().partition(|other| (*node == 3) != (*other == 3));
        eventually("it misses those of the other authority, and no others", || async {
            let (code, reason) = page(*http, "/readyz").await;
            assert_eq!(code, 503);
            let misses = |other: &u64| reason.contains(&address(*other));
            (missing.iter().all(misses) && !found.iter().any(misses)).then_some(())
        })
        .await;
    }
    assert!(waiting.iter().all(|(_, _, opening)| !opening.is_finished()));
    // It gets a certificate of this authority while it runs.
    guarded.authority.issue(&guarded.node(3), DAYS, &folder).unwrap();
    for (node, _, opening) in waiting {
        guarded.cluster.running.insert(node, opening.await.unwrap().unwrap());
    }
    guarded.leader().await;
    guarded.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_shows_a_certificate_of_another_authority_does_not_count() {
    let mut guarded = Guarded::start().await;
    let leader = guarded.leader().await;
    let mut others = [1, 2, 3].into_iter().filter(|node| *node != leader);
    let (stranger, honest) = (others.next().unwrap(), others.next().unwrap());
    guarded.cluster.running.remove(&stranger).unwrap().stop().await;
    let folder = guarded.estrange(stranger);
    // It has its log and its number, so it runs; but no other node reaches it.
    let running = guarded.cluster.start_node(stranger).await.unwrap();
    guarded.cluster.running.insert(stranger, running);
    eventually("it says so", || async {
        (guarded.page(stranger, "/readyz").await.0 == 503).then_some(())
    })
    .await;
    // Even if it trusts the others, they do not trust it: no message is exchanged.
    let believing = guarded.cluster.folder.path().join("believing");
    std::fs::create_dir(&believing).unwrap();
    for name in ["tls.crt", "tls.key"] {
        std::fs::copy(folder.join(name), believing.join(name)).unwrap();
    }
    std::fs::copy(guarded.folder("c1").join("ca.crt"), believing.join("ca.crt")).unwrap();
    assert_eq!(introduce(&believing, &guarded.cluster, leader).await, Err(vec![]));
    let known = guarded.folder(&format!("c{honest}"));
    assert_eq!(introduce(&known, &guarded.cluster, leader).await, Ok(leader));

    // Two of three run, which would be a majority; but they do not trust each other.
    let mut admin = guarded.admin(leader).await;
    guarded.cluster.kill(honest);
    eventually("the leader says so", || async {
        (guarded.page(leader, "/readyz").await.0 == 503).then_some(())
    })
    .await;
    let (kind, _) = refused(admin.list_jobs(ListJobsRequest { context: context() }).await);
    assert!(matches!(kind, ErrorKind::NotLeader | ErrorKind::Retry), "{kind:?}");
    // They form one as soon as it has a certificate of this authority.
    guarded.authority.issue(&guarded.node(stranger), DAYS, &folder).unwrap();
    guarded.leader().await;
    guarded.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_follows_names_the_leader_only_to_those_it_knows() {
    let guarded = Guarded::start().await;
    let leader = guarded.leader().await;
    let follower = (1..=3).find(|node| *node != leader).unwrap();
    let list = || tonic::Request::new(ListJobsRequest { context: context() });
    // An authenticated caller is sent to the leader.
    let known = eventually("it knows the leader", || async {
        let status = guarded.admin(follower).await.list_jobs(list()).await.unwrap_err();
        let error = shardfeed_proto::WireError::from_status(&status);
        (error.kind == ErrorKind::NotLeader && error.leader.is_some()).then_some(error)
    })
    .await;
    let secrets = [known.leader.unwrap().to_string(), guarded.cluster.address(leader).to_string()];
    // The authority's certificate alone proves nothing.
    let nobody = guarded.folder("nobody");
    std::fs::create_dir_all(&nobody).unwrap();
    std::fs::copy(guarded.folder("ada").join("ca.crt"), nobody.join("ca.crt")).unwrap();
    for shown in [None, Some("Bearer shardfeed_some_token"), Some("nonsense")] {
        let mut request = list();
        if let Some(shown) = shown {
            request.metadata_mut().insert("authorization", shown.parse().unwrap());
        }
        let mut client = AdminServiceClient::new(guarded.channel("nobody", follower).await);
        let status = client.list_jobs(request).await.unwrap_err();
        let error = shardfeed_proto::WireError::from_status(&status);
        assert_eq!(error.leader, None, "{shown:?}");
        let named = secrets.iter().any(|secret| format!("{status:?}").contains(secret.as_str()));
        assert!(!named, "{shown:?}: {status:?}");
        // A token may be too new for this node to know.
        let kind = match shown {
            Some("Bearer shardfeed_some_token") => ErrorKind::NotLeader,
            _ => ErrorKind::Denied,
        };
        assert_eq!(error.kind, kind, "{shown:?}");
    }
}
