//! Errors that a command detected, and exit codes.

/// Exit code of a command; scripts branch on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exit {
    /// The command failed, or found damage.
    #[default]
    Failed = 1,
    /// The request is invalid.
    Usage = 2,
    /// The named object does not exist.
    NotFound = 3,
    Denied = 4,
    /// The request conflicts with the current state, or another caller was first.
    Conflict = 5,
    /// No coordinator answers, or none leads.
    NoLeader = 6,
    /// A condition was not met in time.
    Timeout = 7,
}

/// An error that this command detected.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct Problem {
    pub what: String,
    /// Instruction that helps, if there is one.
    pub hint: Option<String>,
    pub exit: Exit,
}

impl Problem {
    pub fn failed(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, exit: Exit::Failed }
    }

    pub fn usage(what: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::failed(what) }
    }

    /// A condition that was not met in time.
    pub fn late(what: impl Into<String>) -> Self {
        Self { exit: Exit::Timeout, ..Self::failed(what) }
    }

    pub fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
pub(crate) fn text(error: &anyhow::Error) -> String {
    let Problem { what, hint, .. } = error.downcast_ref().unwrap();
    format!("error: {what}\nhint: {}\n", hint.as_deref().unwrap())
}
