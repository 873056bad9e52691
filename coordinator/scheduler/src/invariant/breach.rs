//! Violated invariants.

/// A violated invariant, which is a bug of shardfeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// `what`: `answers`, `sessions`, `datasets` or `jobs`.
    #[error("the index of the {what} does not match them")]
    Filed { what: &'static str },
    #[error("{held} {what}, at most {most}")]
    Bound { what: &'static str, held: u64, most: u64 },
    /// An object is held by a session that has ended.
    #[error("{what} is held by session {session}, which does not live")]
    Holder { what: String, session: u64 },
    #[error("fencing token {fencing} of {what} was granted twice, or not yet")]
    Fencing { what: String, fencing: u64 },
    #[error("{what}: not true that {rule}")]
    Rule { what: String, rule: &'static str },
}

pub(super) type Checked = Result<(), Breach>;

pub(super) fn bound(what: &'static str, held: usize, most: usize) -> Checked {
    if held <= most {
        return Ok(());
    }
    Err(Breach::Bound { what, held: held as u64, most: most as u64 })
}

pub(super) fn rule(holds: bool, what: &str, rule: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(Breach::Rule { what: what.to_owned(), rule }) }
}
