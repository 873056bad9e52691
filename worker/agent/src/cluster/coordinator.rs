//! Access to a cluster's coordinators: a list of addresses, the current leader, retries with
//! backoff, and wire errors.

mod reply;
mod request;
mod tour;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_proto::coordinator::v1::Context;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::{COORDINATOR_PROTOCOL, ErrorKind, WireError};
use shardfeed_reader::{ControlError, Waiting};
use shardfeed_source::{Lock, Task, jittered};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, Streaming};
use uuid::Uuid;

use self::reply::{Reply, Unanswered};
use self::tour::Tour;
use crate::cluster::address::{Address, Addresses};
use crate::cluster::credentials::{Bearer, Credentials};
use crate::cluster::runtime::runtime;
use crate::cluster::whereabouts::{ClusterEndpoints, Whereabouts};
use crate::traced;

pub use self::reply::{CallError, Silence};
pub use self::request::Request;

/// Maximum time of one attempt of a call.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Initial limit of an attempt while other addresses can be tried, so that a hung leader costs
/// little. It doubles after each failed round, as a cluster may just be slow.
const ATTEMPT_FIRST: Duration = Duration::from_millis(500);
/// The initial limit is at least this multiple of recent response times: over a long way no answer
/// arrives within [`ATTEMPT_FIRST`], however often the request is repeated.
const ATTEMPT_ANSWERS: u32 = 3;
/// Minimum time of an attempt, even if hardly any time is left.
const ATTEMPT_LEAST: Duration = Duration::from_millis(100);

/// Time after which a wait is reported.
const NOTE_AFTER: Duration = Duration::from_millis(300);

/// First and longest pause between rounds.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Maximum number of unlisted addresses that coordinators named; the oldest is dropped.
const LEARNED_MAX: usize = 8;

/// Maximum time to read the file of addresses: it may be on another host.
const READ_MAX: Duration = Duration::from_secs(5);

/// Maximum bytes of a response: that of the largest job has a million of them.
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

pub(crate) type Wire = InterceptedService<Channel, Bearer>;

#[derive(Clone, Debug)]
pub struct Clients {
    pub worker: WorkerServiceClient<Wire>,
    pub admin: AdminServiceClient<Wire>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    /// Fail at once: a mistyped address is more likely than a coordinator that is still starting.
    IfSomebodyIsThere,
}

/// Limits of one call.
#[derive(Clone, Copy, Debug)]
struct CallLimits {
    /// `None`: one round is made.
    patience: Option<Patience>,
    /// Maximum time of an attempt if there is no other address to try.
    attempt_most: Duration,
    /// Maximum time by which the answer may be delayed on purpose.
    longer: Duration,
}

/// The coordinators of one cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    place: Whereabouts,
    principal: String,
    timeout: Duration,
    credentials: Credentials,
    route: Lock<Route>,
    /// Id of the expected cluster, or of the first one that answered.
    cluster_id: Lock<Option<String>>,
}

#[derive(Debug, Default)]
struct Route {
    /// Their addresses; `None`: the file of addresses was not read yet.
    found: Option<ClusterEndpoints>,
    /// Node that answered last, or is reported to lead.
    leader: Option<Address>,
    /// Connections, each created on first use; listed addresses, and a few learned ones.
    known: Vec<(Address, Clients)>,
    /// Failed rounds since the last answer.
    failed: u32,
    /// Recent response time: the maximum of the last one and half of the previous value.
    answers_take: Duration,
}

impl Coordinator {
    /// Creates a handle for `addresses`: one, several with commas, or `@PATH`; does not connect.
    /// - `principal`: name of the caller, for the coordinators' logs.
    /// - `timeout`: time that calls wait for an answer.
    /// - `cluster_id`: the only accepted cluster, if given.
    /// - `credentials`: presented to the coordinators.
    ///
    /// # Errors  An address is invalid.
    pub fn new(
        addresses: &str,
        principal: impl Into<String>,
        timeout: Duration,
        cluster_id: Option<String>,
        credentials: Credentials,
    ) -> Result<Self, ControlError> {
        let bad = |error: String| {
            let message = format!("coordinator={addresses:?} is not an address; {error}");
            WireError::new(ErrorKind::Invalid, message)
        };
        let place: Whereabouts = addresses.parse().map_err(bad)?;
        Ok(Self::of(place, principal, timeout, cluster_id, credentials))
    }

    /// As [`Coordinator::new`], for parsed addresses.
    pub fn of(
        place: impl Into<Whereabouts>,
        principal: impl Into<String>,
        timeout: Duration,
        cluster_id: Option<String>,
        credentials: Credentials,
    ) -> Self {
        let (place, principal) = (place.into(), principal.into());
        let found = match &place {
            Whereabouts::Listed(_) => place.find().ok(),
            Whereabouts::File(_) => None,
        };
        let route = Lock::new(Route { found, ..Route::default() });
        let cluster_id = Lock::new(cluster_id);
        let inner = Inner { place, principal, timeout, credentials, route, cluster_id };
        Self { inner: Arc::new(inner) }
    }

    pub fn whereabouts(&self) -> &Whereabouts {
        &self.inner.place
    }

    /// Returns the addresses; `None`: the file of addresses was not read yet.
    pub fn addresses(&self) -> Option<Addresses> {
        Some(self.inner.route.lock().found.as_ref()?.addresses.clone())
    }

    pub fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    pub fn credentials(&self) -> &Credentials {
        &self.inner.credentials
    }

    /// Returns the node that answered last, or is reported to lead.
    pub fn leader(&self) -> Option<Address> {
        self.inner.route.lock().leader.clone()
    }

    /// Returns the id of the expected cluster, or of the first one that answered.
    pub fn cluster_id(&self) -> Option<String> {
        self.inner.cluster_id.lock().clone()
    }

    /// Rejects other clusters from now on.
    pub(crate) fn expect_cluster(&self, id: &str) {
        let mut known = self.inner.cluster_id.lock();
        known.get_or_insert_with(|| id.to_owned());
    }

    /// Makes one round: tries each address at most once, all with one request id and a short limit.
    ///
    /// # Errors  The refusal; `Retry` if no node answered.
    pub(crate) async fn once<R: Request>(&self, request: &R) -> Result<R::Response, WireError> {
        let limits = CallLimits { patience: None, attempt_most: ATTEMPT, longer: Duration::ZERO };
        let rounds =
            Arc::clone(&self.inner).rounds(attempts(request.clone()), limits, Arc::default());
        traced::carry(rounds).await.map_err(|error| match error {
            CallError::Silent(said) => said.to_wire(),
            CallError::Refused(error) => error,
        })
    }

    /// Waits for an answer from a blocking thread. Repeats rounds with the same request id while no
    /// node answers, up to this handle's timeout.
    ///
    /// # Errors  The refusal; `Unreachable` after the timeout; `Retry` if `waiting` cancels.
    pub(crate) fn call<R: Request>(
        &self,
        waiting: Waiting<'_>,
        request: &R,
    ) -> Result<R::Response, ControlError> {
        self.call_longer(Duration::ZERO, waiting, request)
    }

    /// As [`Coordinator::call`], for a call whose answer may be delayed on purpose.
    /// - `longer`: maximum of this delay.
    pub(crate) fn call_longer<R: Request>(
        &self,
        longer: Duration,
        waiting: Waiting<'_>,
        request: &R,
    ) -> Result<R::Response, ControlError> {
        let begun = Instant::now();
        let limits = CallLimits { patience: Some(Patience::Wait), attempt_most: ATTEMPT, longer };
        let asked = self.wait_for(attempts(request.clone()), limits, waiting);
        asked.map_err(|error| match error {
            CallError::Silent(said) => said.unreachable(&self.inner.place, begun.elapsed()),
            CallError::Refused(error) => error,
        })
    }

    /// Waits for an answer from a blocking thread, up to this handle's timeout.
    /// - `attempt_most`: maximum time of an attempt if there is no other address to try.
    ///
    /// # Errors  The refusal; [`Silence`] as `patience` requires; `Retry` if `waiting` cancels.
    pub fn ask<R: Request>(
        &self,
        patience: Patience,
        attempt_most: Duration,
        waiting: Waiting<'_>,
        request: R,
    ) -> Result<R::Response, CallError> {
        let patience = Some(patience);
        let limits = CallLimits { patience, attempt_most, longer: Duration::ZERO };
        self.wait_for(attempts(request), limits, waiting)
    }

    /// As [`Coordinator::ask`], for a streamed response: an attempt reads it to its end.
    pub fn ask_stream<T: Send + 'static, R: Request<Response = Streaming<T>>>(
        &self,
        patience: Patience,
        attempt_most: Duration,
        waiting: Waiting<'_>,
        request: R,
    ) -> Result<Vec<T>, CallError> {
        let (open, patience) = (attempts(request), Some(patience));
        let read = move |clients, context| -> Answer<Vec<T>> {
            let opened = open(clients, context);
            Box::pin(async move {
                let mut stream = opened.await?.into_inner();
                let mut messages = Vec::new();
                while let Some(message) = stream.message().await? {
                    messages.push(message);
                }
                Ok(Response::new(messages))
            })
        };
        let limits = CallLimits { patience, attempt_most, longer: Duration::ZERO };
        self.wait_for(read, limits, waiting)
    }

    /// Makes rounds on the runtime; this thread waits for them.
    fn wait_for<T: Send + 'static>(
        &self,
        call: impl Fn(Clients, Option<Context>) -> Answer<T> + Send + 'static,
        limits: CallLimits,
        waiting: Waiting<'_>,
    ) -> Result<T, CallError> {
        let (begun, said) = (Instant::now(), Arc::<Lock<Silence>>::default());
        let rounds = Arc::clone(&self.inner).rounds(call, limits, Arc::clone(&said));
        wait(rounds, || {
            // A short wait is not reported.
            let is_long = begun.elapsed() > NOTE_AFTER;
            let note = if is_long { self.inner.note(&said.lock()) } else { String::new() };
            waiting(&note)
        })?
    }

    /// Asks a single node once, about itself.
    ///
    /// # Errors  It refuses; it does not answer within `limit`.
    pub fn ask_at<R: Request>(
        &self,
        address: &Address,
        limit: Duration,
        request: R,
    ) -> Result<R::Response, CallError> {
        let (clients, context) = (self.inner.clients(address), self.inner.context(&new_id()));
        one_answer(address, limit, request.send(clients, context))
    }

    /// Waits for the next message of a streamed response; `None` at its end.
    /// - `address`: node that sends it.
    ///
    /// # Errors  The stream breaks off; no message arrives within this handle's timeout.
    pub fn next_of<T: Send + 'static>(
        &self,
        address: &Address,
        mut stream: Streaming<T>,
    ) -> Result<Option<(T, Streaming<T>)>, CallError> {
        let next: Answer<_> = Box::pin(async move {
            let message = stream.message().await?;
            Ok(Response::new(message.map(|message| (message, stream))))
        });
        one_answer(address, self.inner.timeout, next)
    }
}

impl Inner {
    /// Makes rounds with one request id until a node answers, as far as the limits allow: each
    /// round tries each address once.
    /// - `said`: replies that are no answers, for the notes of a caller that waits.
    async fn rounds<T>(
        self: Arc<Self>,
        call: impl Fn(Clients, Option<Context>) -> Answer<T>,
        limits: CallLimits,
        said: Arc<Lock<Silence>>,
    ) -> Result<T, CallError> {
        let CallLimits { patience, attempt_most, longer } = limits;
        let (request_id, begun, mut backoff) = (new_id(), Instant::now(), BACKOFF.0);
        let timeout = if patience.is_some() { self.timeout } else { Duration::MAX };
        loop {
            let (mut tour, unread) = Arc::clone(&self).set_out().await;
            said.lock().read(unread);
            loop {
                let left = timeout.saturating_sub(begun.elapsed());
                if left.is_zero() && !said.lock().is_empty() {
                    return Err(said.lock().clone().into());
                }
                let Some(address) = tour.next() else { break };
                let answer = call(self.clients(&address), self.context(&request_id));
                // The remaining time is shared by all addresses that are still to be tried.
                let limit = self.attempt_limit(attempt_most) + longer;
                let limit = limit.min(left / tour.left());
                let asked = Instant::now();
                let attempt = attempt(answer, limit.max(ATTEMPT_LEAST)).await;
                let took = asked.elapsed().saturating_sub(longer);
                let end = self.ended(&address, took, attempt, &mut tour, &mut said.lock());
                if let Some(end) = end {
                    return Ok(end?);
                }
            }
            self.route.lock().failed += 1;
            let is_last = match patience {
                Some(Patience::Wait) => false,
                Some(Patience::IfSomebodyIsThere) => said.lock().is_nowhere(),
                None => true,
            };
            if is_last {
                return Err(said.lock().clone().into());
            }
            let left = timeout.saturating_sub(begun.elapsed());
            tokio::time::sleep(jittered(backoff).min(left)).await;
            backoff = (2 * backoff).min(BACKOFF.1);
        }
    }

    /// Returns the reason for a wait.
    fn note(&self, said: &Silence) -> String {
        if said.is_empty() { self.place.are_silent() } else { said.to_string() }
    }

    fn context(&self, request_id: &str) -> Option<Context> {
        let cluster_id = self.cluster_id.lock().clone();
        Some(Context {
            request_id: request_id.to_owned(),
            principal: self.principal.clone(),
            cluster_id: cluster_id.or_else(|| self.named_cluster()).unwrap_or_default(),
            protocol: COORDINATOR_PROTOCOL,
        })
    }

    /// Begins a round; also returns why the addresses are unknown, if they are. A file of addresses
    /// is read on first use, and again after a failed round, as the nodes may have moved.
    async fn set_out(self: Arc<Self>) -> (Tour, Option<String>) {
        let mut unread = None;
        let is_to_read = {
            let route = self.route.lock();
            let is_file = matches!(self.place, Whereabouts::File(_));
            is_file && (route.found.is_none() || route.failed > 0)
        };
        if is_to_read {
            let place = self.place.clone();
            let reading = tokio::task::spawn_blocking(move || place.find());
            let read = match tokio::time::timeout(READ_MAX, reading).await {
                Ok(Ok(read)) => read,
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("cannot read {}: its disk does not answer", self.place)),
            };
            let mut route = self.route.lock();
            match read {
                Ok(found) => route.found = Some(found),
                // The previous contents may still be valid.
                Err(_) if route.found.is_some() => {}
                Err(reason) => unread = Some(reason),
            }
        }
        let route = self.route.lock();
        let listed = route.found.as_ref().map(|found| &found.addresses);
        (Tour::new(route.leader.clone(), listed), unread)
    }

    /// Returns the cluster id in the file of addresses.
    fn named_cluster(&self) -> Option<String> {
        self.route.lock().found.as_ref()?.cluster_id.clone()
    }

    /// Records an attempt; returns the end of the call, `None`: another attempt may answer.
    fn ended<T>(
        &self,
        address: &Address,
        took: Duration,
        attempt: Result<T, Unanswered>,
        tour: &mut Tour,
        said: &mut Silence,
    ) -> Option<Result<T, WireError>> {
        let reply = match attempt {
            Ok(answer) => {
                self.answered(address, took);
                return Some(Ok(answer));
            }
            Err(Unanswered::Refused(error)) if self.is_outdated(&error) => Reply::NotNow(error),
            Err(Unanswered::Refused(error)) => return Some(Err(self.refused(address, error))),
            Err(Unanswered::Said(reply)) => reply,
        };
        let mut route = self.route.lock();
        if route.leader.as_ref() == Some(address) {
            route.leader = None;
        }
        if let Some(leader) = reply.leader() {
            tour.hint(&leader);
            route.leader = Some(leader);
        }
        said.hear(address.clone(), reply);
        None
    }

    /// True for a refusal that is worth a retry: an address in an old file may belong to another
    /// cluster by now, and the file will be rewritten.
    fn is_outdated(&self, error: &WireError) -> bool {
        error.kind == ErrorKind::WrongCluster
            && matches!(self.place, Whereabouts::File(_))
            && self.cluster_id.lock().is_none()
    }

    fn is_one(&self) -> bool {
        self.route.lock().found.as_ref().is_none_or(|found| found.addresses.is_one())
    }

    fn attempt_limit(&self, most: Duration) -> Duration {
        match self.is_one() {
            true => most,
            false => {
                let route = self.route.lock();
                let first = ATTEMPT_FIRST.max(route.answers_take.saturating_mul(ATTEMPT_ANSWERS));
                first.saturating_mul(1 << route.failed.min(8)).min(most)
            }
        }
    }

    fn clients(&self, address: &Address) -> Clients {
        let mut route = self.route.lock();
        if let Some((_, clients)) = route.known.iter().find(|(known, _)| known == address) {
            return clients.clone();
        }
        let listed = route.found.as_ref().map(|found| found.addresses.clone());
        let is_listed =
            |address: &Address| listed.as_ref().is_some_and(|listed| listed.contains(address));
        let is_learned = |known: &(Address, Clients)| !is_listed(&known.0);
        let learned = route.known.iter().filter(|known| is_learned(known)).count();
        if learned >= LEARNED_MAX && !is_listed(address) {
            let oldest = route.known.iter().position(is_learned).expect("there are some");
            route.known.remove(oldest);
        }
        let clients = connect(address, &self.credentials);
        route.known.push((address.clone(), clients.clone()));
        clients
    }

    fn answered(&self, address: &Address, took: Duration) {
        let mut route = self.route.lock();
        route.failed = 0;
        route.answers_take = took.max(route.answers_take / 2);
        if route.leader.as_ref() != Some(address) {
            route.leader = Some(address.clone());
        }
    }

    /// Adds the address to a refusal that concerns the address.
    fn refused(&self, address: &Address, mut error: WireError) -> WireError {
        let is_of_address = matches!(error.kind, ErrorKind::WrongCluster | ErrorKind::WrongVersion);
        if is_of_address && !self.is_one() {
            error.message = format!("{address}: {}", error.message);
        }
        error
    }
}

fn connect(address: &Address, credentials: &Credentials) -> Clients {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .expect("an address is a host and a port")
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .tcp_nodelay(true);
    let handle = runtime();
    let _entered = handle.enter();
    let channel = match credentials.connector(address) {
        Some(connector) => endpoint.connect_with_connector_lazy(connector),
        None => endpoint.connect_lazy(),
    };
    let bearer = credentials.bearer();
    let worker = WorkerServiceClient::with_interceptor(channel.clone(), bearer.clone());
    let admin = AdminServiceClient::with_interceptor(channel, bearer);
    Clients {
        worker: worker.max_decoding_message_size(ANSWER_BYTES_MAX),
        admin: admin.max_decoding_message_size(ANSWER_BYTES_MAX),
    }
}

/// Returns a function that makes an attempt of a request.
fn attempts<R: Request>(
    request: R,
) -> impl Fn(Clients, Option<Context>) -> Answer<R::Response> + Send {
    move |clients, context| request.clone().send(clients, context)
}

async fn attempt<T>(answer: Answer<T>, limit: Duration) -> Result<T, Unanswered> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Unanswered::of(&status)),
        Err(_) => Err(Unanswered::Said(Reply::late(limit))),
    }
}

/// Waits for the answer of a single node.
fn one_answer<T: Send + 'static>(
    address: &Address,
    limit: Duration,
    answer: Answer<T>,
) -> Result<T, CallError> {
    wait(attempt(answer, limit), || true)?.map_err(|error| match error {
        Unanswered::Refused(error) => CallError::Refused(error),
        Unanswered::Said(reply) => {
            let mut said = Silence::default();
            said.hear(address.clone(), reply);
            said.into()
        }
    })
}

/// Runs a future on the runtime, as part of this thread's current operation, while asking the
/// caller whether to continue.
pub(super) fn wait<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
    go_on: impl FnMut() -> bool,
) -> Result<T, ControlError> {
    let future = traced::carry(future);
    let task = Task::spawn(&runtime(), async move { Ok(future.await) });
    task.wait(go_on).map_err(|_| gave_up())
}

/// Returns the error of a caller that does not wait any longer.
pub(crate) fn gave_up() -> ControlError {
    WireError::new(ErrorKind::Retry, "gave up waiting for the coordinator")
}

pub(crate) fn new_id() -> String {
    Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests;
