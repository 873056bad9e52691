//! Logging set-up, called once by each binary: levels from `SHARDFEED_LOG`, format from
//! `SHARDFEED_LOG_FORMAT`. All lines go to stderr, since stdout is for data.
//!
//! This crate must not decide which events are logged, and libraries must not call it. [`process`]
//! provides the resource use of a process for /metrics.
#![forbid(unsafe_code)]

pub mod process;

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Environment variable with the log levels per target, for example `info,shardfeed_agent=debug`.
pub const FILTER_VARIABLE: &str = "SHARDFEED_LOG";

/// Environment variable with the line format: `text` (the default) or `json`, one object per line.
pub const FORMAT_VARIABLE: &str = "SHARDFEED_LOG_FORMAT";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("{variable}={value}: {reason}")]
    Variable { variable: &'static str, value: String, reason: String },
    #[error("logging is set up already")]
    Twice,
}

impl TelemetryError {
    /// Returns the remedy, for a `hint:` line.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Variable { variable: FILTER_VARIABLE, .. } => Some(
                "use a level (error, warn, info, debug, trace) or target=level, separated by commas",
            ),
            Self::Variable { .. } => Some("use text or json"),
            Self::Twice => None,
        }
    }
}

/// Starts logging to stderr as configured by the environment.
/// - `filter_default`: value of [`FILTER_VARIABLE`] if it is unset or empty.
///
/// # Errors  `Variable`; `Twice`.
pub fn init(filter_default: &str) -> Result<(), TelemetryError> {
    let ansi = has_colors(&variable("NO_COLOR"), io::stderr().is_terminal());
    init_with(filter_default, &variable, io::stderr, ansi)
}

/// Returns true if lines are colored; `no_color`: value of `NO_COLOR`. Source: no-color.org.
fn has_colors(no_color: &str, is_terminal: bool) -> bool {
    is_terminal && no_color.is_empty()
}

/// Like [`init`], with a given environment and writer.
/// - `variable`: returns the value of an environment variable, empty if unset. `ansi`: use colors.
///
/// # Errors  `Variable`; `Twice`.
pub fn init_with<W>(
    filter_default: &str,
    variable: &dyn Fn(&'static str) -> String,
    writer: W,
    ansi: bool,
) -> Result<(), TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = filter(filter_default, variable(FILTER_VARIABLE))?;
    let format = format(variable(FORMAT_VARIABLE))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let started = match format {
        LogFormat::Text => lines.with_ansi(ansi).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    started.map_err(|_| TelemetryError::Twice)
}

fn variable(name: &'static str) -> String {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
}

fn filter(default: &str, wanted: String) -> Result<EnvFilter, TelemetryError> {
    let wanted = if wanted.is_empty() { default.to_owned() } else { wanted };
    EnvFilter::try_new(&wanted).map_err(|error| TelemetryError::Variable {
        variable: FILTER_VARIABLE,
        value: wanted,
        reason: error.to_string(),
    })
}

fn format(wanted: String) -> Result<LogFormat, TelemetryError> {
    match wanted.as_str() {
        "" | "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(TelemetryError::Variable {
            variable: FORMAT_VARIABLE,
            value: wanted,
            reason: "not a format of log lines".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn says_what_is_wrong_with_a_variable() {
        let error = filter("warn", "a=loud".into()).unwrap_err();
        assert!(error.to_string().starts_with("SHARDFEED_LOG=a=loud: "), "{error}");
        assert!(error.hint().unwrap().starts_with("use a level"));
        let error = format("xml".into()).unwrap_err();
        assert_eq!(error.to_string(), "SHARDFEED_LOG_FORMAT=xml: not a format of log lines");
        assert_eq!(error.hint(), Some("use text or json"));
        assert_eq!(format(String::new()).unwrap(), LogFormat::Text);
    }

    #[test]
    fn lines_have_colors_on_a_terminal_that_was_not_asked_to_have_none() {
        assert!(has_colors("", true));
        for (no_color, is_terminal) in [("1", true), ("0", true), ("", false), ("1", false)] {
            assert!(!has_colors(no_color, is_terminal), "{no_color} {is_terminal}");
        }
    }

    #[test]
    fn one_object_a_line_and_only_once_in_a_process() {
        let lines = Lines::default();
        let writer = lines.clone();
        let variable = |name| if name == FORMAT_VARIABLE { "json".into() } else { String::new() };
        init_with("info", &variable, move || writer.clone(), false).unwrap();
        tracing::info!(shard = 3, "began");
        tracing::debug!("not this one");
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with('{') && first.contains(r#""shard":3"#), "{first}");
        assert_eq!(rest, "");
        assert!(matches!(init("warn"), Err(TelemetryError::Twice)));
    }
}
