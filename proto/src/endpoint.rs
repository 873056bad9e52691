//! Endpoint file in which a coordinator publishes its cluster's addresses for other hosts.

use serde::{Deserialize, Serialize};

/// Version of the file format that this software reads and writes.
const VERSION: u32 = 1;

/// Addresses of a cluster, as JSON. Readers ignore unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Version of the format; a reader rejects later ones.
    version: u32,
    pub cluster_id: String,
    pub node: u64,
    /// Addresses of the members, HOST:PORT, in the order of their node numbers.
    pub addresses: Vec<String>,
}

/// Reason why a text is not an endpoint file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text has another format or is truncated.
    #[error("is not a file that a coordinator writes with --endpoint-file: {0}")]
    Strange(String),
    /// A later release wrote the file.
    #[error(
        "has version {0} of the format, and {VERSION} is the latest that is known here; upgrade this software"
    )]
    Version(u32),
}

impl Endpoint {
    /// Returns an endpoint in the format of this software.
    pub fn new(cluster_id: impl Into<String>, node: u64, addresses: Vec<String>) -> Self {
        Self { version: VERSION, cluster_id: cluster_id.into(), node, addresses }
    }

    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("it has texts and numbers only") + "\n"
    }

    pub fn from_json(text: &str) -> Result<Self, EndpointError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let strange = |error: serde_json::Error| EndpointError::Strange(error.to_string());
        let Version { version } = serde_json::from_str(text).map_err(strange)?;
        if version > VERSION {
            return Err(EndpointError::Version(version));
        }
        serde_json::from_str(text).map_err(strange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let endpoint = Endpoint::new("c", 2, vec!["a:1".into(), "b:1".into()]);
        assert_eq!(Endpoint::from_json(&endpoint.to_json()), Ok(endpoint));
    }

    #[test]
    fn later_fields_are_passed_over_and_later_versions_refused() {
        let with = |version: u32| {
            let fields = r#""cluster_id": "c", "node": 1, "addresses": ["a:1"], "hue": "red""#;
            Endpoint::from_json(&format!(r#"{{"version": {version}, {fields}}}"#))
        };
        assert_eq!(with(1), Ok(Endpoint::new("c", 1, vec!["a:1".into()])));
        assert_eq!(with(2), Err(EndpointError::Version(2)));
        for text in ["", "{}", r#"{"version": 1}"#, r#"{"version": 1, "cluster_id""#] {
            assert!(matches!(Endpoint::from_json(text), Err(EndpointError::Strange(_))), "{text}");
        }
    }
}
