//! Commands of sessions.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinSession {
    /// Name of the worker; a session of the same name and another incarnation ends the earlier one.
    pub worker: String,
    pub host: String,
    /// Id of one start of the worker's process.
    pub incarnation: String,
    pub version: String,
    /// True if the worker runs inside a trainer's process.
    pub in_process: bool,
    /// Lifetime of the session without renewal, ms.
    pub ttl_ms: u64,
    /// Path of the trainer socket, for people; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// Ids of the image decoders, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decoders: Vec<String>,
    /// True if the caller was authenticated: then no other principal may replace it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proved: bool,
    /// Folders and URL prefixes below which the worker reads; empty: no such list was set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_roots: Vec<String>,
}
