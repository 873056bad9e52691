//! Ranks of dynamic jobs claim groups: each sample goes to one rank, and idle ranks get work of
//! others.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use shardfeed_plan::{JobIdentity, Mode, Segment, Steps, Tail};
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, WireError, identity_to, intent_to};
use tonic::Status;

use crate::fixture::{Fixture, context, context_of, eventually, refused};
use crate::worker::{beat, identity, lease, progress, ready};

type Client = worker_service_client::WorkerServiceClient<tonic::transport::Channel>;

const ROWS: u64 = 8;

/// Returns the session and the leases of a dynamic job over five files of 100 records, with groups
/// of one file.
async fn dynamic(fixture: &mut Fixture, ranks: u64) -> (u64, Vec<Lease>) {
    dynamic_with(fixture, ranks, 1).await
}

/// Like [`dynamic`], with groups of `interleave` files.
pub(crate) async fn dynamic_with(
    fixture: &mut Fixture,
    ranks: u64,
    interleave: u64,
) -> (u64, Vec<Lease>) {
    let (session, dataset) = ready(fixture).await;
    let (tail, mode) = (Tail::Uneven, Mode::Dynamic);
    let mut identity = JobIdentity { tail, mode, ..identity(&dataset, 1) };
    identity.shuffle.interleave = interleave;
    let register = RegisterJobRequest {
        context: context(),
        name: "infer".into(),
        dataset: dataset.name.clone(),
        identity: Some(identity_to(&identity)),
        ..Default::default()
    };
    fixture.worker.register_job(register).await.unwrap();
    let mut leases = Vec::new();
    for rank in 0..ranks {
        let open = Segment { lanes: 1, global_batch: ROWS * ranks, steps: Steps::All(0) };
        let intent = shardfeed_plan::Intent::Start {
            state_generation: None,
            epoch: 0,
            segments: vec![open],
            is_reshard: false,
        };
        let start = StartRankRequest {
            intent: Some(intent_to(&intent)),
            ..crate::worker::start(session, "infer", rank, ranks)
        };
        let started = fixture.worker.start_rank(start).await.unwrap();
        leases.push(lease("infer", rank, started.get_ref()));
    }
    (session, leases)
}

pub(crate) fn request(session: u64, lease: &Lease) -> ClaimGroupsRequest {
    ClaimGroupsRequest {
        context: context(),
        session,
        lease: Some(lease.clone()),
        epoch: 0,
        step: 0,
        started: 0,
        known: 0,
        wants: 100,
        ahead: 0,
        released: None,
        version: 0,
        known_version: None,
        wait_ms: 0,
    }
}

pub(crate) async fn take(
    client: &mut Client,
    request: ClaimGroupsRequest,
) -> Result<ClaimGroupsResponse, Status> {
    Ok(client.claim_groups(request).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn takes_of_one_message_are_answered_one_by_one() {
    use batch_claim_groups_response::result::Result as Outcome;

    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 3).await;
    let stale = Lease { fencing: 1, ..leases[2].clone() };
    let of =
        |lease| ClaimGroupsRequest { context: None, wait_ms: 10_000, ..request(session, lease) };
    let takes = vec![of(&leases[0]), of(&stale), of(&leases[1])];
    let batch = BatchClaimGroupsRequest { context: context(), takes };
    let begun = Instant::now();
    let answer = fixture.worker.batch_claim_groups(batch).await.unwrap().into_inner();
    assert!(begun.elapsed() < Duration::from_secs(5), "a batch waits for nothing");
    let mut groups = BTreeSet::new();
    for (at, result) in answer.results.into_iter().enumerate() {
        match result.result.unwrap() {
            Outcome::Taken(taken) => groups.extend(taken.pieces.iter().map(|piece| piece.group)),
            Outcome::Error(error) => {
                let error = WireError::from_message(Some(error));
                assert_eq!((at, error.kind), (1, ErrorKind::Fenced), "{error}");
            }
        }
    }
    assert_eq!(groups.into_iter().collect::<Vec<_>>(), [0, 1]);
    let takes = vec![of(&leases[0]); 65];
    let batch = BatchClaimGroupsRequest { context: context(), takes };
    let (kind, message) = refused(fixture.worker.batch_claim_groups(batch).await);
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.contains("at most 64"), "{message}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_is_granted_once_and_a_lost_answer_is_repeated() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 2).await;
    let mut samples = BTreeSet::new();
    let mut known = [0, 0];
    for round in 0..5 {
        let rank = round % 2;
        let request_id = uuid::Uuid::new_v4().to_string();
        let ask = ClaimGroupsRequest {
            context: context_of(&request_id),
            known: known[rank],
            wants: 100 * (known[rank] + 1),
            ..request(session, &leases[rank])
        };
        let answer = take(&mut fixture.worker, ask.clone()).await.unwrap();
        assert_eq!(take(&mut fixture.worker, ask).await.unwrap(), answer);
        assert_eq!((answer.first, answer.pieces.len()), (known[rank], 1), "{answer:?}");
        known[rank] += 1;
        assert_eq!(answer.samples, 100 * known[rank]);
        for GroupRange { group, from, to } in answer.pieces {
            assert!((from..to).all(|offset| samples.insert((group, offset))));
        }
    }
    assert_eq!(samples.len(), 500);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_knows_another_list_gets_this_one_until_it_knows_it() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 2).await;
    let ask = || ClaimGroupsRequest { wants: 200, ..request(session, &leases[0]) };
    let first = take(&mut fixture.worker, ask()).await.unwrap();
    assert_eq!((first.pieces.len(), first.version), (2, 0));
    // The version of the worker is that of a list under an earlier lease. No answer is remembered.
    let other = || ClaimGroupsRequest { known: 2, known_version: Some(7), ..ask() };
    for _ in 0..2 {
        let answer = take(&mut fixture.worker, other()).await.unwrap();
        assert_eq!((answer.first, &answer.pieces), (0, &first.pieces));
    }
    let knows = ClaimGroupsRequest { known_version: Some(0), ..other() };
    let answer = take(&mut fixture.worker, knows).await.unwrap();
    assert_eq!((answer.first, answer.pieces.len()), (2, 0));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_waits_is_woken_by_what_another_gives_back() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 2).await;
    let all = ClaimGroupsRequest { wants: 500, ..request(session, &leases[0]) };
    let all = take(&mut fixture.worker, all).await.unwrap();
    assert_eq!((all.pieces.len(), all.samples), (5, 500));
    let waits = ClaimGroupsRequest { wait_ms: 10_000, ..request(session, &leases[1]) };
    let mut client = fixture.worker.clone();
    let began = Instant::now();
    let waiting = tokio::spawn(async move { take(&mut client, waits).await.unwrap() });
    // The leader requests work back from the first rank; it agrees, and keeps the started part.
    let told = progress(&leases[0], 0, 0, vec![]);
    let asked = eventually("work is asked back", || async {
        let beat = beat(&mut fixture.worker.clone(), session, vec![told.clone()]).await.unwrap();
        beat.revocations.into_iter().next()
    })
    .await;
    assert_eq!((asked.epoch, asked.lease.as_ref()), (0, Some(&leases[0])));
    assert!(asked.from < 500, "{asked:?}");
    let released = ClaimGroupsRequest {
        started: asked.from,
        released: Some(asked.from),
        known: asked.from.div_ceil(100),
        wants: 0,
        ..request(session, &leases[0])
    };
    let kept = take(&mut fixture.worker, released).await.unwrap();
    assert_eq!((kept.samples, kept.revoke_from), (asked.from, None), "{kept:?}");
    let got = waiting.await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(9_000), "{:?}", began.elapsed());
    assert!(!got.pieces.is_empty() && got.samples <= 500 - asked.from, "{got:?}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_waits_is_woken_when_another_ends_and_when_time_is_up() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 2).await;
    let other = crate::worker::join(&mut fixture.worker, "w1").await.session;
    let refusal = take(&mut fixture.worker, request(other, &leases[0])).await;
    assert_eq!(WireError::from_status(&refusal.unwrap_err()).kind, ErrorKind::Fenced);
    let all = ClaimGroupsRequest { wants: 500, ..request(session, &leases[0]) };
    take(&mut fixture.worker, all).await.unwrap();
    let began = Instant::now();
    let waits = ClaimGroupsRequest { wait_ms: 50, ..request(session, &leases[1]) };
    let nothing = take(&mut fixture.worker, waits).await.unwrap();
    assert!(nothing.pieces.is_empty() && !nothing.ended, "{nothing:?}");
    assert!(began.elapsed() >= Duration::from_millis(50));
    // The first rank ends: samples that it did not consume are free.
    let waits = ClaimGroupsRequest { wait_ms: 10_000, ..request(session, &leases[1]) };
    let mut client = fixture.worker.clone();
    let waiting = tokio::spawn(async move { take(&mut client, waits).await.unwrap() });
    let end = EndRankRequest {
        context: context(),
        lease: Some(leases[0].clone()),
        failure: None,
        is_told: true,
        position: None,
    };
    fixture.worker.end_rank(end).await.unwrap();
    assert!(!waiting.await.unwrap().pieces.is_empty());
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_ranks_share_few_commands() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 64).await;
    let applied = |admin: &mut admin_service_client::AdminServiceClient<_>| {
        let mut admin: admin_service_client::AdminServiceClient<tonic::transport::Channel> =
            admin.clone();
        async move {
            let request = GetStatusRequest { context: context() };
            admin.get_status(request).await.unwrap().into_inner().applied
        }
    };
    let before = applied(&mut fixture.admin).await;
    let mut takes = tokio::task::JoinSet::new();
    for lease in &leases {
        let ask = ClaimGroupsRequest { wants: ROWS, ..request(session, lease) };
        let mut client = fixture.worker.clone();
        takes.spawn(async move { take(&mut client, ask).await.unwrap() });
    }
    let answers = takes.join_all().await;
    let granted: u64 = answers.iter().map(|answer| answer.samples).sum();
    assert_eq!(granted, 500);
    let commands = applied(&mut fixture.admin).await - before;
    assert!(commands < 64, "{commands} commands for 64 claims");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordoned_worker_gets_nothing_new_and_what_is_removed_is_gone() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic(&mut fixture, 1).await;
    let cordon = |cordon: Cordon| CordonWorkerRequest {
        context: context(),
        worker: "w0".into(),
        cordon: cordon.into(),
    };
    fixture.admin.cordon_worker(cordon(Cordon::Draining)).await.unwrap();
    assert!(beat(&mut fixture.worker, session, vec![]).await.unwrap().draining);
    let got = take(&mut fixture.worker, request(session, &leases[0])).await.unwrap();
    assert!(got.pieces.is_empty(), "{got:?}");
    let list = ListWorkersRequest { context: context(), all: false };
    let workers = fixture.admin.list_workers(list).await.unwrap().into_inner().workers;
    assert_eq!(workers[0].cordon(), Cordon::Draining);
    fixture.admin.cordon_worker(cordon(Cordon::Open)).await.unwrap();
    assert!(!beat(&mut fixture.worker, session, vec![]).await.unwrap().draining);
    let got = take(&mut fixture.worker, request(session, &leases[0])).await.unwrap();
    assert_eq!(got.pieces.len(), 1, "{got:?}");
    let (kind, _) = refused(fixture.admin.cordon_worker(cordon(Cordon::Unspecified)).await);
    assert_eq!(kind, ErrorKind::Invalid);

    let job = || RemoveJobRequest { context: context(), name: "infer".into() };
    let dataset = || RemoveDatasetRequest { context: context(), name: "photos".into() };
    let (kind, message) = refused(fixture.admin.remove_job(job()).await);
    assert_eq!(kind, ErrorKind::Invalid, "{message}");
    let end = EndRankRequest {
        context: context(),
        lease: Some(leases[0].clone()),
        failure: None,
        is_told: true,
        position: None,
    };
    fixture.worker.end_rank(end).await.unwrap();
    let (kind, message) = refused(fixture.admin.remove_dataset(dataset()).await);
    assert_eq!(kind, ErrorKind::Invalid, "{message}");
    fixture.admin.remove_job(job()).await.unwrap();
    fixture.admin.remove_dataset(dataset()).await.unwrap();
    assert_eq!(refused(fixture.admin.remove_job(job()).await).0, ErrorKind::NotFound);
    fixture.stop().await;
}
