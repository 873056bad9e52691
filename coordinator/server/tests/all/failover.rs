//! A leader dies or is cut off: acknowledged data survives, and no caller gets a wrong answer.

use std::time::{Duration, Instant};

use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, WireError};
use tonic::transport::Channel;

use crate::cluster::Cluster;
use crate::fixture::{context, eventually};
use crate::http::page;
use crate::worker::{beat, join, put};

async fn get(client: &mut WorkerServiceClient<Channel>, digest: &[u8]) -> Vec<u8> {
    let request = GetChunkRequest { context: context(), digest: digest.to_vec() };
    client.get_chunk(request).await.unwrap().into_inner().content
}

async fn sessions(cluster: &Cluster, node: u64) -> Vec<u64> {
    let (_, mut admin) = cluster.clients(node).await;
    let request = ListWorkersRequest { context: context(), all: false };
    let workers = admin.list_workers(request).await.unwrap().into_inner().workers;
    workers.into_iter().map(|worker| worker.session).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_says_who_leads() {
    let cluster = Cluster::start(3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let (mut worker, mut admin) = cluster.clients(follower).await;
    let refusals = [
        beat(&mut worker, 1, vec![]).await.unwrap_err(),
        admin.list_jobs(ListJobsRequest { context: context() }).await.unwrap_err(),
        worker
            .put_chunk(PutChunkRequest { context: context(), content: vec![1] })
            .await
            .unwrap_err(),
    ];
    for status in refusals {
        let error = WireError::from_status(&status);
        assert_eq!(error.kind, ErrorKind::NotLeader, "{error}");
        assert_eq!(error.leader.as_deref(), Some(&*cluster.address(leader).to_string()), "{error}");
    }
    // It reports its own status.
    let status = GetStatusRequest { context: context() };
    let status = admin.get_status(status).await.unwrap().into_inner();
    assert_eq!((status.node, status.leader), (follower, Some(leader)));
    assert_eq!(status.leader_address, Some(cluster.address(leader).to_string()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_datasets_outlive_a_leader_and_get_their_whole_time_again() {
    const TTL: Duration = Duration::from_millis(4_000);
    let mut cluster = Cluster::start_with(3, |options| {
        options.session_ttl_ms = TTL.as_millis() as u64;
        options.heartbeat_ms = 500;
    })
    .await;
    let leader = cluster.leader().await;
    let (mut worker, mut admin) = cluster.clients(leader).await;
    let silent = join(&mut worker, "silent").await.session;
    let speaking = join(&mut worker, "speaking").await.session;
    let request = AddDatasetRequest {
        context: context(),
        name: "photos".into(),
        patterns: vec!["/data/*".into()],
        compression: String::new(),
        corrupt: String::new(),
        listing: None,
        program: vec![],
    };
    admin.add_dataset(request).await.unwrap();
    cluster.kill(leader);
    let killed = Instant::now();
    let next = cluster.leader().await;
    let (mut worker, mut admin) = cluster.clients(next).await;
    beat(&mut worker, speaking, vec![]).await.unwrap();
    assert_eq!(sessions(&cluster, next).await, [silent, speaking]);
    let list = ListDatasetsRequest { context: context() };
    assert_eq!(admin.list_datasets(list).await.unwrap().into_inner().datasets[0].name, "photos");
    // The silent session ends, but not before the new leader has waited a whole ttl for it.
    eventually("the silent one ends", || async {
        beat(&mut worker.clone(), speaking, vec![]).await.unwrap();
        (sessions(&cluster, next).await == [speaking]).then_some(())
    })
    .await;
    assert!(killed.elapsed() >= TTL, "{:?}", killed.elapsed());
    // The dead node returns and learns everything.
    cluster.restart(leader).await;
    let applied = |node| {
        let cluster = &cluster;
        async move {
            let (_, mut admin) = cluster.clients(node).await;
            let said = crate::cluster::members(&mut admin).await;
            said.members.into_iter().find(|member| member.node == node).unwrap().state_hash
        }
    };
    eventually("all say the same", || async {
        let hashes = [applied(1).await, applied(2).await, applied(3).await];
        hashes.iter().all(|hash| *hash == hashes[0]).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_is_there_after_the_leader_that_took_it_is_gone() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (mut worker, _) = cluster.clients(leader).await;
    let mut digests = Vec::new();
    for byte in 0..8_u8 {
        digests.push(put(&mut worker, vec![byte; 100_000]).await);
    }
    cluster.kill(leader);
    let next = cluster.leader().await;
    let (mut worker, _) = cluster.clients(next).await;
    for (byte, digest) in (0..8_u8).zip(&digests) {
        assert_eq!(get(&mut worker, digest).await, vec![byte; 100_000]);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_is_taken_by_a_majority_or_not_at_all_and_healed_where_it_is_missing() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let (mut worker, _) = cluster.clients(leader).await;
    cluster.kill(follower);
    let digest = put(&mut worker, b"two have it".to_vec()).await;
    cluster.restart(follower).await;
    // The chunk is damaged on the leader's own disk: the leader fetches it from the node that has
    // it.
    let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = cluster.options[&leader].data_dir.join("chunks").join(name);
    std::fs::write(&path, b"damaged").unwrap();
    assert_eq!(get(&mut worker, &digest).await, b"two have it");
    assert_eq!(std::fs::read(&path).unwrap(), b"two have it");
    // Without a majority nothing is acknowledged.
    for node in 1..=3 {
        if node != leader {
            cluster.kill(node);
        }
    }
    let request = PutChunkRequest { context: context(), content: b"alone".to_vec() };
    let error = WireError::from_status(&worker.put_chunk(request).await.unwrap_err());
    assert!(matches!(error.kind, ErrorKind::Retry | ErrorKind::NotLeader), "{error}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_answers_nothing_that_may_be_outdated() {
    let cluster = Cluster::start(3).await;
    let old = cluster.leader().await;
    let (mut worker, mut admin) = cluster.clients(old).await;
    let session = join(&mut worker, "w0").await.session;
    cluster.cut(old);
    let (list, began) = (ListJobsRequest { context: context() }, Instant::now());
    let error = WireError::from_status(&admin.list_jobs(list).await.unwrap_err());
    assert!(matches!(error.kind, ErrorKind::NotLeader | ErrorKind::Retry), "{error}");
    assert!(began.elapsed() < Duration::from_secs(19), "{:?}", began.elapsed());
    let next = cluster.leader_but(old).await;
    // Heartbeats of its workers are rejected, too: it would renew sessions without effect.
    eventually("heartbeats are refused", || async {
        let error = beat(&mut worker.clone(), session, vec![]).await.err()?;
        let error = WireError::from_status(&error);
        matches!(error.kind, ErrorKind::NotLeader | ErrorKind::Retry).then_some(())
    })
    .await;
    let http = cluster.running[&old].http_address().unwrap();
    eventually("it says so", || async { (page(http, "/readyz").await.0 == 503).then_some(()) })
        .await;
    let (mut worker, _) = cluster.clients(next).await;
    beat(&mut worker, session, vec![]).await.unwrap();
    cluster.heal();
    eventually("it follows again", || async {
        (page(http, "/readyz").await.0 == 200).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_heartbeat_is_answered_by_a_leader_once_another_one_answers() {
    let cluster = Cluster::start(3).await;
    let old = cluster.leader().await;
    let (mut worker, _) = cluster.clients(old).await;
    let session = join(&mut worker, "w0").await.session;
    cluster.cut(old);
    let others = [1, 2, 3].into_iter().filter(|node| *node != old);
    let mut next = vec![];
    for node in others {
        next.push(cluster.clients(node).await.0);
    }
    // Times of the last answered heartbeat at the old leader, and of the first one at the new
    // leader.
    let here = async {
        let mut last = Instant::now();
        while let Ok(Ok(_)) =
            tokio::time::timeout(Duration::from_secs(9), beat(&mut worker, session, vec![])).await
        {
            last = Instant::now();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        last
    };
    let there = eventually("another one answers", || async {
        for worker in &next {
            if beat(&mut worker.clone(), session, vec![]).await.is_ok() {
                return Some(Instant::now());
            }
        }
        None
    });
    let (here, there) = tokio::join!(here, there);
    assert!(here < there, "{:?} too long", here - there);
    cluster.stop().await;
}
