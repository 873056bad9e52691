//! Trainers that a worker does not serve: all of them once its cluster drains it, when they receive
//! a goodbye, the worker leaves the cluster and its process keeps running; and those of jobs whose
//! images it cannot decode.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use shardfeed_agent::{Coordinator, Credentials, Worker, WorkerOptions};
use shardfeed_pipeline::{JPEG_LIBRARY, PIXEL_CONTRACT};
use shardfeed_plan::{ContentDigest, JobIdentity, Mode, ORDER_VERSION, Shuffle, Tail};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::trainer::v1 as trainer;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_proto::{ErrorKind, WireError, identity_to};
use shardfeed_reader::EncodedSpec;
use shardfeed_socket::{Connection, ListenOptions, connect};
use shardfeed_source::CacheChoice;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const PATIENCE: Duration = Duration::from_secs(30);

/// A coordinator that knows sessions, and nothing else.
#[derive(Clone, Default)]
struct Sessions {
    draining: Arc<AtomicBool>,
    left: Arc<AtomicUsize>,
    /// Decoders that a worker announced.
    joined: Arc<Mutex<Vec<String>>>,
    /// Leases that a worker did not list.
    unlisted: Arc<Mutex<Vec<wire::Lease>>>,
    /// Leases that a worker ended.
    ended: Arc<Mutex<Vec<wire::EndRankRequest>>>,
}

impl NamedService for Sessions {
    const NAME: &'static str = "shardfeed.coordinator.v1.WorkerService";
}

impl Service<http::Request<Body>> for Sessions {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { draining, left, joined, unlisted, ended } = self.clone();
        let join = move |request: wire::JoinRequest| {
            *joined.lock().unwrap() = request.decoders;
            let cluster_id = "test".to_owned();
            wire::JoinResponse { cluster_id, session: 1, ttl_ms: 5_000, heartbeat_ms: 50 }
        };
        let still_unlisted = Arc::clone(&unlisted);
        let heartbeat = move |_: wire::HeartbeatRequest| {
            let draining = draining.load(Ordering::Relaxed);
            let unlisted = still_unlisted.lock().unwrap().clone();
            wire::HeartbeatResponse { draining, unlisted, ..Default::default() }
        };
        let end_rank = move |request: wire::EndRankRequest| {
            unlisted.lock().unwrap().retain(|lease| Some(lease) != request.lease.as_ref());
            ended.lock().unwrap().push(request);
            wire::EndRankResponse {}
        };
        let leave = move |_: wire::LeaveRequest| {
            left.fetch_add(1, Ordering::Relaxed);
            wire::LeaveResponse {}
        };
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().map(str::to_owned);
            Ok(match method.as_deref() {
                Some("Join") => {
                    Grpc::new(ProstCodec::default()).unary(Answers(join), request).await
                }
                Some("Heartbeat") => {
                    Grpc::new(ProstCodec::default()).unary(Answers(heartbeat), request).await
                }
                Some("EndRank") => {
                    Grpc::new(ProstCodec::default()).unary(Answers(end_rank), request).await
                }
                Some("Leave") => {
                    Grpc::new(ProstCodec::default()).unary(Answers(leave), request).await
                }
                _ => WireError::new(ErrorKind::NotFound, "nothing else").to_status().into_http(),
            })
        })
    }
}

/// A method that answers at once.
struct Answers<F>(F);

impl<A, B, F: FnMut(A) -> B> UnaryService<A> for Answers<F> {
    type Response = B;
    type Future = Ready<Result<Response<B>, Status>>;

    fn call(&mut self, request: Request<A>) -> Self::Future {
        ready(Ok(Response::new((self.0)(request.into_inner()))))
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

type Trainer = Connection<trainer::ToWorker, trainer::ToTrainer>;

fn hear(trainer: &mut Trainer) -> Message {
    let (message, _) = trainer.recv(PATIENCE).unwrap().expect("the worker says something");
    message.message.expect("something that is known")
}

fn greet(path: &Path) -> (Trainer, Message) {
    let mut made: Trainer = connect(path, PATIENCE).unwrap();
    let hello = Ask::Hello(trainer::Hello::default());
    made.send(&trainer::ToWorker { message: Some(hello), ..Default::default() }, None).unwrap();
    let said = hear(&mut made);
    (made, said)
}

/// A worker `w` of a coordinator that knows `sessions`.
struct Started {
    worker: Worker,
    socket: PathBuf,
    _folder: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

fn start(sessions: &Sessions) -> Started {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let incoming = runtime.block_on(async { TcpIncoming::bind("127.0.0.1:0".parse().unwrap()) });
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder().add_service(sessions.clone());
    runtime.spawn(server.serve_with_incoming(incoming));

    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("run").join("w.sock");
    let worker = Worker::start(WorkerOptions {
        name: "w".into(),
        host: "here".into(),
        coordinator: Coordinator::new(&address, "test", PATIENCE, None, Credentials::default())
            .unwrap(),
        socket: socket.clone(),
        listen: ListenOptions::default(),
        memory_budget_bytes: 64 << 20,
        threads: Some(1),
        cache: CacheChoice::Off.into(),
        data_roots: Default::default(),
    });
    let worker = worker.unwrap();
    worker.session().id(&mut |_| true).unwrap();
    Started { worker, socket, _folder: folder, _runtime: runtime }
}

#[test]
fn trainers_are_told_goodbye_and_the_cluster_is_left() {
    let sessions = Sessions::default();
    let Started { worker, socket, _folder, _runtime } = start(&sessions);
    let (mut served, said) = greet(&socket);
    assert!(matches!(said, Message::Welcome(_)), "{said:?}");

    sessions.draining.store(true, Ordering::Relaxed);
    let said = hear(&mut served);
    assert!(
        matches!(&said, Message::Goodbye(why) if why.reason == "worker w is drained"),
        "{said:?}"
    );
    assert_eq!(worker.view().unready().unwrap(), "it is drained");
    assert_eq!(sessions.left.load(Ordering::Relaxed), 0, "not while a trainer is there");
    drop(served);
    until("the cluster is left", || sessions.left.load(Ordering::Relaxed) == 1);

    // It keeps running, and refuses trainers at once.
    let (_sent_away, said) = greet(&socket);
    let Message::Failed(failed) = said else { panic!("{said:?}") };
    let refused = WireError::from_message(failed.error);
    assert_eq!(refused.kind, ErrorKind::Cordoned);
    assert_eq!(refused.message, "worker w is drained and takes no trainers");
    drop(worker);
    assert_eq!(sessions.left.load(Ordering::Relaxed), 1, "it has left before");
}

/// As after a start whose trainer was gone before the answer came.
#[test]
fn a_lease_that_no_trainer_has_is_ended_without_a_position() {
    let sessions = Sessions::default();
    let lease = wire::Lease { job: "j".into(), generation: 3, rank: 1, fencing: 7 };
    sessions.unlisted.lock().unwrap().push(lease.clone());
    let _started = start(&sessions);
    until("the lease is ended", || !sessions.ended.lock().unwrap().is_empty());
    let ended = sessions.ended.lock().unwrap()[0].clone();
    assert_eq!((ended.lease, ended.is_told, ended.position), (Some(lease), false, None));
}

fn identity() -> JobIdentity {
    let content = ContentDigest::from_bytes([7; 32]);
    JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle: Shuffle {
            digest: content,
            seed: 1,
            enabled: false,
            window: 1,
            interleave: 1,
            block_length: 1,
        },
        lanes: 1,
        tail: Tail::Drop,
        mode: Mode::Deterministic,
        records: EncodedSpec::raw().records(),
        decoder: "none".into(),
    }
}

fn register(identity: &JobIdentity) -> trainer::Register {
    trainer::Register {
        job: "j".into(),
        identity: Some(identity_to(identity)),
        record_spec: EncodedSpec::raw().bytes().to_vec(),
        tables: vec![],
        mixture: None,
    }
}

#[test]
fn a_job_of_another_pixel_contract_is_refused_by_name() {
    let sessions = Sessions::default();
    let started = start(&sessions);
    let (mut trainer, said) = greet(&started.socket);
    assert!(matches!(said, Message::Welcome(_)), "{said:?}");
    let identity = JobIdentity { decoder: "pixels/from-tomorrow".into(), ..identity() };
    let register = register(&identity);
    trainer
        .send(
            &trainer::ToWorker { message: Some(Ask::Register(register)), ..Default::default() },
            None,
        )
        .unwrap();
    let Message::Failed(failed) = hear(&mut trainer) else { panic!("it is not refused") };
    let error = WireError::from_message(failed.error);
    assert_eq!(error.kind, ErrorKind::WrongVersion);
    assert_eq!(
        error.message,
        "worker w decodes images by the pixel contract `pixels/1`, but the job pins `pixels/from-tomorrow`; \
         run a version of shardfeed on the worker that has the job's contract, or start another job"
    );
    let joined = sessions.joined.lock().unwrap().clone();
    assert_eq!(joined, [PIXEL_CONTRACT, JPEG_LIBRARY], "announced when it joined");
}

#[test]
fn a_trainer_that_asks_out_of_turn_is_told_so() {
    let sessions = Sessions::default();
    let started = start(&sessions);
    let mut made: Trainer = connect(&started.socket, PATIENCE).unwrap();
    let mut refused = |message: Option<Ask>| {
        made.send(&trainer::ToWorker { message, ..Default::default() }, None).unwrap();
        let Message::Failed(failed) = hear(&mut made) else { panic!("it is not refused") };
        let error = WireError::from_message(failed.error);
        assert_eq!(error.kind, ErrorKind::WrongVersion);
        error.message
    };
    let register = register(&identity());
    let nameless = trainer::Register { identity: None, ..register.clone() };
    let earlier = self::register(&JobIdentity { order: 0, ..identity() });
    let said = [
        refused(None),
        refused(Some(Ask::Trace(trainer::Trace { duration_ms: 1 }))),
        refused(Some(Ask::Register(nameless))),
        refused(Some(Ask::Register(earlier))),
        refused(Some(Ask::Register(register))),
        refused(Some(Ask::Latest(trainer::Latest {}))),
        refused(Some(Ask::Start(trainer::Start::default()))),
    ];
    assert_eq!(
        said,
        [
            "the worker does not know this request; upgrade it",
            "the trainer sent Trace before Hello out of turn",
            "the trainer's request: the message lacks `identity`",
            "the trainer computes order version 0, its worker order version 1; use the same version of \
             shardfeed for both",
            "the trainer sent Register before Open out of turn",
            "the trainer sent Latest out of turn",
            "the trainer sent Start out of turn",
        ]
    );
}

#[test]
fn a_worker_records_one_timeline_at_a_time() {
    let sessions = Sessions::default();
    let started = start(&sessions);
    let (mut one, _) = greet(&started.socket);
    let (mut other, _) = greet(&started.socket);
    let trace = || {
        let message = Some(Ask::Trace(trainer::Trace { duration_ms: 60_000 }));
        trainer::ToWorker { message, ..Default::default() }
    };
    one.send(&trace(), None).unwrap();
    assert!(matches!(hear(&mut one), Message::Progress(_)), "it records");
    other.send(&trace(), None).unwrap();
    let Message::Failed(failed) = hear(&mut other) else { panic!("two record at a time") };
    assert_eq!(
        WireError::from_message(failed.error).message,
        "another client records a timeline of this worker; try again later"
    );
}
