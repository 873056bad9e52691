//! `shardfeed completion` and `man`: shell completion and manual pages, generated from the
//! command's options.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;
use crate::output::StdoutError;

const COMPLETION_EXAMPLES: &str = "\
Examples:
  shardfeed completion bash > /etc/bash_completion.d/shardfeed
  source <(shardfeed completion zsh)";

const MAN_EXAMPLES: &str = "\
Examples:
  shardfeed man /usr/local/share/man/man1
  man shardfeed-shard-list";

/// Arguments of `completion`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct CompletionArgs {
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Existing folder to write the pages to, one for each command
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `completion`.
pub(crate) fn completion(args: &CompletionArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "shardfeed", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script).map_err(StdoutError::Write)?;
    Ok(())
}

/// Runs `man`.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let folder = &args.folder;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write pages to {}", folder.display()))?;
    Ok(())
}
