//! How a coordinator is set up: one struct for the process, read from TOML or filled by tests.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Options of a coordinator, kebab-case in TOML. Only `data-dir` has no default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CoordinatorOptions {
    /// Folder for everything that must outlive the process: log, snapshots, chunks. Made if it is
    /// missing; one process at a time.
    pub data_dir: PathBuf,
    /// Address of the gRPC port; port 0 takes a free one. Default 127.0.0.1:7070.
    #[serde(default = "default::listen")]
    pub listen: SocketAddr,
    /// Address of /livez, /readyz and /metrics; port 0 takes a free one. Default 127.0.0.1:7071.
    #[serde(default = "default::http")]
    pub http: SocketAddr,
    /// Name that people give to the cluster; it is kept from the first start on. Default `shardfeed`.
    #[serde(default = "default::cluster_name")]
    pub cluster_name: String,
    /// A worker's session lives so long without a heartbeat, ms, 100 to 600,000. Default 10,000.
    #[serde(default = "default::session_ttl_ms")]
    pub session_ttl_ms: u64,
    /// How often workers are told to send heartbeats, ms; at most a third of the ttl. Default 2,000.
    #[serde(default = "default::heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// Bytes of chunks that no dataset refers to, at most, and at least 1 MiB. Default 4 GiB.
    #[serde(default = "default::unreferenced_bytes_max")]
    pub unreferenced_bytes_max: u64,
}

/// An option, or two of them, that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option `{option}`: {reason}")]
pub struct InvalidOption {
    /// Its name, as in TOML.
    pub option: &'static str,
    /// What is wrong, and what to do.
    pub reason: String,
}

mod default {
    use std::net::{Ipv4Addr, SocketAddr};

    pub(super) fn listen() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 7070).into()
    }

    pub(super) fn http() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 7071).into()
    }

    pub(super) fn cluster_name() -> String {
        "shardfeed".into()
    }

    pub(super) fn session_ttl_ms() -> u64 {
        10_000
    }

    pub(super) fn heartbeat_ms() -> u64 {
        2_000
    }

    pub(super) fn unreferenced_bytes_max() -> u64 {
        4 << 30
    }
}

impl CoordinatorOptions {
    /// The defaults over a folder.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: default::listen(),
            http: default::http(),
            cluster_name: default::cluster_name(),
            session_ttl_ms: default::session_ttl_ms(),
            heartbeat_ms: default::heartbeat_ms(),
            unreferenced_bytes_max: default::unreferenced_bytes_max(),
        }
    }

    /// Proves that the options fit together.
    ///
    /// # Errors  The first that does not, by name.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        let refuse = |option, reason: String| Err(InvalidOption { option, reason });
        let (ttl, heartbeat) = (self.session_ttl_ms, self.heartbeat_ms);
        if self.data_dir.as_os_str().is_empty() {
            return refuse("data-dir", "is empty; name a folder on a disk that stays".into());
        }
        if self.cluster_name.is_empty() || self.cluster_name.len() > CLUSTER_NAME_BYTES_MAX {
            return refuse("cluster-name", format!("has 1 to {CLUSTER_NAME_BYTES_MAX} bytes"));
        }
        if !(SESSION_TTL_MS_MIN..=SESSION_TTL_MS_MAX).contains(&ttl) {
            let bounds = format!("{SESSION_TTL_MS_MIN} to {SESSION_TTL_MS_MAX} ms");
            return refuse("session-ttl-ms", format!("is {ttl}; sessions live {bounds}"));
        }
        if heartbeat == 0 || heartbeat.saturating_mul(3) > ttl {
            let most = ttl / 3;
            return refuse(
                "heartbeat-ms",
                format!(
                    "is {heartbeat}, but two may be lost within session-ttl-ms={ttl}; use 1 to {most}"
                ),
            );
        }
        if self.unreferenced_bytes_max < UNREFERENCED_BYTES_MIN {
            let bytes = self.unreferenced_bytes_max;
            let reason = format!("is {bytes}; a single chunk may have {UNREFERENCED_BYTES_MIN}");
            return refuse("unreferenced-bytes-max", reason);
        }
        if self.listen == self.http && self.listen.port() != 0 {
            return refuse("http", format!("is {}, as `listen`; use two ports", self.http));
        }
        Ok(())
    }
}

/// The log's header holds the name.
const CLUSTER_NAME_BYTES_MAX: usize = 255;

/// Below this a loaded machine's scheduling ends sessions.
const SESSION_TTL_MS_MIN: u64 = 100;

/// Above this nobody waits for a dead worker's scans.
const SESSION_TTL_MS_MAX: u64 = 600_000;

/// The largest chunk must fit.
const UNREFERENCED_BYTES_MIN: u64 = shardfeed_proto::CHUNK_BYTES_MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_only_the_folder_is_needed() {
        let options: CoordinatorOptions = serde_json::from_str(r#"{"data-dir":"/d"}"#).unwrap();
        assert_eq!(options, CoordinatorOptions::new("/d"));
        assert_eq!(options.validate(), Ok(()));
        let error = serde_json::from_str::<CoordinatorOptions>(r#"{"data-dir":"/d","ttl":1}"#);
        assert!(error.unwrap_err().to_string().contains("unknown field `ttl`"));
    }

    #[test]
    fn contradictions_are_named() {
        let refused = |change: fn(&mut CoordinatorOptions)| {
            let mut options = CoordinatorOptions::new("/d");
            change(&mut options);
            options.validate().unwrap_err().to_string()
        };
        let error = refused(|options| options.heartbeat_ms = 3_334);
        assert!(error.contains("use 1 to 3333"), "{error}");
        assert!(refused(|options| options.session_ttl_ms = 99).contains("session-ttl-ms"));
        assert!(refused(|options| options.data_dir = PathBuf::new()).contains("data-dir"));
        assert!(refused(|options| options.cluster_name.clear()).contains("cluster-name"));
        assert!(refused(|options| options.http = options.listen).contains("two ports"));
        assert!(refused(|options| options.unreferenced_bytes_max = 1).contains("unreferenced"));
    }
}
