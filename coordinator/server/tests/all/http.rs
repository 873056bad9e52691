//! /livez, /readyz and /metrics.

use std::net::SocketAddr;

use shardfeed_plan::Intent;
use shardfeed_proto::common::v1::{Account, Spent};
use shardfeed_proto::coordinator::v1::{
    Hold, HoldJobRequest, LeaveRequest, RankProgress, StartRankRequest,
};
use shardfeed_proto::intent_to;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::Cluster;
use crate::fixture::{Fixture, context, eventually};
use crate::worker::{beat, join, lease, progress, ready, register, start};

/// Returns status code and body of a page.
pub(crate) async fn page(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Returns the value of a metric with these labels.
fn number(text: &str, metric: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn says_how_it_is() {
    let mut fixture = Fixture::start().await;
    let address = fixture.running.http_address().unwrap();
    assert_eq!(page(address, "/livez").await, (200, "ok\n".into()));
    assert_eq!(page(address, "/readyz").await, (200, "ok\n".into()));
    assert_eq!(page(address, "/nothing").await.0, 404);
    ready(&mut fixture).await;
    join(&mut fixture.worker, "w1").await;
    let (code, text) = page(address, "/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "shardfeed_coordinator_sessions 2\n",
        "shardfeed_coordinator_datasets 1\n",
        "shardfeed_coordinator_leader 1\n",
        "shardfeed_coordinator_storage_failed 0\n",
        "shardfeed_coordinator_chunks_unreferenced_bytes 0\n",
        "shardfeed_coordinator_requests_total{rpc=\"Join\",outcome=\"Done\"} 2\n",
        "shardfeed_coordinator_request_seconds_count{rpc=\"Join\"} 2\n",
        "shardfeed_coordinator_workers{state=\"Live\"} 2\n",
        "shardfeed_coordinator_learner 0\n",
        "shardfeed_coordinator_proposals_pending 0\n",
        "shardfeed_coordinator_proposals_failed_total 0\n",
        "shardfeed_coordinator_leases 0\n",
        "shardfeed_coordinator_audit_events_total{outcome=\"Done\"}",
        "shardfeed_coordinator_build_info{version=",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    for name in ["log_fsync_seconds_count", "log_bytes", "committed_index", "last_index", "term"] {
        assert!(number(&text, &format!("shardfeed_coordinator_{name}")).unwrap() > 0.0, "{name}");
    }
    assert!(number(&text, "process_resident_memory_bytes").unwrap() > 0.0, "{text}");
    assert!(!text.contains("photos") && !text.contains("w1"), "{text}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn says_how_long_the_others_take() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (mut worker, _) = cluster.clients(leader).await;
    let address = cluster.running[&leader].http_address().unwrap();
    join(&mut worker, "w1").await;
    let others = (1..=3).filter(|node| *node != leader);
    let count = |peer: u64| {
        format!("shardfeed_coordinator_peer_round_trip_seconds_count{{peer=\"{peer}\"}}")
    };
    let counts: Vec<_> = others.map(count).collect();
    eventually("both have answered", || async {
        let (_, text) = page(address, "/metrics").await;
        let answered = |metric: &String| number(&text, metric).is_some_and(|count| count > 0.0);
        counts.iter().all(answered).then_some(())
    })
    .await;
    let (_, text) = page(address, "/metrics").await;
    let carried_out = "shardfeed_coordinator_proposal_seconds_count";
    assert!(number(&text, carried_out).unwrap() >= 1.0, "{text}");
    cluster.stop().await;
}

/// Returns a report of a rank whose trainer waited for `wait_us` since it started to read.
fn told(rank: RankProgress, wait_us: u64) -> RankProgress {
    let spent = Spent { wait_us, work_us: 500_000, ..Spent::default() };
    let account =
        Account { since_start: Some(spent), waiting_us: Some(250_000), ..Account::default() };
    RankProgress { account: Some(account), ..rank }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trainers_wait_outlives_its_worker() {
    let mut fixture = Fixture::start().await;
    let address = fixture.running.http_address().unwrap();
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    let mut leases = Vec::new();
    for rank in 0..2 {
        let started = fixture.worker.start_rank(start(session, "train", rank, 2)).await.unwrap();
        leases.push(lease("train", rank, started.get_ref()));
    }
    let ranks = leases.iter().map(|lease| told(progress(lease, 0, 3, vec![]), 1_500_000));
    beat(&mut fixture.worker, session, ranks.collect()).await.unwrap();
    let (_, text) = page(address, "/metrics").await;
    for (metric, value) in [
        ("shardfeed_job_rank_wait_seconds_total{job=\"train\",rank=\"0\"}", 1.5),
        ("shardfeed_job_rank_wait_seconds_total{job=\"train\",rank=\"1\"}", 1.5),
        ("shardfeed_job_rank_work_seconds_total{job=\"train\",rank=\"0\"}", 0.5),
        ("shardfeed_job_rank_waiting_seconds{job=\"train\",rank=\"0\"}", 0.25),
        ("shardfeed_job_rank_step{job=\"train\",rank=\"0\"}", 3.0),
        ("shardfeed_job_rank_epoch{job=\"train\",rank=\"0\"}", 0.0),
        ("shardfeed_job_epoch{job=\"train\"}", 0.0),
        ("shardfeed_job_leases{job=\"train\"}", 2.0),
        ("shardfeed_job_paused{job=\"train\"}", 0.0),
        ("shardfeed_job_corrupt_records{job=\"train\"}", 0.0),
        ("shardfeed_coordinator_leases", 2.0),
    ] {
        assert_eq!(number(&text, metric), Some(value), "{metric}\n{text}");
    }
    assert!(number(&text, "shardfeed_job_idle_seconds{job=\"train\"}").is_some(), "{text}");
    // The request of a page triggers the count of shards for the next one.
    let shards = eventually("the shards are counted", || async {
        let (_, text) = page(address, "/metrics").await;
        let count = |state: &str| {
            let labels = format!("{{job=\"train\",state=\"{state}\"}}");
            number(&text, &format!("shardfeed_job_epoch_shards{labels}"))
        };
        Some([count("Pending")?, count("Leased")?, count("Reading")?, count("Done")?])
    });
    assert_eq!(shards.await.into_iter().sum::<f64>(), 5.0);

    // The worker leaves, and a trainer continues to read in its own process, which sends its own
    // reports.
    let request = LeaveRequest { context: context(), session };
    fixture.worker.leave(request).await.unwrap();
    let own = join(&mut fixture.worker, "trainer-1").await.session;
    let again = Intent::Reconnect { generation: leases[1].generation, epoch: 0, step: 3 };
    let request = StartRankRequest { intent: Some(intent_to(&again)), ..start(own, "train", 1, 2) };
    let started = fixture.worker.start_rank(request).await.unwrap();
    let lease = lease("train", 1, started.get_ref());
    let rank = told(progress(&lease, 0, 4, vec![]), 200_000);
    beat(&mut fixture.worker, own, vec![rank]).await.unwrap();
    let pause = HoldJobRequest {
        context: context(),
        job: "train".into(),
        hold: Hold::Paused.into(),
        reason: String::new(),
    };
    fixture.admin.hold_job(pause).await.unwrap();
    let (_, text) = page(address, "/metrics").await;
    for (metric, value) in [
        ("shardfeed_job_rank_wait_seconds_total{job=\"train\",rank=\"1\"}", Some(0.2)),
        ("shardfeed_job_rank_step{job=\"train\",rank=\"1\"}", Some(4.0)),
        ("shardfeed_job_leases{job=\"train\"}", Some(1.0)),
        ("shardfeed_job_paused{job=\"train\"}", Some(1.0)),
        // No session reports on it.
        ("shardfeed_job_rank_wait_seconds_total{job=\"train\",rank=\"0\"}", None),
    ] {
        assert_eq!(number(&text, metric), value, "{metric}\n{text}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_end_in_silence_are_counted() {
    let mut fixture = Fixture::start_with(|options| {
        (options.session_ttl_ms, options.heartbeat_ms) = (3_000, 500);
    })
    .await;
    let address = fixture.running.http_address().unwrap();
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    for rank in 0..2 {
        fixture.worker.start_rank(start(session, "train", rank, 2)).await.unwrap();
    }
    eventually("both ranks' leases expire", || async {
        let (_, text) = page(address, "/metrics").await;
        let expired = number(&text, "shardfeed_coordinator_lease_expirations_total")?;
        let left = number(&text, "shardfeed_coordinator_leases")?;
        (expired == 2.0 && left == 0.0).then_some(())
    })
    .await;
    let (_, text) = page(address, "/metrics").await;
    assert_eq!(number(&text, "shardfeed_coordinator_sessions_expired_total"), Some(1.0), "{text}");
    // It no longer runs.
    assert!(!text.contains("job=\"train\""), "{text}");
    fixture.stop().await;
}
