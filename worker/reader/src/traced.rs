//! The operation that this thread works on, so that the logs of a trainer, its worker and the
//! coordinators show the same trace id for it.
//!
//! A trainer's request names its operation. The thread that serves it works on that operation until
//! the request is done ([`enter`]).

use std::cell::Cell;
use std::sync::OnceLock;

use shardfeed_proto::TraceContext;
use tracing::span::EnteredSpan;
use uuid::Uuid;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
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
/// - `of`: the parent part; `None`: this thread's current one, the launcher's, or a new operation.
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
