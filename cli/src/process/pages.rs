//! Health and metrics of a worker over HTTP/1, for monitoring.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use shardfeed_agent::WorkerView;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::measures;
use crate::error::Problem;

/// Content type of Prometheus' text format.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of connections: a few monitors, each with one or two.
const CONNECTIONS_MAX: usize = 128;

/// Time after which a connection without a request is closed.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Pause after an error of the listener, such as too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Serves /livez, /readyz and /metrics of a worker until the runtime ends; returns the address.
///
/// # Errors
/// Listening at the address fails.
pub(super) async fn serve(address: SocketAddr, view: WorkerView) -> anyhow::Result<SocketAddr> {
    let refused = |error: std::io::Error| {
        Problem::failed(format!("cannot listen at {address} (option `http`): {error}"))
            .hint("stop what uses the port, choose another one, or leave the option out")
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(view);
    tokio::spawn(accept(listener, router));
    Ok(address)
}

async fn accept(listener: TcpListener, router: Router) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(answer(stream, router.clone(), permit));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router, _permit: OwnedSemaphorePermit) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection for a page was cut off");
    }
}

/// `ok` if the process works, else the reason why only a restart helps.
async fn livez(State(view): State<WorkerView>) -> impl IntoResponse {
    page(view.dead())
}

/// `ok` if a new trainer would be served, else the reason why not.
async fn readyz(State(view): State<WorkerView>) -> impl IntoResponse {
    page(view.unready())
}

fn page(reason: Option<String>) -> impl IntoResponse {
    match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics(State(view): State<WorkerView>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], measures::text(&view.report()))
}
