//! A connection to a worker: requests that wait for their answer, and frames that come by themselves.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_agent::{LoadError, OpenProgress, ScanProgress, ScanStage};
use shardfeed_pipeline::{Batch, Schema};
use shardfeed_proto::WireError;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_socket::{Connection, SocketError};

use crate::link::Progress;
use crate::link::received::{Broken, Regions};

/// How often a caller that waits for an answer is asked whether it still wants to.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A worker that is asked for something says at least so often that it lives.
const ANSWER_SILENCE: Duration = Duration::from_secs(5);

/// A worker that was silent for so long is asked whether it lives,
const SILENCE: Duration = Duration::from_secs(1);
/// and is given up if it does not answer that for so long.
const PONG_WAIT: Duration = Duration::from_secs(2);

/// Why a connection is of no further use.
#[derive(Debug)]
pub(crate) enum Lost {
    /// Nobody is there any more.
    Gone(String),
    /// The request was refused; the connection is as good as before.
    Failed(LoadError),
}

impl From<SocketError> for Lost {
    fn from(error: SocketError) -> Self {
        Self::Gone(error.to_string())
    }
}

impl From<Broken> for Lost {
    fn from(error: Broken) -> Self {
        Self::Gone(error.to_string())
    }
}

/// What a worker sent by itself.
#[derive(Debug)]
pub(crate) enum Heard {
    Started(wire::Started),
    Batch {
        start: u64,
        epoch: u64,
        step: u64,
        batch: Batch,
    },
    Failed {
        start: u64,
        error: WireError,
    },
    /// Something that was dealt with here.
    Other,
}

/// A worker that answered.
pub(crate) struct WorkerLink {
    connection: Connection<wire::ToWorker, wire::ToTrainer>,
    path: PathBuf,
    name: String,
    schema: Option<Arc<Schema>>,
    pub(crate) regions: Regions,
    pub(crate) stats: Option<wire::Stats>,
    heard: Instant,
    pinged: Option<Instant>,
}

impl WorkerLink {
    pub(crate) fn new(
        connection: Connection<wire::ToWorker, wire::ToTrainer>,
        path: &Path,
    ) -> Self {
        let (name, schema, regions) = (String::new(), None, Regions::default());
        let (path, stats, heard) = (path.to_owned(), None, Instant::now());
        Self { connection, path, name, schema, regions, stats, heard, pinged: None }
    }

    pub(crate) fn set_name(&mut self, name: String) {
        self.name = name;
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn set_schema(&mut self, schema: &Arc<Schema>) {
        self.schema = Some(Arc::clone(schema));
    }

    pub(crate) fn broken(&self, what: &str) -> Lost {
        Lost::Gone(format!("{}: {}", self.path.display(), Broken::new(what)))
    }

    pub(crate) fn unexpected(&self, message: &Message) -> Lost {
        let text = format!("{message:?}");
        self.broken(&format!("{:.40} is no answer to what was asked", text))
    }

    /// Sends a message.
    pub(crate) fn send(&self, ask: Ask) -> Result<(), Lost> {
        Ok(self.connection.send(&wire::ToWorker { message: Some(ask) }, None)?)
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&mut self, ask: Ask, progress: Progress<'_>) -> Result<Message, Lost> {
        self.send(ask)?;
        self.wait(progress)
    }

    /// Waits for an answer while the caller wants to.
    pub(crate) fn wait(&mut self, progress: Progress<'_>) -> Result<Message, Lost> {
        let mut heard = Instant::now();
        let mut last = OpenProgress { note: String::new(), scan: nothing() };
        loop {
            let received = self.connection.recv(LOOK_EVERY)?;
            if received.is_some() {
                heard = Instant::now();
            } else if heard.elapsed() > ANSWER_SILENCE {
                return Err(Lost::Gone(format!(
                    "the worker at {} did not answer for {} s",
                    self.path.display(),
                    ANSWER_SILENCE.as_secs()
                )));
            }
            match received.and_then(|(message, _)| message.message) {
                None => {}
                Some(Message::Progress(now)) => last = progress_of(now),
                Some(Message::Failed(failed)) => {
                    let error = WireError::from_message(failed.error);
                    return Err(Lost::Failed(error.into()));
                }
                // Of a start that was stopped.
                Some(message @ (Message::Region(_) | Message::Batch(_) | Message::Stats(_))) => {
                    drop(message);
                }
                Some(message) => return Ok(message),
            }
            if !progress(&last) {
                return Err(Lost::Failed(LoadError::Interrupted));
            }
        }
    }

    /// What came, if something did; never waits.
    pub(crate) fn try_hear(&mut self) -> Result<Option<Heard>, Lost> {
        match self.connection.try_recv()? {
            None => Ok(None),
            Some((message, fd)) => self.take(message, fd).map(Some),
        }
    }

    /// Waits at most `timeout` for something to come.
    pub(crate) fn hear(&mut self, timeout: Duration) -> Result<Option<Heard>, Lost> {
        match self.connection.recv(timeout)? {
            Some((message, fd)) => self.take(message, fd).map(Some),
            None => {
                self.look_after()?;
                Ok(None)
            }
        }
    }

    /// A worker that is stopped, not dead, keeps its connections open.
    fn look_after(&mut self) -> Result<(), Lost> {
        match self.pinged {
            None if self.heard.elapsed() > SILENCE => {
                self.pinged = Some(Instant::now());
                self.send(Ask::Ping(wire::Ping { nonce: 0 }))
            }
            Some(pinged) if pinged.elapsed() > PONG_WAIT => Err(Lost::Gone(format!(
                "the worker at {} does not answer: it is stopped or stuck",
                self.path.display()
            ))),
            _ => Ok(()),
        }
    }

    fn take(&mut self, message: wire::ToTrainer, fd: Option<OwnedFd>) -> Result<Heard, Lost> {
        (self.heard, self.pinged) = (Instant::now(), None);
        Ok(match message.message {
            Some(Message::Batch(batch)) => {
                let schema = self.schema.clone().ok_or_else(|| self.broken("a batch too early"))?;
                let wire::Batch { start, epoch, step, .. } = batch;
                Heard::Batch { start, epoch, step, batch: self.regions.view(batch, &schema)? }
            }
            Some(Message::Region(region)) => {
                self.regions.map(&region, fd)?;
                Heard::Other
            }
            Some(Message::Forget(forget)) => {
                self.regions.forget(&forget.regions);
                Heard::Other
            }
            Some(Message::Stats(stats)) => {
                self.stats = Some(stats);
                Heard::Other
            }
            Some(Message::Started(started)) => Heard::Started(started),
            Some(Message::Failed(failed)) => {
                let error = WireError::from_message(failed.error);
                Heard::Failed { start: failed.start, error }
            }
            Some(Message::Progress(progress)) => {
                if !progress.note.is_empty() {
                    tracing::warn!("{}; waiting", progress.note);
                }
                Heard::Other
            }
            // A later worker may say what this side does not know.
            _ => Heard::Other,
        })
    }
}

fn nothing() -> ScanProgress {
    let stage = ScanStage::Waiting;
    ScanProgress { stage, files: 0, files_total: 0, bytes: 0, bytes_total: 0 }
}

fn progress_of(progress: wire::Progress) -> OpenProgress {
    let scan = ScanProgress {
        stage: ScanStage::Scanning,
        files: progress.files as usize,
        files_total: progress.files_total as usize,
        bytes: progress.bytes,
        bytes_total: progress.bytes_total,
    };
    OpenProgress { note: progress.note, scan }
}
