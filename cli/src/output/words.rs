//! Formats values of a coordinator's answers for people.

use std::time::{Duration, UNIX_EPOCH};

use shardfeed_proto::digest_from;

use crate::{duration, output};

/// Placeholder for an unknown value.
pub(crate) const NONE: &str = "-";

/// Formats a value, or the placeholder.
pub(crate) fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.into(), text)
}

pub(crate) fn number(number: Option<u64>) -> String {
    known(number, output::count)
}

pub(crate) fn time(ms: Option<u64>) -> String {
    known(ms, duration::text)
}

pub(crate) fn ago(ms: u64) -> String {
    format!("{} ago", duration::text(ms))
}

/// Formats a time in UTC, as in logs.
pub(crate) fn clock(unix_ms: u64) -> String {
    let moment = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    known(moment, |at| humantime::format_rfc3339_seconds(at).to_string())
}

pub(crate) fn text(text: &str) -> String {
    if text.is_empty() { NONE.into() } else { text.to_owned() }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    known(digest_from("digest", bytes).ok(), |digest| digest.to_string())
}

pub(crate) fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.into()
}

/// Formats a percentage, rounded down so that 100 % means all.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return NONE.into();
    }
    let tenths = u128::from(part.min(whole)) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_is_a_hundred_percent() {
        for (part, whole, text) in [
            (0, 0, "-"),
            (0, 7, "0.0 %"),
            (999_999, 1_000_000, "99.9 %"),
            (u64::MAX, u64::MAX, "100.0 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }
}
