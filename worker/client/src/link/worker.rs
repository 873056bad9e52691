//! A connection to a worker: requests that wait for their answer, and unsolicited messages.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_pipeline::Schema;
use shardfeed_proto::WireError;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_reader::{Skipped, traced};
use shardfeed_socket::{Connection, SocketError};
use shardfeed_source::{LoadError, OnProgress, OpenProgress, ScanProgress, ScanStage};

use crate::link::outcome::{Heard, Unavailable};
use crate::link::received::{Broken, Received, Regions};

/// Interval at which a caller that waits for an answer may cancel.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Maximum silence of a worker that has a request to answer.
const ANSWER_SILENCE: Duration = Duration::from_secs(5);

/// A worker that was silent for this time is pinged.
const SILENCE: Duration = Duration::from_secs(1);
/// A worker that does not answer a ping within this time is given up.
const PONG_WAIT: Duration = Duration::from_secs(2);

impl From<SocketError> for Unavailable {
    fn from(error: SocketError) -> Self {
        Self::Absent(error.to_string())
    }
}

impl From<Broken> for Unavailable {
    fn from(error: Broken) -> Self {
        Self::Absent(error.to_string())
    }
}

/// Connection to a worker that answered.
pub(crate) struct WorkerLink {
    connection: Connection<wire::ToWorker, wire::ToTrainer>,
    path: PathBuf,
    pub(crate) name: String,
    /// Empty if the worker does not know it.
    pub(crate) cluster_id: String,
    schema: Option<Arc<Schema>>,
    pub(crate) regions: Regions,
    pub(crate) stats: Option<wire::Stats>,
    /// Start, and skipped records of its next batch that did not fit into one message.
    skipped: (u64, Vec<Skipped>),
    heard: Instant,
    pinged: Option<Instant>,
}

impl WorkerLink {
    fn new(connection: Connection<wire::ToWorker, wire::ToTrainer>, path: &Path) -> Self {
        Self {
            connection,
            path: path.to_owned(),
            name: String::new(),
            cluster_id: String::new(),
            schema: None,
            regions: Regions::default(),
            stats: None,
            skipped: (0, vec![]),
            heard: Instant::now(),
            pinged: None,
        }
    }

    /// Introduces a trainer to the worker of a new connection.
    pub(crate) fn greet(
        connection: Connection<wire::ToWorker, wire::ToTrainer>,
        path: &Path,
        hello: wire::Hello,
        progress: OnProgress<'_>,
    ) -> Result<Self, Unavailable> {
        let mut link = Self::new(connection, path);
        let hello = wire::Hello { version: env!("CARGO_PKG_VERSION").into(), ..hello };
        match link.ask(Ask::Hello(hello), progress)? {
            Message::Welcome(wire::Welcome { worker, cluster_id, .. }) => {
                (link.name, link.cluster_id) = (worker, cluster_id);
                Ok(link)
            }
            other => Err(link.unexpected(&other)),
        }
    }

    pub(crate) fn set_schema(&mut self, schema: &Arc<Schema>) {
        self.schema = Some(Arc::clone(schema));
    }

    pub(crate) fn broken(&self, what: &str) -> Unavailable {
        Unavailable::Absent(format!("{}: {}", self.path.display(), Broken::new(what)))
    }

    pub(crate) fn unexpected(&self, message: &Message) -> Unavailable {
        let text = format!("{message:?}");
        self.broken(&format!("{:.40} is no answer to the request", text))
    }

    /// Sends a message with the trace context of this thread.
    pub(crate) fn send(&self, ask: Ask) -> Result<(), Unavailable> {
        let traceparent = traced::current().map(|current| current.to_string()).unwrap_or_default();
        Ok(self.connection.send(&wire::ToWorker { traceparent, message: Some(ask) }, None)?)
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(
        &mut self,
        ask: Ask,
        progress: OnProgress<'_>,
    ) -> Result<Message, Unavailable> {
        self.send(ask)?;
        self.wait(progress)
    }

    pub(crate) fn wait(&mut self, progress: OnProgress<'_>) -> Result<Message, Unavailable> {
        let mut heard = Instant::now();
        let mut last = OpenProgress::waiting("");
        loop {
            let received = self.connection.recv(LOOK_EVERY)?;
            if received.is_some() {
                heard = Instant::now();
            } else if heard.elapsed() > ANSWER_SILENCE {
                return Err(Unavailable::Absent(format!(
                    "the worker at {} did not answer for {} s",
                    self.path.display(),
                    ANSWER_SILENCE.as_secs()
                )));
            }
            if let Some((message, fd)) = received
                && let Some(answer) = self.answer(message, fd, &mut last)?
            {
                return Ok(answer);
            }
            if !progress(&last) {
                return Err(Unavailable::Refused(LoadError::Interrupted));
            }
        }
    }

    /// Returns the answer to a request, if this is one.
    ///
    /// Messages of a stopped start may come in between: its batches and its failure are dropped,
    /// but the worker's memory must stay mapped.
    fn answer(
        &mut self,
        message: wire::ToTrainer,
        fd: Option<OwnedFd>,
        last: &mut OpenProgress,
    ) -> Result<Option<Message>, Unavailable> {
        match message.message {
            Some(Message::Progress(now)) => {
                *last = progress_of(now);
                Ok(None)
            }
            Some(Message::Failed(failed)) if failed.start == 0 => {
                Err(LoadError::from(WireError::from_message(failed.error)).into())
            }
            Some(
                answer @ (Message::Welcome(_)
                | Message::Dataset(_)
                | Message::Shards(_)
                | Message::MapPart(_)
                | Message::Registered(_)
                | Message::State(_)
                | Message::TracePart(_)),
            ) => Ok(Some(answer)),
            Some(Message::Goodbye(goodbye)) => Err(Unavailable::Absent(goodbye.reason)),
            other => {
                self.take(wire::ToTrainer { message: other }, fd)?;
                Ok(None)
            }
        }
    }

    /// Returns a message if one has arrived; never waits.
    pub(crate) fn try_hear(&mut self) -> Result<Option<Heard>, Unavailable> {
        match self.connection.try_recv()? {
            None => Ok(None),
            Some((message, fd)) => self.take(message, fd).map(Some),
        }
    }

    /// Waits at most `timeout` for a message.
    pub(crate) fn hear(&mut self, timeout: Duration) -> Result<Option<Heard>, Unavailable> {
        match self.connection.recv(timeout)? {
            Some((message, fd)) => self.take(message, fd).map(Some),
            None => {
                self.look_after()?;
                Ok(None)
            }
        }
    }

    /// Pings a silent worker: one that is stopped, not dead, keeps its connections open.
    fn look_after(&mut self) -> Result<(), Unavailable> {
        match self.pinged {
            None if self.heard.elapsed() > SILENCE => {
                self.pinged = Some(Instant::now());
                self.send(Ask::Ping(wire::Ping { nonce: 0 }))
            }
            Some(pinged) if pinged.elapsed() > PONG_WAIT => Err(Unavailable::Absent(format!(
                "the worker at {} does not answer: it is stopped or stuck",
                self.path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Adds to the skipped records of the next batch of `start`.
    fn skipped_of(&mut self, start: u64, skipped: Vec<wire::Skipped>) {
        if self.skipped.0 != start {
            self.skipped = (start, vec![]);
        }
        self.skipped.1.extend(skipped.into_iter().map(Skipped::from));
    }

    fn take(
        &mut self,
        message: wire::ToTrainer,
        fd: Option<OwnedFd>,
    ) -> Result<Heard, Unavailable> {
        (self.heard, self.pinged) = (Instant::now(), None);
        Ok(match message.message {
            Some(Message::SkippedPart(wire::SkippedPart { start, skipped })) => {
                self.skipped_of(start, skipped);
                Heard::Other
            }
            Some(Message::Batch(mut batch)) => {
                let schema = self.schema.clone().ok_or_else(|| self.broken("a batch too early"))?;
                let wire::Batch { start, epoch, step, .. } = batch;
                self.skipped_of(start, std::mem::take(&mut batch.skipped));
                let skipped = std::mem::take(&mut self.skipped.1);
                let samples = std::mem::take(&mut batch.samples);
                let source_epochs = std::mem::take(&mut batch.source_epochs);
                let batch = self.regions.view(batch, &schema)?;
                let batch = Some(Received { batch, samples, source_epochs });
                Heard::Batch { start, epoch, step, batch, skipped }
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
            Some(Message::Goodbye(goodbye)) => Heard::Goodbye(goodbye.reason),
            Some(Message::Progress(progress)) => {
                if !progress.note.is_empty() {
                    tracing::warn!("{}; waiting", progress.note);
                }
                Heard::Other
            }
            Some(Message::EpochEnded(wire::EpochEnded { start, epoch, steps: step })) => {
                Heard::Batch { start, epoch, step, batch: None, skipped: vec![] }
            }
            Some(Message::Again(wire::Again { start, reason })) => {
                tracing::warn!("{reason}");
                Heard::Again { start }
            }
            Some(Message::Pong(wire::Pong { nonce, good_ms })) => {
                Heard::Pong { nonce, good_for: good_ms.map(Duration::from_millis) }
            }
            // A later version may send messages that this one does not know.
            _ => Heard::Other,
        })
    }
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

#[cfg(test)]
mod tests {
    use shardfeed_handoff::SlotPool;
    use shardfeed_proto::ErrorKind;

    use super::*;

    fn said(message: Message) -> wire::ToTrainer {
        wire::ToTrainer { message: Some(message) }
    }

    fn empty() -> Option<wire::Range> {
        Some(wire::Range { start: 0, len: 0 })
    }

    fn batch(region: u64) -> wire::Batch {
        let column = wire::Column { values: empty(), offsets: empty(), splits: vec![] };
        wire::Batch {
            start: 1,
            region,
            columns: vec![column],
            valid: empty(),
            shards: empty(),
            ordinals: empty(),
            ..wire::Batch::default()
        }
    }

    #[test]
    fn what_a_stopped_start_still_says_is_no_answer_and_its_memory_stays_known() {
        let (worker, trainer) = Connection::<wire::ToTrainer, wire::ToWorker>::pair().unwrap();
        let mut link = WorkerLink::new(trainer, Path::new("test"));
        link.set_schema(&Arc::new(Schema::raw()));
        let slot = SlotPool::sealed(1).take(100).unwrap().share();
        let handle = slot.region().unwrap();
        let (region, bytes) = (handle.id.0, handle.size_bytes as u64);
        let error = WireError::new(ErrorKind::Corrupt, "of the stopped start").to_message();
        worker.send(&said(Message::Started(wire::Started::default())), None).unwrap();
        let announced = Message::Region(wire::Region { region, bytes });
        worker.send(&said(announced), handle.fd).unwrap();
        worker.send(&said(Message::Batch(batch(region))), None).unwrap();
        let failed = wire::Failed { start: 1, error: Some(error) };
        worker.send(&said(Message::Failed(failed)), None).unwrap();
        worker.send(&said(Message::Registered(wire::Registered::default())), None).unwrap();
        let answer = link.ask(Ask::Latest(wire::Latest {}), &mut |_| true).unwrap();
        assert!(matches!(answer, Message::Registered(_)), "{answer:?}");
        assert_eq!(link.regions.take_returned(), [region], "the dropped batch's slot goes back");
        worker.send(&said(Message::Batch(batch(region))), None).unwrap();
        let heard = link.hear(Duration::from_secs(5)).unwrap();
        assert!(matches!(heard, Some(Heard::Batch { .. })), "{heard:?}");
    }

    #[test]
    fn skipped_records_that_went_ahead_are_of_the_next_batch_of_their_start() {
        let (worker, trainer) = Connection::<wire::ToTrainer, wire::ToWorker>::pair().unwrap();
        let mut link = WorkerLink::new(trainer, Path::new("test"));
        link.set_schema(&Arc::new(Schema::raw()));
        let slot = SlotPool::sealed(1).take(100).unwrap().share();
        let handle = slot.region().unwrap();
        let (region, bytes) = (handle.id.0, handle.size_bytes as u64);
        let announced = Message::Region(wire::Region { region, bytes });
        worker.send(&said(announced), handle.fd).unwrap();
        let skipped = |ordinal| vec![wire::Skipped { ordinal, ..wire::Skipped::default() }];
        let part = |start, ordinal| wire::SkippedPart { start, skipped: skipped(ordinal) };
        // The first one belongs to a start that was stopped before its batch.
        for (start, ordinal) in [(0, 9), (1, 0), (1, 1)] {
            worker.send(&said(Message::SkippedPart(part(start, ordinal))), None).unwrap();
        }
        let first = wire::Batch { skipped: skipped(2), ..batch(region) };
        worker.send(&said(Message::Batch(first)), None).unwrap();
        worker.send(&said(Message::Batch(batch(region))), None).unwrap();
        let mut ordinals = vec![];
        while ordinals.len() < 2 {
            if let Some(Heard::Batch { skipped, .. }) = link.hear(Duration::from_secs(5)).unwrap() {
                ordinals.push(skipped.iter().map(|one| one.sample.ordinal).collect::<Vec<_>>());
            }
        }
        assert_eq!(ordinals, [vec![0, 1, 2], vec![]]);
    }

    #[test]
    fn the_failure_of_a_request_is_its_answer() {
        let (worker, trainer) = Connection::<wire::ToTrainer, wire::ToWorker>::pair().unwrap();
        let mut link = WorkerLink::new(trainer, Path::new("test"));
        let error = WireError::new(ErrorKind::NotFound, "no such job").to_message();
        let failed = wire::Failed { start: 0, error: Some(error) };
        worker.send(&said(Message::Failed(failed)), None).unwrap();
        let lost = link.ask(Ask::Latest(wire::Latest {}), &mut |_| true).unwrap_err();
        assert!(matches!(lost, Unavailable::Refused(LoadError::Wire(_))), "{lost:?}");
    }

    #[test]
    fn a_worker_that_says_what_nobody_asked_for_is_given_up() {
        let (worker, trainer) = Connection::<wire::ToTrainer, wire::ToWorker>::pair().unwrap();
        let mut link = WorkerLink::new(trainer, Path::new("/run/w.sock"));
        let gone = |lost: Unavailable| match lost {
            Unavailable::Absent(reason) => reason,
            other => panic!("{other:?}"),
        };
        let answer = Message::Registered(wire::Registered::default());
        let mut said = vec![gone(link.unexpected(&answer))];
        worker.send(&self::said(Message::Batch(batch(1))), None).unwrap();
        said.push(gone(link.hear(Duration::from_secs(5)).unwrap_err()));
        // The worker is pinged, and time passes.
        let long_ago = Instant::now().checked_sub(2 * PONG_WAIT).unwrap();
        link.heard = long_ago;
        assert!(link.hear(Duration::ZERO).unwrap().is_none());
        link.pinged = Some(long_ago);
        said.push(gone(link.hear(Duration::ZERO).unwrap_err()));
        assert_eq!(
            said,
            [
                "/run/w.sock: the worker broke the protocol: Registered(Registered { cluster_id: \
                 \"\" } is no answer to the request; use the same version of shardfeed for both",
                "/run/w.sock: the worker broke the protocol: a batch too early; use the same \
                 version of shardfeed for both",
                "the worker at /run/w.sock does not answer: it is stopped or stuck",
            ]
        );
    }
}
