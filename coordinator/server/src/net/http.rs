//! Health and metrics over HTTP/1, for monitoring.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::net::front::Front;

/// Content type of the text that Prometheus reads.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum connections: a few monitors, each with one or two.
pub const HTTP_CONNECTIONS_MAX: usize = 128;

pub(crate) fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(front)
}

/// Reports that the process works, or why only a restart helps. Other nodes do not affect it.
async fn livez(State(front): State<Arc<Front>>) -> impl IntoResponse {
    page(front.dead())
}

/// Reports that requests will be answered, or why not.
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
