//! Sessions: joined, renewed, left, expired, replaced.

use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::*;

use crate::fixture::{Fixture, context, context_of, eventually, refused};
use crate::worker::{beat, join, join_as};

async fn workers(fixture: &Fixture) -> Vec<Worker> {
    let request = ListWorkersRequest { context: context(), all: true };
    fixture.admin.clone().list_workers(request).await.unwrap().into_inner().workers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_while_heartbeats_come_and_no_longer() {
    let mut fixture = Fixture::start_with(|options| {
        (options.session_ttl_ms, options.heartbeat_ms) = (600, 100);
    })
    .await;
    let joined = join(&mut fixture.worker, "w0").await;
    assert_eq!((joined.ttl_ms, joined.heartbeat_ms), (600, 100));
    assert_eq!(joined.cluster_id, fixture.running.cluster_id());
    let silent = join(&mut fixture.worker, "w1").await;
    // One session sends heartbeats until the other has expired: longer than a ttl.
    let mut client = fixture.worker.clone();
    eventually("the silent session expires", || {
        let (mut client, fixture) = (client.clone(), &fixture);
        async move {
            beat(&mut client, joined.session, vec![]).await.unwrap();
            let workers = workers(fixture).await;
            let silent = workers.iter().find(|worker| worker.session == silent.session).unwrap();
            (silent.state() == WorkerState::Expired).then_some(())
        }
    })
    .await;
    let error = beat(&mut client, silent.session, vec![]).await.unwrap_err();
    let (kind, message) = refused::<()>(Err(error));
    assert_eq!(kind, ErrorKind::Fenced);
    assert!(message.contains("no heartbeat arrived in time; join again"), "{message}");
    let live = workers(&fixture).await.into_iter().find(|worker| worker.name == "w0").unwrap();
    assert_eq!((live.state(), live.endpoint.as_str()), (WorkerState::Live, "/run/w0.sock"));
    assert_eq!(live.decoders, ["pixels/1"]);
    assert!(live.seen_ms.unwrap() < 600);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_gives_every_session_a_full_ttl() {
    let mut fixture = Fixture::start_with(|options| {
        (options.session_ttl_ms, options.heartbeat_ms) = (1500, 500);
    })
    .await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let mut fixture = fixture.restart().await;
    let worker = workers(&fixture).await.remove(0);
    assert_eq!((worker.state(), worker.seen_ms), (WorkerState::Live, None));
    beat(&mut fixture.worker, session, vec![]).await.unwrap();
    assert!(workers(&fixture).await[0].seen_ms.is_some());
    eventually("it expires in the end", || async {
        (workers(&fixture).await[0].state() == WorkerState::Expired).then_some(())
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_and_joining_again() {
    let mut fixture = Fixture::start().await;
    let first = join(&mut fixture.worker, "w0").await.session;
    let incarnation = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    let second =
        join_as(&mut fixture.worker, "w0", incarnation).await.unwrap().into_inner().session;
    let again = join_as(&mut fixture.worker, "w0", incarnation).await.unwrap().into_inner().session;
    assert_eq!(second, again);
    let error = beat(&mut fixture.worker, first, vec![]).await.unwrap_err();
    assert!(refused::<()>(Err(error)).1.contains("its worker started again"));
    let leave = LeaveRequest { context: context(), session: second };
    fixture.worker.leave(leave.clone()).await.unwrap();
    // The same request again gets the first answer; another one gets the current state.
    fixture.worker.leave(leave.clone()).await.unwrap();
    let other = LeaveRequest { context: context(), ..leave };
    assert_eq!(refused(fixture.worker.leave(other).await).0, ErrorKind::Fenced);
    let states: Vec<_> = workers(&fixture).await.iter().map(Worker::state).collect();
    assert_eq!(states, [WorkerState::Replaced, WorkerState::Left]);
    let live = ListWorkersRequest { context: context(), all: false };
    assert!(fixture.admin.list_workers(live).await.unwrap().into_inner().workers.is_empty());
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_the_first_answer_also_after_a_restart() {
    let mut fixture = Fixture::start().await;
    let request = JoinRequest {
        context: context_of("0e984725-c51c-4bf4-9960-e1c80e27aba0"),
        worker: "w0".into(),
        host: "h".into(),
        incarnation: "i".into(),
        ..JoinRequest::default()
    };
    let first = fixture.worker.join(request.clone()).await.unwrap().into_inner();
    let again = fixture.worker.join(request.clone()).await.unwrap().into_inner();
    assert_eq!(first, again);
    // A rejection is an answer, too.
    let refused_id = context_of("0e984725-c51c-4bf4-9960-e1c80e27aba1");
    let leave = LeaveRequest { context: refused_id, session: 9999 };
    let refusal = refused(fixture.worker.leave(leave.clone()).await);
    let mut fixture = fixture.restart().await;
    assert_eq!(fixture.worker.join(request).await.unwrap().into_inner(), first);
    assert_eq!(refused(fixture.worker.leave(leave).await), refusal);
    fixture.stop().await;
}
