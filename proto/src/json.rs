//! JSON of the messages that commands print: forms of fields that differ from those on the wire.
//! `tests/generated.rs` lists the messages and which field has which form.

use serde::{Serialize, Serializer};

use crate::common::v1::{Mode, Tail};
use crate::coordinator::v1::{
    Cordon, DatasetState, EpochState, Hold, JobPhase, MemberRole, RankState, ShardState,
    WorkerState,
};
use crate::{ErrorKind, digest_from};

/// A value of an enum that has a word for people: `SHARD_STATE_DONE` is `done`.
pub trait Word: TryFrom<i32> + Default {
    fn word(self) -> String;
}

/// Implements [`Word`]. After the name of each enum follows the word of its unspecified value.
macro_rules! words {
    ($($name:ident: $unspecified:literal,)*) => {$(
        impl Word for $name {
            fn word(self) -> String {
                let prefix = Self::Unspecified.as_str_name().trim_end_matches("UNSPECIFIED");
                match self {
                    Self::Unspecified => $unspecified.to_owned(),
                    _ => self.as_str_name().trim_start_matches(prefix).to_ascii_lowercase(),
                }
            }
        }
    )*};
}

words! {
    Cordon: "open", // A coordinator of an earlier release knows no cordons.
    DatasetState: "unknown",
    EpochState: "unknown",
    ErrorKind: "unknown",
    Hold: "unknown",
    JobPhase: "unknown",
    MemberRole: "unknown",
    Mode: "deterministic",
    RankState: "unknown",
    ShardState: "unknown",
    Tail: "unknown",
    WorkerState: "unknown",
}

pub(crate) fn word<E: Word, S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&E::try_from(*value).unwrap_or_default().word())
}

/// `null` if the text is empty.
pub(crate) fn known<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(to)
}

/// `null` unless the number is positive.
pub(crate) fn positive<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
    Some(number).filter(|number| **number > 0.0).serialize(to)
}

/// `null` if the digest is not known yet.
pub(crate) fn digest<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    digest_from("digest", bytes).ok().serialize(to)
}

pub(crate) fn digests<S: Serializer>(digests: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(digests.iter().filter_map(|bytes| digest_from("digest", bytes).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_enums_are_words() {
        assert_eq!(ShardState::Done.word(), "done");
        assert_eq!(ShardState::Unspecified.word(), "unknown");
        assert_eq!(MemberRole::Learner.word(), "learner");
        assert_eq!(Cordon::Unspecified.word(), "open");
    }
}
