//! Work on many files, on threads that are abandoned when the caller cancels: a look at a remote
//! file system takes long, and a look at a hung mount never ends.

pub(crate) mod file_state;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::error::LoadError;
use crate::remote::Stop;

/// Maximum number of concurrent looks: they wait for the file system, not for a processor.
const THREADS_MAX: usize = 16;

/// Maximum number of looks that a thread claims at a time: a few items use several threads.
const CLAIM_MAX: usize = 64;

/// Time after which a thread reports its results.
const REPORT_AFTER: Duration = Duration::from_millis(1);

/// Interval between calls of the caller while nothing is reported.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of reports of a thread that are not received yet.
const REPORTS_MAX: usize = 4;

/// Runs `work` for each number below `count`, in parallel. Fewer threads than wanted do the same.
/// - `name`: of the work, in the names of its threads.
/// - `stop`: set by an error of `hear`; it ends the work when the current numbers are done.
/// - `work`: called with a number, and a callback for its reports.
/// - `hear`: called from this thread with each report, and with `None` ten times a second while
///   there is none.
///
/// # Errors  That of `hear`; the system has no thread.
pub(crate) fn run<T: Send + 'static>(
    name: &str,
    threads: usize,
    count: usize,
    stop: &Stop,
    work: impl Fn(usize, &mut dyn FnMut(T)) + Send + Sync + 'static,
    mut hear: impl FnMut(Option<T>) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let threads = threads.min(count);
    let shared = Arc::new((work, AtomicUsize::new(0), Arc::clone(stop)));
    let (sender, receiver) = bounded(REPORTS_MAX * threads);
    // Not joined: a hung read of storage must not block an interrupt.
    let started = start(threads, |index| {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        let run = move || {
            let (work, next, stop) = &*shared;
            while !stop.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                work(number, &mut |report| {
                    if sender.send(report).is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                });
            }
        };
        let named = std::thread::Builder::new().name(format!("shardfeed-{name}-{index}"));
        named.spawn(run).map(drop)
    });
    started.map_err(|source| LoadError::io(format!("shardfeed-{name} threads"), source))?;
    drop(sender);
    loop {
        let report = match receiver.recv_timeout(ASK_EVERY) {
            Ok(report) => Some(report),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if let Err(error) = hear(report) {
            stop.store(true, Ordering::Relaxed);
            return Err(error);
        }
    }
}

/// Starts up to `threads` threads by `spawn`.
///
/// # Errors  Not even one can be started.
fn start(threads: usize, mut spawn: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
    for index in 0..threads {
        match spawn(index) {
            Err(error) if index == 0 => return Err(error),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    Ok(())
}

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
    let stop = Stop::default();
    let stopped = Arc::clone(&stop);
    let looks = move |number: usize, report: &mut dyn FnMut(Vec<(usize, R)>)| {
        let (mut begun, mut seen) = (Instant::now(), Vec::new());
        for (place, item) in items.iter().enumerate().skip(number * claim).take(claim) {
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            seen.push((place, look(item)));
            // Results of fast looks are sent together, as each message wakes the receiver.
            if begun.elapsed() >= REPORT_AFTER {
                begun = Instant::now();
                report(std::mem::take(&mut seen));
            }
        }
        report(seen);
    };
    let mut found: Vec<Option<R>> = (0..count).map(|_| None).collect();
    let (mut done, mut asked) = (0, Instant::now());
    let hear = |seen: Option<Vec<(usize, R)>>| {
        let is_idle = seen.is_none();
        for (place, seen) in seen.into_iter().flatten() {
            done += 1;
            found[place] = Some(seen);
        }
        if !is_idle && asked.elapsed() < ASK_EVERY {
            return Ok(());
        }
        asked = Instant::now();
        go_on(done).then_some(()).ok_or(LoadError::Interrupted)
    };
    run("look", THREADS_MAX, count.div_ceil(claim), &stop, looks, hear)?;
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
    use std::io::ErrorKind;
    use std::sync::{Condvar, Mutex};

    use super::*;

    #[test]
    fn fewer_threads_than_wanted_do_the_work_and_none_is_an_error() {
        for most in [1, 5] {
            let mut started = 0;
            let spawn = |_| {
                started += 1;
                if started > most { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            };
            assert!(start(5, spawn).is_ok());
            assert_eq!(started, (most + 1).min(5));
        }
        let none = start(5, |_| Err(ErrorKind::WouldBlock.into()));
        assert_eq!(none.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(start(0, |_| unreachable!()).is_ok());
    }

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
