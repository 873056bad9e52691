//! Limits for access to stores, from the environment.

use std::ffi::OsStr;
use std::time::Duration;

use crate::error::LoadError;

/// Maximum number of requests in flight in this process, independent of its number of streams.
const REQUESTS: usize = 64;
/// Maximum time for one range after its first failure.
const RETRY_SECONDS: f64 = 120.0;
/// Time without a byte after which a request is cancelled and repeated.
const STALL_SECONDS: f64 = 15.0;

/// First and longest pause after a failure.
pub(super) const PAUSE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(15));

/// Maximum pause that a server may request.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) requests: usize,
    pub(crate) retry: Duration,
    pub(crate) stall: Duration,
}

impl Limits {
    /// # Errors  A variable that is not a positive number below a million.
    pub(crate) fn from_environment() -> Result<Self, LoadError> {
        let requests = number("SHARDFEED_STORE_REQUESTS", REQUESTS as f64)?;
        let seconds = |name, default| number(name, default).map(Duration::from_secs_f64);
        Ok(Self {
            requests: (requests as usize).clamp(1, 4096),
            retry: seconds("SHARDFEED_STORE_RETRY_SECONDS", RETRY_SECONDS)?,
            stall: seconds("SHARDFEED_STORE_STALL_SECONDS", STALL_SECONDS)?,
        })
    }
}

fn number(name: &str, default: f64) -> Result<f64, LoadError> {
    let Some(text) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
        return Ok(default);
    };
    parsed(name, &text, default)
}

fn parsed(name: &str, text: &OsStr, default: f64) -> Result<f64, LoadError> {
    let number = text.to_str().and_then(|text| text.parse::<f64>().ok());
    match number.filter(|number| *number > 0.0 && *number < 1e6) {
        Some(number) => Ok(number),
        None => Err(LoadError::Option(format!(
            "{name}={} says no number above 0 and below a million; unset it for {default}",
            text.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_is_no_number_is_told_with_what_holds_without_it() {
        for text in ["0", "many", "-1", "1e6", "nan"] {
            let error = parsed("SHARDFEED_STORE_RETRY_SECONDS", OsStr::new(text), 120.0);
            assert_eq!(
                error.unwrap_err().to_string(),
                format!(
                    "SHARDFEED_STORE_RETRY_SECONDS={text} says no number above 0 and below a million; \
                     unset it for 120"
                )
            );
        }
        assert_eq!(parsed("SHARDFEED_STORE_REQUESTS", OsStr::new("7"), 64.0).unwrap(), 7.0);
    }
}
