//! Digests of the contents of datasets, tables and jobs.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// A SHA-256, displayed as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Digest of a dataset's content: record lengths and stored data checksums, shard by shard.
/// Moving, touching or renaming files without changing their sorted order does not change it.
pub type ContentDigest = Digest;

/// Digest of the sample counts of a dataset's shards, the key of every order: [`order_digest`].
pub type OrderDigest = Digest;

/// Digest of a [`crate::JobIdentity`].
pub type JobDigest = Digest;

/// Error: the text is not 64 hex digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hex digits, not {length} characters of `{start}`")]
pub struct DigestParseError {
    length: usize,
    start: String,
}

impl Digest {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Returns the order digest of shards with these sample counts. Source: docs/ORDER.md, Input.
pub fn order_digest(counts: impl IntoIterator<Item = u64>) -> OrderDigest {
    let mut hash = Sha256::new();
    hash.update(b"shardfeed counts 1\0");
    for count in counts {
        hash.update(count.to_le_bytes());
    }
    Digest(hash.finalize().into())
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]));
        f.write_str(&digits.collect::<String>())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || {
            let length = text.chars().count();
            let dots = if length > 8 { "..." } else { "" };
            DigestParseError { length, start: text.chars().take(8).chain(dots.chars()).collect() }
        };
        if text.len() != 64 {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(error)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

/// Value of a digit as [`Digest`] displays it: no sign and no capital letter, so that one text
/// names one digest.
fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_digest_is_that_of_the_check_vector() {
        let text = "0335e68b10b1d62345687b3c687f0e37492444b8e6f847b663237dab0f085b23";
        assert_eq!(order_digest([3, 0, 5]).to_string(), text);
    }

    #[test]
    fn reads_back_what_it_shows() {
        let digest = Digest::of_parts([b"ab".as_slice(), b"c"]);
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        let refused = |text: &str| text.parse::<Digest>().unwrap_err().to_string();
        assert_eq!(refused("ba"), "a digest is 64 hex digits, not 2 characters of `ba`");
        assert_eq!(
            refused(&"é".repeat(32)),
            "a digest is 64 hex digits, not 32 characters of `éééééééé...`"
        );
        assert_eq!(
            refused(&"xyz=".repeat(16)),
            "a digest is 64 hex digits, not 64 characters of `xyz=xyz=...`"
        );
        assert_eq!(
            refused(&"+f".repeat(32)),
            "a digest is 64 hex digits, not 64 characters of `+f+f+f+f...`"
        );
        assert!("AB".repeat(32).parse::<Digest>().is_err());
    }
}
