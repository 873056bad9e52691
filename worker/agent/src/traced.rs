//! Calls to coordinators that carry the operation of their thread, in the header `traceparent`.

use std::future::Future;

use shardfeed_proto::{TRACEPARENT, TraceContext};
use shardfeed_reader::traced::current;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Status};

tokio::task_local! {
    /// Operation of the call that is made in this task.
    static CALLED: TraceContext;
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
    use shardfeed_reader::traced::enter;

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
