//! Members join, leave and hand over, while the cluster serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::*;
use tonic::transport::Channel;

use crate::cluster::{Cluster, members};
use crate::fixture::{DEADLINE, context, eventually, refused};
use crate::http::page;
use crate::worker::{beat, join, put};

async fn add(admin: &mut AdminServiceClient<Channel>, node: u64, address: &str) {
    let request = || AddMemberRequest { context: context(), node, address: address.into() };
    eventually("the node is added", || async { admin.clone().add_member(request()).await.ok() })
        .await;
}

fn voters(said: &GetClusterResponse) -> Vec<u64> {
    let votes = |member: &&Member| matches!(member.role(), MemberRole::Leader | MemberRole::Voter);
    said.members.iter().filter(votes).map(|member| member.node).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_grows_to_three_without_a_stop_and_back() {
    let mut cluster = Cluster::new();
    cluster.add_options(1, |_| {});
    cluster.running.insert(1, cluster.start_node(1).await.unwrap());
    let (mut worker, mut admin) = cluster.clients(1).await;
    let session = join(&mut worker, "w0").await.session;
    let digest = put(&mut worker, b"before the others".to_vec()).await;
    // A worker sends heartbeats all the time, and is never rejected.
    let (done, beats) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let working = tokio::spawn({
        let (done, beats, mut worker) = (Arc::clone(&done), Arc::clone(&beats), worker.clone());
        async move {
            while !done.load(Ordering::SeqCst) {
                beat(&mut worker, session, vec![]).await.unwrap();
                put(&mut worker, beats.fetch_add(1, Ordering::SeqCst).to_le_bytes().to_vec()).await;
            }
        }
    });
    let seed = cluster.address(1).to_string();
    for node in [2, 3] {
        cluster.add_options(node, |options| options.join = vec![seed.clone()]);
        let starting = cluster.listen_node(node).await;
        let http = starting.http_address().unwrap();
        let opening = tokio::spawn(starting.open());
        eventually("it reports its reason for waiting", || async {
            let (_, reason) = page(http, "/readyz").await;
            reason.contains("cluster add").then_some(())
        })
        .await;
        add(&mut admin, node, &cluster.address(node).to_string()).await;
        let running = tokio::time::timeout(DEADLINE, opening).await.unwrap().unwrap().unwrap();
        cluster.running.insert(node, running);
    }
    let said = members(&mut admin).await;
    assert_eq!(voters(&said), [1, 2, 3], "{said:?}");
    done.store(true, Ordering::SeqCst);
    working.await.unwrap();
    assert!(beats.load(Ordering::SeqCst) > 0);

    // The first node dies: the others have everything that a dataset could refer to, and continue.
    let request = TransferLeaderRequest { context: context(), to: Some(3) };
    let leader = admin.transfer_leader(request).await.unwrap().into_inner().leader;
    assert_eq!(leader, 3);
    eventually("it leads", || async { (cluster.leader().await == 3).then_some(()) }).await;
    let (mut worker, mut admin) = cluster.clients(3).await;
    beat(&mut worker, session, vec![]).await.unwrap();
    let request = GetChunkRequest { context: context(), digest };
    worker.get_chunk(request).await.unwrap();
    // Back to one node.
    for node in [1, 2] {
        let request = RemoveMemberRequest { context: context(), node };
        admin.remove_member(request).await.unwrap();
        let http = cluster.running[&node].http_address().unwrap();
        eventually("it knows, or waits for ever", || async {
            (page(http, "/readyz").await.0 == 503).then_some(())
        })
        .await;
    }
    assert_eq!(voters(&members(&mut admin).await), [3]);
    let request = RemoveMemberRequest { context: context(), node: 3 };
    let (kind, message) = refused(admin.remove_member(request).await);
    assert_eq!(kind, ErrorKind::Invalid, "{message}");
    beat(&mut worker, session, vec![]).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_make_no_sense_are_refused() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (_, mut admin) = cluster.clients(leader).await;
    let taken = cluster.address(1).to_string();
    for (node, address) in [(0, "127.0.0.1:1"), (4, "nowhere"), (4, taken.as_str())] {
        let request = AddMemberRequest { context: context(), node, address: address.into() };
        let (kind, message) = refused(admin.add_member(request).await);
        assert_eq!(kind, ErrorKind::Invalid, "{message}");
    }
    // No node runs at the address.
    let request = AddMemberRequest { context: context(), node: 4, address: "127.0.0.1:1".into() };
    let (kind, message) = refused(admin.add_member(request).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{message}");
    assert_eq!(voters(&members(&mut admin).await), [1, 2, 3]);
    let (_, mut follower) = cluster.clients(cluster.follower().await).await;
    let request = RemoveMemberRequest { context: context(), node: 1 };
    assert_eq!(refused(follower.remove_member(request).await).0, ErrorKind::NotLeader);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stops_hands_over() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (mut worker, _) = cluster.clients(leader).await;
    let session = join(&mut worker, "w0").await.session;
    let running = cluster.running.remove(&leader).unwrap();
    tokio::time::timeout(DEADLINE, running.stop()).await.unwrap();
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    let (mut worker, _) = cluster.clients(next).await;
    beat(&mut worker, session, vec![]).await.unwrap();
    cluster.stop().await;
}
