//! Health and metrics of a worker over HTTP/1, for monitoring.

use std::net::SocketAddr;

use shardfeed_agent::WorkerView;
use shardfeed_coordinator::{Pages, StartError, serve_pages};

use super::measures;
use crate::error::Problem;

/// Serves /livez, /readyz and /metrics of a worker until the runtime ends; returns the address.
///
/// # Errors
/// Listening at the address fails.
pub(super) async fn serve(address: SocketAddr, view: WorkerView) -> anyhow::Result<SocketAddr> {
    let pages = Pages {
        process: view,
        dead: WorkerView::dead,
        unready: WorkerView::unready,
        metrics: |view| measures::text(&view.report()),
    };
    serve_pages(address, pages).await.map_err(|error| match error {
        StartError::Listen { source, .. } => {
            Problem::failed(format!("cannot listen at {address} (option `http`): {source}"))
                .hint("stop what uses the port, choose another one, or leave the option out")
                .into()
        }
        other => other.into(),
    })
}
