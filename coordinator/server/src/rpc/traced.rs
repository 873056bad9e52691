//! Trace context of callers: logs of a call show the caller's trace id.

use axum::http::Request;
use shardfeed_proto::{TRACEPARENT, TraceContext};
use tracing::Span;

/// Returns the span of a call; none if the caller sends no valid trace context.
pub(crate) fn span(request: &Request<()>) -> Span {
    let header = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    match header.and_then(|header| header.parse::<TraceContext>().ok()) {
        Some(caller) => tracing::info_span!(
            "operation",
            trace_id = caller.trace_id(),
            parent_id = caller.span_id()
        ),
        None => Span::none(),
    }
}
