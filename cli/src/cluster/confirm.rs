//! What is gone for good is asked for twice.

use clap::Args;

use crate::error::Problem;

/// The word that it is meant.
#[derive(Debug, Args)]
pub(super) struct Confirm {
    /// Do it: this cannot be taken back
    #[arg(long)]
    yes: bool,
}

impl Confirm {
    /// Refuses what is not meant.
    /// - `what`: what would happen, as a sentence.
    pub(super) fn check(&self, what: &str) -> anyhow::Result<()> {
        match self.yes {
            true => Ok(()),
            false => Err(Problem::usage(format!("{what}; this cannot be taken back"))
                .hint("give --yes if it is meant")
                .into()),
        }
    }
}
