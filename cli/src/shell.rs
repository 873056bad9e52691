//! `shardfeed completion` and `man`: generated from the command's options.

use std::io;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use crate::output::StdoutError;

pub(crate) const COMPLETION_EXAMPLES: &str = "\
Examples:
  shardfeed completion bash > /etc/bash_completion.d/shardfeed
  source <(shardfeed completion zsh)";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  shardfeed man /usr/local/share/man/man1
  man shardfeed-shard-list";

pub(crate) fn completion(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shardfeed", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script).map_err(StdoutError::Write)?;
    Ok(())
}

pub(crate) fn man(folder: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write pages to {}", folder.display()))
}
