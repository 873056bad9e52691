//! Confirmation of commands that cannot be undone.

use clap::Args;

use crate::error::Problem;

/// The confirmation.
#[derive(Debug, Args)]
pub(crate) struct Confirm {
    /// Skip the confirmation; this cannot be undone
    #[arg(long)]
    yes: bool,
}

impl Confirm {
    /// Rejects the command without a confirmation.
    /// - `what`: effect of the command, as a sentence.
    pub(crate) fn check(&self, what: &str) -> anyhow::Result<()> {
        match self.yes {
            true => Ok(()),
            false => Err(Problem::usage(format!("{what}; this cannot be undone"))
                .hint("pass --yes to confirm")
                .into()),
        }
    }
}
