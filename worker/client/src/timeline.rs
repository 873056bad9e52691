//! Timelines of this process's loaders, if the environment enables them, and of a worker.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_socket::{ConnectError, connect};
use shardfeed_source::{LoadError, OnProgress, trace};
use uuid::Uuid;

use crate::link::worker::WorkerLink;

/// Environment variable with the folder for timelines of loaders.
const VARIABLE: &str = "SHARDFEED_TRACE";

/// Maximum time for a worker to complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Recording of this process while a loader exists; written when the loader is closed.
#[derive(Debug)]
pub(crate) struct Timeline {
    path: PathBuf,
    rank: u64,
}

impl Timeline {
    /// Starts a recording if `SHARDFEED_TRACE` names a folder; warns if that cannot be created.
    pub(crate) fn from_environment(rank: u64) -> Option<Self> {
        let folder = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty())?;
        let folder = PathBuf::from(folder);
        if let Err(error) = std::fs::create_dir_all(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "no timeline is recorded: the folder cannot be made");
            return None;
        }
        // The loaders of a process share one recording: each writes it so far when it closes.
        trace::start();
        let name = format!("rank-{rank}-{}.json", std::process::id());
        Some(Self { path: folder.join(name), rank })
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let process = format!("shardfeed rank {}", self.rank);
        if let Err(error) = trace::write(&self.path, &process) {
            tracing::warn!(path = %self.path.display(), %error, "the timeline could not be written");
        }
    }
}

/// Records a worker's threads for `duration`, in Trace Event Format.
/// - `socket`: the worker's trainer socket.
///
/// # Errors  No worker is listening, or it refuses.
pub fn worker_timeline(
    socket: &Path,
    duration: Duration,
    progress: OnProgress<'_>,
) -> Result<Vec<u8>, LoadError> {
    let mut link = greet(socket, HANDSHAKE, progress)?;
    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut answer = link.ask(Ask::Trace(wire::Trace { duration_ms }), progress)?;
    let mut content = Vec::new();
    loop {
        match answer {
            Message::TracePart(part) => {
                content.extend(part.content);
                if part.is_last {
                    return Ok(content);
                }
            }
            other => return Err(link.unexpected(&other).into()),
        }
        answer = link.wait(progress)?;
    }
}

/// Performs the handshake with a worker as a trainer would; returns the worker's name.
/// - `socket`: the worker's trainer socket.
///
/// # Errors  No worker is listening, it refuses, or it does not answer within `timeout`.
pub fn worker_answers(socket: &Path, timeout: Duration) -> Result<String, LoadError> {
    let begun = Instant::now();
    Ok(greet(socket, timeout, &mut |_| begun.elapsed() < timeout)?.name)
}

fn greet(
    socket: &Path,
    timeout: Duration,
    progress: OnProgress<'_>,
) -> Result<WorkerLink, LoadError> {
    let connection = connect(socket, timeout).map_err(|error| match error {
        ConnectError::Forbidden { .. } => LoadError::Denied(error.to_string()),
        error => WireError::new(ErrorKind::Unreachable, error.to_string()).into(),
    })?;
    let hello = wire::Hello { trainer: Uuid::new_v4().to_string(), ..wire::Hello::default() };
    Ok(WorkerLink::greet(connection, socket, hello, progress)?)
}
