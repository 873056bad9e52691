//! Commands of access tokens.

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::log::value::AccessRole;

/// Creates an access token. The caller keeps the secret and never sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateAccess {
    pub id: String,
    /// SHA-256 of the secret.
    pub digest: Digest,
    pub name: String,
    pub role: AccessRole,
    /// Jobs that the token covers; empty: all jobs.
    pub jobs: Vec<String>,
    pub ttl_ms: u64,
    /// If set, this is a join token, to be exchanged once for a token with this lifetime, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_ttl_ms: Option<u64>,
}

/// Exchanges a join token for a token of its role, jobs and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeAccess {
    /// Id of the join token.
    pub join: String,
    /// Id of the new token.
    pub id: String,
    /// SHA-256 of the new token's secret.
    pub digest: Digest,
    /// Name of the new token's holder.
    pub name: String,
}
