use std::convert::Infallible;
use std::task::{Context as TaskContext, Poll};

use shardfeed_proto::coordinator::v1::{GetStatusRequest, GetStatusResponse};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;

use super::*;

/// Reply of a node to the n-th call, from 0.
type Says = dyn Fn(usize) -> Said + Send + Sync;

enum Said {
    Answer,
    Refusal(WireError),
    /// An answer after this delay.
    Late(Duration),
    /// No reply, ever.
    Nothing,
}

/// A real server on the loopback.
#[derive(Clone)]
struct Node {
    says: Arc<Says>,
    /// Request ids, in order of arrival.
    asked: Arc<Lock<Vec<String>>>,
}

impl Node {
    fn start(says: impl Fn(usize) -> Said + Send + Sync + 'static) -> (Address, Self) {
        let node = Self { says: Arc::new(says), asked: Arc::default() };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = Address::from(listener.local_addr().unwrap());
        let handle = runtime();
        let _entered = handle.enter();
        let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
        let server = tonic::transport::Server::builder().add_service(node.clone());
        handle.spawn(server.serve_with_incoming(incoming));
        (address, node)
    }

    fn leader() -> (Address, Self) {
        Self::start(|_| Said::Answer)
    }

    /// Starts a node that replies that it does not lead, and names the leader.
    fn follower(leader: Option<&Address>) -> (Address, Self) {
        let leader = leader.map(Address::to_string);
        Self::start(move |_| not_leader(leader.clone()))
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }

    fn times(&self) -> usize {
        self.asked().len()
    }
}

fn not_leader(leader: Option<String>) -> Said {
    let error = WireError::new(ErrorKind::NotLeader, "this node does not lead; ask another");
    Said::Refusal(WireError { leader: leader.map(String::into_boxed_str), ..error })
}

impl NamedService for Node {
    const NAME: &'static str = "shardfeed.coordinator.v1.AdminService";
}

impl Service<http::Request<Body>> for Node {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let node = self.clone();
        Box::pin(async move {
            Ok(Grpc::new(tonic_prost::ProstCodec::default()).unary(node, request).await)
        })
    }
}

impl UnaryService<GetStatusRequest> for Node {
    type Response = GetStatusResponse;
    type Future = BoxFuture<Response<GetStatusResponse>, Status>;

    fn call(&mut self, request: tonic::Request<GetStatusRequest>) -> Self::Future {
        let mut asked = self.asked.lock();
        asked.push(request.into_inner().context.unwrap().request_id);
        let said = (self.says)(asked.len() - 1);
        Box::pin(async move {
            match said {
                Said::Answer => Ok(Response::new(GetStatusResponse::default())),
                Said::Refusal(error) => Err(error.to_status()),
                Said::Late(after) => {
                    tokio::time::sleep(after).await;
                    Ok(Response::new(GetStatusResponse::default()))
                }
                Said::Nothing => std::future::pending().await,
            }
        })
    }
}

/// Returns an address without a listener.
fn nowhere() -> Address {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().into()
}

fn coordinator(addresses: &[&Address], timeout_ms: u64) -> Coordinator {
    let listed = Addresses::new(addresses.iter().map(|address| address.as_str())).unwrap();
    Coordinator::of(listed, "test", Duration::from_millis(timeout_ms), None, Credentials::default())
}

const STATUS: GetStatusRequest = GetStatusRequest { context: None };

const LONG_MS: u64 = 30_000;

fn ask(coordinator: &Coordinator) -> Result<GetStatusResponse, ControlError> {
    coordinator.call(&mut |_| true, &STATUS)
}

#[test]
fn addresses_that_are_none_are_refused() {
    let mut said = Vec::new();
    for address in ["", "host", ":70", "host:port", "host:70/x", "a:1,b"] {
        let error =
            Coordinator::new(address, "test", ATTEMPT, None, Credentials::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{address}");
        said.push(error.message);
    }
    assert_eq!(
        said,
        [
            "coordinator=\"\" is not an address; write HOST:PORT, such as 127.0.0.1:7070",
            "coordinator=\"host\" is not an address; write HOST:PORT, such as 127.0.0.1:7070",
            "coordinator=\":70\" is not an address; write HOST:PORT, such as 127.0.0.1:7070",
            "coordinator=\"host:port\" is not an address; write HOST:PORT, such as 127.0.0.1:7070",
            "coordinator=\"host:70/x\" is not an address; write HOST:PORT, such as 127.0.0.1:7070",
            "coordinator=\"a:1,b\" is not an address; write HOST:PORT, such as 127.0.0.1:7070",
        ]
    );
    let known =
        Coordinator::new("http://localhost:70/", "test", ATTEMPT, None, Credentials::default())
            .unwrap();
    assert_eq!(known.whereabouts().to_string(), "localhost:70");
}

#[test]
fn a_hint_is_followed_with_the_same_request_and_remembered() {
    let (leads, leader) = Node::leader();
    let (follows, follower) = Node::follower(Some(&leads));
    let coordinator = coordinator(&[&follows, &leads], LONG_MS);
    ask(&coordinator).unwrap();
    assert_eq!(follower.asked(), leader.asked());
    ask(&coordinator).unwrap();
    assert_eq!((follower.times(), leader.times()), (1, 2));
    let ids = leader.asked();
    assert_ne!(ids[0], ids[1], "another call is another request");
}

#[test]
fn a_leader_that_is_not_listed_is_found_and_kept() {
    let (leads, leader) = Node::leader();
    let (follows, follower) = Node::follower(Some(&leads));
    let coordinator = coordinator(&[&follows], LONG_MS);
    for _ in 0..3 {
        ask(&coordinator).unwrap();
    }
    assert_eq!((follower.times(), leader.times()), (1, 3));
}

#[test]
fn learned_addresses_are_bounded() {
    let (leads, _) = Node::leader();
    let coordinator = coordinator(&[&leads], LONG_MS);
    for port in 1..100 {
        coordinator.inner.clients(&format!("127.0.0.1:{port}").parse().unwrap());
    }
    ask(&coordinator).unwrap();
    assert_eq!(coordinator.inner.route.lock().known.len(), LEARNED_MAX + 1);
}

#[test]
fn who_is_dead_hangs_or_follows_is_passed_over() {
    let dead = nowhere();
    let (hangs, hanging) = Node::start(|_| Said::Nothing);
    let (follows, _) = Node::follower(None);
    let (leads, leader) = Node::leader();
    // Accepts connections and never replies.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf_at = Address::from(deaf.local_addr().unwrap());
    let coordinator = coordinator(&[&dead, &hangs, &deaf_at, &follows, &leads], LONG_MS);
    ask(&coordinator).unwrap();
    ask(&coordinator).unwrap();
    assert_eq!((hanging.times(), leader.times()), (1, 2));
    let ids = hanging.asked();
    assert_eq!(ids[0], leader.asked()[0]);
}

#[test]
fn a_heartbeat_moves_on_by_itself() {
    let (hangs, hanging) = Node::start(|_| Said::Nothing);
    let (leads, leader) = Node::leader();
    let coordinator = coordinator(&[&hangs, &leads], LONG_MS);
    for _ in 0..2 {
        runtime().block_on(coordinator.once(&STATUS)).unwrap();
    }
    assert_eq!((hanging.times(), leader.times()), (1, 2));
    assert_eq!(hanging.asked()[0], leader.asked()[0]);
}

#[test]
fn a_leader_that_dies_is_left_for_the_one_that_follows_it() {
    // Leads for one call, then hangs as a stopped process does.
    let (stops, stopping) =
        Node::start(|call| if call == 0 { Said::Answer } else { Said::Nothing });
    let (leads, leader) = Node::leader();
    let coordinator = coordinator(&[&stops, &leads], LONG_MS);
    for _ in 0..3 {
        ask(&coordinator).unwrap();
    }
    assert_eq!((stopping.times(), leader.times()), (2, 2));
}

#[test]
fn a_leader_far_away_is_given_the_time_that_its_answers_take() {
    // Longer than the first limit: only the first call fails, until its limit has grown.
    let (far, leader) = Node::start(|_| Said::Late(ATTEMPT_FIRST + ATTEMPT_FIRST / 5));
    let (follows, _) = Node::follower(Some(&far));
    let coordinator = coordinator(&[&follows, &far], LONG_MS);
    ask(&coordinator).unwrap();
    let tried = leader.times();
    assert!(tried > 1, "{tried}");
    ask(&coordinator).unwrap();
    runtime().block_on(coordinator.once(&STATUS)).unwrap();
    assert_eq!(leader.times(), tried + 2);
}

#[test]
fn an_election_is_waited_for_and_never_surfaces() {
    let (first, node) = Node::start(|call| match call {
        0..3 => not_leader(None),
        3 => Said::Refusal(WireError::new(ErrorKind::Retry, "no leader at the moment; wait")),
        _ => Said::Answer,
    });
    let (second, other) = Node::follower(Some(&first));
    let coordinator = coordinator(&[&first, &second], LONG_MS);
    ask(&coordinator).unwrap();
    assert_eq!(node.times(), 5);
    let ids: std::collections::BTreeSet<_> =
        node.asked().into_iter().chain(other.asked()).collect();
    assert_eq!(ids.len(), 1, "one request throughout");
}

#[test]
fn a_refusal_ends_the_call_and_asks_nobody_else() {
    let (refuses, _) =
        Node::start(|_| Said::Refusal(WireError::new(ErrorKind::Conflict, "no; go away")));
    let (leads, leader) = Node::leader();
    let coordinator = coordinator(&[&refuses, &leads], LONG_MS);
    assert_eq!(ask(&coordinator).unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(leader.times(), 0);
    let (foreign, _) =
        Node::start(|_| Said::Refusal(WireError::new(ErrorKind::WrongCluster, "not yours")));
    let coordinator = self::coordinator(&[&foreign, &leads], LONG_MS);
    let error = ask(&coordinator).unwrap_err();
    assert_eq!(error.message, format!("{foreign}: not yours"));
}

#[test]
fn after_the_timeout_every_address_is_named_with_what_it_said() {
    let dead = nowhere();
    let (hangs, _) = Node::start(|_| Said::Nothing);
    let (follows, _) = Node::follower(None);
    let coordinator = coordinator(&[&dead, &hangs, &follows], 900);
    let mut told = Vec::new();
    let error = coordinator.call(
        &mut |note| {
            told.push(note.to_owned());
            true
        },
        &STATUS,
    );
    let error = error.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    let names = [(&dead, "DEAD"), (&hangs, "HANGS"), (&follows, "FOLLOWS")];
    let message = without_numbers(&error.message, &names);
    assert_eq!(
        message,
        "the coordinators at DEAD, HANGS and FOLLOWS did not answer for N s (DEAD: Connection \
         refused (os error N), HANGS: no answer within N ms, FOLLOWS: this node does not lead); \
         check the addresses and that `shardfeed coordinator start` runs there, then start again"
    );
    let said = |part: &str| told.iter().any(|note| note.contains(part));
    assert!(said("no answer within") && said("does not lead"), "{told:?}");
}

#[test]
fn whoever_waits_may_give_up() {
    let (hangs, _) = Node::start(|_| Said::Nothing);
    let error = coordinator(&[&hangs], LONG_MS).call(&mut |_| false, &STATUS).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Retry);
}

#[test]
fn people_are_told_at_once_where_nobody_is() {
    let (one, other) = (nowhere(), nowhere());
    let at_once = |coordinator: &Coordinator| {
        let patience = Patience::IfSomebodyIsThere;
        coordinator.ask(patience, ATTEMPT, &mut |_| true, STATUS).unwrap_err()
    };
    let CallError::Silent(said) = at_once(&coordinator(&[&one, &other], LONG_MS)) else {
        panic!("no node is there")
    };
    assert!(said.is_nowhere() && !said.is_strange());
    // A listening node may be unable to answer now.
    let (busy, _) = Node::start(|_| Said::Refusal(WireError::new(ErrorKind::Retry, "no leader")));
    let names = [(&one, "ONE"), (&other, "OTHER"), (&busy, "BUSY")];
    let of = |addresses: &[&Address]| {
        let said = at_once(&coordinator(addresses, 500)).to_string();
        without_numbers(&said, &names)
    };
    let said = [without_numbers(&said.to_string(), &names), of(&[&one]), of(&[&busy])];
    assert_eq!(
        said,
        [
            "no coordinator answers: ONE: Connection refused (os error N), OTHER: Connection \
             refused (os error N)",
            "the coordinator at ONE does not answer: Connection refused (os error N)",
            "the coordinator at BUSY cannot answer now: no leader",
        ]
    );
}

/// Replaces addresses by names, and numbers that differ from run to run by `N`.
fn without_numbers(text: &str, names: &[(&Address, &str)]) -> String {
    let mut text = text.to_owned();
    for (address, name) in names {
        text = text.replace(address.as_str(), name);
    }
    let mut plain = String::new();
    for character in text.chars() {
        match character {
            '0'..='9' if plain.ends_with('N') => {}
            '0'..='9' => plain.push('N'),
            other => plain.push(other),
        }
    }
    plain
}

/// Writes an endpoint file, as a coordinator does.
fn write_file(path: &std::path::Path, cluster_id: &str, address: &Address) {
    let endpoint = shardfeed_proto::Endpoint::new(cluster_id, 1, vec![address.to_string()]);
    std::fs::write(path, endpoint.to_json()).unwrap();
}

fn of_file(path: &std::path::Path, timeout_ms: u64) -> Coordinator {
    let place = Whereabouts::File(path.to_owned());
    Coordinator::of(place, "test", Duration::from_millis(timeout_ms), None, Credentials::default())
}

#[test]
fn a_file_that_is_not_there_yet_is_waited_for_or_not_as_the_caller_wants() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoint.json");
    let error = of_file(&path, 200).call(&mut |_| true, &STATUS).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    let message = error.message.replace(folder.path().to_str().unwrap(), "DIR");
    assert_eq!(
        without_numbers(&message, &[]),
        "the coordinator that DIR/endpoint.json names did not answer for N s (cannot read \
         DIR/endpoint.json: No such file or directory (os error N)); check the file and that \
         `shardfeed coordinator start` runs there, then start again"
    );
    let (begun, most) = (Instant::now(), Duration::from_millis(LONG_MS));
    let impatient = of_file(&path, LONG_MS);
    let said = impatient.ask(Patience::IfSomebodyIsThere, most, &mut |_| true, STATUS);
    let Err(CallError::Silent(said)) = said else { panic!("{said:?}") };
    assert!(said.is_unread() && begun.elapsed() < most / 2, "{said}");

    let (address, node) = Node::leader();
    let late = std::thread::spawn({
        let path = path.clone();
        move || {
            std::thread::sleep(Duration::from_millis(200));
            write_file(&path, "c", &address);
        }
    });
    let patient = of_file(&path, LONG_MS);
    assert_eq!(patient.addresses(), None);
    ask(&patient).unwrap();
    assert_eq!(node.times(), 1);
    late.join().unwrap();
}

#[test]
fn a_file_is_read_again_when_nobody_answers_where_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoint.json");
    let (first, _) = Node::leader();
    write_file(&path, "c", &first);
    let coordinator = of_file(&path, LONG_MS);
    ask(&coordinator).unwrap();
    assert_eq!(coordinator.addresses().unwrap().to_string(), first.to_string());

    // The first node belongs to another cluster now, which is no reason to give up.
    let (moved, elsewhere) = Node::leader();
    let (stranger, _) =
        Node::start(|_| Said::Refusal(WireError::new(ErrorKind::WrongCluster, "another one")));
    write_file(&path, "c", &stranger);
    let coordinator = of_file(&path, LONG_MS);
    let late = std::thread::spawn({
        let moved = moved.clone();
        move || {
            std::thread::sleep(Duration::from_millis(200));
            write_file(&path, "c", &moved);
        }
    });
    ask(&coordinator).unwrap();
    assert_eq!(elsewhere.times(), 1);
    assert_eq!(coordinator.addresses().unwrap().to_string(), moved.to_string());
    late.join().unwrap();
}
