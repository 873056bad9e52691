//! Durations as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest duration that an option takes, seconds: ten years.
const SECONDS_MAX: f64 = 3_650.0 * 86_400.0;

/// Parses `500ms`, `10s`, `2min` or `90d`: 1 ms to ten years.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err("write a number and a unit: ms, s, min, h or d, such as 10s".into()),
    };
    match number.parse::<f64>().map(|number| number * scale) {
        Ok(seconds) if (0.001..=SECONDS_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Ok(_) => Err("must be between 1ms and 3650d".into()),
        Err(_) => Err("is no time; write a number and a unit, such as 10s".into()),
    }
}

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
        for (text, ms) in [
            ("10s", 10_000),
            ("1.5 s", 1_500),
            ("500ms", 500),
            ("2min", 120_000),
            ("25h", 90_000_000),
            ("2d", 172_800_000),
            ("3650d", 315_360_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "10", "s", "0s", "-1s", "3651d", "1.2.3s", "1 year"] {
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
