//! Whoever calls may say which operation it works on: logs of the call show the same trace id.

use axum::http::Request;
use shardfeed_proto::{TRACEPARENT, TraceContext};
use tracing::Span;

/// The span that a call is worked on in; none if the caller says nothing, or what is no trace context.
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
