//! Views of dynamic jobs: the granted ranges, their ranks, and the consumed part.

use std::collections::{BTreeMap, BTreeSet};

use shardfeed_plan::{Intent, Segment, Steps};
use shardfeed_proto::coordinator::v1::get_batch_response::Row;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, WireError, intent_to};

use crate::fixture::{Fixture, context, eventually, refused};
use crate::groups::{dynamic_with, request, take};
use crate::worker::{beat, progress};

async fn epochs(fixture: &Fixture, epoch: Option<u64>) -> Result<Vec<Epoch>, WireError> {
    let request = ListEpochsRequest { context: context(), job: "infer".into(), epoch };
    let answer = fixture.admin.clone().list_epochs(request).await;
    Ok(answer.map_err(|status| WireError::from_status(&status))?.into_inner().epochs)
}

async fn epoch(fixture: &Fixture, epoch: u64) -> Epoch {
    epochs(fixture, Some(epoch)).await.unwrap().remove(0)
}

fn of_shards(epoch: u64) -> ListShardsRequest {
    let (context, job, epoch) = (context(), "infer".into(), Some(epoch));
    ListShardsRequest { context, job, epoch, ..ListShardsRequest::default() }
}

async fn shards(fixture: &Fixture, epoch: u64) -> Vec<Shard> {
    let request = of_shards(epoch);
    let mut stream = fixture.admin.clone().list_shards(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap().shards
}

fn of_batch(epoch: u64, step: u64, rank: Option<u64>) -> GetBatchRequest {
    GetBatchRequest {
        context: context(),
        job: "infer".into(),
        epoch,
        step,
        rank,
        ..Default::default()
    }
}

async fn rows(fixture: &Fixture, step: u64, rank: Option<u64>) -> Vec<Row> {
    let batch = fixture.admin.clone().get_batch(of_batch(0, step, rank)).await;
    batch.unwrap().into_inner().rows
}

async fn no_batch(fixture: &Fixture, epoch: u64, step: u64, rank: Option<u64>) -> String {
    let (kind, message) =
        refused(fixture.admin.clone().get_batch(of_batch(epoch, step, rank)).await);
    assert_eq!(kind, ErrorKind::NotFound, "{message}");
    message
}

fn states(shards: &[Shard], group: u64) -> Vec<ShardState> {
    shards.iter().filter(|shard| shard.group == Some(group)).map(Shard::state).collect()
}

/// Five files of 100 records in groups of two: 200, 200 and 100 samples.
#[tokio::test(flavor = "multi_thread")]
async fn shards_and_batches_are_those_that_were_granted() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 2).await;
    let none = shards(&fixture, 0).await;
    assert!(none.iter().all(|shard| shard.state() == ShardState::Pending), "{none:?}");
    let groups: Vec<_> = (0..3).map(|group| states(&none, group).len()).collect();
    assert_eq!(groups, [2, 2, 1]);
    let fresh = epoch(&fixture, 0).await;
    assert_eq!((fresh.total, fresh.delivered, fresh.steps, fresh.dropped), (500, 0, 0, 0));
    assert!(no_batch(&fixture, 0, 0, Some(0)).await.contains("not yet granted"));
    assert!(no_batch(&fixture, 0, 0, None).await.contains("not yet granted"));
    assert!(no_batch(&fixture, 0, 0, Some(2)).await.contains("no rank 2"));

    take(&mut fixture.worker, request(session, &leases[0])).await.unwrap();
    let leased = shards(&fixture, 0).await;
    assert_eq!(states(&leased, 0), [ShardState::Leased; 2]);
    assert_eq!(states(&leased, 1), [ShardState::Pending; 2]);
    // Exact at each step, whichever part of the group is the smaller one.
    let (mut seen, mut counted) = (BTreeSet::new(), BTreeMap::new());
    for step in 0..25 {
        for row in rows(&fixture, step, Some(0)).await {
            assert!(row.valid && row.path == format!("f-{}.tfrecord", row.shard), "{row:?}");
            *counted.entry(row.shard).or_insert(0) += 1;
            assert!(seen.insert((row.shard, row.ordinal)));
        }
        let told = vec![progress(&leases[0], 0, step + 1, vec![])];
        beat(&mut fixture.worker, session, told).await.unwrap();
        let known = shards(&fixture, 0).await;
        for shard in &known {
            let done = counted.get(&shard.shard).copied().unwrap_or(0);
            assert_eq!(shard.records_done, done, "step {step}: {shard:?}");
        }
        let reading = states(&known, 0);
        let is_known = |state| matches!(state, ShardState::Reading | ShardState::Done);
        assert!(reading.iter().all(|state| is_known(*state)), "{reading:?}");
        assert_eq!(epoch(&fixture, 0).await.delivered, 8 * (step + 1));
    }
    let known = shards(&fixture, 0).await;
    assert_eq!(states(&known, 0), [ShardState::Done; 2]);
    let of_group = known.iter().find(|shard| shard.group == Some(0)).unwrap();
    assert_eq!((of_group.first_rank, of_group.last_rank), (0, 0));
    assert!(of_group.workers == ["w0"] && of_group.age_ms.is_some(), "{of_group:?}");
    // The other rank has none, and may never have any.
    assert_eq!(rows(&fixture, 0, None).await.len(), 8);
    assert!(no_batch(&fixture, 0, 25, Some(0)).await.contains("below step 25"));
    fixture.stop().await;
}

/// Groups of one file each.
#[tokio::test(flavor = "multi_thread")]
async fn shards_of_a_rank_are_those_of_which_it_was_granted_something() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 3, 1).await;
    for lease in &leases {
        take(&mut fixture.worker, request(session, lease)).await.unwrap();
    }
    let more = ClaimGroupsRequest { known: 1, wants: 200, ..request(session, &leases[2]) };
    take(&mut fixture.worker, more).await.unwrap();
    let mut held = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    let all = shards(&fixture, 0).await;
    for (rank, held) in (0..).zip(&mut held) {
        let mut asked = ListShardsRequest { rank: Some(rank), ..of_shards(0) };
        let mut stream = fixture.admin.list_shards(asked.clone()).await.unwrap().into_inner();
        for shard in stream.message().await.unwrap().unwrap().shards {
            assert!((shard.first_rank..=shard.last_rank).contains(&rank), "{shard:?}");
            assert!(held.insert(shard.shard));
        }
        // One worker serves all three.
        (asked.context, asked.worker) = (context(), Some("w0".into()));
        let mut stream = fixture.admin.list_shards(asked.clone()).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap().unwrap().shards.len(), held.len());
        (asked.context, asked.worker) = (context(), Some("w1".into()));
        let mut stream = fixture.admin.list_shards(asked).await.unwrap().into_inner();
        let nobodys = stream.message().await.unwrap().unwrap();
        assert_eq!((nobodys.shards.len(), nobodys.counts.unwrap().pending), (0, 1));
    }
    let pieces: Vec<_> = held.iter().map(BTreeSet::len).collect();
    assert_eq!(pieces, [1, 1, 2], "{held:?} of {all:?}");
    assert!(held[0].is_disjoint(&held[1]) && held[1].is_disjoint(&held[2]), "{held:?}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uneven_epoch_to_its_seal_and_until_it_is_forgotten() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 2).await;
    take(&mut fixture.worker, request(session, &leases[0])).await.unwrap();
    let rest = ClaimGroupsRequest { wants: 300, ..request(session, &leases[1]) };
    assert_eq!(take(&mut fixture.worker, rest.clone()).await.unwrap().samples, 300);
    // Nothing is free: its run is closed, with a short batch.
    let closes = ClaimGroupsRequest { known: 2, step: 37, started: 296, ..rest };
    let closes = ClaimGroupsRequest { context: context(), ..closes };
    assert_eq!(take(&mut fixture.worker, closes).await.unwrap().closed, [300]);
    assert_eq!(rows(&fixture, 37, Some(1)).await.len(), 4);
    let last = vec![progress(&leases[0], 0, 25, vec![]), progress(&leases[1], 0, 38, vec![])];
    beat(&mut fixture.worker, session, last).await.unwrap();
    let whole = epoch(&fixture, 0).await;
    assert_eq!((whole.state(), whole.delivered), (EpochState::Running, 500));
    assert_eq!((whole.steps, whole.steps_done, whole.waiting_for.len()), (0, 25, 0));
    // The state has the end before the ranks continue: `ended` reports it to them.
    eventually("the epoch has ended", || async {
        let ask = ClaimGroupsRequest { known: 1, step: 25, ..request(session, &leases[0]) };
        let taken = take(&mut fixture.worker.clone(), ask).await.unwrap();
        taken.ended.then_some(())
    })
    .await;

    for next in 1..=5 {
        let told: Vec<_> = leases.iter().map(|lease| progress(lease, next, 0, vec![])).collect();
        beat(&mut fixture.worker, session, told).await.unwrap();
        let sealed = eventually("the epoch is sealed", || async {
            let last = epoch(&fixture, next - 1).await;
            (last.state() == EpochState::Sealed).then_some(last)
        })
        .await;
        let (delivered, lost) = if next == 1 { (500, 0) } else { (16, 484) };
        assert_eq!((sealed.delivered, sealed.lost, sealed.dropped), (delivered, lost, 0));
        let ask = ClaimGroupsRequest { epoch: next, ..request(session, &leases[0]) };
        take(&mut fixture.worker, ask.clone()).await.unwrap();
        // Two steps of each of these epochs are consumed, and the rest is left behind.
        let ask = ClaimGroupsRequest { known: 1, step: 2, wants: 0, context: context(), ..ask };
        take(&mut fixture.worker, ask).await.unwrap();
        if next == 1 {
            let over = shards(&fixture, 0).await;
            assert!(over.iter().all(|shard| shard.state() == ShardState::Done), "{over:?}");
            assert!(no_batch(&fixture, 0, 38, Some(1)).await.contains("it ends with 38"));
        }
    }
    let listed: Vec<_> = epochs(&fixture, None).await.unwrap().iter().map(|e| e.epoch).collect();
    assert_eq!(listed, [0, 1, 2, 3, 4, 5]);
    // Its counts stay; the ranges granted to each rank do not.
    let first = epoch(&fixture, 0).await;
    assert_eq!((first.state(), first.total, first.delivered), (EpochState::Sealed, 500, 500));
    assert_eq!((first.lost, first.dropped, first.duplicated), (0, 0, 0));
    assert!(no_batch(&fixture, 0, 0, Some(0)).await.contains("no longer kept"));
    assert_eq!(refused(fixture.admin.list_shards(of_shards(0)).await).0, ErrorKind::NotFound);
    let leave = LeaveRequest { context: context(), session };
    fixture.worker.leave(leave).await.unwrap();
    let waits = epoch(&fixture, 5).await;
    assert_eq!((waits.state(), waits.waiting_for), (EpochState::Running, vec![0, 1]));
    fixture.stop().await;
}

/// A worker does not know a lease if its trainer was gone before the start was answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_without_a_lease_is_answered_with_it() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 2).await;
    let of = |rank: usize| progress(&leases[rank], 0, 0, vec![]);
    let all = beat(&mut fixture.worker, session, vec![of(0), of(1)]).await.unwrap();
    assert_eq!(all.unlisted, []);
    let some = beat(&mut fixture.worker, session, vec![of(1)]).await.unwrap();
    assert_eq!(some.unlisted, leases[..1]);
    let end = EndRankRequest {
        context: context(),
        lease: Some(leases[0].clone()),
        failure: None,
        is_told: false,
        position: None,
    };
    fixture.worker.end_rank(end).await.unwrap();
    let none = beat(&mut fixture.worker, session, vec![of(1)]).await.unwrap();
    assert_eq!(none.unlisted, []);
    fixture.stop().await;
}

/// Rank 1 may have received a batch when its worker falls silent; rank 0 consumes everything else,
/// then that.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_waits_for_samples_in_doubt_and_then_goes_on_without_them() {
    let mut fixture = Fixture::start_with(|options| {
        (options.session_ttl_ms, options.heartbeat_ms) = (1_500, 100);
    })
    .await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 1).await;
    let silent = crate::worker::join(&mut fixture.worker, "w1").await.session;
    let intent = Intent::Reconnect { generation: 0, epoch: 0, step: 0 };
    let start = StartRankRequest {
        intent: Some(intent_to(&intent)),
        ..crate::worker::start(silent, "infer", 1, 2)
    };
    let started = fixture.worker.start_rank(start).await.unwrap();
    let lost = crate::worker::lease("infer", 1, started.get_ref());
    let granted = take(&mut fixture.worker, request(silent, &lost)).await.unwrap();
    assert_eq!((granted.samples, granted.horizon, granted.version), (100, 8, 0));
    let begun = ClaimGroupsRequest { started: 40, wants: 0, ..request(silent, &lost) };
    take(&mut fixture.worker, begun).await.unwrap();
    let free = ClaimGroupsRequest { wants: 600, ..request(session, &leases[0]) };
    assert_eq!(take(&mut fixture.worker, free).await.unwrap().samples, 400);
    eventually("all but the batch is rank 0's", || async {
        let mut client = fixture.worker.clone();
        beat(&mut client, session, vec![]).await.unwrap();
        let rest = ClaimGroupsRequest {
            step: 50,
            started: 400,
            wants: 600,
            ..request(session, &leases[0])
        };
        (take(&mut client, rest).await.unwrap().samples == 492).then_some(())
    })
    .await;
    let closes = ClaimGroupsRequest { step: 61, started: 488, ..request(session, &leases[0]) };
    assert_eq!(take(&mut fixture.worker, closes).await.unwrap().closed, [492]);
    let waits = eventually("it waits for nothing else", || async {
        let told = vec![progress(&leases[0], 0, 62, vec![])];
        beat(&mut fixture.worker.clone(), session, told).await.unwrap();
        let now = epoch(&fixture, 0).await;
        now.decides_in_ms.is_some().then_some(now)
    })
    .await;
    assert_eq!((waits.state(), waits.delivered, waits.lost), (EpochState::Running, 492, 0));
    let in_doubt: Vec<_> = waits.in_doubt.iter().map(|one| (one.rank, one.samples)).collect();
    assert_eq!((in_doubt.as_slice(), waits.policy()), ([(1, 8)].as_slice(), InDoubt::Redeliver));
    assert!(waits.decides_in_ms.unwrap() > 30_000);
    let rest = ClaimGroupsRequest { step: 62, started: 492, ..request(session, &leases[0]) };
    assert_eq!(take(&mut fixture.worker, rest.clone()).await.unwrap().samples, 492);
    let gone = |rank| DeclareGoneRequest { context: context(), job: "infer".into(), rank };
    let decided = fixture.admin.declare_gone(gone(1)).await.unwrap().into_inner();
    assert_eq!(decided.samples, 8);
    assert_eq!(refused(fixture.admin.declare_gone(gone(0)).await).0, ErrorKind::Invalid);
    let rest = ClaimGroupsRequest { context: context(), ..rest };
    assert_eq!(take(&mut fixture.worker, rest).await.unwrap().samples, 500);
    let over = eventually("the epoch is over", || async {
        let told = vec![progress(&leases[0], 0, 63, vec![])];
        beat(&mut fixture.worker.clone(), session, told).await.unwrap();
        let now = epoch(&fixture, 0).await;
        (now.state() == EpochState::Sealed).then_some(now)
    })
    .await;
    assert_eq!((over.delivered, over.lost, over.waiting_for.len()), (500, 0, 0));
    assert_eq!((over.duplicated, over.redelivered), (0, 8), "the samples in doubt");
    assert_eq!(phase(&fixture).await, JobPhase::Running);
    let end = EndRankRequest {
        context: context(),
        lease: Some(leases[0].clone()),
        failure: None,
        is_told: true,
        position: None,
    };
    fixture.worker.end_rank(end).await.unwrap();
    assert_eq!(phase(&fixture).await, JobPhase::Finished);
    let listed: Vec<_> = epochs(&fixture, None).await.unwrap().iter().map(|e| e.epoch).collect();
    assert_eq!(listed, [0], "no rank began another one");
    fixture.stop().await;
}

async fn phase(fixture: &Fixture) -> JobPhase {
    let request = GetJobRequest { context: context(), job: "infer".into() };
    let job = fixture.admin.clone().get_job(request).await.unwrap().into_inner().job;
    job.unwrap().phase()
}

/// Groups of 200, 200 and 100 samples: rank 0 returns 144 of the second one, which rank 1 then
/// gets.
#[tokio::test(flavor = "multi_thread")]
async fn shards_of_a_rank_are_those_that_it_has_records_of() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 2).await;
    let two = ClaimGroupsRequest { wants: 400, ..request(session, &leases[0]) };
    assert_eq!(take(&mut fixture.worker, two.clone()).await.unwrap().samples, 400);
    let back = ClaimGroupsRequest { known: 2, released: Some(256), context: context(), ..two };
    assert_eq!(take(&mut fixture.worker, back).await.unwrap().samples, 256);
    let rest = ClaimGroupsRequest { wants: 500, ..request(session, &leases[1]) };
    assert_eq!(take(&mut fixture.worker, rest).await.unwrap().samples, 244);
    for (rank, steps) in [(0, 32), (1, 30)] {
        let mut has = BTreeSet::new();
        for step in 0..steps {
            let rows = rows(&fixture, step, Some(rank)).await;
            has.extend(rows.iter().filter(|row| row.valid).map(|row| row.shard));
        }
        let asked = ListShardsRequest { rank: Some(rank), ..of_shards(0) };
        let mut stream = fixture.admin.list_shards(asked).await.unwrap().into_inner();
        let listed = stream.message().await.unwrap().unwrap().shards;
        let listed: BTreeSet<_> = listed.iter().map(|shard| shard.shard).collect();
        assert_eq!(listed, has, "rank {rank}");
        assert!((3..5).contains(&listed.len()), "{listed:?}");
    }
    fixture.stop().await;
}

/// Two ranks consume 40 samples each; three others share the 420 that are left.
#[tokio::test(flavor = "multi_thread")]
async fn what_other_ranks_consumed_before_is_counted() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 2).await;
    let mut counted = BTreeMap::new();
    for lease in &leases {
        take(&mut fixture.worker, request(session, lease)).await.unwrap();
        beat(&mut fixture.worker, session, vec![progress(lease, 0, 5, vec![])]).await.unwrap();
        for step in 0..5 {
            for row in rows(&fixture, step, Some(lease.rank)).await {
                *counted.entry(row.shard).or_insert(0) += 1;
            }
        }
    }
    let before = epoch(&fixture, 0).await;
    assert_eq!((before.steps, before.steps_done, before.delivered, before.dropped), (0, 5, 80, 0));
    let taken = Segment { lanes: 1, global_batch: 16, steps: Steps::All(5) };
    let open = Segment { lanes: 1, global_batch: 24, steps: Steps::All(0) };
    let intent = Intent::Start {
        state_generation: Some(0),
        epoch: 0,
        segments: vec![taken, open],
        is_reshard: false,
    };
    let start = StartRankRequest {
        intent: Some(intent_to(&intent)),
        run: Some("r2".into()),
        ..crate::worker::start(session, "infer", 0, 3)
    };
    let started = fixture.worker.start_rank(start).await.unwrap();
    let lease = crate::worker::lease("infer", 0, started.get_ref());
    let after = epoch(&fixture, 0).await;
    assert_eq!((after.generation, after.total, after.delivered), (1, 500, 80));
    assert_eq!((after.steps, after.dropped), (0, 0));
    assert_eq!((after.state(), after.waiting_for), (EpochState::Running, vec![]));
    let known = shards(&fixture, 0).await;
    for shard in &known {
        let done = counted.get(&shard.shard).copied().unwrap_or(0);
        assert_eq!(shard.records_done, done, "{shard:?}");
    }
    assert!(no_batch(&fixture, 0, 4, Some(0)).await.contains("before generation 1 began"));
    let ask = ClaimGroupsRequest { step: 5, wants: 500, ..request(session, &lease) };
    assert_eq!(take(&mut fixture.worker, ask).await.unwrap().samples, 420);
    assert_eq!(rows(&fixture, 5, Some(0)).await.len(), 8);
    assert!(no_batch(&fixture, 0, 57, Some(0)).await.contains("below step 57"));
    fixture.stop().await;
}
