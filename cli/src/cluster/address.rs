//! Where a coordinator is.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a coordinator is if nobody says: the default of its own `listen`.
const DEFAULT: &str = "127.0.0.1:7070";

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Address(String);

impl Address {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it goes without saying.
    pub(crate) fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }
}

impl Default for Address {
    fn default() -> Self {
        Self(DEFAULT.into())
    }
}

impl From<SocketAddr> for Address {
    /// The address of a port that listens, as seen from its own host.
    fn from(address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".into(),
            SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".into(),
            SocketAddr::V4(v4) => v4.ip().to_string(),
            SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
        };
        Self(format!("{host}:{}", address.port()))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let parts = bare.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        let is_host = |host: &str| {
            let plain = host.trim_start_matches('[').trim_end_matches(']');
            let bracketed = plain.len() + 2 == host.len();
            let known = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            let inner = |c: char| known(c) || bracketed && ":%".contains(c);
            !plain.is_empty() && plain.chars().all(inner)
        };
        match parts {
            Some((host, Ok(1..))) if is_host(host) => Ok(Self(bare.to_owned())),
            _ => Err(format!("write HOST:PORT, such as {DEFAULT}")),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_a_host_and_a_port() {
        for (text, address) in [
            ("localhost:7070", "localhost:7070"),
            ("http://10.0.0.7:1/", "10.0.0.7:1"),
            ("[::1]:7070", "[::1]:7070"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().as_str(), address);
        }
        for text in ["", "host", "host:", ":70", "host:0", "host:70000", "::1:70", "a/b:1", "ü:1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_on_all_interfaces_is_reached_on_the_loopback() {
        let seen = |text: &str| Address::from(text.parse::<SocketAddr>().unwrap()).to_string();
        assert_eq!(seen("0.0.0.0:7070"), "127.0.0.1:7070");
        assert_eq!(seen("[::]:1"), "[::1]:1");
        assert_eq!(seen("10.0.0.7:1"), "10.0.0.7:1");
    }
}
