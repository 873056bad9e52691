//! Context of every request, checked before anything else in it is trusted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shardfeed_proto::coordinator::v1::Context;
use shardfeed_proto::{COORDINATOR_PROTOCOL, ErrorKind, WireError};
use shardfeed_scheduler::principal_name;

use super::rights::Effect;
use super::who::Who;
use crate::error::{Result, invalid};

/// Maximum bytes of a principal: every log line and command contains it.
const PRINCIPAL_BYTES_MAX: usize = 256;

/// Identity of a caller, and the id of its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// A UUID; empty only for requests that change nothing.
    pub(crate) request_id: String,
    /// For logs and audits; empty only for requests that change nothing. Authenticated if possible.
    pub(crate) principal: String,
    pub(crate) who: Arc<Who>,
    /// Log index of the change that resulted; 0: none.
    pub(crate) index: Arc<AtomicU64>,
}

impl Caller {
    /// Returns the limited principal whose share of the chunks is used; empty for an unlimited one.
    pub(crate) fn owner(&self) -> String {
        let is_limited = !self.who.scope().is_empty();
        if is_limited { principal_name(&self.principal).to_owned() } else { String::new() }
    }

    /// Validates a context.
    /// - `cluster`: of this coordinator.
    ///
    /// # Errors  `WrongVersion`, `WrongCluster`, `Invalid`.
    pub(crate) fn check(context: Option<Context>, cluster: &str, effect: Effect) -> Result<Self> {
        let context = context.unwrap_or_default();
        if context.protocol != COORDINATOR_PROTOCOL {
            let message = format!(
                "the caller speaks version {} of the coordinator's protocol, this coordinator ({}) speaks \
                 version {COORDINATOR_PROTOCOL}; upgrade the older side",
                context.protocol,
                env!("CARGO_PKG_VERSION"),
            );
            return Err(WireError::new(ErrorKind::WrongVersion, message));
        }
        if !context.cluster_id.is_empty() && context.cluster_id != cluster {
            let theirs: String = context.cluster_id.chars().take(64).collect();
            let message = format!(
                "the caller belongs to cluster {theirs}, this coordinator is of cluster {cluster}; check \
                 the address, or start again if the cluster was recreated"
            );
            return Err(WireError::new(ErrorKind::WrongCluster, message));
        }
        let Context { request_id, principal, .. } = context;
        if principal.len() > PRINCIPAL_BYTES_MAX {
            return Err(invalid(format!("`principal` has at most {PRINCIPAL_BYTES_MAX} bytes")));
        }
        if effect == Effect::Changes && principal.is_empty() {
            return Err(invalid("`principal` is required for requests that change something"));
        }
        if (effect == Effect::Changes || !request_id.is_empty())
            && uuid::Uuid::try_parse(&request_id).is_err()
        {
            return Err(invalid("`request_id` is required and must be a UUID"));
        }
        Ok(Self { request_id, principal, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn context() -> Context {
        Context {
            request_id: "67e55044-10b1-426f-9247-bb680e5fe0c8".into(),
            principal: "cli:me@here".into(),
            cluster_id: "ours".into(),
            protocol: 1,
        }
    }

    fn refused(change: impl Fn(&mut Context), effect: Effect) -> (ErrorKind, String) {
        let mut context = context();
        change(&mut context);
        let error = Caller::check(Some(context), "ours", effect).unwrap_err();
        (error.kind, error.message)
    }

    #[test]
    fn believes_only_what_fits() {
        Caller::check(Some(context()), "ours", Effect::Changes).unwrap();
        let any = Context { protocol: 1, ..Context::default() };
        Caller::check(Some(any), "ours", Effect::Reads).unwrap();

        let (kind, message) = refused(|context| context.protocol = 7, Effect::Reads);
        assert_eq!(kind, ErrorKind::WrongVersion);
        assert!(message.contains("version 7") && message.contains("version 1"), "{message}");
        let (kind, message) = refused(|context| context.cluster_id = "b".into(), Effect::Reads);
        assert_eq!(kind, ErrorKind::WrongCluster);
        assert!(message.contains("cluster b") && message.contains("cluster ours"), "{message}");
        let clear: [fn(&mut Context); 2] =
            [|context| context.principal.clear(), |context| context.request_id.clear()];
        for clear in clear {
            assert_eq!(refused(clear, Effect::Changes).0, ErrorKind::Invalid);
        }
        let long = |context: &mut Context| context.principal = "x".repeat(257);
        assert_eq!(refused(long, Effect::Reads).0, ErrorKind::Invalid);
        let none = Caller::check(None, "ours", Effect::Reads).unwrap_err();
        assert_eq!(none.kind, ErrorKind::WrongVersion);
    }

    #[test]
    fn every_refusal_says_which_field_or_what_to_upgrade() {
        let changes: [fn(&mut Context); 6] = [
            |context| context.protocol = 7,
            |context| context.cluster_id = "theirs".into(),
            |context| context.principal = "x".repeat(257),
            |context| context.principal.clear(),
            |context| context.request_id.clear(),
            |context| context.request_id = "one".into(),
        ];
        let said = changes.map(|change| {
            let (kind, message) = refused(change, Effect::Changes);
            format!("{kind:?}: {}\n", message.replace(env!("CARGO_PKG_VERSION"), "VERSION"))
        });
        expect![[r#"
            WrongVersion: the caller speaks version 7 of the coordinator's protocol, this coordinator (VERSION) speaks version 1; upgrade the older side
            WrongCluster: the caller belongs to cluster theirs, this coordinator is of cluster ours; check the address, or start again if the cluster was recreated
            Invalid: `principal` has at most 256 bytes
            Invalid: `principal` is required for requests that change something
            Invalid: `request_id` is required and must be a UUID
            Invalid: `request_id` is required and must be a UUID
        "#]].assert_eq(&said.concat());
    }
}
