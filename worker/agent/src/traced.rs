//! The operation that this thread works on, so that the logs of a trainer, its worker and the
//! coordinators show the same trace id for it.
//!
//! A trainer's request names its operation. The thread that serves it works on that operation until
//! the request is done ([`enter`]), and its calls to coordinators carry the operation in the header
//! `traceparent`.

use std::cell::Cell;
use std::future::Future;
use std::sync::OnceLock;

use shardfeed_proto::{TRACEPARENT, TraceContext};
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Status};
use tracing::span::EnteredSpan;
use uuid::Uuid;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

tokio::task_local! {
    /// Operation of the call that is made in this task.
    static CALLED: TraceContext;
}

/// Guard: until it is dropped, this thread's work belongs to an operation.
#[derive(Debug)]
pub struct Entered {
    before: Option<TraceContext>,
    _span: EnteredSpan,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Begins a part of an operation on this thread, named for logs.
/// - `of`: the parent part; `None`: this thread's current one, else the launcher's, else a new
///   operation.
pub fn enter(name: &'static str, of: Option<TraceContext>) -> Entered {
    let before = CURRENT.get();
    let parent = of.or(before).or_else(of_launcher);
    let own = parent.map_or_else(fresh, |parent| parent.part(random_span()));
    let parent_id = parent.map(TraceContext::span_id);
    let span = tracing::info_span!(
        "operation",
        name,
        trace_id = own.trace_id(),
        span_id = own.span_id(),
        parent_id
    );
    CURRENT.set(Some(own));
    Entered { before, _span: span.entered() }
}

/// Returns the operation that this thread works on, else the one that the process was started in.
pub fn current() -> Option<TraceContext> {
    CURRENT.get().or_else(of_launcher)
}

/// Returns the operation that this process was started in, from the usual variable `TRACEPARENT`.
fn of_launcher() -> Option<TraceContext> {
    static KNOWN: OnceLock<Option<TraceContext>> = OnceLock::new();
    *KNOWN.get_or_init(|| std::env::var("TRACEPARENT").ok()?.parse().ok())
}

fn fresh() -> TraceContext {
    TraceContext::new(Uuid::new_v4().as_u128(), random_span())
}

fn random_span() -> u64 {
    Uuid::new_v4().as_u64_pair().1
}

/// Wraps a call so that it belongs to this thread's current operation wherever it is polled.
pub(crate) fn carry<F: Future>(call: F) -> impl Future<Output = F::Output> {
    let current = current();
    async move {
        match current {
            Some(current) => CALLED.scope(current, call).await,
            None => call.await,
        }
    }
}

/// Adds the operation of a call to its headers.
pub(crate) fn mark(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Ok(called) = CALLED.try_with(|called| *called) {
        let value: AsciiMetadataValue =
            called.to_string().parse().expect("a trace context is ASCII");
        request.metadata_mut().insert(TRACEPARENT, value);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_carries_what_its_thread_works_on() {
        let header = async || {
            let request = carry(async { mark(Request::new(())) }).await.unwrap();
            request.metadata().get(TRACEPARENT).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header().await, None);
        let asked: TraceContext =
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
        {
            let _outer = enter("outer", Some(asked));
            let outer = current().unwrap();
            assert_eq!(outer.trace_id(), asked.trace_id());
            assert_ne!(outer.span_id(), asked.span_id());
            assert_eq!(header().await, Some(outer.to_string()));
            let inner = enter("inner", None);
            assert_eq!(current().unwrap().trace_id(), asked.trace_id());
            assert_ne!(current(), Some(outer));
            drop(inner);
            assert_eq!(current(), Some(outer));
        }
        assert_eq!(current(), None);
        let own = enter("own", None);
        assert_ne!(current().unwrap().trace_id(), asked.trace_id());
        drop(own);
    }
}
