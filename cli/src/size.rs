//! Sizes of options.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use shardfeed_dataset_tools::size::parse_bytes;
use toml::Value;

/// Bytes, at least `LEAST`, which is 0 or 1. In TOML a number, or a text such as `"4GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Bytes<const LEAST: u64 = 1>(u64);

pub(crate) type Space = Bytes<0>;

impl<const LEAST: u64> Bytes<LEAST> {
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl<const LEAST: u64> FromStr for Bytes<LEAST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if LEAST == 0 && text.trim() == "0" { Ok(Self(0)) } else { parse_bytes(text).map(Self) }
    }
}

impl<'de, const LEAST: u64> Deserialize<'de> for Bytes<LEAST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            other => {
                let expected = "expected a size, a number of bytes or text such as \"4GiB\"";
                let found = other.type_str();
                return Err(D::Error::custom(format!("invalid type: {found}, {expected}")));
            }
        };
        text.parse().map_err(|error| D::Error::custom(format!("size \"{text}\": {error}")))
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
        assert_eq!("0".parse(), Ok(Bytes::<0>(0)));
    }
}
