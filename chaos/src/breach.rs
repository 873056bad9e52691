//! What must never be seen, by the ids of docs/INVARIANTS.md.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// Something that must never be seen was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which invariant, as docs/INVARIANTS.md numbers them.
    pub id: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.what)
    }
}

/// Collects breaches; copies share it. The first one counts: the others may follow from it.
#[derive(Clone, Debug, Default)]
pub struct Breaches(Rc<RefCell<Option<Breach>>>);

impl Breaches {
    /// Notes a breach.
    pub fn note(&self, id: &'static str, what: impl Into<String>) {
        self.0.borrow_mut().get_or_insert_with(|| Breach { id, what: what.into() });
    }

    /// Notes a breach unless `holds`.
    pub fn check(&self, holds: bool, id: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.note(id, what());
        }
    }

    /// The first one.
    pub fn first(&self) -> Option<Breach> {
        self.0.borrow().clone()
    }
}
