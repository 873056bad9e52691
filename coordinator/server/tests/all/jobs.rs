//! Jobs, ranks and epochs: their progress, and the views of them.

use std::collections::BTreeSet;

use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::*;

use crate::fixture::{Fixture, context, context_of, eventually, refused};
use crate::worker::{beat, join, lease, progress, ready, register, start};

async fn epochs(fixture: &Fixture, epoch: Option<u64>) -> Vec<Epoch> {
    let request = ListEpochsRequest { context: context(), job: "train".into(), epoch };
    fixture.admin.clone().list_epochs(request).await.unwrap().into_inner().epochs
}

async fn shards(fixture: &Fixture, epoch: Option<u64>) -> Vec<Shard> {
    shards_like(fixture, ListShardsRequest { epoch, ..ListShardsRequest::default() }).await
}

async fn shards_like(fixture: &Fixture, request: ListShardsRequest) -> Vec<Shard> {
    let request = ListShardsRequest { context: context(), job: "train".into(), ..request };
    let mut stream = fixture.admin.clone().list_shards(request).await.unwrap().into_inner();
    let mut shards = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        shards.extend(message.shards);
    }
    shards
}

async fn ranks(fixture: &Fixture) -> Vec<Rank> {
    let request = ListRanksRequest { context: context(), job: "train".into() };
    fixture.admin.clone().list_ranks(request).await.unwrap().into_inner().ranks
}

/// Two ranks of 8 rows over 500 samples: 31 steps, 4 samples dropped.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_from_start_to_seal() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    assert!(epochs(&fixture, None).await.is_empty());
    let mut leases = Vec::new();
    let first = fixture.worker.start_rank(start(session, "train", 0, 2)).await.unwrap();
    leases.push(lease("train", 0, first.get_ref()));
    let waiting = epochs(&fixture, None).await.remove(0);
    assert_eq!((waiting.state(), waiting.waiting_for), (EpochState::Running, vec![1]));
    let states: Vec<_> = ranks(&fixture).await.iter().map(Rank::state).collect();
    assert_eq!(states, [RankState::Served, RankState::Missing]);

    let other = join(&mut fixture.worker, "w1").await.session;
    let second = fixture.worker.start_rank(start(other, "train", 1, 2)).await.unwrap();
    leases.push(lease("train", 1, second.get_ref()));
    let reading = shards(&fixture, None).await;
    assert!(reading.iter().all(|shard| shard.state() == ShardState::Leased), "{reading:?}");
    beat(&mut fixture.worker, session, vec![progress(&leases[0], 0, 10, vec![2])]).await.unwrap();
    beat(&mut fixture.worker, other, vec![progress(&leases[1], 0, 7, vec![])]).await.unwrap();
    let epoch = epochs(&fixture, None).await.remove(0);
    assert_eq!((epoch.state(), epoch.total, epoch.dropped), (EpochState::Running, 500, 4));
    assert_eq!((epoch.delivered, epoch.steps, epoch.steps_done), (8 * 17, 31, 7));
    assert_eq!((epoch.lost, epoch.duplicated, epoch.took_ms), (0, 0, None));

    let known = shards(&fixture, Some(0)).await;
    assert_eq!(known.iter().map(|shard| shard.records_done).sum::<u64>(), 8 * 17);
    let workers: BTreeSet<_> = known.iter().flat_map(|shard| shard.workers.clone()).collect();
    assert_eq!(workers, BTreeSet::from(["w0".to_owned(), "w1".to_owned()]));
    assert!(matches!(known[2].state(), ShardState::Reading | ShardState::Done));
    assert!(known.iter().all(|shard| shard.age_ms.is_some() && shard.records == 100));
    let seen = ranks(&fixture).await;
    assert_eq!((seen[0].step, seen[0].steps, seen[0].ready, seen[1].step), (10, 31, 2, 7));
    assert_eq!((seen[0].worker.as_str(), seen[0].trainer.as_str()), ("w0", "trainer-0"));

    // One rank is ahead of the other one, in the next epoch.
    beat(&mut fixture.worker, session, vec![progress(&leases[0], 1, 2, vec![])]).await.unwrap();
    let two = epochs(&fixture, None).await;
    assert_eq!((two.len(), two[0].delivered, two[1].delivered), (2, 8 * 38, 16));
    beat(&mut fixture.worker, other, vec![progress(&leases[1], 1, 0, vec![])]).await.unwrap();
    let sealed = eventually("the epoch is sealed", || async {
        let epoch = epochs(&fixture, Some(0)).await.remove(0);
        (epoch.state() == EpochState::Sealed).then_some(epoch)
    })
    .await;
    assert_eq!((sealed.delivered, sealed.dropped, sealed.lost), (496, 4, 0));
    assert!(sealed.took_ms.is_some());
    let over = shards(&fixture, Some(0)).await;
    assert!(over.iter().all(|shard| shard.state() == ShardState::Done), "{over:?}");
    assert_eq!(epochs(&fixture, Some(5)).await[0].state(), EpochState::Planned);
    fixture.stop().await;
}

/// 50 ranks have 10 samples each: ten or more read each file, and no answer lists all their
/// workers.
#[tokio::test(flavor = "multi_thread")]
async fn shards_are_asked_for_by_rank_worker_and_path() {
    const RANKS: u64 = 50;
    // Their workers send no further heartbeats.
    let mut fixture = Fixture::start_with(|options| options.session_ttl_ms = 120_000).await;
    let (_, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", RANKS)).await.unwrap();
    for rank in 0..RANKS {
        let session = join(&mut fixture.worker, &format!("of-{rank}")).await.session;
        fixture.worker.start_rank(start(session, "train", rank, RANKS)).await.unwrap();
    }
    let all = shards(&fixture, None).await;
    assert!(all.iter().all(|shard| shard.workers.len() == 8), "{all:?}");
    let paths = |shards: &[Shard]| shards.iter().map(|s| s.path.clone()).collect::<Vec<_>>();
    let further = |shard: &Shard| shard.further_first_rank.zip(shard.further_last_rank);
    let is_reader = |shard: &Shard, rank: &u64| {
        (shard.first_rank..=shard.last_rank).contains(rank)
            || further(shard).is_some_and(|(first, last)| (first..=last).contains(rank))
    };
    // The epoch begins and ends in one of the shards.
    assert_eq!(all.iter().filter(|shard| further(shard).is_some()).count(), 1, "{all:?}");
    for rank in 0..RANKS {
        let mut read: Vec<_> = all.clone();
        read.retain(|shard| is_reader(shard, &rank));
        let by_rank = ListShardsRequest { rank: Some(rank), ..ListShardsRequest::default() };
        assert_eq!(paths(&shards_like(&fixture, by_rank).await), paths(&read), "rank {rank}");
        let worker = Some(format!("of-{rank}"));
        let by_worker = ListShardsRequest { worker, ..ListShardsRequest::default() };
        assert_eq!(paths(&shards_like(&fixture, by_worker).await), paths(&read), "rank {rank}");
        assert!(!read.is_empty(), "rank {rank} of {all:?}");
    }
    let both = ListShardsRequest {
        rank: Some(all[3].first_rank),
        worker: Some(format!("of-{}", all[3].last_rank)),
        path_part: Some("-3.tf".into()),
        ..ListShardsRequest::default()
    };
    assert_eq!(paths(&shards_like(&fixture, both.clone()).await), ["f-3.tfrecord"]);
    let none = [
        ListShardsRequest { rank: Some(RANKS), ..both.clone() },
        ListShardsRequest { worker: Some("of".into()), ..both.clone() },
        ListShardsRequest { path_part: Some("F-3".into()), ..both.clone() },
    ];
    for request in none {
        assert!(shards_like(&fixture, request.clone()).await.is_empty(), "{request:?}");
    }
    // Shards that were not requested are counted as well.
    let request = ListShardsRequest { context: context(), job: "train".into(), ..both };
    let answer = fixture.admin.list_shards(request).await.unwrap().into_inner().message().await;
    let counts = answer.unwrap().unwrap().counts.unwrap();
    assert_eq!((counts.leased, counts.pending + counts.reading + counts.done), (5, 0));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_are_written_down_and_make_the_latest_token() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    let latest = LatestStateRequest { context: context(), job: "train".into() };
    let none = fixture.worker.latest_state(latest.clone()).await.unwrap().into_inner();
    assert_eq!(none.state, None);
    let mut leases = Vec::new();
    for rank in 0..2 {
        let started = fixture.worker.start_rank(start(session, "train", rank, 2)).await.unwrap();
        leases.push(lease("train", rank, started.get_ref()));
    }
    let told = vec![progress(&leases[0], 0, 9, vec![]), progress(&leases[1], 0, 8, vec![])];
    beat(&mut fixture.worker, session, told).await.unwrap();
    // A stop writes the last reported cursors; this test waits for no timer.
    let mut fixture = fixture.restart().await;
    let state = fixture.worker.latest_state(latest).await.unwrap().into_inner().state.unwrap();
    let state = shardfeed_plan::LoaderState::from_json(&state).unwrap();
    assert_eq!((state.epoch, state.step()), (0, 8));
    let request = GetJobRequest { context: context(), job: "train".into() };
    let job = fixture.admin.get_job(request).await.unwrap().into_inner().job.unwrap();
    let generation = job.generation.unwrap();
    assert_eq!((generation.cursor_epoch, generation.cursor_step), (Some(0), Some(8)));
    assert_eq!((generation.ranks_started, generation.ranks_served), (2, 2));
    assert_eq!((generation.global_batch, generation.lanes, job.history.len()), (16, 2, 1));
    let end = EndRankRequest {
        context: context(),
        lease: Some(leases[0].clone()),
        failure: None,
        is_told: true,
        position: None,
    };
    fixture.worker.end_rank(end).await.unwrap();
    assert_eq!(ranks(&fixture).await[0].state(), RankState::Ended);
    let leave = LeaveRequest { context: context(), session };
    fixture.worker.leave(leave).await.unwrap();
    assert_eq!(ranks(&fixture).await[1].state(), RankState::Unserved);
    let epoch = epochs(&fixture, None).await.remove(0);
    assert_eq!((epoch.state(), epoch.waiting_for), (EpochState::Running, vec![0, 1]));
    let pending = shards(&fixture, None).await;
    assert!(pending.iter().any(|shard| shard.workers.is_empty()));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_those_of_the_plan() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    fixture.worker.start_rank(start(session, "train", 0, 2)).await.unwrap();
    let mut seen = BTreeSet::new();
    let batch = |step, rank| GetBatchRequest {
        context: context(),
        job: "train".into(),
        epoch: 3,
        step,
        rank,
        ..Default::default()
    };
    for step in 0..31 {
        let whole = fixture.admin.get_batch(batch(step, None)).await.unwrap().into_inner();
        let one = fixture.admin.get_batch(batch(step, Some(1))).await.unwrap().into_inner();
        assert_eq!((whole.rows.len(), one.rows.as_slice()), (16, &whole.rows[8..]));
        assert!(
            whole
                .rows
                .iter()
                .all(|row| row.valid && row.path == format!("f-{}.tfrecord", row.shard))
        );
        seen.extend(whole.rows.iter().map(|row| (row.shard, row.ordinal)));
    }
    assert_eq!(seen.len(), 496);
    for (step, rank) in [(31, None), (u64::MAX, Some(0)), (0, Some(2)), (0, Some(u64::MAX))] {
        fixture.admin.get_batch(batch(step, rank)).await.unwrap_err();
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_come_from_cursors() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 1)).await.unwrap();
    let started = fixture.worker.start_rank(start(session, "train", 0, 1)).await.unwrap();
    let lease = lease("train", 0, started.get_ref());
    let mut step = 0;
    let mut client = fixture.worker.clone();
    while step < 62 {
        step += 1;
        beat(&mut client, session, vec![progress(&lease, 0, step, vec![])]).await.unwrap();
        if epochs(&fixture, None).await[0].samples_per_second > 0.0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    }
    let epoch = epochs(&fixture, None).await.remove(0);
    assert!(epoch.samples_per_second > 20.0 && epoch.eta_ms.is_some(), "{epoch:?}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_report_of_skips_stays_refused_after_somebody_else_told() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    let record = SkippedRecord { ordinal: 3, reason: "torn".into(), ..SkippedRecord::default() };
    let report = |request_id: &str, session| ReportSkippedRequest {
        context: context_of(request_id),
        session,
        job: "train".into(),
        records: vec![record.clone()],
        mixture: vec![],
    };
    let early = report("0e984725-c51c-4bf4-9960-e1c80e27aba2", 9999);
    let refusal = refused(fixture.worker.report_skipped(early.clone()).await);
    assert_eq!(refusal.0, ErrorKind::Fenced);
    let good = report("0e984725-c51c-4bf4-9960-e1c80e27aba3", session);
    fixture.worker.report_skipped(good).await.unwrap();
    assert_eq!(refused(fixture.worker.report_skipped(early).await), refusal);
    fixture.stop().await;
}
