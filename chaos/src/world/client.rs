//! Client of the coordinators: a list of addresses, hints about the leader, and one request id
//! until a definite answer arrives.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use hyper_util::rt::TokioIo;
use shardfeed_proto::coordinator::v1::Context;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::{COORDINATOR_PROTOCOL, ErrorKind, WireError};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Response, Status};
use tower::service_fn;
use turmoil::net::TcpStream;

use crate::dice::Dice;
use crate::oracle::Oracle;

/// Time limit of an attempt of the first round; after it another coordinator is asked.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Longest time limit of an attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(4);

/// First and longest pause between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));

/// Percentage of answered requests that are sent again later under the same id.
const REPEAT_PERCENT: u64 = 12;

/// Clients of both services of one coordinator.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Service for workers.
    pub worker: WorkerServiceClient<Channel>,
    /// Service for operators.
    pub admin: AdminServiceClient<Channel>,
}

/// A call that can be repeated.
pub type Call<T> =
    Rc<dyn Fn(Clients, Option<Context>) -> LocalBoxFuture<'static, Result<Response<T>, Status>>>;

/// Effect of a call on the coordinators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes nothing, or nothing that is remembered by request id.
    Looks,
    /// Its answer is remembered by request id.
    Changes,
}

/// The coordinators, as known to one process.
#[derive(Debug)]
pub struct Cluster {
    addresses: RefCell<Vec<String>>,
    guess: Cell<usize>,
    clients: RefCell<BTreeMap<String, Clients>>,
    principal: String,
    dice: Dice,
    oracle: Rc<Oracle>,
    cluster_id: RefCell<String>,
}

impl Cluster {
    /// Returns the coordinators at `addresses`, not connected yet.
    pub fn new(
        addresses: Vec<String>,
        principal: String,
        dice: Dice,
        oracle: Rc<Oracle>,
    ) -> Rc<Self> {
        let guess = Cell::new(dice.pick(0..addresses.len() as u64) as usize);
        let (addresses, cluster_id) = (RefCell::new(addresses), RefCell::default());
        let clients = RefCell::default();
        Rc::new(Self { addresses, guess, clients, principal, dice, oracle, cluster_id })
    }

    /// Rejects any other cluster from now on.
    pub fn expect(&self, cluster_id: &str) {
        let mut known = self.cluster_id.borrow_mut();
        if known.is_empty() {
            cluster_id.clone_into(&mut known);
        }
    }

    /// Returns a new request id.
    pub fn id(&self) -> String {
        self.dice.id()
    }

    /// Makes one round of attempts, each coordinator at most once.
    ///
    /// The order is: the one that answered last, the leader named by a node that does not lead,
    /// then the others.
    ///
    /// # Errors  As returned by the coordinator; `Retry` if no leader was found.
    pub async fn once<T: Debug>(&self, id: &str, call: &Call<T>) -> Result<T, WireError> {
        self.round(id, ATTEMPT, call).await
    }

    async fn round<T: Debug>(
        &self,
        id: &str,
        attempt: Duration,
        call: &Call<T>,
    ) -> Result<T, WireError> {
        let mut tried = BTreeSet::new();
        let mut next = self.guess.get();
        loop {
            tried.insert(next);
            let address = self.addresses.borrow()[next].clone();
            let context = Context {
                request_id: id.to_owned(),
                principal: self.principal.clone(),
                cluster_id: self.cluster_id.borrow().clone(),
                protocol: COORDINATOR_PROTOCOL,
            };
            let answer = call(self.clients(&address), Some(context));
            let error = match timeout(attempt, answer).await {
                Ok(Ok(response)) => {
                    self.guess.set(next);
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => WireError::from_status(&status),
                Err(_) => WireError::new(Retry, "no answer in time"),
            };
            use ErrorKind::{NotLeader, Retry, Storage, Unreachable};
            if !matches!(error.kind, Retry | NotLeader | Storage | Unreachable) {
                self.guess.set(next);
                return Err(error);
            }
            let named = error.leader.as_ref().map(|leader| self.place_of(leader));
            let addresses = self.addresses.borrow().len();
            let mut rest =
                named.into_iter().chain((1..addresses).map(|by| (next + by) % addresses));
            match rest.find(|at| !tried.contains(at)) {
                Some(untried) => next = untried,
                None if error.kind == NotLeader => {
                    return Err(WireError { kind: Retry, ..error });
                }
                None => return Err(error),
            }
        }
    }

    /// Retries under one request id until a definite answer arrives or `patience` ends.
    ///
    /// Definite answers are reported to the oracle, and some requests are sent again later.
    ///
    /// # Errors  As [`Cluster::once`].
    pub async fn call<T: Debug + 'static>(
        self: &Rc<Self>,
        (kind, patience): (Kind, Duration),
        call: Call<T>,
    ) -> Result<T, WireError> {
        let id = self.id();
        let sent = self.oracle.sends();
        let answer = self.until_definite(&id, patience, &call).await;
        if kind == Kind::Changes && is_definite(&answer) {
            self.oracle.answered(&id, sent, &fingerprint(&answer));
            if self.dice.chance(REPEAT_PERCENT) {
                tokio::task::spawn_local(Rc::clone(self).repeat(id, call));
            }
        }
        answer
    }

    async fn repeat<T: Debug>(self: Rc<Self>, id: String, call: Call<T>) {
        sleep(Duration::from_millis(self.dice.pick(1..4000))).await;
        let sent = self.oracle.sends();
        let answer = self.until_definite(&id, Duration::from_secs(5), &call).await;
        if is_definite(&answer) {
            self.oracle.answered(&id, sent, &fingerprint(&answer));
        }
    }

    async fn until_definite<T: Debug>(
        &self,
        id: &str,
        patience: Duration,
        call: &Call<T>,
    ) -> Result<T, WireError> {
        let begun = Instant::now();
        let (mut backoff, mut attempt) = (BACKOFF.0, ATTEMPT);
        loop {
            let answer = self.round(id, attempt, call).await;
            if is_definite(&answer) || begun.elapsed() >= patience {
                return answer;
            }
            let half = backoff.as_millis() as u64 / 2;
            sleep(Duration::from_millis(half + self.dice.pick(0..half + 1))).await;
            backoff = (2 * backoff).min(BACKOFF.1);
            attempt = (2 * attempt).min(ATTEMPT_MAX);
        }
    }

    /// Returns the index of an address, which is stable for the life of the process.
    fn place_of(&self, address: &str) -> usize {
        let mut addresses = self.addresses.borrow_mut();
        let known = addresses.iter().position(|known| known == address);
        known.unwrap_or_else(|| {
            addresses.push(address.to_owned());
            addresses.len() - 1
        })
    }

    fn clients(&self, address: &str) -> Clients {
        let mut clients = self.clients.borrow_mut();
        let make = || {
            let channel = channel(address);
            let worker = WorkerServiceClient::new(channel.clone());
            Clients { worker, admin: AdminServiceClient::new(channel) }
        };
        clients.entry(address.to_owned()).or_insert_with(make).clone()
    }
}

/// Returns true if a leader decided on the request.
pub fn is_definite<T>(answer: &Result<T, WireError>) -> bool {
    let passing = |error: &WireError| {
        use ErrorKind::{NotLeader, Retry, Storage, Unreachable};
        matches!(error.kind, Retry | NotLeader | Storage | Unreachable)
    };
    !answer.as_ref().is_err_and(passing)
}

fn fingerprint<T: Debug>(answer: &Result<T, WireError>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("{} {}", error.kind.as_str_name(), error.message),
    }
}

/// Returns a channel that connects lazily and reconnects.
fn channel(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint
        .expect("simulated addresses are plain")
        .connect_timeout(Duration::from_millis(500))
        .http2_keep_alive_interval(Duration::from_secs(1))
        .keep_alive_timeout(Duration::from_secs(1));
    endpoint.connect_with_connector_lazy(service_fn(|uri: Uri| async move {
        let host = uri.host().unwrap_or_default().to_owned();
        let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
        Ok::<_, std::io::Error>(TokioIo::new(stream))
    }))
}
