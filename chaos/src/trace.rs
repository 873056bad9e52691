//! Trace of a run: a hash that a second run of the seed must reproduce, and readable log lines.

use std::cell::RefCell;
use std::rc::Rc;

use sha2::{Digest, Sha256};

use crate::sim::SimTime;

/// Trace of a run, shared by its clones.
#[derive(Clone, Debug)]
pub struct Trace {
    time: SimTime,
    hash: Rc<RefCell<Sha256>>,
    is_shown: bool,
}

impl Trace {
    /// Returns the time since the start of the simulation, in ms.
    pub fn ms(&self) -> u64 {
        self.time.ms()
    }

    /// Returns an empty trace.
    /// - `is_shown`: also write each line to stderr.
    pub fn new(time: SimTime, is_shown: bool) -> Self {
        Self { time, hash: Rc::default(), is_shown }
    }

    /// Appends a line.
    pub fn tell(&self, line: impl AsRef<str>) {
        let line = format!("{:>6} {}\n", self.time.ms(), line.as_ref());
        self.hash.borrow_mut().update(line.as_bytes());
        if self.is_shown {
            use std::io::Write;
            // Ignore errors: the reader of stderr may have exited, and the run does not depend on
            // it.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// Returns the hash of all lines so far.
    pub fn hash(&self) -> String {
        let digest = self.hash.borrow().clone().finalize();
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
