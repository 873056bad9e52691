//! Commands of access tokens.

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::log::value::AccessRole;

/// Creates an access token. The caller keeps the secret and never sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateAccess {
    pub id: String,
    pub digest: Digest,
    pub name: String,
    pub role: AccessRole,
    pub jobs: Vec<String>,
    pub ttl_ms: u64,
    /// If set, this is a join token, to be exchanged once for a token with this lifetime, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_ttl_ms: Option<u64>,
}

/// Exchanges a join token for a token of its role, jobs and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeAccess {
    pub join: String,
    pub id: String,
    pub digest: Digest,
    pub name: String,
}
