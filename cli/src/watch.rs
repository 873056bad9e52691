//! `-w`: refreshes a view.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::error::{Exit, Problem, exit_of, report};
use crate::output::StdoutError;
use crate::{Cli, run};

/// Time between two refreshes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Clears a terminal and moves to its first line.
const CLEAR: &[u8] = b"\x1b[2J\x1b[H";

/// Refreshes a view until Ctrl-C, or until its reader closes the stream.
///
/// If the coordinators do not answer, this is reported and the request is retried.
///
/// # Errors
/// The command is not read-only, or the object that it shows does not exist.
pub(crate) fn run_again(cli: &Cli) -> anyhow::Result<()> {
    if !cli.noun.is_view() {
        return Err(Problem::usage("--watch is only for read-only commands")
            .hint("leave it out, or use `shardfeed wait`")
            .into());
    }
    let is_terminal = io::stdout().is_terminal();
    loop {
        if is_terminal {
            io::stdout().write_all(CLEAR).map_err(StdoutError::Write)?;
        }
        if let Err(error) = run(cli) {
            if exit_of(&error) != Exit::NoLeader {
                return Err(error);
            }
            report(&error);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
