//! Every kind of rejection, by the caller's required reaction.

use shardfeed_plan::{Intent, Segment, Steps};
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, intent_to};

use crate::fixture::{Fixture, context, context_of, refused};
use crate::worker::{add, beat, join, lease, progress, ready, register, start};

#[tokio::test(flavor = "multi_thread")]
async fn contexts_that_do_not_fit() {
    let mut fixture = Fixture::start().await;
    let with = |change: fn(&mut Context)| {
        let mut context = context().unwrap();
        change(&mut context);
        Some(context)
    };
    let status = |context| GetStatusRequest { context };
    let (kind, message) = refused(fixture.admin.get_status(status(with(|c| c.protocol = 3))).await);
    assert_eq!(kind, ErrorKind::WrongVersion);
    assert!(message.contains("version 3") && message.contains("version 1"), "{message}");
    assert_eq!(refused(fixture.admin.get_status(status(None)).await).0, ErrorKind::WrongVersion);
    let other = with(|c| c.cluster_id = "another".into());
    let (kind, message) = refused(fixture.admin.get_status(status(other)).await);
    assert_eq!(kind, ErrorKind::WrongCluster);
    let ours = fixture.running.cluster_id().to_owned();
    assert!(message.contains("another") && message.contains(&ours), "{message}");
    let mut same = context().unwrap();
    same.cluster_id = ours.clone();
    let known = fixture.admin.get_status(status(Some(same))).await.unwrap().into_inner();
    assert_eq!((known.cluster_id, known.leader), (ours, Some(known.node)));
    for change in [
        (|c| c.principal.clear()) as fn(&mut Context),
        |c| c.request_id.clear(),
        |c| c.request_id = "one".into(),
    ] {
        let leave = LeaveRequest { context: with(change), session: 1 };
        assert_eq!(refused(fixture.worker.leave(leave).await).0, ErrorKind::Invalid);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_stand_for_something_else() {
    let mut fixture = Fixture::start().await;
    let (_, dataset) = ready(&mut fixture).await;
    let other = AddDatasetRequest {
        context: context(),
        name: "photos".into(),
        patterns: vec!["/other/*".into()],
        compression: String::new(),
        corrupt: String::new(),
        listing: None,
        program: vec![],
    };
    let (kind, message) = refused(fixture.admin.add_dataset(other).await);
    assert_eq!(kind, ErrorKind::Identity);
    assert!(message.contains("/data/*"), "{message}");
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    let (kind, message) =
        refused(fixture.worker.register_job(register(&dataset, "train", 4)).await);
    assert_eq!(kind, ErrorKind::Identity);
    assert!(message.contains("lanes is 2 there and 4 here"), "{message}");
    let moved = Dataset { content: vec![9; 32], ..dataset.clone() };
    let (kind, _) = refused(fixture.worker.register_job(register(&moved, "other", 2)).await);
    assert_eq!(kind, ErrorKind::Identity);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_or_has_no_meaning() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    let request = GetDatasetRequest { context: context(), name: "none".into() };
    assert_eq!(refused(fixture.admin.get_dataset(request).await).0, ErrorKind::NotFound);
    let request = GetJobRequest { context: context(), job: "none".into() };
    assert_eq!(refused(fixture.admin.get_job(request).await).0, ErrorKind::NotFound);
    let request = LatestStateRequest { context: context(), job: "none".into() };
    assert_eq!(refused(fixture.worker.latest_state(request).await).0, ErrorKind::NotFound);
    let request = start(session, "none", 0, 2);
    assert_eq!(refused(fixture.worker.start_rank(request).await).0, ErrorKind::NotFound);
    let request = GetChunkRequest { context: context(), digest: vec![1; 32] };
    assert_eq!(refused(fixture.worker.get_chunk(request).await).0, ErrorKind::NotFound);
    let nowhere = Dataset { name: "none".into(), ..dataset.clone() };
    let request = register(&nowhere, "train", 2);
    assert_eq!(refused(fixture.worker.register_job(request).await).0, ErrorKind::NotFound);

    add(&mut fixture, "unready").await;
    let unready = Dataset { name: "unready".into(), ..dataset.clone() };
    let request = register(&unready, "train", 2);
    assert_eq!(refused(fixture.worker.register_job(request).await).0, ErrorKind::Invalid);
    let request = ClaimScansRequest { context: context(), session, most: 0 };
    assert_eq!(refused(fixture.worker.claim_scans(request).await).0, ErrorKind::Invalid);
    for (name, pattern, compression) in
        [("", "/a", ""), ("a", "relative/*", ""), ("a", "/a", "xz"), (&"x".repeat(500), "/a", "")]
    {
        let request = AddDatasetRequest {
            context: context(),
            name: name.into(),
            patterns: vec![pattern.into()],
            compression: compression.into(),
            corrupt: String::new(),
            listing: None,
            program: vec![],
        };
        assert_eq!(refused(fixture.admin.add_dataset(request).await).0, ErrorKind::Invalid);
    }
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    let request = StartRankRequest { intent: None, ..start(session, "train", 0, 2) };
    assert_eq!(refused(fixture.worker.start_rank(request).await).0, ErrorKind::Invalid);
    let request = StartRankRequest { rank: 2, ..start(session, "train", 0, 2) };
    assert_eq!(refused(fixture.worker.start_rank(request).await).0, ErrorKind::Invalid);
    let request = GetBatchRequest { context: context(), job: "train".into(), ..Default::default() };
    assert_eq!(refused(fixture.admin.get_batch(request).await).0, ErrorKind::NotFound);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_disagree_and_leases_that_ended() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    let client = &mut fixture.worker;
    client.register_job(register(&dataset, "train", 2)).await.unwrap();
    let first = client.start_rank(start(session, "train", 0, 2)).await.unwrap().into_inner();
    // Another position, another world size, in the same run.
    let open = Segment { lanes: 2, global_batch: 16, steps: Steps::All(3) };
    let intent = Intent::Start {
        state_generation: Some(0),
        epoch: 0,
        segments: vec![open],
        is_reshard: false,
    };
    let elsewhere =
        StartRankRequest { intent: Some(intent_to(&intent)), ..start(session, "train", 1, 2) };
    let (kind, message) = refused(client.start_rank(elsewhere).await);
    assert!(kind == ErrorKind::Conflict && message.contains("step 3"), "{kind:?} {message}");
    let other = start(session, "train", 1, 4);
    assert_eq!(refused(client.start_rank(other).await).0, ErrorKind::Conflict);
    // The same trainer starts through another worker: the first lease is fenced.
    let other = join(client, "w1").await.session;
    let open = Intent::Reconnect { generation: first.generation, epoch: 0, step: 0 };
    let back = StartRankRequest { intent: Some(intent_to(&open)), ..start(other, "train", 0, 2) };
    let second = client.start_rank(back).await.unwrap().into_inner();
    assert!(second.fencing > first.fencing);
    let (old, new) = (lease("train", 0, &first), lease("train", 0, &second));
    let told = beat(client, session, vec![progress(&old, 0, 5, vec![])]).await.unwrap().verdicts;
    assert_eq!(told[0].lease.as_ref(), Some(&old));
    assert_eq!(told[0].error.as_ref().unwrap().kind(), ErrorKind::Fenced);
    // A lease is valid only in the session that holds it.
    let told = beat(client, session, vec![progress(&new, 0, 5, vec![])]).await.unwrap().verdicts;
    assert_eq!(told[0].error.as_ref().unwrap().kind(), ErrorKind::Fenced);
    let told = beat(client, other, vec![progress(&new, 0, 5, vec![])]).await.unwrap().verdicts;
    assert!(told.is_empty());
    let end = EndRankRequest {
        context: context(),
        lease: Some(old),
        failure: None,
        is_told: true,
        position: None,
    };
    assert_eq!(refused(client.end_rank(end).await).0, ErrorKind::Fenced);
    // Another run takes the job over.
    let run = StartRankRequest { run: Some("r2".into()), ..start(session, "train", 0, 2) };
    client.start_rank(run).await.unwrap();
    let told = beat(client, other, vec![progress(&new, 0, 6, vec![])]).await.unwrap().verdicts;
    assert_eq!(told[0].error.as_ref().unwrap().kind(), ErrorKind::Superseded);
    let back = StartRankRequest {
        context: context_of(&uuid::Uuid::new_v4().to_string()),
        intent: Some(intent_to(&open)),
        ..start(other, "train", 0, 2)
    };
    assert_eq!(refused(client.start_rank(back).await).0, ErrorKind::Superseded);
    fixture.stop().await;
}
