//! Passes over files: threads work on one file each, and report to the thread that waits for them.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::ScanProgress;
use crate::error::LoadError;
use crate::looks;
use crate::remote::Stop;

/// Maximum number of files read at once: reading waits for storage more than for the processor.
const THREADS_MAX: usize = 16;

enum PassEvent<T> {
    Bytes(u64),
    File(usize, Box<Result<T, LoadError>>),
}

/// Works on the `files_total` files of `state`.
/// - `name`: of the pass, in the names of its threads. `threads`: their number; `None`: as usual.
/// - `stop`: ends the pass when it is set.
/// - `path_of`: returns the path of a file, which names it in the order of errors.
/// - `work`: works on a file; it reports the bytes that were read since its last report.
/// - `go_on`: called now and then from this thread with the results, which it may take; its error
///   ends the pass.
///
/// Returns the results that were not taken, and the error of the first file by name, or that of
/// `go_on`.
pub(crate) fn run_pass<'a, T: Send + 'static>(
    (name, threads): (&str, Option<usize>),
    state: &mut ScanProgress,
    stop: &Stop,
    path_of: impl Fn(usize) -> &'a Path,
    work: impl Fn(usize, &mut dyn FnMut(u64)) -> Result<T, LoadError> + Send + Sync + 'static,
    mut go_on: impl FnMut(&ScanProgress, &mut Vec<T>) -> Result<(), LoadError>,
) -> (Vec<T>, Result<(), LoadError>) {
    let total = state.files_total;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = threads.unwrap_or((2 * cores).min(THREADS_MAX));
    let work = move |number: usize, report: &mut dyn FnMut(PassEvent<T>)| {
        let result = work(number, &mut |bytes| report(PassEvent::Bytes(bytes)));
        report(PassEvent::File(number, Box::new(result)));
    };
    let (mut results, mut errors, mut done) = (Vec::new(), Vec::new(), 0);
    let hear = |event: Option<PassEvent<T>>| {
        match event {
            None => {}
            Some(PassEvent::Bytes(bytes)) => state.bytes += bytes,
            Some(PassEvent::File(number, result)) => {
                state.files += 1;
                match *result {
                    Ok(result) => {
                        results.push(result);
                        done += 1;
                    }
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        errors.push((number, error));
                    }
                }
            }
        }
        go_on(state, &mut results)
    };
    if let Err(error) = looks::run(name, threads, total, stop, work, hear) {
        return (results, Err(error));
    }
    // Reads that were stopped for the error of another file are no errors of their own.
    let first = errors.into_iter().min_by_key(|(number, error)| {
        (matches!(error, LoadError::Interrupted), path_of(*number).as_os_str())
    });
    let end = match first {
        Some((_, error)) => Err(error),
        None if done < total => Err(LoadError::ReaderLost),
        None => Ok(()),
    };
    (results, end)
}
