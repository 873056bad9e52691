//! Parallel examination of many files, on threads that are abandoned when the caller cancels: a
//! look at a remote file system takes long, and a look at a hung mount never ends.

pub(crate) mod file_state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::error::LoadError;

/// Maximum number of concurrent looks: they wait for the file system, not for a processor.
const THREADS_MAX: usize = 16;

/// Maximum number of looks that a thread claims at a time: a few items use several threads.
const CLAIM_MAX: usize = 64;

/// Time after which a thread reports its results.
const REPORT_AFTER: Duration = Duration::from_millis(1);

/// Interval between calls of the caller's `go_on`.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Runs `look` on each of `items` in parallel; returns the results in the order of the items.
/// - `go_on`: called ten times a second with the number of completed looks; `false` cancels.
///
/// # Errors  `Interrupted`; the system has no threads.
pub(crate) fn each<T, R>(
    items: Vec<T>,
    go_on: &mut dyn FnMut(usize) -> bool,
    look: impl Fn(&T) -> R + Send + Sync + 'static,
) -> Result<Vec<R>, LoadError>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
{
    let count = items.len();
    let claim = count.div_ceil(THREADS_MAX).clamp(1, CLAIM_MAX);
    let shared = Arc::new((items, look, AtomicUsize::new(0), AtomicBool::new(false)));
    let (sender, receiver) = bounded(2 * THREADS_MAX);
    for index in 0..count.div_ceil(claim).min(THREADS_MAX) {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        let run = move || {
            let (items, look, next, stop) = &*shared;
            loop {
                let first = next.fetch_add(claim, Ordering::Relaxed);
                let (mut begun, mut seen) = (Instant::now(), Vec::new());
                for (place, item) in items.iter().enumerate().skip(first).take(claim) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    seen.push((place, look(item)));
                    // Results of fast looks are sent together, as each message wakes the receiver.
                    if begun.elapsed() >= REPORT_AFTER {
                        begun = Instant::now();
                        if sender.send(std::mem::take(&mut seen)).is_err() {
                            return;
                        }
                    }
                }
                if sender.send(seen).is_err() || first >= items.len() {
                    return;
                }
            }
        };
        let named = std::thread::Builder::new().name(format!("shardfeed-look-{index}"));
        if let Err(source) = named.spawn(run)
            && index == 0
        {
            return Err(LoadError::Io { file: "threads that look at files".into(), source });
        }
    }
    drop(sender);
    let mut found: Vec<Option<R>> = (0..count).map(|_| None).collect();
    let mut done = 0;
    let mut asked = Instant::now();
    loop {
        match receiver.recv_timeout(ASK_EVERY) {
            Ok(seen) => {
                done += seen.len();
                seen.into_iter().for_each(|(place, seen)| found[place] = Some(seen));
                if asked.elapsed() < ASK_EVERY {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        asked = Instant::now();
        if !go_on(done) {
            shared.3.store(true, Ordering::Relaxed);
            return Err(LoadError::Interrupted);
        }
    }
    // A look that panicked left its result empty.
    found.into_iter().collect::<Option<_>>().ok_or(LoadError::ReaderLost)
}

/// Adapts `go_on` for [`each`]: passes whether a look was completed since the last call.
pub(crate) fn moved<'a>(go_on: &'a mut dyn FnMut(bool) -> bool) -> impl FnMut(usize) -> bool + 'a {
    let mut before = 0;
    move |done| go_on(std::mem::replace(&mut before, done) != done)
}

/// Runs `look` on a separate thread.
/// - `go_on`: as for [`each`].
///
/// # Errors  `Interrupted`; the system has no threads.
pub(crate) fn aside<R: Send + 'static>(
    go_on: &mut dyn FnMut(usize) -> bool,
    look: impl Fn() -> R + Send + Sync + 'static,
) -> Result<R, LoadError> {
    let found = each(vec![()], go_on, move |()| look())?;
    found.into_iter().next().ok_or(LoadError::ReaderLost)
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    #[test]
    fn everything_is_found_in_order() {
        for count in [0, 1, 15, 16, 17, 1000] {
            let found = each((0..count).collect(), &mut |_| true, |number| 2 * number).unwrap();
            assert_eq!(found, (0..count).map(|number| 2 * number).collect::<Vec<usize>>());
        }
    }

    #[test]
    fn slow_looks_are_made_at_once_told_of_and_given_up() {
        let gate = Arc::new((Mutex::new(0), Condvar::new()));
        let of = Arc::clone(&gate);
        // As at a hung mount: no look ends before all threads are in one.
        let look = move |_: &usize| {
            let mut inside = of.0.lock().unwrap();
            *inside += 1;
            of.1.notify_all();
            let wait = of.1.wait_while(inside, |inside| *inside < THREADS_MAX);
            drop(wait.unwrap());
        };
        let mut asked = 0;
        for count in [THREADS_MAX, CLAIM_MAX * THREADS_MAX] {
            let found = each((0..count).collect(), &mut |_| true, look.clone()).unwrap();
            assert_eq!(found.len(), count);
            *gate.0.lock().unwrap() = 0;
        }
        let given_up = each(
            vec![0],
            &mut |done| {
                asked += 1;
                done > 0
            },
            look,
        );
        assert!(matches!(given_up, Err(LoadError::Interrupted)));
        assert_eq!(asked, 1, "it is asked while nothing is found");
        *gate.0.lock().unwrap() = THREADS_MAX;
        gate.1.notify_all();
    }

    #[test]
    fn whoever_asks_hears_whether_anything_moved() {
        let mut told = vec![];
        let mut go_on = |is_moving: bool| {
            told.push(is_moving);
            true
        };
        let mut ask = moved(&mut go_on);
        assert!([0, 3, 3, 4].into_iter().all(&mut ask));
        drop(ask);
        assert_eq!(told, [false, true, false, true]);
    }

    #[test]
    fn a_look_that_panics_is_an_error() {
        let lost = each(vec![1, 2], &mut |_| true, |number| assert!(*number < 2));
        assert!(matches!(lost, Err(LoadError::ReaderLost)));
    }
}
