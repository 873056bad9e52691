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

    /// Returns this process's value; `make` replaces one that does not suit. Of concurrent callers
    /// that make one each, all get the first one.
    pub fn get(&self, suits: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> T {
        let process = std::process::id();
        let of_process = |kept: &Option<(u32, T)>| match kept {
            Some((of, value)) if *of == process && suits(value) => Some(value.clone()),
            _ => None,
        };
        let known = of_process(&self.0.lock());
        if let Some(known) = known {
            return known;
        }
        // Not under the lock: a fork in the meantime would leave it locked in the child.
        let made = make();
        let mut kept = self.0.lock();
        if let Some(first) = of_process(&kept) {
            drop(kept);
            return first;
        }
        let before = kept.replace((process, made.clone()));
        drop(kept);
        match before {
            Some((of, before)) if of == process => drop(before),
            of_parent => std::mem::forget(of_parent),
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_value_is_made_while_the_cell_is_free_and_the_first_one_stays() {
        static CELL: PerProcess<u32> = PerProcess::new();
        let (sender, receiver) = channel();
        // A fork during `make` leaves the child with the cell as another thread sees it.
        let outer = std::thread::spawn(move || {
            CELL.get(
                |_| true,
                || {
                    std::thread::spawn(move || sender.send(CELL.get(|_| true, || 1)));
                    receiver.recv_timeout(Duration::from_secs(10)).expect("the cell is free") + 1
                },
            )
        });
        assert_eq!(outer.join().unwrap(), 1, "the first value is that of all callers");
        assert_eq!(CELL.get(|value| *value > 2, || 3), 3, "another one suits");
        assert_eq!(CELL.get(|_| true, || 4), 3);
    }
}
