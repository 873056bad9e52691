//! Members join, leave and lead in turn, and the log continues.

use std::sync::Arc;

use shardfeed_host::{Disk, RealHost};
use shardfeed_raft::{
    ChangeError, Node, NodeOptions, PeerError, Role, Start, Status, identity, restore,
};

use crate::common::cluster::{Acknowledged, Cluster, address, found};
use crate::common::{Ledger, eventually, open};

/// Returns the voters, as the leader sees them.
async fn voters(cluster: &Cluster) -> Vec<u64> {
    let leader = cluster.leader().await;
    let members = cluster.nodes[&leader].members();
    let voters = members.iter().filter(|member| member.role != Role::Learner);
    voters.map(|member| member.node).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_grows_and_is_replaced_without_a_stop() {
    let mut cluster = Cluster::new();
    cluster.base.snapshot_every = 200;
    // The default without an address: no other node could reach it.
    cluster.start_at(1, Start::Alone, "").await.unwrap();
    let refused = cluster.nodes[&1].add_member(2, &address(2)).await.unwrap_err();
    assert!(refused.to_string().contains("`address`"), "{refused}");
    cluster.kill(1).await;
    cluster.restart(1).await;
    let node = cluster.nodes[&1].clone();
    eventually("its address is known", || node.members()[0].address == address(1)).await;
    drop(node);

    let load = cluster.load(4);
    let join = Start::Join { cluster: cluster.cluster_id() };
    for number in 2..=3 {
        cluster.start(number, join.clone()).await.unwrap();
        cluster.add(number).await.unwrap();
    }
    assert_eq!(voters(&cluster).await, [1, 2, 3]);
    cluster.add(3).await.unwrap();
    load.now(&cluster);

    // Node 2 dies, is removed, and a new node replaces it.
    cluster.kill(2).await;
    load.now(&cluster);
    cluster.remove(2).await.unwrap();
    cluster.remove(2).await.unwrap();
    cluster.start(4, join.clone()).await.unwrap();
    cluster.add(4).await.unwrap();

    // The leader removes itself: it hands over first.
    let leader = cluster.leader().await;
    cluster.remove(leader).await.unwrap();
    cluster.kill(leader).await;
    load.now(&cluster);
    assert_eq!(voters(&cluster).await.len(), 2);

    // Numbers are assigned only once.
    cluster.wipe(2);
    cluster.start(2, join).await.unwrap();
    let refused = cluster.add(2).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("never used"), "{refused}");
    cluster.kill(2).await;
    load.now(&cluster);
    let acknowledged = load.stop().await;
    assert!(!acknowledged.is_empty());
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

/// Wherever the change was when the leader died: it completes, by repeating it or without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_leader_died_is_finished() {
    for entries in [0, 2, 4] {
        let mut cluster = Cluster::new();
        cluster.found(3).await;
        cluster.start(4, Start::Join { cluster: cluster.cluster_id() }).await.unwrap();
        let leader = cluster.leader().await;
        let node = cluster.nodes[&leader].clone();
        let last = node.status().last;
        let change = {
            let node = node.clone();
            tokio::spawn(async move { node.add_member(4, &address(4)).await })
        };
        // This many entries into the change: as a learner, joint, or done.
        eventually("it is under way", || {
            node.status().last >= last.map(|index| index + entries) || change.is_finished()
        })
        .await;
        drop(node);
        cluster.kill(leader).await;
        // It may have completed before.
        let _ = change.await.unwrap();
        cluster.add(4).await.unwrap();
        assert_eq!(voters(&cluster).await.len(), 4);
        cluster.restart(leader).await;
        cluster.agree(&Acknowledged::new()).await;
        cluster.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_on_request_under_load() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let load = cluster.load(8);
    for _ in 0..5 {
        let (from, term, next) = cluster
            .change(async |node| {
                let Status { node_id: from, term, .. } = node.status();
                Ok((from, term, node.transfer_leader(Some(from % 3 + 1)).await?))
            })
            .await
            .unwrap();
        assert_ne!(next, from);
        assert!(cluster.nodes[&next].status().term > term);
    }
    let moved =
        cluster.change(async |node| Ok((node.status().node_id, node.transfer_leader(None).await?)));
    let (from, next) = moved.await.unwrap();
    assert_ne!(next, from);
    let stays = cluster.change(async |node| {
        let own = node.status().node_id;
        Ok((own, node.transfer_leader(Some(own)).await?))
    });
    let (own, leader) = stays.await.unwrap();
    assert_eq!(leader, own);
    let refused =
        cluster.change(async |node| node.transfer_leader(Some(9)).await).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Refused { .. }), "{refused}");
    let acknowledged = load.stop().await;
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_under_its_number_and_welcome_under_another() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let leader = cluster.leader().await;
    let wiped = if leader == 1 { 2 } else { 1 };
    let mut acknowledged = Acknowledged::new();
    acknowledged.insert(cluster.propose(b"kept").await, b"kept".to_vec());
    cluster.kill(wiped).await;
    cluster.wipe(wiped);
    // However it returns: it has nothing, gets nothing, and no node counts it.
    for start in [found(3), Start::Join { cluster: cluster.cluster_id() }, Start::Alone] {
        let alone = start == Start::Alone;
        cluster.start(wiped, start).await.unwrap();
        let calls = cluster.net.calls();
        eventually("they have talked", || cluster.net.calls() > calls + 20).await;
        let status = cluster.nodes[&wiped].status();
        assert!(alone || status.last.is_none(), "{status:?}");
        // The two intact nodes continue; as a cluster of one it leads itself.
        let transfer = async |node: Node<Ledger>| node.transfer_leader(Some(wiped)).await;
        let refused = cluster.change_but(wiped, transfer).await;
        let Err(ChangeError::Peer(PeerError::Refused { reason, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert!(reason.contains(if alone { "cluster" } else { "lost the directory" }), "{reason}");
        cluster.kill(wiped).await;
        cluster.wipe(wiped);
    }
    cluster.remove(wiped).await.unwrap();
    cluster.start(4, Start::Join { cluster: cluster.cluster_id() }).await.unwrap();
    cluster.add(4).await.unwrap();
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

/// Its incarnation is correct, but its disk went back to an earlier state: the leader, which knows
/// its later acknowledgements, must neither panic nor send it entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_went_back_in_time_is_not_counted() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let leader = cluster.leader().await;
    let back = if leader == 1 { 2 } else { 1 };
    cluster.kill(back).await;
    let files = cluster.files(back);
    cluster.restart(back).await;
    let mut acknowledged = Acknowledged::new();
    for number in 0..50 {
        let command = format!("{number}").into_bytes();
        acknowledged.insert(cluster.propose(&command).await, command);
    }
    cluster.agree(&acknowledged).await;
    let leader = cluster.leader().await;
    let (term, last) = (cluster.nodes[&leader].status().term, cluster.nodes[&leader].status().last);
    // Its answer to the last entries is on its way when it has them.
    let is_known = || {
        let members = cluster.nodes[&leader].members();
        members.iter().any(|member| member.node == back && member.matched >= last)
    };
    eventually("the leader knows its acknowledgements", is_known).await;
    cluster.kill(back).await;
    cluster.set_files(back, files);
    cluster.restart(back).await;
    let calls = cluster.net.calls();
    eventually("they have talked", || cluster.net.calls() > calls + 50).await;
    // A leader of a later term knows none of the acknowledgements, and sends the entries again.
    if cluster.nodes[&leader].status().term == term {
        assert!(cluster.nodes[&back].status().last < last);
    }
    cluster.kill(back).await;
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_moved_is_found_again() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let leader = cluster.leader().await;
    let moved = if leader == 1 { 2 } else { 1 };
    cluster.kill(moved).await;
    cluster.start_at(moved, Start::Alone, "elsewhere").await.unwrap();
    let leader = cluster.leader().await;
    let listed = || {
        let members = cluster.nodes[&leader].members();
        members.into_iter().find(|member| member.node == moved).unwrap().address
    };
    eventually("its address is known", || listed() == "elsewhere").await;
    cluster.agree(&Acknowledged::new()).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_cannot_be_added() {
    let mut cluster = Cluster::new();
    cluster.start(1, Start::Alone).await.unwrap();
    cluster.start(2, Start::Alone).await.unwrap();
    let refused = cluster.nodes[&1].add_member(2, &address(2)).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Peer(PeerError::Refused { .. })), "{refused}");
    let refused = cluster.nodes[&1].add_member(3, "nowhere").await.unwrap_err();
    assert!(matches!(refused, ChangeError::Peer(PeerError::Unreachable { .. })), "{refused}");
    let refused = cluster.nodes[&1].remove_member(1).await.unwrap_err();
    assert!(refused.to_string().contains("last"), "{refused}");
    assert_eq!(cluster.nodes[&1].members().len(), 1);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exported_state_begins_a_new_cluster() {
    let mut cluster = Cluster::new();
    cluster.start(1, Start::Alone).await.unwrap();
    for number in 0..20 {
        cluster.nodes[&1].propose(format!("{number}").into_bytes()).await.unwrap();
    }
    let (applied, state) = cluster.nodes[&1].export();
    let (old, hash) = (cluster.cluster_id(), cluster.nodes[&1].state_hash().1);
    cluster.shutdown().await;

    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(shardfeed_host::RealDisk::new(dir.path()).unwrap());
    assert_eq!(identity(disk.as_ref()).unwrap(), None);
    let options =
        NodeOptions { node_id: 7, cluster_name: "restored".to_owned(), ..NodeOptions::default() };
    let new = restore(&RealHost, &disk, &options, applied, &state).unwrap();
    assert_ne!(new, old);
    let found = identity(disk.as_ref()).unwrap().unwrap();
    assert_eq!((found.cluster, found.node_id, found.cluster_name.as_str()), (new, 7, "restored"));
    let error = restore(&RealHost, &disk, &options, applied, &state).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");

    for round in 0..2 {
        let node = open(dir.path(), &options).await;
        assert_eq!(node.cluster_id(), new.to_string());
        if round == 0 {
            assert_eq!(node.state_hash().1, hash);
        }
        assert_eq!(node.members().iter().map(|member| member.node).collect::<Vec<_>>(), [7]);
        let index = node.propose(b"more".to_vec()).await.unwrap().index;
        assert!(index > applied);
        node.shutdown().await;
    }
}
