//! Durations as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Parses `10s`, `500ms` or `2min`: more than 0, at most a day.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("write a number and a unit: ms, s, min or h, such as 10s".into()),
    };
    match number.parse::<f64>().map(|number| number * scale) {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Ok(_) => Err("must be between 1ms and 24h".into()),
        Err(_) => Err("is no time; write a number and a unit, such as 10s".into()),
    }
}

/// Parses `30min`, `12h` or `90d`: a minute to ten years.
pub(crate) fn parse_long(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim() {
        "s" => 1,
        "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write a whole number and a unit: s, min, h or d, such as 90d".into()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    match seconds.filter(|seconds| (1..=TEN_YEARS_S).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("must be between 1s and 3650d".into()),
    }
}

/// Maximum duration: nothing needs more.
const TEN_YEARS_S: u64 = 3_650 * 86_400;

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    ms(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Formats a duration in whole units: days, hours and minutes from 2 on, else seconds or ms.
pub(crate) fn text(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in [("10s", 10_000), ("1.5 s", 1_500), ("500ms", 500), ("2min", 120_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "10", "s", "0s", "-1s", "25h", "1.2.3s", "1 year"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_unit_is_enough() {
        for (ms, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (3_999, "3 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_199_999, "119 min"),
            (7_200_000, "2 h"),
            (400_000_000, "4 d"),
        ] {
            assert_eq!(text(ms), expected);
        }
    }
}
