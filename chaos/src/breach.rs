//! Invariant violations, identified by their ids in docs/GUARANTEES.md.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Id of the invariant in docs/GUARANTEES.md.
    pub id: &'static str,
    /// Description of the observed violation.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.what)
    }
}

/// Collector of breaches, shared by its clones.
///
/// It keeps only the first breach, because later ones may be consequences of it.
#[derive(Clone, Debug, Default)]
pub struct Breaches(Rc<RefCell<Option<Breach>>>);

impl Breaches {
    /// Records a breach.
    pub fn note(&self, id: &'static str, what: impl Into<String>) {
        self.0.borrow_mut().get_or_insert_with(|| Breach { id, what: what.into() });
    }

    /// Records a breach unless `holds` is true.
    pub fn check(&self, holds: bool, id: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.note(id, what());
        }
    }

    /// Returns the first breach, if any.
    pub fn first(&self) -> Option<Breach> {
        self.0.borrow().clone()
    }
}
