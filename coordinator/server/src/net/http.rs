//! Health and metrics over HTTP/1, for monitoring: of a coordinator, and of any other process.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use shardfeed_host::RealHost;
use tokio::sync::watch;

use crate::error::StartError;
use crate::net::port::{BindAddress, Patience, Port};

/// Content type of the text that Prometheus reads.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum connections: a few monitors, each with one or two.
pub const HTTP_CONNECTIONS_MAX: usize = 128;

#[derive(Clone, Copy, Debug)]
pub struct Pages<P> {
    pub process: P,
    /// Returns the reason why only a restart helps. Other processes do not affect it.
    pub dead: fn(&P) -> Option<String>,
    /// Returns the reason why requests are not answered.
    pub unready: fn(&P) -> Option<String>,
    pub metrics: fn(&P) -> String,
}

pub(crate) fn router<P: Clone + Send + Sync + 'static>(pages: Pages<P>) -> Router {
    let health = |reason: Option<String>| match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    };
    type Of<P> = State<Pages<P>>;
    let livez = move |State(of): Of<P>| async move { health((of.dead)(&of.process)) };
    let readyz = move |State(of): Of<P>| async move { health((of.unready)(&of.process)) };
    let metrics = |State(of): Of<P>| async move {
        ([(header::CONTENT_TYPE, METRICS_TYPE)], (of.metrics)(&of.process)).into_response()
    };
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(pages)
}

/// Serves the pages of a process that is no coordinator until the runtime ends; returns the address.
///
/// # Errors  [`StartError::Listen`].
pub async fn serve_pages<P: Clone + Send + Sync + 'static>(
    address: SocketAddr,
    pages: Pages<P>,
) -> Result<SocketAddr, StartError> {
    let (alive, living) = watch::channel(());
    let (connections, patience) = (HTTP_CONNECTIONS_MAX, Patience::default());
    let place = BindAddress { option: "http", address, connections, patience };
    let port = Port::bind(&RealHost, place, living).await?;
    let address = port.address();
    tokio::spawn(async move {
        let _until_the_end = alive;
        if let Err(error) = axum::serve(port, router(pages)).await {
            tracing::error!(%error, "the HTTP port ended");
        }
    });
    Ok(address)
}
