//! The gRPC side: each call is checked, measured, logged and bounded in one place, then read or
//! proposed by a function of its own.

mod admin;
mod context;
mod peer;
mod scans;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use shardfeed_proto::coordinator::v1::Context;
use shardfeed_proto::{ErrorKind, WireError};
use tonic::{Response, Status};
use tracing::{Instrument, field};

pub(crate) use admin::Admin;
pub(crate) use context::{Caller, Effect};
pub(crate) use peer::PeerCalls;
pub(crate) use worker::Workers;

use crate::core::Core;
use crate::front::Front;
use crate::metrics::{Outcome, Rpc};

/// Bytes of a message that is taken: a chunk and what goes with it, or the parts of a listing.
pub(crate) const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Calls that are worked on at a time, at most; others are told to come again.
pub(crate) const CALLS_MAX: usize = 2048;

/// Ranks that wait for groups at a time, at most.
pub(crate) const POLLS_MAX: usize = 16_384;

/// A call takes so long at most; a command that was proposed may be carried out later.
pub(crate) const CALL_TIME_MAX: Duration = Duration::from_secs(30);

/// Runs one call: checks its context, bounds it, measures and logs it.
pub(crate) async fn serve<T, F>(
    front: &Front,
    (rpc, effect): (Rpc, Effect),
    context: Option<Context>,
    body: impl FnOnce(Arc<Core>, Caller) -> F,
) -> Result<Response<T>, Status>
where
    F: Future<Output = Result<T, WireError>>,
{
    let began = front.host.now();
    let span =
        tracing::info_span!("call", ?rpc, request_id = field::Empty, principal = field::Empty);
    let work = async {
        let core = Arc::clone(front.core()?);
        // Who waits for groups to come free must not stand in the way of others.
        let turns = if rpc == Rpc::TakeGroups { &core.polls } else { &core.calls };
        let _permit = turns.try_acquire().map_err(|_| busy())?;
        let caller = Caller::check(context, core.node.cluster_id(), effect)?;
        let span = tracing::Span::current();
        span.record("request_id", &caller.request_id).record("principal", &caller.principal);
        // Any node says how it is; of anything else it would say what may be outdated.
        if !matches!(rpc, Rpc::GetStatus | Rpc::GetCluster) {
            core.available()?;
        }
        let body = async {
            if effect == Effect::Looks {
                core.linearize().await?;
            }
            body(Arc::clone(&core), caller).await
        };
        tokio::time::timeout(CALL_TIME_MAX, body).await.unwrap_or_else(|_| Err(late()))
    };
    let answer = work.instrument(span.clone()).await;
    let outcome = answer.as_ref().map_or_else(outcome_of, |_| Outcome::Done);
    let took = front.host.now().saturating_duration_since(began);
    front.metrics.called(rpc, outcome, took);
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

/// Whose fault an error is.
fn outcome_of(error: &WireError) -> Outcome {
    match error.kind {
        ErrorKind::Unspecified
        | ErrorKind::Retry
        | ErrorKind::Storage
        | ErrorKind::Corrupt
        | ErrorKind::Unreachable => Outcome::Failed,
        _ => Outcome::Refused,
    }
}

fn busy() -> WireError {
    WireError::new(
        ErrorKind::Retry,
        format!("the coordinator works on {CALLS_MAX} calls already; try again in a moment"),
    )
}

fn late() -> WireError {
    let seconds = CALL_TIME_MAX.as_secs();
    WireError::new(
        ErrorKind::Retry,
        format!("no answer within {seconds} s; try again with the same request id"),
    )
}

/// Refuses a list that is longer than one call may bring.
pub(crate) fn check_len(field: &'static str, len: usize, most: usize) -> Result<(), WireError> {
    match len <= most {
        true => Ok(()),
        false => Err(WireError::new(
            ErrorKind::Invalid,
            format!("`{field}` has {len} entries; at most {most} are allowed"),
        )),
    }
}

/// Implements a service: each call by the function of its name, through [`serve`].
macro_rules! service {
    (
        impl $service:ident for $server:ty {
            $($name:ident: $rpc:ident, $effect:ident, $request:ident => $response:ident;)*
        }
        $($rest:item)*
    ) => {
        #[tonic::async_trait]
        impl $service for $server {
            $(
                async fn $name(
                    &self,
                    request: tonic::Request<$request>,
                ) -> Result<tonic::Response<$response>, tonic::Status> {
                    let mut request = request.into_inner();
                    let context = request.context.take();
                    let call = (Rpc::$rpc, Effect::$effect);
                    serve(&self.front, call, context, |core, caller| $name(core, caller, request))
                        .await
                }
            )*
            $($rest)*
        }
    };
}
use service;
