//! Identity of a caller, and the rejection of one.

use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::principal_name;
use shardfeed_tls::Role;

use crate::metrics::Denial;

/// First name in the scope of an unlimited trainer.
const ANY: &str = "*";

/// Rejection of a call that its caller may not make.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) reason: Denial,
    pub(super) message: String,
}

impl From<Denied> for WireError {
    fn from(denied: Denied) -> Self {
        self::denied(denied.message)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Who {
    /// Role; `None` if callers are not authenticated.
    pub(crate) role: Option<Role>,
    pub(crate) principal: String,
    /// Jobs that the caller is limited to; empty: not limited.
    pub(crate) jobs: Vec<String>,
    pub(crate) token: Option<String>,
    /// Expiry of the access token, Unix ms.
    pub(crate) expires_ms: Option<u64>,
}

impl Who {
    /// Returns the names of jobs and datasets that the caller is limited to, as in
    /// [`shardfeed_scheduler::Command::scope`]. An unlimited trainer also has its own name there,
    /// so that no other trainer scans for it.
    pub(crate) fn scope(&self) -> Vec<String> {
        match self.role {
            Some(Role::Trainer) if self.jobs.is_empty() => {
                vec![ANY.to_owned(), principal_name(&self.principal).to_owned()]
            }
            _ => self.jobs.clone(),
        }
    }
}

pub(crate) fn denied(message: impl Into<String>) -> WireError {
    WireError::new(ErrorKind::Denied, message)
}

pub(crate) fn told(who: &Who) -> wire::WhoAmIResponse {
    let Who { role, principal, jobs, expires_ms, .. } = who.clone();
    let role = role.map_or_else(String::new, |role| role.to_string());
    wire::WhoAmIResponse { principal, role, jobs, expires_ms }
}
