//! Nodes that join a cluster, and nodes that must never join.

use std::time::Duration;

use futures::future::join_all;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Running, StartError};
use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::*;

use crate::cluster::{Cluster, members};
use crate::fixture::{clients, context, eventually, options, refused};
use crate::http::page;
use crate::worker::join;

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_found_one_cluster_and_come_back_to_it() {
    let mut cluster = Cluster::start(3).await;
    let id = cluster.running[&1].cluster_id().to_owned();
    assert!(cluster.running.values().all(|running| running.cluster_id() == id));
    let leader = cluster.leader().await;
    let (mut worker, mut admin) = cluster.clients(leader).await;
    let session = join(&mut worker, "w0").await.session;
    let said = members(&mut admin).await;
    assert_eq!((said.node, said.leader, said.members.len()), (leader, Some(leader), 3));
    let roles: Vec<_> = said.members.iter().map(Member::role).collect();
    assert_eq!(roles.iter().filter(|role| **role == MemberRole::Voter).count(), 2, "{said:?}");
    for (node, running) in &cluster.running {
        assert_eq!(said.members[*node as usize - 1].address, running.advertised());
        let http = running.http_address().unwrap();
        eventually("it follows the leader", || async {
            (page(http, "/readyz").await == (200, "ok\n".into())).then_some(())
        })
        .await;
    }
    let running = std::mem::take(&mut cluster.running);
    join_all(running.into_values().map(Running::stop)).await;
    // `peers` is no longer needed.
    cluster.options.values_mut().for_each(|options| options.peers.clear());
    for node in 1..=3 {
        let running = cluster.start_node(node).await.unwrap();
        assert_eq!(running.cluster_id(), id);
        cluster.running.insert(node, running);
    }
    let (mut worker, _) = cluster.clients(cluster.leader().await).await;
    crate::worker::beat(&mut worker, session, vec![]).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_founds_a_cluster_while_one_is_missing() {
    let mut cluster = Cluster::new();
    cluster.founders(3);
    let mut waiting = Vec::new();
    for node in [1, 2] {
        let starting = cluster.listen_node(node).await;
        let (grpc, http) = (starting.grpc_address(), starting.http_address().unwrap());
        waiting.push((grpc, http, tokio::spawn(starting.open())));
    }
    let third = cluster.address(3).to_string();
    for (grpc, http, opening) in &waiting {
        let reason = eventually("it says who is missing", || async {
            let (code, reason) = page(*http, "/readyz").await;
            assert_eq!(code, 503);
            reason.contains(&third).then_some(reason)
        })
        .await;
        let others: Vec<_> = [1, 2].map(|node| cluster.address(node).to_string()).into();
        eventually("it misses no other node", || async {
            let (_, reason) = page(*http, "/readyz").await;
            (!others.iter().any(|other| reason.contains(other))).then_some(())
        })
        .await;
        assert!(reason.contains("found a cluster"), "{reason}");
        assert_eq!(page(*http, "/livez").await.0, 200);
        let (_, mut admin) = clients(*grpc).await;
        let (kind, _) = refused(admin.get_status(GetStatusRequest { context: context() }).await);
        assert_eq!(kind, ErrorKind::Retry);
        assert!(!opening.is_finished());
    }
    cluster.running.insert(3, cluster.start_node(3).await.unwrap());
    for (node, (_, _, opening)) in [1, 2].into_iter().zip(waiting) {
        cluster.running.insert(node, opening.await.unwrap().unwrap());
    }
    cluster.leader().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_is_refused() {
    let mut cluster = Cluster::start(3).await;
    cluster.leader().await;
    let running = cluster.running.remove(&2).unwrap();
    running.stop().await;
    std::fs::remove_dir_all(&cluster.options[&2].data_dir).unwrap();
    let error = cluster.start_node(2).await.unwrap_err();
    assert!(matches!(error, StartError::LostDisk { node: 2, .. }), "{error}");
    assert!(error.to_string().contains("number that was never used"), "{error}");
    // It may not return through `join`, either.
    let seed = cluster.address(1).to_string();
    cluster.add_options(2, |options| options.join = vec![seed]);
    let error = cluster.start_node(2).await.unwrap_err();
    assert!(matches!(error, StartError::LostDisk { node: 2, .. }), "{error}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_all_started_alike_found_one_cluster_and_join_it_later() {
    let mut cluster = Cluster::new();
    cluster.founders(3);
    let everybody: Vec<_> = (1..=3).map(|node| cluster.address(node).to_string()).collect();
    let alike = |options: &mut CoordinatorOptions| options.join = everybody.clone();
    cluster.options.values_mut().for_each(alike);
    let started = join_all([1, 2, 3].map(|node| cluster.start_node(node))).await;
    for (node, running) in (1..).zip(started) {
        cluster.running.insert(node, running.unwrap());
    }
    let id = cluster.running[&1].cluster_id().to_owned();
    assert!(cluster.running.values().all(|running| running.cluster_id() == id));

    // One node restarts, and one loses its disk: it is rejected under its number, and returns under
    // another.
    cluster.leader().await;
    cluster.running.remove(&1).unwrap().stop().await;
    cluster.running.insert(1, cluster.start_node(1).await.unwrap());
    cluster.running.remove(&2).unwrap().stop().await;
    std::fs::remove_dir_all(&cluster.options[&2].data_dir).unwrap();
    let error = cluster.start_node(2).await.unwrap_err();
    assert!(matches!(error, StartError::LostDisk { node: 2, .. }), "{error}");
    let peers = cluster.options[&1].peers.clone();
    cluster.add_options(4, |options| {
        options.peers = peers;
        alike(options);
    });
    let starting = cluster.listen_node(4).await;
    let http = starting.http_address().unwrap();
    let opening = tokio::spawn(starting.open());
    eventually("it waits to be added", || async {
        let (_, reason) = page(http, "/readyz").await;
        reason.contains(&format!("to be added to cluster {id}")).then_some(())
    })
    .await;
    opening.abort();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_founder_that_finds_a_cluster_joins_it_or_is_refused() {
    let mut cluster = Cluster::start(1).await;
    let id = cluster.running[&1].cluster_id().to_owned();
    // Nodes 2 and 3 have options to found a cluster with it.
    let peers: Vec<_> = (1..=3).map(|node| format!("{node}={}", cluster.address(node))).collect();
    cluster.add_options(2, |options| options.peers = peers);
    let error = cluster.start_node(2).await.unwrap_err();
    assert!(matches!(&error, StartError::NotAFounder { node: 2, .. }), "{error}");
    assert!(
        error.is_final() && error.to_string().contains("give this node `join`, too"),
        "{error}"
    );
    let seed = cluster.address(1).to_string();
    cluster.options.get_mut(&2).unwrap().join = vec![seed];
    let starting = cluster.listen_node(2).await;
    let http = starting.http_address().unwrap();
    let opening = tokio::spawn(starting.open());
    eventually("it waits to be added", || async {
        let (_, reason) = page(http, "/readyz").await;
        reason.contains(&format!("to be added to cluster {id}")).then_some(())
    })
    .await;
    let (_, mut admin) = cluster.clients(1).await;
    let address = cluster.address(2).to_string();
    let request = AddMemberRequest { context: context(), node: 2, address };
    eventually("it is added", || async { admin.clone().add_member(request.clone()).await.ok() })
        .await;
    cluster.running.insert(2, opening.await.unwrap().unwrap());
    assert_eq!(members(&mut admin).await.members.len(), 2);
    // The data on its disk takes precedence from now on.
    cluster.running.remove(&2).unwrap().stop().await;
    cluster.running.insert(2, cluster.start_node(2).await.unwrap());
    assert_eq!(cluster.running[&2].cluster_id(), id);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_refused() {
    let mut cluster = Cluster::start(1).await;
    let seed = cluster.address(1).to_string();
    cluster.add_options(2, |options| {
        options.join = vec![seed];
        options.cluster_name = "other".into();
    });
    let error = cluster.start_node(2).await.unwrap_err();
    assert!(error.to_string().contains("`other`"), "{error}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_leaves_no_folder() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = Coordinator::start(options(one.path())).await.unwrap();
    let mut second = options(&two.path().join("data"));
    second.listen = running.grpc_address();
    let error = Coordinator::start(second.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { option: "listen", .. }), "{error}");
    second.listen = "127.0.0.1:0".parse().unwrap();
    second.http = running.http_address();
    let error = Coordinator::start(second.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { option: "http", .. }), "{error}");
    assert!(!second.data_dir.exists());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_without_pages_serves() {
    let folder = tempfile::tempdir().unwrap();
    let options = CoordinatorOptions { http: None, ..options(folder.path()) };
    let running = Coordinator::start(options).await.unwrap();
    assert_eq!(running.http_address(), None);
    let (mut worker, _) = clients(running.grpc_address()).await;
    join(&mut worker, "w0").await;
    tokio::time::timeout(Duration::from_secs(20), running.stop()).await.unwrap();
}
