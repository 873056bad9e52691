//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

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

/// Parses `150MB`, `1.5GiB` or `4096`: a number of bytes, at least 1.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        other => {
            return Err(format!("`{other}` is no unit; use B, KB, MB, GB, KiB, MiB or GiB"));
        }
    };
    let bytes = number.parse::<f64>().map(|number| (number * scale).round());
    match bytes {
        // Above 2^53 a float cannot represent every integer; no shard is that large.
        Ok(bytes) if (1.0..=9e15).contains(&bytes) => Ok(bytes as u64),
        Ok(_) => Err("must be between 1 byte and 9,000,000 GB".into()),
        Err(_) => Err("is no size; write a number and a unit, such as 150MB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_decimal_and_binary_units() {
        let sizes = [
            ("1", 1),
            ("4096B", 4096),
            ("2KB", 2_000),
            ("150MB", 150_000_000),
            ("1.5 gb", 1_500_000_000),
            ("2KiB", 2_048),
            ("1MiB", 1 << 20),
            ("3GiB", 3 << 30),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "MB", "-1MB", "1e3", "0", "0.1B", "1.2.3MB", "5TB", "99999999GB", "١MB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

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
        struct Options {
            space: Space,
        }
        for (text, bytes) in [("0", 0), ("\"0\"", 0), ("4096", 4096), ("\"1KiB\"", 1024)] {
            let read = toml::from_str::<Options>(&format!("space = {text}")).unwrap();
            assert_eq!(read.space.get(), bytes);
        }
        assert!(toml::from_str::<Options>("space = -1").is_err());
        assert!(toml::from_str::<Options>("space = \"0.1B\"").is_err());
        assert_eq!("0".parse(), Ok(Space(0)));
    }
}
