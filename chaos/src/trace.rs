//! What happened, as a hash that a second run of the seed must reproduce, and as lines for people.

use std::cell::RefCell;
use std::rc::Rc;

use sha2::{Digest, Sha256};

use crate::sim::SimTime;

/// The story of a run; copies share it.
#[derive(Clone, Debug)]
pub struct Trace {
    time: SimTime,
    hash: Rc<RefCell<Sha256>>,
    is_shown: bool,
}

impl Trace {
    /// Time since the beginning, ms.
    pub fn ms(&self) -> u64 {
        self.time.ms()
    }

    /// An empty story.
    /// - `is_shown`: whether each line goes to stderr, too.
    pub fn new(time: SimTime, is_shown: bool) -> Self {
        Self { time, hash: Rc::default(), is_shown }
    }

    /// Adds a line.
    pub fn tell(&self, line: impl AsRef<str>) {
        let line = format!("{:>6} {}\n", self.time.ms(), line.as_ref());
        self.hash.borrow_mut().update(line.as_bytes());
        if self.is_shown {
            use std::io::Write;
            // Whoever reads may have gone; the run does not depend on it.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// The hash of all lines so far.
    pub fn hash(&self) -> String {
        let digest = self.hash.borrow().clone().finalize();
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
