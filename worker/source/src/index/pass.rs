//! Passes over files: threads work on one file each, and report to the thread that waits for them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::ScanProgress;
use crate::error::LoadError;
use crate::remote::Stop;

/// Maximum number of files read at once: reading waits for storage more than for the processor.
const THREADS_MAX: usize = 16;

/// Maximum number of reports that are not received yet.
const EVENTS_MAX: usize = 64;

/// Maximum time between progress reports.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Work on each of several files.
pub(crate) trait FilePass: Send + Sync + 'static {
    /// Result of the work on a file.
    type Done: Send + 'static;

    /// Name of the pass in the names of its threads.
    const NAME: &'static str;

    /// Name of its threads in errors.
    const THREADS: &'static str;

    /// Flag that ends the pass when it is set.
    fn stop(&self) -> &Stop;

    /// Returns the path of a file, which names it in the order of errors.
    fn path(&self, number: usize) -> &Path;

    /// Works on a file.
    /// - `progress`: called with the bytes read since the call before.
    fn work(&self, number: usize, progress: &mut dyn FnMut(u64)) -> Result<Self::Done, LoadError>;
}

enum PassEvent<T> {
    Bytes(u64),
    File(usize, Box<Result<T, LoadError>>),
}

/// Works on the `files_total` files of `state`.
/// - `threads`: number of threads; `None` for the usual number.
/// - `go_on`: called now and then from this thread with the results, which it may take; its error
///   ends the pass.
///
/// Returns the results that were not taken, and the error of the first file by name, or that of
/// `go_on`.
pub(crate) fn run_pass<P: FilePass>(
    pass: &Arc<P>,
    threads: Option<usize>,
    state: &mut ScanProgress,
    mut go_on: impl FnMut(&ScanProgress, &mut Vec<P::Done>) -> Result<(), LoadError>,
) -> (Vec<P::Done>, Result<(), LoadError>) {
    let (total, next) = (state.files_total, Arc::new(AtomicUsize::new(0)));
    let (sender, receiver) = bounded(EVENTS_MAX);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    for index in 0..threads.unwrap_or((2 * cores).min(THREADS_MAX)).min(total) {
        let (pass, next, sender) = (Arc::clone(pass), Arc::clone(&next), sender.clone());
        let run = move || {
            while !pass.stop().load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return;
                }
                // The receiver is gone after an interrupt; the progress is then dropped.
                let progress = &mut |bytes| drop(sender.send(PassEvent::Bytes(bytes)));
                let result = Box::new(pass.work(number, progress));
                if sender.send(PassEvent::File(number, result)).is_err() {
                    return;
                }
            }
        };
        // Not joined: a hung read of storage must not block an interrupt.
        let named = std::thread::Builder::new().name(format!("shardfeed-{}-{index}", P::NAME));
        if let Err(source) = named.spawn(run) {
            return (vec![], Err(LoadError::Io { file: P::THREADS.into(), source }));
        }
    }
    drop(sender);
    let (mut results, mut errors, mut done) = (Vec::new(), Vec::new(), 0);
    loop {
        match receiver.recv_timeout(PROGRESS_EVERY) {
            Ok(PassEvent::Bytes(bytes)) => state.bytes += bytes,
            Ok(PassEvent::File(number, result)) => {
                state.files += 1;
                match *result {
                    Ok(result) => {
                        results.push(result);
                        done += 1;
                    }
                    Err(error) => {
                        pass.stop().store(true, Ordering::Relaxed);
                        errors.push((number, error));
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Err(error) = go_on(state, &mut results) {
            pass.stop().store(true, Ordering::Relaxed);
            return (results, Err(error));
        }
    }
    // Reads that were stopped for the error of another file are no errors of their own.
    let first = errors.into_iter().min_by_key(|(number, error)| {
        (matches!(error, LoadError::Interrupted), pass.path(*number).as_os_str().to_owned())
    });
    let end = match first {
        Some((_, error)) => Err(error),
        None if done < total => Err(LoadError::ReaderLost),
        None => Ok(()),
    };
    (results, end)
}
