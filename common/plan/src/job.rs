//! What fixes the order. Source: docs/ORDER.md, section 8.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ORDER_VERSION;
use crate::digest::{ContentDigest, Digest, JobDigest};
use crate::line::Shuffle;

/// The decoder of jobs that decode nothing.
pub const DECODER_NONE: &str = "none";

/// What happens when the samples do not fill the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tail {
    /// The incomplete step is left out; every rank has equal steps.
    Drop,
    /// The incomplete step is filled up with samples marked not valid; equal steps.
    Pad,
    /// Everything once; last batches are short and ranks may differ by a step.
    Uneven,
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drop => "drop",
            Self::Pad => "pad",
            Self::Uneven => "uneven",
        })
    }
}

impl FromStr for Tail {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "drop" => Ok(Self::Drop),
            "pad" => Ok(Self::Pad),
            "uneven" => Ok(Self::Uneven),
            other => Err(format!("tail={other:?} is none of \"drop\", \"pad\", \"uneven\"")),
        }
    }
}

/// Who decides which rank delivers a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The plan: a pure function of ordinals.
    #[default]
    Deterministic,
    /// The coordinator, as ranks ask: first come, first served. See `docs/ORDER.md`, section 10.
    Dynamic,
}

impl Mode {
    /// As it is left out where it is written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    fn is_deterministic(&self) -> bool {
        *self == Self::Deterministic
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deterministic => "deterministic",
            Self::Dynamic => "dynamic",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "deterministic" => Ok(Self::Deterministic),
            "dynamic" => Ok(Self::Dynamic),
            other => Err(format!("mode={other:?} is none of \"deterministic\", \"dynamic\"")),
        }
    }
}

/// Everything that decides which sample stands where, and what a record's values are.
/// World size, rank, batch size, prefetch, threads and paths are no part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobIdentity {
    /// Content digest, seed and shuffle.
    pub shuffle: Shuffle,
    /// Lanes of the first segment of the job; 1 in a dynamic one, where they decide nothing.
    pub lanes: u64,
    /// What happens at the end of an epoch.
    pub tail: Tail,
    /// Who decides which rank delivers a sample. Left out where it is written while it is the
    /// first one, so that identities and logs from before there were two read the same.
    #[serde(default, skip_serializing_if = "Mode::is_deterministic")]
    pub mode: Mode,
    /// Sample operators with their versions, as one line of text.
    pub operators: String,
    /// Id of the decoder, or [`DECODER_NONE`].
    pub decoder: String,
}

/// A field in which two identities differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the field.
    pub field: String,
    /// Its value on the left.
    pub left: String,
    /// Its value on the right.
    pub right: String,
}

impl JobIdentity {
    /// The fields, by name, as text. Newlines in free text are escaped.
    pub fn fields(&self) -> [(&'static str, String); 12] {
        let Shuffle { content, seed, enabled, window, interleave, block_length } = &self.shuffle;
        let shuffled = |value: &u64| {
            if *enabled { value.to_string() } else { "0".into() }
        };
        let one_line = |text: &str| text.replace('\\', "\\\\").replace('\n', "\\n");
        [
            ("order", ORDER_VERSION.to_string()),
            ("content", content.to_string()),
            ("seed", seed.to_string()),
            ("shuffle", enabled.to_string()),
            ("window", shuffled(window)),
            ("interleave", shuffled(interleave)),
            ("block_length", shuffled(block_length)),
            ("lanes", self.lanes.to_string()),
            ("tail", self.tail.to_string()),
            ("mode", self.mode.to_string()),
            ("operators", one_line(&self.operators)),
            ("decoder", one_line(&self.decoder)),
        ]
    }

    /// The digest that stands in tokens.
    pub fn digest(&self) -> JobDigest {
        let lines: Vec<String> =
            self.fields().iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let parts = std::iter::once("shardfeed job\n").chain(lines.iter().map(String::as_str));
        Digest::of_parts(parts.map(str::as_bytes))
    }

    /// Four hex digits for each field, so that a token of another job can say where it differs.
    pub fn field_checks(&self) -> String {
        let check = |value: &str| {
            let digest = Digest::of_parts([value.as_bytes()]);
            let [first, second, ..] = digest.as_bytes();
            format!("{first:02x}{second:02x}")
        };
        self.fields().iter().map(|(_, value)| check(value)).collect()
    }

    /// Whether ranks get what they deliver as they ask for it.
    pub fn is_dynamic(&self) -> bool {
        self.mode == Mode::Dynamic
    }

    /// The content digest of the dataset.
    pub fn content(&self) -> ContentDigest {
        self.shuffle.content
    }
}

/// The fields in which two identities differ.
pub fn differences(left: &JobIdentity, right: &JobIdentity) -> Vec<Difference> {
    let pairs = left.fields().into_iter().zip(right.fields());
    pairs
        .filter(|(left, right)| left.1 != right.1)
        .map(|((field, left), (_, right))| Difference { field: field.to_owned(), left, right })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn identity() -> JobIdentity {
        let content = Digest::from_bytes([7; 32]);
        let shuffle =
            Shuffle { content, seed: 1, enabled: true, window: 10, interleave: 4, block_length: 1 };
        let (operators, decoder) = (String::new(), DECODER_NONE.to_owned());
        let (tail, mode) = (Tail::Drop, Mode::Deterministic);
        JobIdentity { shuffle, lanes: 2, tail, mode, operators, decoder }
    }

    #[test]
    fn names_what_differs() {
        let one = identity();
        let mut other = identity();
        other.shuffle.window = 20;
        other.operators = "a\nb".into();
        let differences = differences(&one, &other);
        let names: Vec<_> = differences.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(names, ["window", "operators"]);
        assert_ne!(one.digest(), other.digest());
        assert_eq!(one.field_checks().len(), 48);
    }

    #[test]
    fn numbers_that_decide_nothing_do_not_count() {
        let mut one = identity();
        one.shuffle.enabled = false;
        let mut other = one.clone();
        other.shuffle.window = 77;
        assert_eq!(one.digest(), other.digest());
    }

    #[test]
    fn the_first_mode_is_not_written() {
        let json = serde_json::to_string(&identity()).unwrap();
        assert!(!json.contains("mode"), "{json}");
        assert_eq!(serde_json::from_str::<JobIdentity>(&json).unwrap(), identity());
        let dynamic = JobIdentity { mode: Mode::Dynamic, ..identity() };
        let json = serde_json::to_string(&dynamic).unwrap();
        assert!(json.contains(r#""mode":"dynamic""#), "{json}");
        assert_eq!(serde_json::from_str::<JobIdentity>(&json).unwrap(), dynamic);
        let differing = differences(&identity(), &dynamic);
        assert_eq!((differing.len(), differing[0].field.as_str()), (1, "mode"));
        assert_eq!("dynamic".parse(), Ok(Mode::Dynamic));
        let slow = "slow".parse::<Mode>().unwrap_err();
        assert_eq!(slow, "mode=\"slow\" is none of \"deterministic\", \"dynamic\"");
        let cut = "cut".parse::<Tail>().unwrap_err();
        assert_eq!(cut, "tail=\"cut\" is none of \"drop\", \"pad\", \"uneven\"");
    }
}
