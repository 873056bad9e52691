//! Logs on stderr, for those who ask for them.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::error::Problem;

const VARIABLE: &str = "SHARDFEED_LOG";
const FILTER_DEFAULT: &str = "warn";

/// Starts logging as `SHARDFEED_LOG` says; warnings and errors only, if it says nothing.
pub(crate) fn start() -> anyhow::Result<()> {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let wanted = if wanted.is_empty() { FILTER_DEFAULT } else { &wanted };
    let filter = EnvFilter::try_new(wanted).map_err(|error| {
        Problem::usage(format!("{VARIABLE}={wanted}: {error}"))
            .hint("use a level (error, warn, info, debug, trace) or target=level, by commas")
    })?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(!no_color && io::stderr().is_terminal())
        .init();
    Ok(())
}
