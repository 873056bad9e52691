//! Values that belong to one process. After a fork the child must not use its parent's, nor drop
//! them: their threads do not exist in it.

use std::sync::{Mutex, PoisonError};

/// A shared value that each process makes on first use.
#[derive(Debug)]
pub struct PerProcess<T>(Mutex<Option<(u32, T)>>);

impl<T: Clone> PerProcess<T> {
    /// Creates an empty cell, for a static.
    #[expect(clippy::new_without_default, reason = "a static needs a const function")]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns this process's value; `make` replaces one that does not suit.
    pub fn get(&self, suits: impl FnOnce(&T) -> bool, make: impl FnOnce() -> T) -> T {
        let process = std::process::id();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, value)) = &*kept
            && *of == process
            && suits(value)
        {
            return value.clone();
        }
        let made = make();
        match kept.replace((process, made.clone())) {
            Some((of, before)) if of == process => drop(before),
            of_parent => std::mem::forget(of_parent),
        }
        made
    }
}
