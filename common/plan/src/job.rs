//! Job identity: everything that determines the order. Source: docs/ORDER.md, section 8.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::{ContentDigest, Digest, JobDigest};
use crate::line::Shuffle;
use crate::{ORDER_VERSION, PlanError};

/// Decoder name of jobs that decode no images.
pub const DECODER_NONE: &str = "none";

/// Handling of a last step that the samples do not fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tail {
    /// Omit the incomplete step; all ranks have equal steps.
    Drop,
    /// Fill the incomplete step with samples marked not valid; all ranks have equal steps.
    Pad,
    /// Deliver every sample once; the last batches are short and ranks may differ by one step.
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

/// Assignment of samples to ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By the plan: a pure function of ordinals.
    #[default]
    Deterministic,
    /// By the coordinator, in the order of the ranks' claims. See `docs/ORDER.md`, section 10.
    Dynamic,
}

impl Mode {
    /// Checks that the mode supports the tail: dynamic jobs support only `uneven`.
    ///
    /// # Errors  `DynamicTail`.
    pub fn check_tail(self, tail: Tail) -> Result<(), PlanError> {
        match (self, tail) {
            (Self::Deterministic, _) | (Self::Dynamic, Tail::Uneven) => Ok(()),
            (Self::Dynamic, Tail::Drop | Tail::Pad) => Err(PlanError::DynamicTail { tail }),
        }
    }

    /// Returns true for the default, which is omitted when serialized.
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

/// Everything that determines the position of each sample and the values of a record. World size,
/// rank, batch size, prefetch, threads and paths are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobIdentity {
    /// Content digest, seed and shuffle.
    pub shuffle: Shuffle,
    /// Lanes of the first segment of the job; 1 in a dynamic job, where they have no effect.
    pub lanes: u64,
    /// Handling of the end of an epoch.
    pub tail: Tail,
    /// Assignment of samples to ranks. The default is omitted when serialized, so that identities
    /// and logs from before this field existed read the same.
    #[serde(default, skip_serializing_if = "Mode::is_deterministic")]
    pub mode: Mode,
    /// Processing of a record.
    #[serde(flatten)]
    pub records: Records,
    /// Version of the pixel contract, or [`DECODER_NONE`].
    pub decoder: String,
}

/// Reference to the processing of a record in an identity: parsing, operators, outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Records {
    /// Digest of the canonical encoding of the job's `RecordSpec`.
    RecordSpec(Digest),
    /// One line of text: jobs of releases before `RecordSpec`, whose logs and snapshots remain
    /// readable.
    Operators(String),
}

impl Records {
    /// Returns name and value of the identity's field.
    fn field(&self) -> (&'static str, String) {
        match self {
            Self::RecordSpec(digest) => (RECORD_SPEC_FIELD, digest.to_string()),
            Self::Operators(line) => ("operators", one_line(line)),
        }
    }
}

/// Name of the identity's field with the digest of a `RecordSpec`.
pub const RECORD_SPEC_FIELD: &str = "record_spec";

fn one_line(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// A field in which two identities differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the field.
    pub field: String,
    /// Value on the left.
    pub left: String,
    /// Value on the right.
    pub right: String,
}

impl JobIdentity {
    /// Returns the fields by name, as text. Newlines in free text are escaped.
    pub fn fields(&self) -> [(&'static str, String); 12] {
        let Shuffle { content, seed, enabled, window, interleave, block_length } = &self.shuffle;
        // A number that has no effect is 0, so that it cannot make two equal jobs differ.
        let number = |value: &u64, decides: bool| if decides { *value } else { 0 }.to_string();
        let takes_turns = *enabled || *interleave > 1;
        [
            ("order", ORDER_VERSION.to_string()),
            ("content", content.to_string()),
            ("seed", seed.to_string()),
            ("shuffle", enabled.to_string()),
            ("window", number(window, *enabled)),
            ("interleave", number(interleave, takes_turns)),
            ("block_length", number(block_length, takes_turns)),
            ("lanes", self.lanes.to_string()),
            ("tail", self.tail.to_string()),
            ("mode", self.mode.to_string()),
            self.records.field(),
            ("decoder", one_line(&self.decoder)),
        ]
    }

    /// Returns the digest that is stored in states.
    pub fn digest(&self) -> JobDigest {
        let lines: Vec<String> =
            self.fields().iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let parts = std::iter::once("shardfeed job\n").chain(lines.iter().map(String::as_str));
        Digest::of_parts(parts.map(str::as_bytes))
    }

    /// Returns tail and mode from [`JobIdentity::field_checks`] of a job; `None` if another build
    /// wrote them.
    pub(crate) fn checked_tail(checks: &str) -> Option<(Tail, Mode)> {
        let mut checks = checks.split(',').skip(8);
        Some((checks.next()?.parse().ok()?, checks.next()?.parse().ok()?))
    }

    /// Returns the values of all fields separated by commas, so that the differences to a state of
    /// another job can be shown. A long value is `#` and the first 8 hex digits of its digest.
    pub fn field_checks(&self) -> String {
        let is_plain = |value: &str| value.len() <= 20 && !value.contains([',', '#']);
        let check = |value: &str| match is_plain(value) {
            true => value.to_owned(),
            false => format!("#{:.8}", Digest::of_parts([value.as_bytes()]).to_string()),
        };
        self.fields().map(|(_, value)| check(&value)).join(",")
    }

    /// Returns true if the coordinator assigns samples as ranks claim them.
    pub fn is_dynamic(&self) -> bool {
        self.mode == Mode::Dynamic
    }

    /// Returns the content digest of the dataset.
    pub fn content(&self) -> ContentDigest {
        self.shuffle.content
    }
}

/// Returns the fields in which two identities differ.
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
        let (records, decoder) = (Records::Operators(String::new()), DECODER_NONE.to_owned());
        let (tail, mode) = (Tail::Drop, Mode::Deterministic);
        JobIdentity { shuffle, lanes: 2, tail, mode, records, decoder }
    }

    #[test]
    fn names_what_differs() {
        let one = identity();
        let mut other = identity();
        other.shuffle.window = 20;
        other.records = Records::Operators("a\nb".into());
        let differences = differences(&one, &other);
        let names: Vec<_> = differences.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(names, ["window", "operators"]);
        assert_ne!(one.digest(), other.digest());
        let checks = one.field_checks();
        let checks = checks.split_once(",#").unwrap();
        assert_eq!((checks.0, &checks.1[8..]), ("0", ",1,true,10,4,1,2,drop,deterministic,,none"));
        let tail = JobIdentity::checked_tail(&one.field_checks());
        assert_eq!(tail, Some((Tail::Drop, Mode::Deterministic)));
        assert_eq!(JobIdentity::checked_tail("drop,dynamic"), None);
    }

    #[test]
    fn numbers_that_decide_nothing_do_not_count() {
        let mut one = identity();
        one.shuffle.enabled = false;
        let mut other = one.clone();
        other.shuffle.window = 77;
        assert_eq!(one.digest(), other.digest());
        other.shuffle.block_length = 3;
        assert_ne!(one.digest(), other.digest());
        (one.shuffle.interleave, other.shuffle.interleave) = (1, 1);
        assert_eq!(one.digest(), other.digest());
    }

    #[test]
    fn identities_of_earlier_releases_are_written_as_they_were() {
        let line = JobIdentity { records: Records::Operators("raw/1".into()), ..identity() };
        let json = serde_json::to_string(&line).unwrap();
        assert!(json.ends_with(r#""tail":"drop","operators":"raw/1","decoder":"none"}"#), "{json}");
        assert_eq!(serde_json::from_str::<JobIdentity>(&json).unwrap(), line);
        let digest = Digest::from_bytes([0xab; 32]);
        let spec = JobIdentity { records: Records::RecordSpec(digest), ..identity() };
        let json = serde_json::to_string(&spec).unwrap();
        assert!(json.contains(r#""record_spec":"abab"#), "{json}");
        assert_eq!(serde_json::from_str::<JobIdentity>(&json).unwrap(), spec);
        assert_eq!(spec.fields()[10], (RECORD_SPEC_FIELD, digest.to_string()));
        assert_eq!(differences(&line, &spec)[0].field, "operators");
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

    #[test]
    fn dynamic_jobs_have_one_tail() {
        for tail in [Tail::Drop, Tail::Pad, Tail::Uneven] {
            assert_eq!(Mode::Deterministic.check_tail(tail), Ok(()));
            let expected = match tail {
                Tail::Uneven => Ok(()),
                _ => Err(PlanError::DynamicTail { tail }),
            };
            assert_eq!(Mode::Dynamic.check_tail(tail), expected);
        }
        let said = Mode::Dynamic.check_tail(Tail::Pad).unwrap_err().to_string();
        assert_eq!(
            said,
            "mode=\"dynamic\" has tail=\"uneven\" only: with equal steps no rank could take another's \
             work; pass tail=\"uneven\", or mode=\"deterministic\" for tail=\"pad\""
        );
    }
}
