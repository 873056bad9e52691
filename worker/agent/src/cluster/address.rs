use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Default address of a coordinator: the default of the coordinator's `listen` option.
const DEFAULT: &str = "127.0.0.1:7070";

/// Maximum number of addresses in a list: more nodes than a cluster has.
const LISTED_MAX: usize = 32;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(String);

impl Address {
    /// Returns the address as `HOST:PORT`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }
}

impl Default for Address {
    fn default() -> Self {
        Self(DEFAULT.into())
    }
}

impl From<SocketAddr> for Address {
    /// Returns the address of a listening port, as seen from its own host.
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

/// The coordinators of one cluster: at least one address, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<Address>);

impl Addresses {
    /// Parses a list of addresses.
    ///
    /// # Errors  The list is empty, has more than 32 addresses, or contains an invalid one.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut listed: Vec<Address> = Vec::new();
        for text in texts {
            let address = text.trim().parse()?;
            if !listed.contains(&address) {
                listed.push(address);
            }
        }
        match listed.len() {
            0 => Err(format!("write HOST:PORT, such as {DEFAULT}")),
            1..=LISTED_MAX => Ok(Self(listed)),
            many => Err(format!("{many} addresses are more than {LISTED_MAX}")),
        }
    }

    /// Iterates in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.0.iter()
    }

    pub fn first(&self) -> &Address {
        &self.0[0]
    }

    pub fn is_one(&self) -> bool {
        self.0.len() == 1
    }

    pub fn contains(&self, address: &Address) -> bool {
        self.0.contains(address)
    }

    /// Returns the list for use in sentences: `the coordinator at a:1`,
    /// `the coordinators at a:1, b:1 and c:1`.
    pub fn named(&self) -> String {
        let [earlier @ .., last] = &self.0[..] else {
            return "no coordinator".into();
        };
        let earlier: Vec<_> = earlier.iter().map(Address::as_str).collect();
        match earlier.is_empty() {
            true => format!("the coordinator at {last}"),
            false => format!("the coordinators at {} and {last}", earlier.join(", ")),
        }
    }
}

impl Default for Addresses {
    fn default() -> Self {
        Address::default().into()
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl FromStr for Addresses {
    type Err = String;

    /// Parses addresses that are separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::new(text.split(','))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(Address::as_str).collect();
        f.write_str(&texts.join(","))
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
    fn lists_have_commas_and_name_each_address_once() {
        let list: Addresses = "a:1, b:2,http://a:1/,c:3".parse().unwrap();
        assert_eq!(list.to_string(), "a:1,b:2,c:3");
        assert_eq!(list.named(), "the coordinators at a:1, b:2 and c:3");
        assert_eq!("a:1".parse::<Addresses>().unwrap().named(), "the coordinator at a:1");
        let many: Vec<_> = (1..=33).map(|port| format!("a:{port}")).collect();
        let error = many.join(",").parse::<Addresses>().unwrap_err();
        assert_eq!(error, "33 addresses are more than 32");
    }

    #[test]
    fn a_port_on_all_interfaces_is_reached_on_the_loopback() {
        let seen = |text: &str| Address::from(text.parse::<SocketAddr>().unwrap()).to_string();
        assert_eq!(seen("0.0.0.0:7070"), "127.0.0.1:7070");
        assert_eq!(seen("[::]:1"), "[::1]:1");
        assert_eq!(seen("10.0.0.7:1"), "10.0.0.7:1");
    }
}
