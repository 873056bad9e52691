//! Health and metrics over HTTP/1, for machines that watch this one.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::front::Front;

/// What Prometheus calls the text that it reads.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Connections at most: a few monitors, each with one or two.
pub(crate) const HTTP_CONNECTIONS_MAX: usize = 128;

/// The pages.
pub(crate) fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(front)
}

/// The process works, or why only another start helps. Other nodes have no part in it.
async fn livez(State(front): State<Arc<Front>>) -> impl IntoResponse {
    page(front.dead())
}

/// Requests will be answered, or why not.
async fn readyz(State(front): State<Arc<Front>>) -> impl IntoResponse {
    page(front.unready())
}

fn page(reason: Option<String>) -> impl IntoResponse {
    match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics(State(front): State<Arc<Front>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], front.measured())
}
