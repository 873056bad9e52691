//! Several nodes form one log: acknowledged commands survive dead or isolated nodes, and no
//! isolated node acknowledges.

use std::time::{Duration, Instant};

use shardfeed_raft::ProposeError;

use crate::common::cluster::{Acknowledged, Cluster, address, found};
use crate::common::{eventually, propose_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_elect_one_and_apply_the_same() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let leader = cluster.leader().await;
    let mut acknowledged = Acknowledged::new();
    for number in 0..50 {
        let command = format!("one/{number}").into_bytes();
        let applied = cluster.nodes[&leader].propose(command.clone()).await.unwrap();
        acknowledged.insert(applied.index, command);
    }
    let many: Vec<Vec<u8>> = (0..100).map(|number| format!("many/{number}").into_bytes()).collect();
    let answers = propose_all(&cluster.nodes[&leader], many.clone()).await;
    let indexes = answers.into_iter().map(Result::unwrap);
    acknowledged.extend(indexes.zip(many));
    assert_eq!(acknowledged.len(), 150);
    cluster.agree(&acknowledged).await;

    let ids: Vec<&str> = cluster.nodes.values().map(|node| node.cluster_id()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    for (number, node) in cluster.nodes.iter().filter(|(number, _)| **number != leader) {
        let refused = node.propose(b"no".to_vec()).await.unwrap_err();
        let ProposeError::NotLeader { leader: Some(hint) } = &refused else { panic!("{refused}") };
        assert_eq!((hint.node, hint.address.as_str()), (leader, address(leader).as_str()));
        assert!(matches!(node.linearize().await, Err(ProposeError::NotLeader { .. })), "{number}");
        let seen = node.leadership().borrow().clone();
        assert!(!seen.is_leader && seen.leader.as_ref() == Some(hint), "{seen:?}");
    }
    assert!(cluster.nodes[&leader].leadership().borrow().is_leader);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let load = cluster.load(8);
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let before = cluster.nodes[&leader].status().last;
        eventually("the load is on", || cluster.nodes[&leader].status().last > before).await;
        cluster.kill(leader).await;
        load.now(&cluster);
        let next = cluster.leader().await;
        assert_ne!(next, leader);
        cluster.restart(leader).await;
        load.now(&cluster);
    }
    let acknowledged = load.stop().await;
    assert!(!acknowledged.is_empty());
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_catches_up_by_log_and_by_snapshot() {
    for (snapshot_every, entries) in [(10_000, 300), (20, 300)] {
        let mut cluster = Cluster::new();
        cluster.base.snapshot_every = snapshot_every;
        cluster.found(3).await;
        let leader = cluster.leader().await;
        let away = if leader == 1 { 2 } else { 1 };
        cluster.kill(away).await;
        let commands: Vec<Vec<u8>> = (0..entries).map(|n| format!("{n}").into_bytes()).collect();
        let mut acknowledged = Acknowledged::new();
        for chunk in commands.chunks(10) {
            acknowledged.extend(cluster.propose_all(chunk).await);
        }
        let leader = cluster.leader().await;
        let purged = || cluster.nodes[&leader].status().purged;
        if snapshot_every == 20 {
            eventually("the log forgot its begin", || purged() > Some(100)).await;
        }
        assert_eq!(purged().is_some(), snapshot_every == 20);
        cluster.restart(away).await;
        cluster.agree(&acknowledged).await;
        // And all of it is there after another restart of the node.
        cluster.kill(away).await;
        cluster.restart(away).await;
        cluster.agree(&acknowledged).await;
        cluster.shutdown().await;
    }
}

/// A leader without requests, whose log is purged up to its end, still owes a follower a snapshot:
/// one of more than one part here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_leader_sends_its_snapshot() {
    let mut cluster = Cluster::new();
    cluster.base.snapshot_every = 1;
    cluster.found(3).await;
    let away = if cluster.leader().await == 1 { 2 } else { 1 };
    cluster.kill(away).await;
    let leader = cluster.leader().await;
    let node = &cluster.nodes[&leader];
    let (mut acknowledged, mut covered) = (Acknowledged::new(), 0);
    for number in 0..12_u8 {
        let command = vec![number; 300_000];
        covered = node.propose(command.clone()).await.unwrap().index;
        acknowledged.insert(covered, command);
    }
    // The log forgets the entries that the older of two snapshots has.
    for _ in 0..1_000 {
        if node.status().purged >= Some(covered) {
            break;
        }
        node.propose(b"one more".to_vec()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(node.status().purged >= Some(covered), "{:?}", node.status());
    cluster.restart(away).await;
    let (node, back) = (&cluster.nodes[&leader], &cluster.nodes[&away]);
    let last = node.status().last;
    eventually("the snapshot is there", || back.status().applied >= last).await;
    assert!(back.status().snapshot >= Some(covered), "{:?}", back.status());
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_acknowledges_and_shows_nothing() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let old = cluster.leader().await;
    cluster.net.isolate(old, &[1, 2, 3]);
    let refused = cluster.nodes[&old].linearize().await.unwrap_err();
    assert!(
        matches!(refused, ProposeError::NotLeader { .. } | ProposeError::Timeout { .. }),
        "{refused}"
    );
    let refused = cluster.nodes[&old].propose(b"lost".to_vec()).await.unwrap_err();
    assert!(!matches!(refused, ProposeError::Stopped { .. }), "{refused}");
    let mut acknowledged = Acknowledged::new();
    let next = cluster.leader().await;
    assert_ne!(next, old);
    for number in 0..20 {
        let command = format!("new/{number}").into_bytes();
        acknowledged.insert(cluster.propose(&command).await, command);
    }
    assert!(cluster.nodes[&old].linearize().await.is_err());
    cluster.net.heal();
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

/// Its messages arrive, the answers do not: it must fall silent, or no other leader is elected.
async fn replace_a_deaf_leader(clients: usize) {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let deaf = cluster.leader().await;
    let load = cluster.load(clients);
    let others: Vec<_> = (1..=3).filter(|other| *other != deaf).collect();
    for other in &others {
        cluster.net.cut(*other, deaf);
    }
    eventually("another one leads", || {
        others.iter().any(|other| cluster.nodes[other].status().is_leader)
    })
    .await;
    let acknowledged = load.stop().await;
    cluster.net.heal();
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_nobody_is_replaced() {
    // Each takes as long as a leader waits for answers.
    tokio::join!(replace_a_deaf_leader(0), replace_a_deaf_leader(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_and_late_messages_cost_time_only() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let load = cluster.load(8);
    cluster.net.disturb(15, 30);
    let began = Instant::now();
    let leader = cluster.leader().await;
    let from = cluster.nodes[&leader].status().last.unwrap();
    eventually("it continues", || {
        let last = cluster.nodes.values().filter_map(|node| node.status().applied).max();
        last > Some(from + 100) && began.elapsed() > Duration::from_secs(3)
    })
    .await;
    cluster.net.heal();
    let acknowledged = load.stop().await;
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_killed_comes_back_whole() {
    let mut cluster = Cluster::new();
    cluster.base.snapshot_every = 100;
    cluster.found(3).await;
    let load = cluster.load(8);
    let leader = cluster.leader().await;
    eventually("some are applied", || cluster.nodes[&leader].status().applied > Some(300)).await;
    let acknowledged = load.stop().await;
    let id = cluster.cluster_id();
    for node in 1..=3 {
        cluster.kill(node).await;
    }
    for node in 1..=3 {
        cluster.restart(node).await;
    }
    cluster.agree(&acknowledged).await;
    assert_eq!(cluster.cluster_id(), id);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposals_share_messages() {
    let mut cluster = Cluster::new();
    cluster.found(3).await;
    let leader = cluster.leader().await;
    let before = cluster.net.calls();
    let commands = (0..2_500).map(|number| format!("{number}").into_bytes());
    let answers = propose_all(&cluster.nodes[&leader], commands).await;
    assert!(answers.iter().all(Result::is_ok));
    // Heartbeats are included: this number is reached only if nearly each entry is sent alone.
    assert!(cluster.net.calls() - before < 2_000, "{}", cluster.net.calls() - before);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_waits_for_all_the_others() {
    let mut cluster = Cluster::new();
    cluster.start(1, found(3)).await.unwrap();
    cluster.start(2, found(3)).await.unwrap();
    let (calls, node) = (cluster.net.calls(), cluster.nodes[&1].clone());
    eventually("it asks", || cluster.net.calls() > calls + 2).await;
    assert_eq!(node.status().last, None);
    assert!(matches!(node.propose(b"no".to_vec()).await, Err(ProposeError::NotLeader { .. })));
    cluster.start(3, found(3)).await.unwrap();
    cluster.agree(&Acknowledged::new()).await;
    assert_eq!(node.members().len(), 3);
    drop(node);
    cluster.shutdown().await;
}
