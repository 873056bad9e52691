//! A coordinator over its own folder, and clients to call it.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Running};
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, WireError};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Longer than any step here takes, unless it never completes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn options(folder: &std::path::Path) -> CoordinatorOptions {
    CoordinatorOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        http: Some("127.0.0.1:0".parse().unwrap()),
        ..CoordinatorOptions::new(folder)
    }
}

/// A running coordinator.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) options: CoordinatorOptions,
    pub(crate) running: Running,
    pub(crate) worker: WorkerServiceClient<Channel>,
    pub(crate) admin: AdminServiceClient<Channel>,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut CoordinatorOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(folder.path());
        change(&mut options);
        let running = Coordinator::start(options.clone()).await.unwrap();
        Self::over(folder, options, running).await
    }

    async fn over(folder: TempDir, options: CoordinatorOptions, running: Running) -> Self {
        let (worker, admin) = clients(running.grpc_address()).await;
        Self { folder, options, running, worker, admin }
    }

    /// Stops in order, and starts over the same folder.
    pub(crate) async fn restart(self) -> Self {
        let Self { folder, options, running, worker, admin } = self;
        drop((worker, admin));
        running.stop().await;
        let running = Coordinator::start(options.clone()).await.unwrap();
        Self::over(folder, options, running).await
    }

    pub(crate) async fn stop(self) -> TempDir {
        let Self { folder, running, .. } = self;
        running.stop().await;
        folder
    }
}

pub(crate) async fn clients(
    address: SocketAddr,
) -> (WorkerServiceClient<Channel>, AdminServiceClient<Channel>) {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.timeout(DEADLINE).connect().await.unwrap();
    (WorkerServiceClient::new(channel.clone()), AdminServiceClient::new(channel))
}

/// Returns a context with a new request id.
pub(crate) fn context() -> Option<Context> {
    context_of(&uuid::Uuid::new_v4().to_string())
}

pub(crate) fn context_of(request_id: &str) -> Option<Context> {
    Some(Context {
        request_id: request_id.into(),
        principal: "test:me@here".into(),
        cluster_id: String::new(),
        protocol: 1,
    })
}

/// Returns the error of a rejected call.
pub(crate) fn refused<T: std::fmt::Debug>(
    answer: Result<Response<T>, Status>,
) -> (ErrorKind, String) {
    let error = WireError::from_status(&answer.unwrap_err());
    (error.kind, error.message)
}

/// Waits until `look` returns a value, and returns it.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
