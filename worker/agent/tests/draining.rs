//! Whom a worker serves not: any trainer once its cluster wants to be rid of it, when they are told goodbye, the
//! cluster is left, and the process goes on; and jobs that it cannot decode.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use shardfeed_agent::{CacheChoice, Coordinator, Credentials, Worker, WorkerOptions};
use shardfeed_pipeline::JpegDecoder;
use shardfeed_plan::{ContentDigest, JobIdentity, Mode, Shuffle, Tail};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::trainer::v1 as trainer;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_proto::{ErrorKind, WireError, identity_to};
use shardfeed_socket::{ConnectOptions, Connection, ListenOptions, connect};
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
    /// Decoders that a worker said it has.
    joined: Arc<Mutex<Vec<String>>>,
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
        let sessions = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path().rsplit('/').next() {
                Some("Join") => {
                    Grpc::new(ProstCodec::default()).unary(Join(sessions), request).await
                }
                Some("Heartbeat") => {
                    Grpc::new(ProstCodec::default()).unary(Heartbeat(sessions), request).await
                }
                Some("Leave") => {
                    Grpc::new(ProstCodec::default()).unary(Leave(sessions), request).await
                }
                _ => WireError::new(ErrorKind::NotFound, "nothing else").to_status().into_http(),
            })
        })
    }
}

struct Join(Sessions);
struct Heartbeat(Sessions);
struct Leave(Sessions);

type Answer<T> = BoxFuture<Response<T>, Status>;

impl UnaryService<wire::JoinRequest> for Join {
    type Response = wire::JoinResponse;
    type Future = Answer<Self::Response>;

    fn call(&mut self, request: Request<wire::JoinRequest>) -> Self::Future {
        *self.0.joined.lock().unwrap() = request.into_inner().decoders;
        let cluster_id = "test".to_owned();
        let joined = wire::JoinResponse { cluster_id, session: 1, ttl_ms: 5_000, heartbeat_ms: 50 };
        Box::pin(async move { Ok(Response::new(joined)) })
    }
}

impl UnaryService<wire::HeartbeatRequest> for Heartbeat {
    type Response = wire::HeartbeatResponse;
    type Future = Answer<Self::Response>;

    fn call(&mut self, _: Request<wire::HeartbeatRequest>) -> Self::Future {
        let draining = self.0.draining.load(Ordering::Relaxed);
        let heard = wire::HeartbeatResponse { draining, ..Default::default() };
        Box::pin(async move { Ok(Response::new(heard)) })
    }
}

impl UnaryService<wire::LeaveRequest> for Leave {
    type Response = wire::LeaveResponse;
    type Future = Answer<Self::Response>;

    fn call(&mut self, _: Request<wire::LeaveRequest>) -> Self::Future {
        self.0.left.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Response::new(wire::LeaveResponse {})) })
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
    let options = ConnectOptions { timeout: PATIENCE, ..ConnectOptions::default() };
    let mut made: Trainer = connect(path, &options).unwrap();
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
    assert!(matches!(&said, Message::Goodbye(why) if why.reason.contains("drained")), "{said:?}");
    assert_eq!(sessions.left.load(Ordering::Relaxed), 0, "not while a trainer is there");
    drop(served);
    until("the cluster is left", || sessions.left.load(Ordering::Relaxed) == 1);

    // It runs, and sends trainers away at once.
    let (_sent_away, said) = greet(&socket);
    let Message::Failed(failed) = said else { panic!("{said:?}") };
    assert_eq!(WireError::from_message(failed.error).kind, ErrorKind::Cordoned);
    drop(worker);
    assert_eq!(sessions.left.load(Ordering::Relaxed), 1, "it has left before");
}

#[test]
fn a_job_with_a_decoder_that_the_worker_lacks_is_refused_by_name() {
    let sessions = Sessions::default();
    let started = start(&sessions);
    let (mut trainer, said) = greet(&started.socket);
    assert!(matches!(said, Message::Welcome(_)), "{said:?}");
    let content = ContentDigest::from_bytes([7; 32]);
    let identity = JobIdentity {
        shuffle: Shuffle {
            content,
            seed: 1,
            enabled: false,
            window: 1,
            interleave: 1,
            block_length: 1,
        },
        lanes: 1,
        tail: Tail::Drop,
        mode: Mode::Deterministic,
        operators: "raw/1".into(),
        decoder: "zune-jpeg+from-tomorrow".into(),
    };
    let register = trainer::Register {
        job: "j".into(),
        identity: Some(identity_to(&identity)),
        features: String::new(),
    };
    trainer
        .send(
            &trainer::ToWorker { message: Some(Ask::Register(register)), ..Default::default() },
            None,
        )
        .unwrap();
    let Message::Failed(failed) = hear(&mut trainer) else { panic!("it is not refused") };
    let error = WireError::from_message(failed.error);
    assert_eq!(error.kind, ErrorKind::WrongVersion);
    let has = JpegDecoder::names_built();
    for part in ["worker w has no decoder `from-tomorrow`", &format!("it has {has}.")] {
        assert!(error.message.contains(part), "{error}");
    }
    let joined = sessions.joined.lock().unwrap().clone();
    assert_eq!(joined.join(", "), has, "what it announced when it joined");
}
