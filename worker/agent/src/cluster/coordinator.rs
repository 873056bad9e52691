//! The way to a coordinator: an address, retries with backoff, and errors as the wire says them.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shardfeed_proto::coordinator::v1::Context;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::{COORDINATOR_PROTOCOL, ErrorKind, WireError};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use uuid::Uuid;

use crate::cluster::runtime::runtime;
use crate::control::{ControlError, Waiting};

/// One attempt of a call may take so long.
const ATTEMPT: Duration = Duration::from_secs(5);

/// And is given so long even if there is hardly any time left.
const ATTEMPT_LEAST: Duration = Duration::from_millis(100);

/// A wait is told from then on.
const NOTE_AFTER: Duration = Duration::from_millis(300);

/// Waits between attempts: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How often a waiting caller is asked whether it still wants to wait.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long callers wait for a coordinator if nobody says.
pub const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(60);

/// A call's answer to come.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// Both services of one coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    pub(crate) worker: WorkerServiceClient<Channel>,
    pub(crate) admin: AdminServiceClient<Channel>,
}

/// A coordinator by its address. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    address: String,
    principal: String,
    timeout: Duration,
    clients: Clients,
    /// The cluster that is expected, or that answered first.
    cluster_id: Mutex<Option<String>>,
}

impl Coordinator {
    /// A coordinator at `address`, `host:port`. Nothing is connected yet.
    /// - `principal`: who asks, for its logs.
    /// - `timeout`: how long calls wait for it to answer.
    ///
    /// # Errors  The address is none.
    pub fn new(
        address: &str,
        principal: impl Into<String>,
        timeout: Duration,
        cluster_id: Option<String>,
    ) -> Result<Self, ControlError> {
        let bad = |error: String| {
            let message = format!("coordinator={address:?}: {error}; use HOST:PORT");
            WireError::new(ErrorKind::Invalid, message)
        };
        let bare = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        let port = bare.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(_))) if !host.is_empty() && !bare.contains('/') => {}
            _ => return Err(bad("is not an address".into())),
        }
        let endpoint = Endpoint::from_shared(format!("http://{bare}"))
            .map_err(|error| bad(error.to_string()))?
            .connect_timeout(Duration::from_secs(2))
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .tcp_nodelay(true);
        let handle = runtime();
        let _entered = handle.enter();
        let channel = endpoint.connect_lazy();
        let worker = WorkerServiceClient::new(channel.clone());
        let clients = Clients { worker, admin: AdminServiceClient::new(channel) };
        let cluster_id = Mutex::new(cluster_id);
        let (address, principal) = (bare.to_owned(), principal.into());
        Ok(Self { inner: Arc::new(Inner { address, principal, timeout, clients, cluster_id }) })
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// The cluster that is expected, or that answered first.
    pub fn cluster_id(&self) -> Option<String> {
        self.inner.cluster_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on no other cluster is believed.
    pub(crate) fn expect_cluster(&self, id: &str) {
        let mut known = self.inner.cluster_id.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| id.to_owned());
    }

    pub(crate) fn context(&self, request_id: String) -> Option<Context> {
        Some(Context {
            request_id,
            principal: self.inner.principal.clone(),
            cluster_id: self.cluster_id().unwrap_or_default(),
            protocol: COORDINATOR_PROTOCOL,
        })
    }

    /// One attempt.
    pub(crate) async fn once<T>(
        &self,
        call: impl FnOnce(Clients, Option<Context>) -> Answer<T>,
    ) -> Result<T, WireError> {
        let answer = call(self.inner.clients.clone(), self.context(new_id()));
        attempt(answer, ATTEMPT).await
    }

    /// Waits for an answer from a thread that may wait, trying again with the same request id for
    /// as long as the coordinator does not answer, up to this handle's timeout.
    ///
    /// # Errors  The refusal; `Unreachable` after the timeout; `Retry` if `waiting` gave up.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        waiting: Waiting<'_>,
        call: impl Fn(Clients, Option<Context>) -> Answer<T>,
    ) -> Result<T, ControlError> {
        let request_id = new_id();
        let begun = Instant::now();
        let mut backoff = BACKOFF.0;
        let mut note = format!("the coordinator at {} has not answered yet", self.inner.address);
        loop {
            let answer = call(self.inner.clients.clone(), self.context(request_id.clone()));
            let left = self.inner.timeout.saturating_sub(begun.elapsed());
            let attempt = attempt(answer, left.clamp(ATTEMPT_LEAST, ATTEMPT));
            let error = match wait(attempt, (&note, begun), waiting)? {
                Ok(answer) => return Ok(answer),
                Err(error) if error.kind != ErrorKind::Retry => return Err(error),
                Err(error) => error,
            };
            let waited = begun.elapsed();
            if waited >= self.inner.timeout {
                return Err(self.unreachable(&error, waited));
            }
            note = format!("the coordinator at {} does not answer: {error}", self.inner.address);
            // Between half and the whole, so that many do not come back at once.
            let jitter = 0.5 + 0.5 * (Uuid::new_v4().as_u128() as u8 as f64 / 255.0);
            let pause = backoff.mul_f64(jitter).min(self.inner.timeout - waited);
            // A timer belongs to the runtime that it is made on.
            wait(async move { tokio::time::sleep(pause).await }, (&note, begun), waiting)?;
            backoff = (2 * backoff).min(BACKOFF.1);
        }
    }

    fn unreachable(&self, error: &WireError, waited: Duration) -> ControlError {
        let message = format!(
            "the coordinator at {} did not answer for {:.0} s ({error}); check the address and that \
             `shardfeed coordinator start` runs there, then start again",
            self.inner.address,
            waited.as_secs_f64()
        );
        WireError::new(ErrorKind::Unreachable, message)
    }
}

async fn attempt<T>(answer: Answer<T>, timeout: Duration) -> Result<T, WireError> {
    match tokio::time::timeout(timeout, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(WireError::from_status(&status)),
        Err(_) => Err(WireError::new(ErrorKind::Retry, format!("no answer in {timeout:.1?}"))),
    }
}

/// Runs a future on the runtime while asking the caller whether it still wants to wait.
fn wait<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
    (note, since): (&str, Instant),
    waiting: Waiting<'_>,
) -> Result<T, ControlError> {
    let (sender, receiver) = sync_channel(1);
    let task = runtime().spawn(async move {
        // Nobody listens if the caller gave up.
        let _ = sender.send(future.await);
    });
    loop {
        match receiver.recv_timeout(ASK_EVERY) {
            Ok(value) => return Ok(value),
            // What takes a moment only is not worth a word.
            Err(RecvTimeoutError::Timeout)
                if waiting(if since.elapsed() > NOTE_AFTER { note } else { "" }) => {}
            Err(_) => {
                task.abort();
                return Err(WireError::new(
                    ErrorKind::Retry,
                    "gave up waiting for the coordinator",
                ));
            }
        }
    }
}

pub(crate) fn new_id() -> String {
    Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_none_are_refused() {
        for address in ["", "host", ":70", "host:port", "host:70/x"] {
            let error = Coordinator::new(address, "test", ATTEMPT, None).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{address}");
        }
        let known = Coordinator::new("http://localhost:70/", "test", ATTEMPT, None).unwrap();
        assert_eq!(known.address(), "localhost:70");
    }
}
