//! Steps that are the same for each call: checks, bounds, measurement, log and audit.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shardfeed_proto::coordinator::v1::Context;
use shardfeed_proto::{ErrorKind, TRACEPARENT, TraceContext, WireError};
use tonic::{Request, Response, Status};
use tracing::{Instrument, Span, field};

use super::context::Caller;
use super::guard::{Object, Seen};
use super::rights::{Effect, IsAudited, Rpc, Rules};
use super::who::Denied;
use super::{audit, detail};
use crate::error::{Result, retry};
use crate::leader::claim_queue::POLLS_MAX;
use crate::leader::core::{CALLS_MAX, Core};
use crate::metrics::{Audited, Denial, Outcome};
use crate::net::front::Front;

/// Maximum bytes of a received message: a chunk and its fields, or the parts of a listing.
pub const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Timeout of a call; a command that was proposed may be carried out later.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(30);

/// A call whose caller may make it.
pub(super) struct Call<R> {
    pub(super) core: Arc<Core>,
    pub(super) caller: Caller,
    pub(super) request: R,
}

/// A received call, before any check.
pub(super) struct Received<R> {
    seen: Seen,
    context: Option<Context>,
    object: Object,
    detail: String,
    request: R,
}

impl<R: Any> Received<R> {
    /// - `take_context`: removes the context from the message. `object`: returns what it is about.
    pub(super) fn new(
        request: Request<R>,
        take_context: fn(&mut R) -> Option<Context>,
        object: fn(&R) -> Object,
    ) -> Self {
        let seen = Seen::of(&request);
        let mut request = request.into_inner();
        let context = take_context(&mut request);
        let (object, detail) = (object(&request), detail::of(&request));
        Self { seen, context, object, detail, request }
    }
}

/// Runs one call: checks its caller and its context, bounds, measures, logs and audits it.
pub(super) async fn serve<R, T, F>(
    front: &Front,
    rpc: Rpc,
    received: Received<R>,
    handler: impl FnOnce(Call<R>) -> F,
) -> Result<Response<T>, Status>
where
    F: Future<Output = Result<T>>,
{
    let began = front.host.now();
    let span =
        tracing::info_span!("call", ?rpc, request_id = field::Empty, principal = field::Empty);
    let Received { seen, context, object, detail, request } = received;
    let Rules { effect, audit, .. } = rpc.rules();
    let mut known = CallFacts::new(detail);
    let work = async {
        let core = Arc::clone(front.core()?);
        // Ranks that wait for free groups must not block other calls.
        let (turns, most) = match rpc {
            Rpc::ClaimGroups => (&core.polls, POLLS_MAX),
            _ => (&core.calls, CALLS_MAX),
        };
        let _permit = turns.try_acquire().map_err(|_| busy(most))?;
        // Every node reports its own status; other answers may be outdated, also about tokens.
        let who = seen.who(front, &core, rpc);
        if effect != Effect::Local {
            core.available_to(who.as_ref().err())?;
        }
        let who = who.map_err(|denied| known.deny(denied))?;
        let who = Arc::new(who);
        let mut caller = Caller::check(context, core.node.cluster_id(), effect)?;
        known.claimed.clone_from(&caller.principal);
        if who.role.is_some() {
            caller.principal.clone_from(&who.principal);
            caller.who = Arc::clone(&who);
        }
        known.caller = caller.clone();
        who.may(rpc, &object, &core).map_err(|denied| known.deny(denied))?;
        seen.trust();
        if audit == IsAudited::Yes {
            known.begin(&core, rpc, (&seen, &object));
        }
        let span = Span::current();
        span.record("request_id", &caller.request_id).record("principal", &caller.principal);
        let body = async {
            if effect == Effect::Looks {
                core.linearize().await?;
            }
            handler(Call { core: Arc::clone(&core), caller, request }).await
        };
        in_time(CALL_TIME_MAX, body).await
    };
    let answer = work.instrument(span.clone()).await;
    let outcome = answer.as_ref().map_or_else(outcome_of, |_| Outcome::Done);
    let took = front.host.now().saturating_duration_since(began);
    front.metrics.called(rpc, outcome, took);
    known.audit(front, rpc, (&seen, &object), answer.as_ref().err()).await;
    span.in_scope(|| match (&answer, outcome) {
        (Ok(_), _) => {
            tracing::debug!(took_ms = took.as_millis() as u64, "call answered");
        }
        (Err(error), Outcome::Failed) => {
            tracing::warn!(kind = error.kind.as_str_name(), %error, "call failed");
        }
        (Err(error), _) => {
            tracing::info!(kind = error.kind.as_str_name(), %error, "call refused");
        }
    });
    answer.map(Response::new).map_err(|error| error.to_status())
}

/// Facts about a caller, as they become known.
struct CallFacts {
    claimed: String,
    detail: String,
    caller: Caller,
    /// Reason of the denial; `None` if the call was not denied, or denied by the state.
    denial: Option<Denial>,
    /// Audit entry of a call that has begun: written even if no caller waits for its end.
    begun: Option<(Arc<Core>, audit::Entry)>,
}

impl CallFacts {
    fn new(detail: String) -> Self {
        let (claimed, caller) = Default::default();
        Self { claimed, detail, caller, denial: None, begun: None }
    }

    fn entry(&self, at_ms: u64, rpc: Rpc, (seen, object): (&Seen, &Object)) -> audit::Entry {
        let Caller { request_id, principal, who, .. } = &self.caller;
        audit::Entry {
            at_ms,
            claimed: if self.claimed == *principal { String::new() } else { self.claimed.clone() },
            principal: principal.clone(),
            role: who.role.map_or_else(String::new, |role| role.to_string()),
            remote: seen.address(),
            method: format!("{rpc:?}"),
            object: object.text(),
            outcome: "UNKNOWN".to_owned(),
            message: String::new(),
            request_id: request_id.clone(),
            index: None,
            detail: self.detail.clone(),
        }
    }

    fn begin(&mut self, core: &Arc<Core>, rpc: Rpc, of: (&Seen, &Object)) {
        if let (Rpc::RevokeAccess, Object::Named(id)) = (rpc, of.1) {
            let name = core.read(|state| state.access_token(id).map(|token| token.name.clone()));
            self.detail = detail::name(&name.unwrap_or_default());
        }
        self.begun = Some((Arc::clone(core), self.entry(core.host.wall_ms(), rpc, of)));
    }

    fn deny(&mut self, denied: Denied) -> WireError {
        self.denial = Some(denied.reason);
        denied.into()
    }

    fn index(&self) -> Option<u64> {
        Some(self.caller.index.load(Ordering::Relaxed)).filter(|index| *index > 0)
    }

    /// Audits a call that changed something or was denied, unless its caller repeats it elsewhere.
    async fn audit(
        mut self,
        front: &Front,
        rpc: Rpc,
        of: (&Seen, &Object),
        error: Option<&WireError>,
    ) {
        let begun = self.begun.take();
        let says = |error: &WireError| error.message.chars().take(400).collect();
        match (begun, error) {
            (_, Some(error)) if error.kind == ErrorKind::Denied || is_unleased(rpc, error) => {
                let Ok(core) = front.core() else {
                    return;
                };
                let entry = self.entry(front.host.wall_ms(), rpc, of);
                let (outcome, message) = (short(error.kind).to_owned(), says(error));
                let entry = audit::Entry { outcome, message, ..entry };
                let reason = self.denial.unwrap_or(match error.kind {
                    ErrorKind::Fenced => Denial::Lease,
                    _ => Denial::State,
                });
                core.refused(entry, reason);
            }
            (Some(_), Some(error)) if error.kind == ErrorKind::NotLeader => {}
            (Some((core, entry)), error) => {
                let outcome = error.map_or(audit::DONE, |error| short(error.kind)).to_owned();
                let message = error.map_or_else(String::new, says);
                let index = self.index();
                core.metrics.audited(match error {
                    None => Audited::Done,
                    Some(_) => Audited::Refused,
                });
                core.audit.done(audit::Entry { outcome, message, index, ..entry }).await;
            }
            (None, _) => {}
        }
    }
}

impl Drop for CallFacts {
    /// The caller has gone; a call that has begun may still be carried out.
    fn drop(&mut self) {
        let index = self.index();
        if let Some((core, entry)) = self.begun.take() {
            core.metrics.audited(Audited::Unknown);
            core.audit.left(audit::Entry { index, ..entry });
        }
    }
}

/// True if a report on a listing or scan was rejected because the session has no lease of it. The
/// reporter is occasionally a slow worker, or an attacker.
fn is_unleased(rpc: Rpc, error: &WireError) -> bool {
    error.kind == ErrorKind::Fenced
        && matches!(rpc, Rpc::ReportListing | Rpc::ReportScan | Rpc::FailScan)
}

/// Returns the name of an error kind, without the common prefix.
fn short(kind: ErrorKind) -> &'static str {
    let name = kind.as_str_name();
    name.strip_prefix("ERROR_KIND_").unwrap_or(name)
}

/// Returns the outcome of a call with this error: a failure here, or a rejection of the caller.
pub(super) fn outcome_of(error: &WireError) -> Outcome {
    match error.kind {
        ErrorKind::Unspecified
        | ErrorKind::Retry
        | ErrorKind::Storage
        | ErrorKind::Corrupt
        | ErrorKind::Unreachable => Outcome::Failed,
        _ => Outcome::Refused,
    }
}

fn busy(most: usize) -> WireError {
    retry(format!("the coordinator works on {most} such calls already; try again in a moment"))
}

/// Returns the answer, or an error if there is none within `most`.
async fn in_time<T>(most: Duration, body: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(most, body).await.unwrap_or_else(|_| {
        let seconds = most.as_secs_f64();
        Err(retry(format!("no answer within {seconds} s; try again with the same request id")))
    })
}

/// Returns the span of a call; it has the caller's trace id, if the caller sends one.
pub(crate) fn span(request: &axum::http::Request<()>) -> Span {
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

/// Implements a service: each call runs the function of its name by [`serve`], with its object.
macro_rules! service {
    (
        impl $service:ident for $server:ty {
            $($name:ident: $rpc:ident, $object:expr, $request:ident => $response:ty;)*
        }
        $($rest:item)*
    ) => {
        #[tonic::async_trait]
        impl $service for $server {
            $(
                async fn $name(
                    &self,
                    request: tonic::Request<wire::$request>,
                ) -> Result<tonic::Response<$response>, tonic::Status> {
                    let received = Received::new(request, |r| r.context.take(), $object);
                    serve(&self.front, Rpc::$rpc, received, $name).await
                }
            )*
            $($rest)*
        }
    };
}
pub(super) use service;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_is_not_answered_in_time_is_given_up_and_may_be_made_again() {
        let never = std::future::pending::<Result<()>>();
        let error = in_time(Duration::from_millis(50), never).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Retry);
        assert_eq!(error.message, "no answer within 0.05 s; try again with the same request id");
        assert_eq!(in_time(CALL_TIME_MAX, async { Ok(7) }).await, Ok(7));
    }
}
