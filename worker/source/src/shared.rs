//! Values that the threads of a process share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Mutex of a value of which every change is complete when the lock is released, also by a panic.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases the lock of a [`Lock`] until `changed` is notified, at most for `time`.
pub fn wait_for<'a, T>(
    changed: &Condvar,
    locked: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    changed.wait_timeout(locked, time).unwrap_or_else(PoisonError::into_inner).0
}

/// A value that each process makes on first use. After a fork the child must not use its parent's,
/// nor drop it: its threads do not exist in the child.
#[derive(Debug)]
pub struct PerProcess<T>(Lock<Option<(u32, T)>>);

impl<T: Clone> PerProcess<T> {
    /// Creates an empty cell, for a static.
    #[expect(clippy::new_without_default, reason = "a static needs a const function")]
    pub const fn new() -> Self {
        Self(Lock::new(None))
    }

    /// Returns this process's value; `make` replaces one that does not suit.
    pub fn get(&self, suits: impl FnOnce(&T) -> bool, make: impl FnOnce() -> T) -> T {
        let process = std::process::id();
        let mut kept = self.0.lock();
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
