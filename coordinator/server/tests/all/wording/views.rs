//! Messages to users who view jobs.

use expect_test::expect;
use shardfeed_plan::{Intent, JobIdentity, Mode, Segment, Steps, Tail};
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{identity_to, intent_to};

use super::Table;
use crate::fixture::{Fixture, context, eventually};
use crate::groups::{dynamic_with, request};
use crate::worker::{beat, identity, progress, ready, register, start};

fn batch(job: &str, (epoch, step): (u64, u64), rank: Option<u64>) -> GetBatchRequest {
    GetBatchRequest { context: context(), job: job.into(), epoch, step, rank, ..Default::default() }
}

fn history(job: &str, epoch: u64, shard: u64) -> GetShardHistoryRequest {
    GetShardHistoryRequest { context: context(), job: job.into(), epoch: Some(epoch), shard }
}

/// Starts one rank of a job from an epoch on, with steps of `global_batch` samples.
async fn from(fixture: &mut Fixture, session: u64, job: &str, (epoch, global_batch): (u64, u64)) {
    let open = Segment { lanes: 1, global_batch, steps: Steps::All(0) };
    let state_generation = (epoch > 0).then_some(4);
    let intent = Intent::Start { state_generation, epoch, segments: vec![open], is_reshard: false };
    let start = StartRankRequest { intent: Some(intent_to(&intent)), ..start(session, job, 0, 1) };
    fixture.worker.start_rank(start).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_a_batch_or_a_shard_says_which_ones_there_are() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    for job in ["train", "later", "large"] {
        fixture.worker.register_job(register(&dataset, job, 1)).await.unwrap();
    }
    from(&mut fixture, session, "train", (0, 8)).await;
    from(&mut fixture, session, "later", (3, 8)).await;
    from(&mut fixture, session, "large", (0, 20_000)).await;
    let (mut table, admin) = (Table::default(), &mut fixture.admin);
    table.refused("a batch of no job", admin.get_batch(batch("none", (0, 0), None)).await);
    table.refused("a step too far", admin.get_batch(batch("train", (0, 500), None)).await);
    table.refused("a step of no rank", admin.get_batch(batch("train", (0, 0), Some(1))).await);
    table.refused("an epoch too early", admin.get_batch(batch("later", (0, 0), None)).await);
    table.refused("a batch of many rows", admin.get_batch(batch("large", (0, 0), None)).await);
    let one = admin.get_batch(batch("large", (0, 0), Some(0))).await;
    table.refused("a rank's batch of many rows", one);
    table.refused("a shard too far", admin.get_shard_history(history("train", 0, 5)).await);
    table.refused("a shard of no job", admin.get_shard_history(history("none", 0, 0)).await);
    let early = admin.get_shard_history(history("later", 0, 0)).await;
    table.refused("a shard of an epoch too early", early);

    // In one process a job may name no dataset.
    let nameless = Dataset { name: String::new(), ..dataset.clone() };
    fixture.worker.register_job(register(&nameless, "alone", 1)).await.unwrap();
    from(&mut fixture, session, "alone", (0, 8)).await;
    let alone = fixture.admin.get_batch(batch("alone", (0, 0), None)).await;
    table.refused("a batch of a job without a dataset", alone);
    let (tail, mode) = (Tail::Uneven, Mode::Dynamic);
    let dynamic = JobIdentity { tail, mode, ..identity(&nameless, 1) };
    let register = RegisterJobRequest {
        identity: Some(identity_to(&dynamic)),
        ..register(&nameless, "alone-too", 1)
    };
    fixture.worker.register_job(register).await.unwrap();
    let started = fixture.worker.start_rank(start(session, "alone-too", 0, 1)).await.unwrap();
    let lease = crate::worker::lease("alone-too", 0, started.get_ref());
    let taken = fixture.worker.claim_groups(request(session, &lease)).await;
    table.refused("groups of a job without a dataset", taken);
    table.check(&expect![[r#"
        a batch of no job
            NotFound: there is no job `none`
        a step too far: NotFound
        a step of no rank
            Invalid: rank=1 is not in 0..1: ranks count from 0 to world_size - 1
        an epoch too early: NotFound
        a batch of many rows: Invalid
        a rank's batch of many rows: Invalid
        a shard too far: NotFound
        a shard of no job: NotFound
        a shard of an epoch too early: NotFound
        a batch of a job without a dataset: NotFound
        groups of a job without a dataset: NotFound
    "#]]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_a_batch_that_is_granted_says_what_was_granted() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 2).await;
    let (mut table, mut admin) = (Table::default(), fixture.admin.clone());
    let of = |epoch: u64, step: u64, rank| batch("infer", (epoch, step), rank);
    table.refused("before anything is granted", admin.get_batch(of(0, 0, Some(1))).await);
    table.refused("of no rank", admin.get_batch(of(0, 0, Some(2))).await);
    for lease in &leases {
        fixture.worker.claim_groups(request(session, lease)).await.unwrap();
        let told = vec![progress(lease, 0, 5, vec![])];
        beat(&mut fixture.worker, session, told).await.unwrap();
    }
    table.refused("after the granted steps", admin.get_batch(of(0, 26, Some(0))).await);

    // Three ranks continue after two had consumed five steps.
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
        ..start(session, "infer", 0, 3)
    };
    let started = fixture.worker.start_rank(start).await.unwrap();
    assert_eq!(started.get_ref().generation, 1);
    table.refused("of the generation before", admin.get_batch(of(0, 4, Some(0))).await);
    fixture.stop().await;

    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 1, 2).await;
    for epoch in 0..=5 {
        let told = vec![progress(&leases[0], epoch, 0, vec![])];
        beat(&mut fixture.worker, session, told).await.unwrap();
        // It gets nothing of an epoch before the epochs that it left are released.
        eventually("the epoch begins", || async {
            let ask = ClaimGroupsRequest { epoch, ..request(session, &leases[0]) };
            let taken = fixture.worker.clone().claim_groups(ask).await.unwrap();
            (!taken.get_ref().pieces.is_empty()).then_some(())
        })
        .await;
    }
    let admin = fixture.admin.clone();
    eventually("its lists are let go", || async {
        let known = admin.clone().get_batch(of(0, 0, Some(0))).await;
        known.is_err_and(|error| error.message().contains("kept")).then_some(())
    })
    .await;
    let ended = eventually("its last list is cut where it left", || async {
        let ended = admin.clone().get_batch(of(4, 0, Some(0))).await;
        ended.as_ref().is_err_and(|error| error.message().contains("ends")).then_some(ended)
    })
    .await;
    table.refused("after the last step", ended);
    table.refused("of an epoch long ago", fixture.admin.get_batch(of(0, 0, Some(0))).await);
    table.check(&expect![[r#"
        before anything is granted
            NotFound: step 0 of epoch 0 of the dynamic job `infer` is not yet granted to rank 1, which has whole batches below step 0
        of no rank: NotFound
        after the granted steps: NotFound
        of the generation before: NotFound
        after the last step: NotFound
        of an epoch long ago: NotFound
    "#]]);
    fixture.stop().await;
}
