//! Classification of failed requests: retry, gone, changed, or permanent.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use object_store::Error;
use object_store::client::HttpError;

use super::limits::{Limits, PAUSE, RETRY_AFTER_MAX};
use super::location::Scheme;
use super::transport::{Refused, text_of};
use crate::backoff::jittered;

/// Maximum number of kinds of failure in a message.
const KINDS_MAX: usize = 4;

/// Meaning of a failure.
#[derive(Debug)]
pub(super) enum StoreFault {
    /// A retry may succeed.
    Passing { reason: String, retry_after: Option<Duration> },
    /// The object does not exist.
    Gone,
    /// The object exists, but in another version.
    Changed,
    /// A retry will not succeed.
    Lasting { reason: String, hint: &'static str },
}

impl StoreFault {
    pub(super) fn passing(reason: impl Into<String>) -> Self {
        Self::Passing { reason: reason.into(), retry_after: None }
    }

    /// Classifies an error of object_store.
    pub(super) fn of(scheme: Scheme, error: &Error) -> Self {
        match error {
            Error::NotFound { .. } => return Self::Gone,
            Error::Precondition { .. } | Error::NotModified { .. } => return Self::Changed,
            Error::PermissionDenied { source, .. } | Error::Unauthenticated { source, .. } => {
                let reason = format!("access is denied{}", text_of(&source.to_string()));
                return Self::Lasting { reason, hint: access_hint(scheme) };
            }
            Error::NotSupported { .. } if scheme.is_web() => {
                let reason = "the server does not serve ranges".into();
                return Self::Lasting { reason, hint: "use one that does, or copy the files" };
            }
            _ => {}
        }
        if let Some(refused) = find::<Refused>(error) {
            return match refused.status {
                _ if refused.is_passing() => Self::Passing {
                    reason: refused.to_string(),
                    retry_after: refused.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX)),
                },
                404 | 410 => Self::Gone,
                401 | 403 => {
                    let reason = format!("access is denied{}", refused.text);
                    Self::Lasting { reason, hint: access_hint(scheme) }
                }
                // The range is beyond the end of the current object.
                416 => Self::Changed,
                _ => Self::Lasting { reason: refused.to_string(), hint: refusal_hint(scheme) },
            };
        }
        match find::<HttpError>(error) {
            Some(http) => Self::passing(deepest(http)),
            // Invalid headers or an invalid range: a temporary fault of a proxy or a server.
            None => Self::passing(deepest(error)),
        }
    }
}

/// Returns the first error of this type in a chain.
fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Returns the text of a chain's last error, which is the cause.
pub(super) fn deepest(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string().chars().filter(|c| !c.is_control()).take(300).collect()
}

/// Returns the remedy when access is denied.
pub(super) fn access_hint(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => {
            "check that the credentials may read it: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
             AWS_PROFILE, or the role of this host; AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        Scheme::Gs => {
            "check that the account of GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT, or of \
             this host, may read it; GOOGLE_SKIP_SIGNATURE=true for a public bucket"
        }
        Scheme::Az => {
            "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the identity of this \
             host; AZURE_SKIP_SIGNATURE=true for a public container"
        }
        Scheme::Http | Scheme::Https => "the server wants a login, which is not supported",
    }
}

fn refusal_hint(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "check AWS_REGION and AWS_ENDPOINT_URL, and the bucket's name",
        Scheme::Gs => "check GOOGLE_BASE_URL and the bucket's name",
        Scheme::Az => "check AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT and the container",
        Scheme::Http | Scheme::Https => "check the URL",
    }
}

/// Attempts for one object or range, and their time limit.
#[derive(Debug)]
pub(super) struct Attempts {
    limits: Limits,
    begun: Instant,
    failed_first: Option<Instant>,
    pub(super) failures: u32,
    /// Reasons, and the number of failures for each.
    reasons: Vec<(String, u32)>,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new(limits: Limits) -> Self {
        let begun = Instant::now();
        Self { limits, begun, failed_first: None, failures: 0, reasons: vec![], pause: PAUSE.0 }
    }

    /// Records a failure; returns the pause before the next attempt, or `None` if the time is up.
    pub(super) fn failed(
        &mut self,
        reason: String,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        self.failures += 1;
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.reasons.push((reason, 1)),
        }
        let since = self.failed_first.get_or_insert_with(Instant::now).elapsed();
        let pause = jittered(self.pause).max(retry_after.unwrap_or_default());
        self.pause = (2 * self.pause).min(PAUSE.1);
        (since + pause < self.limits.retry).then_some(pause)
    }

    /// Returns a human-readable summary of the attempts.
    pub(super) fn told(&self) -> String {
        let reasons = self.reasons.iter().rev().take(KINDS_MAX);
        let reasons: Vec<_> =
            reasons.map(|(reason, count)| format!("{count} x {reason}")).collect();
        let mut told = reasons.join(", ");
        if self.reasons.len() > KINDS_MAX {
            told += ", and others";
        }
        format!(
            "gave up after {} attempts in {:.1} s: {told}",
            self.failures,
            self.begun.elapsed().as_secs_f64()
        )
    }
}

/// Remedy when a store does not answer in time.
pub(super) const PATIENCE_HINT: &str = "check the network, the endpoint and the store's state; \
     SHARDFEED_STORE_RETRY_SECONDS sets how long requests are retried";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_when_their_time_is_up_and_say_what_was_met() {
        let limits = Limits {
            requests: 1,
            retry: Duration::from_millis(350),
            stall: Duration::from_secs(1),
        };
        let mut attempts = Attempts::new(limits);
        let first = attempts.failed("HTTP status 503".into(), None).unwrap();
        assert!((Duration::from_millis(50)..=Duration::from_millis(100)).contains(&first));
        let asked = Some(Duration::from_millis(300));
        assert_eq!(attempts.failed("HTTP status 503".into(), asked), asked);
        assert_eq!(attempts.failed("reset".into(), Some(Duration::from_secs(1))), None);
        let told = attempts.told();
        assert!(told.starts_with("gave up after 3 attempts in "), "{told}");
        assert!(told.ends_with("1 x reset, 2 x HTTP status 503"), "{told}");
    }

    #[test]
    fn every_lasting_fault_says_what_to_check_in_its_store() {
        let denied = || Error::PermissionDenied {
            path: "a".into(),
            source: "<Error><Code>AccessDenied</Code><Message>No.</Message></Error>".into(),
        };
        let refused = |status| {
            let refused = Refused { status, retry_after: None, text: " (no such region)".into() };
            Error::Generic { store: "test", source: refused.into() }
        };
        let mut said = Vec::new();
        for scheme in [Scheme::S3, Scheme::Gs, Scheme::Az, Scheme::Https] {
            for error in [denied(), refused(403), refused(400)] {
                let StoreFault::Lasting { reason, hint } = StoreFault::of(scheme, &error) else {
                    panic!("{error} is lasting");
                };
                let line = format!("{}: {reason}; {hint}", scheme.name());
                if !said.contains(&line) {
                    said.push(line);
                }
            }
        }
        let whole = Error::NotSupported { source: "a whole body".into() };
        let StoreFault::Lasting { reason, hint } = StoreFault::of(Scheme::Http, &whole) else {
            panic!("{whole} is lasting");
        };
        said.push(format!("http: {reason}; {hint}"));
        assert_eq!(
            said,
            [
                "s3: access is denied (AccessDenied: No.); check that the credentials may read it: \
                 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of this \
                 host; AWS_SKIP_SIGNATURE=true for a public bucket",
                "s3: access is denied (no such region); check that the credentials may read it: \
                 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of this \
                 host; AWS_SKIP_SIGNATURE=true for a public bucket",
                "s3: HTTP status 400 (no such region); check AWS_REGION and AWS_ENDPOINT_URL, and \
                 the bucket's name",
                "gs: access is denied (AccessDenied: No.); check that the account of \
                 GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT, or of this host, may \
                 read it; GOOGLE_SKIP_SIGNATURE=true for a public bucket",
                "gs: access is denied (no such region); check that the account of \
                 GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT, or of this host, may \
                 read it; GOOGLE_SKIP_SIGNATURE=true for a public bucket",
                "gs: HTTP status 400 (no such region); check GOOGLE_BASE_URL and the bucket's name",
                "az: access is denied (AccessDenied: No.); check AZURE_STORAGE_ACCOUNT_NAME and \
                 AZURE_STORAGE_ACCOUNT_KEY, or the identity of this host; \
                 AZURE_SKIP_SIGNATURE=true for a public container",
                "az: access is denied (no such region); check AZURE_STORAGE_ACCOUNT_NAME and \
                 AZURE_STORAGE_ACCOUNT_KEY, or the identity of this host; \
                 AZURE_SKIP_SIGNATURE=true for a public container",
                "az: HTTP status 400 (no such region); check AZURE_STORAGE_ACCOUNT_NAME, \
                 AZURE_STORAGE_ENDPOINT and the container",
                "https: access is denied (AccessDenied: No.); the server wants a login, which is \
                 not supported",
                "https: access is denied (no such region); the server wants a login, which is not \
                 supported",
                "https: HTTP status 400 (no such region); check the URL",
                "http: the server does not serve ranges; use one that does, or copy the files",
            ]
        );
    }
}
