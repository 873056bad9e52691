//! Sizes of options.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use shardfeed_dataset_tools::size::parse_bytes;

/// A number of bytes, at least 1. In TOML a number, or a text such as `"4GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Bytes(u64);

impl Bytes {
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_bytes(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BytesVisitor)
    }
}

/// A number of bytes, which may be 0. Written as [`Bytes`], or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Space(u64);

impl Space {
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Space {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "0" { Ok(Self(0)) } else { parse_bytes(text).map(Self) }
    }
}

impl<'de> Deserialize<'de> for Space {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::Integer(0) => Ok(Self(0)),
            toml::Value::String(text) if text.trim() == "0" => Ok(Self(0)),
            other => {
                Bytes::deserialize(other).map(|Bytes(bytes)| Self(bytes)).map_err(D::Error::custom)
            }
        }
    }
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, a number of bytes or text such as \"4GiB\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
        text.parse().map_err(|error| E::custom(format!("size \"{text}\": {error}")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Bytes, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Bytes, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_write_numbers_or_units() {
        let read = |text: &str| serde_json::from_str::<Bytes>(text).map_err(|e| e.to_string());
        assert_eq!(read("\"4GiB\""), Ok(Bytes(4 << 30)));
        assert_eq!(read("4096"), Ok(Bytes(4096)));
        assert!(read("-1").unwrap_err().contains("size \"-1\""));
        assert!(read("true").unwrap_err().contains("a size"));
    }

    #[test]
    fn space_may_be_none() {
        #[derive(Deserialize)]
        struct SpaceOption {
            space: Space,
        }
        for (text, bytes) in [("0", 0), ("\"0\"", 0), ("4096", 4096), ("\"1KiB\"", 1024)] {
            let read = toml::from_str::<SpaceOption>(&format!("space = {text}")).unwrap();
            assert_eq!(read.space.get(), bytes);
        }
        assert!(toml::from_str::<SpaceOption>("space = -1").is_err());
        assert!(toml::from_str::<SpaceOption>("space = \"0.1B\"").is_err());
        assert_eq!("0".parse(), Ok(Space(0)));
    }
}
