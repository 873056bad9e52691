//! Job identity: everything that determines the order. Source: docs/ORDER.md, section 8.

mod mixture;

use std::fmt;
use std::str::FromStr;

use serde::de::value::{self, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};

use crate::digest::{ContentDigest, Digest, JobDigest, OrderDigest};
use crate::line::Shuffle;
use crate::{ORDER_VERSION, PlanError};

pub use mixture::{DatasetStage, DatasetVersion, JobMixture};

/// Decoder name of jobs that decode no images.
pub const DECODER_NONE: &str = "none";

/// Returns the variant that serde writes as this text.
pub(crate) fn named<T: DeserializeOwned>(text: &str) -> Option<T> {
    let text: StrDeserializer<'_, value::Error> = text.into_deserializer();
    T::deserialize(text).ok()
}

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
        self.serialize(f)
    }
}

impl FromStr for Tail {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        named(text).ok_or_else(|| format!("tail={text:?} is none of \"drop\", \"pad\", \"uneven\""))
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
        self.serialize(f)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        named(text)
            .ok_or_else(|| format!("mode={text:?} is none of \"deterministic\", \"dynamic\""))
    }
}

/// Everything that determines the position of each sample and the values of a record. World size,
/// rank, batch size, prefetch, threads and paths are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredIdentity", into = "StoredIdentity")]
pub struct JobIdentity {
    /// Version of the order: [`ORDER_VERSION`], or that of the release that registered the job.
    pub order: u32,
    pub content: ContentDigest,
    /// Order digest, seed and shuffle.
    pub shuffle: Shuffle,
    /// Lanes of the first segment of the job; 1 in a dynamic job, where they have no effect.
    pub lanes: u64,
    /// Handling of the end of an epoch.
    pub tail: Tail,
    pub mode: Mode,
    /// Processing of a record.
    pub records: Records,
    /// Version of the pixel contract, or [`DECODER_NONE`].
    pub decoder: String,
}

/// A [`JobIdentity`] as logs and snapshots contain it. Fields that did not exist at first are
/// omitted if they have the value of their absence, so that old logs are written as they were.
#[derive(Serialize, Deserialize)]
struct StoredIdentity {
    #[serde(default, skip_serializing_if = "is_zero")]
    order: u32,
    /// Absent with order version 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<ContentDigest>,
    shuffle: StoredShuffle,
    lanes: u64,
    tail: Tail,
    #[serde(default, skip_serializing_if = "Mode::is_deterministic")]
    mode: Mode,
    #[serde(flatten)]
    records: Records,
    decoder: String,
}

#[derive(Serialize, Deserialize)]
struct StoredShuffle {
    /// Only with order version 0, whose keys it determined. A release that knows no other version
    /// stops at an identity without it, instead of computing another order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<ContentDigest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order_digest: Option<OrderDigest>,
    seed: u64,
    enabled: bool,
    window: u64,
    interleave: u64,
    block_length: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl TryFrom<StoredIdentity> for JobIdentity {
    type Error = &'static str;

    fn try_from(stored: StoredIdentity) -> Result<Self, Self::Error> {
        let StoredIdentity { order, content, shuffle, lanes, tail, mode, records, decoder } =
            stored;
        let StoredShuffle { order_digest, seed, enabled, .. } = shuffle;
        let (content, digest) = match order {
            0 => (shuffle.content, shuffle.content),
            _ => (content, order_digest),
        };
        let (content, digest) = content.zip(digest).ok_or("an identity lacks its digests")?;
        let StoredShuffle { window, interleave, block_length, .. } = shuffle;
        let shuffle = Shuffle { digest, seed, enabled, window, interleave, block_length };
        Ok(Self { order, content, shuffle, lanes, tail, mode, records, decoder })
    }
}

impl From<JobIdentity> for StoredIdentity {
    fn from(identity: JobIdentity) -> Self {
        let JobIdentity { order, content, shuffle, lanes, tail, mode, records, decoder } = identity;
        let Shuffle { digest, seed, enabled, window, interleave, block_length } = shuffle;
        let is_first = order == 0;
        let shuffle = StoredShuffle {
            content: is_first.then_some(content),
            order_digest: (!is_first).then_some(digest),
            seed,
            enabled,
            window,
            interleave,
            block_length,
        };
        let content = (!is_first).then_some(content);
        Self { order, content, shuffle, lanes, tail, mode, records, decoder }
    }
}

/// Reference to the processing of a record in an identity: parsing, operators, outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Records {
    /// Digest of the canonical encoding of the job's `RecordSpec`.
    RecordSpec(Digest),
    /// One line of text, of jobs of releases before `RecordSpec`, which remain readable.
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

/// Name of the identity's field with the order digest.
const ORDER_DIGEST_FIELD: &str = "order_digest";

fn one_line(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// A field in which two identities differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub field: String,
    pub left: String,
    pub right: String,
}

impl JobIdentity {
    /// Checks that this software computes the order of the job.
    ///
    /// # Errors  `OtherOrderVersion`.
    pub fn check_order(&self) -> Result<(), PlanError> {
        match self.order {
            ORDER_VERSION => Ok(()),
            found => Err(PlanError::OtherOrderVersion { found }),
        }
    }

    /// Returns the fields by name, as text. Newlines in free text are escaped.
    pub fn fields(&self) -> [(&'static str, String); 13] {
        let Shuffle { digest, seed, enabled, window, interleave, block_length } = &self.shuffle;
        // A number that has no effect is 0, so that it cannot make two equal jobs differ.
        let number = |value: &u64, decides: bool| if decides { *value } else { 0 }.to_string();
        let takes_turns = *enabled || *interleave > 1;
        [
            ("order", self.order.to_string()),
            (ORDER_DIGEST_FIELD, digest.to_string()),
            ("content", self.content.to_string()),
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
        let fields = self.fields();
        // Order version 0 had no order digest.
        let fields =
            fields.iter().filter(|(name, _)| self.order > 0 || *name != ORDER_DIGEST_FIELD);
        let lines: Vec<String> = fields.map(|(name, value)| format!("{name}={value}\n")).collect();
        let parts = std::iter::once("shardfeed job\n").chain(lines.iter().map(String::as_str));
        Digest::of_parts(parts.map(str::as_bytes))
    }

    /// Returns tail and mode of [`JobIdentity::field_checks`]; `None` if another build wrote them.
    pub(crate) fn checked_tail(checks: &str) -> Option<(Tail, Mode)> {
        let mut checks = checks.split(',').skip(9);
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
    use crate::digest::order_digest;

    pub(crate) fn identity() -> JobIdentity {
        let (order, content) = (ORDER_VERSION, Digest::from_bytes([7; 32]));
        let digest = order_digest([70, 30]);
        let shuffle =
            Shuffle { digest, seed: 1, enabled: true, window: 10, interleave: 4, block_length: 1 };
        let (records, decoder) = (Records::Operators(String::new()), DECODER_NONE.to_owned());
        let (tail, mode) = (Tail::Drop, Mode::Deterministic);
        JobIdentity { order, content, shuffle, lanes: 2, tail, mode, records, decoder }
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
        let checks: Vec<&str> = checks.splitn(4, ',').collect();
        assert_eq!((checks[0], checks[1].len(), checks[2].len()), ("1", 9, 9));
        assert_eq!(checks[3], "1,true,10,4,1,2,drop,deterministic,,none");
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
        let mut line =
            JobIdentity { order: 0, records: Records::Operators("raw/1".into()), ..identity() };
        line.shuffle.digest = line.content;
        let json = serde_json::to_string(&line).unwrap();
        assert!(json.ends_with(r#""tail":"drop","operators":"raw/1","decoder":"none"}"#), "{json}");
        let sevens = "07".repeat(32);
        let start = format!(r#"{{"shuffle":{{"content":"{sevens}","seed":1,"enabled":true,"#);
        assert!(json.starts_with(&start), "{json}");
        assert_eq!(serde_json::from_str::<JobIdentity>(&json).unwrap(), line);
        // As the release with order version 0 computed it.
        let digest = "159d484d58962d9ed7579c9ac75c29dbc3a86fe2436327c5a65371b95b197e7c";
        assert_eq!(line.digest().to_string(), digest);
        let digest = Digest::from_bytes([0xab; 32]);
        let spec = JobIdentity { records: Records::RecordSpec(digest), ..identity() };
        let json = serde_json::to_string(&spec).unwrap();
        assert!(json.contains(r#""record_spec":"abab"#), "{json}");
        assert_eq!(serde_json::from_str::<JobIdentity>(&json).unwrap(), spec);
        assert_eq!(spec.fields()[11], (RECORD_SPEC_FIELD, digest.to_string()));
        assert!(json.starts_with(r#"{"order":1,"content":"0707"#), "{json}");
        for lacking in [r#""order_digest""#, r#""content""#] {
            let lacking = json.replace(lacking, r#""another""#);
            let error = serde_json::from_str::<JobIdentity>(&lacking).unwrap_err().to_string();
            assert!(error.contains("lacks its digests"), "{error}");
        }
        let names: Vec<_> = differences(&line, &spec).into_iter().map(|each| each.field).collect();
        assert_eq!(names, ["order", "order_digest", "operators"]);
    }

    #[test]
    fn jobs_of_another_order_version_are_refused_with_the_remedy() {
        assert_eq!(identity().check_order(), Ok(()));
        let refused = [0, 2].map(|order| {
            JobIdentity { order, ..identity() }.check_order().unwrap_err().to_string()
        });
        expect_test::expect![[r#"
            the job has order version 0, this shardfeed computes order version 1, which is another order; finish the job with the release that registered it, or start it again without a state, under another name or after `shardfeed job remove`
            the job has order version 2, this shardfeed computes order version 1, which is another order; upgrade shardfeed to the version that registered the job"#]].assert_eq(&refused.join("\n"));
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
