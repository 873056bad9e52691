//! A trainer's requests, and the worker's responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

use shardfeed_pipeline::ShardSchemas;
use shardfeed_plan::Corrupt;
use shardfeed_proto::coordinator::v1::GetStatusRequest;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Asked;
use shardfeed_proto::{
    ErrorKind, WireError, identity_from, intent_from, left_out_from, segments_from, segments_to,
};
use shardfeed_reader::{
    Control, ControlError, DoubtPolicy, JobSpec, Lease, LeaseGuard, LeaseRequest, PREFETCH_START,
    Plans, PrefetchOptions, Skipped, StartPosition, Waiting, slot_row_bytes, traced,
};
use shardfeed_socket::{Incoming, Peer, Receiver, Sender, SocketError};
use shardfeed_source::{
    Dataset, FileRules, LoadError, Lock, OpenProgress, Rights, ScanStage, trace,
};

use crate::catalog::{Catalog, Opened, SampleSource, Source};
use crate::cluster::{Addresses, Coordinator, GrpcControl, Session};
use crate::pulse::Pulse;
use crate::serve::budget::Budget;
use crate::serve::describe::describe;
use crate::serve::flight::{Flight, Named};
use crate::serve::identity::{check_decoder, check_order};
use crate::serve::running::{ReadyRank, Running};
use crate::serve::send::send;
use crate::serve::sources::{
    JobInput, JobRecords, Mixtures, OpenedSource, OpenedSources, schema_of,
};

/// Maximum time that a trainer may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Interval at which a thread checks whether the worker stops.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Maximum time that a trainer may take to leave after a goodbye.
const GOODBYE_WAIT: Duration = Duration::from_secs(5);

/// Interval at which a waiting trainer receives a sign of life.
const NOTE_EVERY: Duration = Duration::from_millis(500);

/// Maximum time that a rank's new loader waits until the replaced loader has been notified.
const REPLACED_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of batches that a rank may have ahead.
const PREFETCH_MAX: u64 = 1024;

/// Free slots that are kept beyond those that are ahead or held.
const SLOTS_BEYOND: usize = 2;

/// Minimum slots that a trainer may hold while it waits: the batch in use and the previous one.
const HOLD_LEAST: u64 = 2;

/// Maximum duration of a worker's timeline.
const TRACE_MAX: Duration = Duration::from_secs(60);
/// Bytes of a timeline in one message.
const TRACE_PART_BYTES: usize = 512 << 10;

/// Maximum bytes of a dataset's patterns, as for a list in a file, and the overhead of each one.
const PATTERNS_BYTES_MAX: usize = 256 << 20;
const PATTERN_BYTES: usize = 24;

/// Maximum time to ask another coordinator for its cluster id.
const OTHER_TIMEOUT: Duration = Duration::from_secs(5);

/// State shared by all connections of a worker.
pub(crate) struct Hub {
    pub(crate) name: String,
    pub(crate) session: Arc<Session>,
    pub(crate) control: Arc<GrpcControl>,
    pub(crate) catalog: Catalog,
    pub(crate) budget: Budget,
    pub(crate) stop: Arc<AtomicBool>,
    /// Trainers are handed over to their own processes; never reset.
    pub(crate) is_draining: AtomicBool,
    /// Sending thread of each rank that is served here.
    pub(crate) serving: Serving,
    pub(crate) mixtures: Mixtures,
    /// Number of trainers.
    pub(crate) trainers: AtomicUsize,
    /// Signs of life of the thread that accepts trainers.
    pub(crate) pulse: Pulse,
}

/// Channels that close when the threads that send batches end, by job and rank.
pub(crate) type Serving = Lock<Feeders>;

type Feeders = BTreeMap<(Arc<str>, u64), mpsc::Receiver<()>>;

impl Hub {
    /// Waits until the thread that served this rank has notified its trainer of the replacement.
    fn await_replaced(&self, job: &Arc<str>, rank: u64) {
        let before = self.serving.lock().remove(&(Arc::clone(job), rank));
        if let Some(before) = before {
            let _ = before.recv_timeout(REPLACED_WAIT);
        }
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }
}

/// Serves one trainer until it leaves.
pub(crate) fn serve(hub: &Hub, incoming: Incoming) {
    let (peer, is_allowed) = (incoming.peer(), incoming.is_allowed());
    let connection = match incoming.handshake::<wire::ToTrainer, wire::ToWorker>(HANDSHAKE) {
        Ok(connection) => connection,
        Err(error) => {
            tracing::info!(?peer, %error, "a connection was no trainer's");
            return;
        }
    };
    let (sender, receiver) = connection.split();
    let mut trainer = Trainer {
        hub,
        sender,
        hello: wire::Hello::default(),
        is_welcome: false,
        corrupt: Corrupt::Error,
        opened: OpenedSources::default(),
        names_samples: false,
        registered: None,
        flight: None,
        running: None,
        peer,
        patterns: vec![],
    };
    if !is_allowed {
        let message = format!(
            "user {} may not use this worker; add it to the worker's --allow-uid",
            peer.uid
        );
        let _ = trainer.fail(0, &WireError::new(ErrorKind::Denied, message));
        return;
    }
    tracing::debug!(?peer, "a trainer connected");
    let ended = trainer.run(receiver);
    if let (Err(_), Some(running)) = (&ended, &trainer.running) {
        running.rank.fail("its process ended without closing the loader");
    }
    match ended {
        Ok(()) | Err(SocketError::Closed) => tracing::debug!(?peer, "a trainer left"),
        Err(error) => tracing::info!(?peer, %error, "a trainer was cut off"),
    }
}

/// Enters the operation of a request that a caller waits for.
fn operation(asked: &Asked, traceparent: &str) -> Option<traced::Entered> {
    let name = match asked {
        Asked::Open(_) => "open",
        Asked::Register(_) => "register",
        Asked::Latest(_) => "latest",
        Asked::Start(_) => "start",
        _ => return None,
    };
    Some(traced::enter(name, traceparent.parse().ok()))
}

struct Trainer<'a> {
    hub: &'a Hub,
    sender: Sender<wire::ToTrainer>,
    hello: wire::Hello,
    /// It has introduced itself, and may be served.
    is_welcome: bool,
    /// Policy for corrupt records, from its last request.
    corrupt: Corrupt,
    opened: OpenedSources,
    /// Its batches name the samples of their rows, if a program or a mixture makes them.
    names_samples: bool,
    /// Its job, and what the job reads.
    registered: Option<(JobSpec, Arc<Dataset>)>,
    flight: Option<Flight>,
    running: Option<Running>,
    peer: Peer,
    /// Received patterns of a list that is not complete yet.
    patterns: Vec<String>,
}

impl Trainer<'_> {
    fn run(&mut self, mut receiver: Receiver<wire::ToWorker>) -> Result<(), SocketError> {
        let begun = Instant::now();
        while !self.hub.stop.load(Ordering::Relaxed) {
            // A trainer that has not introduced itself is refused when it does.
            if self.hub.is_draining() && (self.is_welcome || begun.elapsed() > HANDSHAKE) {
                let reason = format!("worker {} is drained", self.hub.name);
                return self.say_goodbye(&mut receiver, reason);
            }
            if let Some(running) = &self.running
                && let Some(reason) = running.lost()
            {
                let Lease { job, rank, .. } = &running.rank.lease;
                tracing::warn!(%job, rank, %reason, "stops serving a trainer; it reads in-process");
                let reason = format!("worker {} stopped sending: {reason}", self.hub.name);
                return self.say_goodbye(&mut receiver, reason);
            }
            let Some((message, _)) = receiver.recv(LOOK_EVERY)? else {
                continue;
            };
            let Some(asked) = message.message else {
                // A newer trainer's request is unknown to this worker.
                let message = "the worker does not know this request; upgrade it";
                self.fail(0, &WireError::new(ErrorKind::WrongVersion, message))?;
                continue;
            };
            let _operation = operation(&asked, &message.traceparent);
            self.answer(asked)?;
        }
        // The trainer lives, and knows its position: its grants are kept for it.
        if let Some(running) = &mut self.running
            && running.rank.good_for().is_some()
        {
            running.rank.is_kept = true;
        }
        Ok(())
    }

    /// Stops after the last batch sent, says goodbye, and waits for the trainer to leave: it takes
    /// the sent batches while its own process begins to read. Grants stay with a rank until its
    /// trainer has received the goodbye and reported its position; other ranks then get the rest.
    fn say_goodbye(
        &mut self,
        receiver: &mut Receiver<wire::ToWorker>,
        reason: String,
    ) -> Result<(), SocketError> {
        if self.running.as_ref().is_some_and(|running| running.rank.good_for().is_none()) {
            self.running = None;
        }
        self.send(Message::Goodbye(wire::Goodbye { reason }))?;
        let begun = Instant::now();
        while begun.elapsed() < GOODBYE_WAIT && !self.hub.stop.load(Ordering::Relaxed) {
            if let Some((wire::ToWorker { message: Some(asked @ Asked::Took(_)), .. }, _)) =
                receiver.recv(LOOK_EVERY)?
            {
                self.answer(asked)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, asked: Asked) -> Result<(), SocketError> {
        let number = if let Asked::Start(start) = &asked { start.start } else { 0 };
        let answered = match asked {
            Asked::Took(took) => {
                if let Some(flight) = &self.flight {
                    flight.free(&took.free);
                }
                if let Some(running) = &self.running
                    && running.start == took.start
                {
                    running.took(&took);
                }
                return Ok(());
            }
            Asked::Ping(ping) => {
                let good_for = self.running.as_ref().and_then(|running| running.rank.good_for());
                let good_ms = good_for.map(|good| u64::try_from(good.as_millis()).unwrap_or(0));
                let pong = wire::Pong { nonce: ping.nonce, good_ms };
                return self.send(Message::Pong(pong));
            }
            Asked::Hello(hello) => return self.welcome(hello),
            Asked::Open(open) if open.more => self.gather(open.patterns).map(Ok),
            Asked::Open(open) => self.open(open).map(|(source, opened)| {
                describe(&source, &opened, &mut |message| self.send(message))
            }),
            Asked::Register(register) => self.register(register).map(|()| {
                // It was not known at the welcome if no coordinator had answered by then.
                let cluster_id = self.hub.session.coordinator().cluster_id().unwrap_or_default();
                self.send(Message::Registered(wire::Registered { cluster_id }))
            }),
            Asked::Latest(_) => {
                self.latest().map(|state| self.send(Message::State(wire::LoaderState { state })))
            }
            Asked::Start(start) => {
                Running::end_told(&mut self.running);
                self.start(start).map(Ok)
            }
            Asked::Stop(wire::Stop { failure }) => {
                if let (Some(running), Some(failure)) = (&self.running, failure) {
                    running.rank.fail(&failure);
                }
                Running::end_told(&mut self.running);
                return Ok(());
            }
            Asked::Trace(trace) => {
                return self.record(Duration::from_millis(trace.duration_ms));
            }
        };
        answered.unwrap_or_else(|error: LoadError| match self.hub.stop.load(Ordering::Relaxed) {
            // Stopping interrupted it. The trainer finds the worker gone, and continues elsewhere.
            true => Ok(()),
            false => self.fail(number, &error.to_wire()),
        })
    }

    /// Records a timeline of all threads of this worker, for all its trainers.
    fn record(&self, duration: Duration) -> Result<(), SocketError> {
        if !self.is_welcome {
            return self.fail(0, &out_of_turn("Trace before Hello").to_wire());
        }
        if !trace::start() {
            let message = "another client records a timeline of this worker; try again later";
            return self.fail(0, &WireError::new(ErrorKind::Retry, message));
        }
        let (begun, duration) = (Instant::now(), duration.min(TRACE_MAX));
        let mut told = Ok(());
        while told.is_ok() && begun.elapsed() < duration && !self.hub.stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY.min(duration.saturating_sub(begun.elapsed())));
            let progress = wire::Progress::default();
            told = self.send(Message::Progress(progress));
        }
        let content = trace::to_json(&format!("shardfeed worker {}", self.hub.name));
        trace::stop();
        told?;
        let mut parts = content.as_bytes().chunks(TRACE_PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let (content, is_last) = (part.to_vec(), parts.peek().is_none());
            let part = wire::TracePart { content, is_last };
            self.send(Message::TracePart(part))?;
        }
        Ok(())
    }

    fn send(&self, message: Message) -> Result<(), SocketError> {
        let mut wanted = || !self.hub.stop.load(Ordering::Relaxed) && !self.hub.is_draining();
        send(&self.sender, message, None, &mut wanted)
    }

    fn fail(&self, start: u64, error: &WireError) -> Result<(), SocketError> {
        let error = Some(error.to_message());
        self.send(Message::Failed(wire::Failed { start, error }))
    }

    fn welcome(&mut self, hello: wire::Hello) -> Result<(), SocketError> {
        if self.hub.is_draining() {
            let message = format!("worker {} is drained and takes no trainers", self.hub.name);
            return self.fail(0, &WireError::new(ErrorKind::Cordoned, message));
        }
        let ours = self.hub.session.coordinator();
        if let Err(error) = same_cluster(ours, &hello.coordinator) {
            return self.fail(0, &error);
        }
        (self.hello, self.is_welcome) = (hello, true);
        let welcome = wire::Welcome {
            worker: self.hub.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            cluster_id: ours.cluster_id().unwrap_or_default(),
        };
        self.send(Message::Welcome(welcome))
    }

    /// Keeps a part of a long list of files until the rest arrives.
    fn gather(&mut self, patterns: Vec<String>) -> Result<(), LoadError> {
        self.patterns.extend(patterns);
        let bytes: usize = self.patterns.iter().map(|pattern| pattern.len() + PATTERN_BYTES).sum();
        if bytes <= PATTERNS_BYTES_MAX {
            return Ok(());
        }
        self.patterns.clear();
        let message = format!(
            "the list of files has more than {PATTERNS_BYTES_MAX} bytes; use globs or @LIST"
        );
        Err(WireError::new(ErrorKind::Invalid, message).into())
    }

    /// Opens a dataset; returns the source of a mixture that it is, too.
    fn open(&mut self, open: wire::Open) -> Result<(String, Opened), LoadError> {
        let mut patterns = std::mem::take(&mut self.patterns);
        patterns.extend(open.patterns);
        self.hub.catalog.check_index(&open.index)?;
        // A named dataset has its own compression.
        let compression = if open.dataset.is_empty() { open.compression.as_str() } else { "auto" };
        let rules = FileRules::parse(compression, &open.corrupt).map_err(LoadError::Option)?;
        self.corrupt = rules.corrupt;
        let source = match open.dataset.is_empty() {
            true => Source::Files { patterns, rules },
            false => Source::Named(open.dataset),
        };
        let kept = Some(open.kept).filter(|name| !name.is_empty());
        let source = SampleSource { source, program: open.program, corrupt: self.corrupt, kept };
        let mut notes = Notes::new(&self.hub.stop, &self.sender, &self.hello);
        let (catalog, peer) = (&self.hub.catalog, Some(self.peer));
        let opened =
            notes.patiently(|notes| catalog.open(&source, peer, &mut |told| notes.note(told)))?;
        self.names_samples = open.name_samples;
        let SampleSource { program, .. } = source;
        let (source, record_spec, opened_too) =
            (open.source.clone(), open.record_spec, opened.clone());
        self.opened.push(OpenedSource { source, opened: opened_too, program, record_spec })?;
        Ok((open.source, opened))
    }

    /// Asks the control, with notes to the trainer, which waits.
    fn ask_control<T>(
        &self,
        ask: impl Fn(&dyn Control, Waiting<'_>) -> Result<T, ControlError>,
    ) -> Result<T, LoadError> {
        let mut notes = Notes::new(&self.hub.stop, &self.sender, &self.hello);
        notes.patiently(|notes| Ok(ask(&*self.hub.control, &mut |note| notes.wait(note))?))
    }

    fn register(&mut self, register: wire::Register) -> Result<(), LoadError> {
        check_order(register.identity.as_ref())?;
        let identity = identity_from(register.identity).map_err(bad)?;
        check_decoder(&self.hub.name, &identity.decoder)?;
        if self.opened.is_empty() {
            return Err(out_of_turn("Register before Open"));
        }
        let (schema, record_spec) = schema_of(&register.record_spec, &register.tables)?;
        if record_spec.records() != identity.records {
            let message = "the worker reads the job's features and operators otherwise than the trainer; use \
                           the same version of shardfeed for both";
            return Err(WireError::new(ErrorKind::WrongVersion, message.to_owned()).into());
        }
        let records = JobRecords { schema: Arc::new(schema), tables: register.tables };
        let input = self.opened.input(register.mixture, records, &self.hub.mixtures)?;
        let JobInput { dataset: input, name: dataset, mixture, schemas } = input;
        self.open_tables(&schemas)?;
        let (name, record_spec) = (register.job, Arc::new(record_spec));
        let job = JobSpec { name, dataset, mixture, identity, record_spec, schemas };
        self.ask_control(|control, waiting| control.register(&job, waiting))?;
        self.registered = Some((job, input));
        Ok(())
    }

    /// Opens the side tables, which may be on slow storage, with signs of life for the trainer.
    fn open_tables(&self, schemas: &ShardSchemas) -> Result<(), LoadError> {
        let mut notes = Notes::new(&self.hub.stop, &self.sender, &self.hello);
        let schemas = schemas.clone();
        Rights::Own.run(&mut |_| notes.wait(""), move |_| {
            Ok(schemas.all().iter().try_for_each(|schema| schema.open_tables())?)
        })
    }

    fn latest(&self) -> Result<Option<String>, LoadError> {
        let (job, _) = self.registered.as_ref().ok_or_else(|| out_of_turn("Latest"))?;
        let state = self.ask_control(|control, waiting| control.latest(&job.name, waiting))?;
        Ok(state.map(|state| state.to_json()))
    }

    fn start(&mut self, start: wire::Start) -> Result<(), LoadError> {
        let (job, input) = self.registered.as_ref().ok_or_else(|| out_of_turn("Start"))?;
        let request = LeaseRequest {
            job: job.name.clone(),
            run: start.run,
            trainer: self.hello.trainer.clone(),
            rank: start.rank,
            world_size: start.world_size,
            limit: start.limit,
            mode: job.identity.mode,
            mixture: job.mixture.as_ref().map(|mixture| mixture.digest()),
            at: StartPosition {
                intent: intent_from(start.intent).map_err(bad)?,
                left: start.left.map(|left| (left.epoch, left.step)),
                left_out: left_out_from(start.left_out).map_err(bad)?,
                epoch: start.epoch,
                segments: segments_from(start.segments).map_err(bad)?,
                step: start.step,
            },
            doubt: DoubtPolicy::new(start.in_doubt_drop, start.in_doubt_grace_ms),
            peer: Some(self.peer),
        };
        let skipped: Vec<_> = start.skipped.into_iter().map(Skipped::from).collect();
        let asked = (start.prefetch > 0).then_some(start.prefetch.min(PREFETCH_MAX) as usize);
        let depth = asked.unwrap_or(PREFETCH_START) as u64;
        let hold_max = depth.max(HOLD_LEAST);
        let rows = request
            .at
            .segments
            .last()
            .map_or(1, |open| open.global_batch / start.world_size.max(1));
        let row_bytes = slot_row_bytes(input, &job.schemas);
        let held_bytes = hold_max.saturating_mul(rows.saturating_mul(row_bytes));
        // Refused before the rank is taken over from another loader.
        let (budget, ranks) = (&self.hub.budget, self.hello.ranks_on_host);
        let share = budget.share(&self.peer, start.memory_budget, ranks, held_bytes)?;
        let lease = self.ask_control(|control, waiting| control.lease(&request, waiting))?;
        let control = Arc::<GrpcControl>::clone(&self.hub.control);
        let rank = LeaseGuard::new(control, lease);
        let Lease { job: name, generation, rank: number, fencing, mixture, .. } = &rank.lease;
        tracing::info!(job = %name, generation, rank = number, fencing, "a trainer's rank has its lease");
        // Only a trainer with a lease of the job may report its records.
        rank.control.report_skipped(name, *mixture, &skipped);
        self.hub.await_replaced(name, *number);
        let flight = self
            .flight
            .get_or_insert_with(|| {
                let named = Named {
                    samples: self.names_samples && input.samples().is_some(),
                    epochs: self.names_samples && input.mixed().is_some(),
                };
                Flight::new((depth + hold_max) as usize + SLOTS_BEYOND, named)
            })
            .clone();
        let plans = Plans::of_dataset(input, (job.identity.tail, start.limit));
        let options = PrefetchOptions {
            dataset: Arc::clone(input),
            schemas: job.schemas.clone(),
            corrupt: self.corrupt,
            slots: flight.pool.clone(),
            rank: start.rank,
            epoch: start.epoch,
            step: start.step,
            prefetch: asked,
            budget_bytes: share.reading_bytes,
            took_over: false,
        };
        let reader = rank.read(Arc::new(plans), &job.identity, start.world_size, options)?;
        let started = wire::Started {
            start: start.start,
            generation: *generation,
            fencing: *fencing,
            epoch: rank.lease.epoch,
            segments: segments_to(&rank.lease.segments),
            hold_max,
        };
        // If the trainer is gone, the next receive fails.
        let _ = self.send(Message::Started(started));
        let key = (Arc::clone(name), *number);
        let (start, sender) = (start.start, self.sender.clone());
        let hub_stop = Arc::clone(&self.hub.stop);
        let ready = ReadyRank { start, rank, hub_stop, reader, flight, sender, share };
        let (running, sending) = Running::begin(ready)?;
        let mut serving = self.hub.serving.lock();
        serving.retain(|_, sending| sending.try_recv() == Err(TryRecvError::Empty));
        serving.insert(key, sending);
        drop(serving);
        self.running = Some(running);
        Ok(())
    }
}

/// Sends notes to a waiting trainer, and cancels when it is gone.
struct Notes<'a> {
    stop: &'a AtomicBool,
    sender: &'a Sender<wire::ToTrainer>,
    told: Option<(Instant, OpenProgress)>,
    /// Time of the last message: a trainer gives up a worker that is silent for 5 s.
    sent: Instant,
    is_gone: bool,
    /// Start of the wait for a component that does not answer.
    since: Option<Instant>,
    patience: Duration,
}

impl<'a> Notes<'a> {
    fn new(stop: &'a AtomicBool, sender: &'a Sender<wire::ToTrainer>, hello: &wire::Hello) -> Self {
        let patience = match hello.timeout_ms {
            0 => Duration::MAX,
            timeout_ms => Duration::from_millis(timeout_ms),
        };
        let sent = Instant::now();
        Self { stop, sender, told: None, sent, is_gone: false, since: None, patience }
    }

    fn is_late(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.patience)
    }

    /// Retries while no coordinator answers, for the trainer's timeout: the worker's may be less.
    fn patiently<T>(
        &mut self,
        mut ask: impl FnMut(&mut Self) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        loop {
            match ask(self) {
                Err(LoadError::Wire(error))
                    if error.kind == ErrorKind::Unreachable && self.wait(&error.message) => {}
                Ok(answer) => {
                    self.since = None;
                    return Ok(answer);
                }
                Err(error) => return Err(self.late(error)),
            }
        }
    }

    /// Returns the error for the trainer: exceeding its timeout is not just an interruption.
    fn late(&self, error: LoadError) -> LoadError {
        match &self.told {
            Some((_, told)) if self.is_late() && told.scan.stage == ScanStage::Scanning => {
                let seconds = self.patience.as_secs_f64();
                let message =
                    format!("the dataset is not ready after {seconds:.1} s: {}", told.note);
                WireError::new(ErrorKind::Unreachable, message).into()
            }
            Some((_, told)) if self.is_late() && !told.note.is_empty() => {
                let message = format!(
                    "the coordinator did not answer for {:.1} s ({}); check the address and that \
                     `shardfeed coordinator start` runs there, then start again",
                    self.patience.as_secs_f64(),
                    told.note
                );
                WireError::new(ErrorKind::Unreachable, message).into()
            }
            _ => error,
        }
    }

    fn wait(&mut self, note: &str) -> bool {
        self.note(&OpenProgress::waiting(note))
    }

    fn note(&mut self, progress: &OpenProgress) -> bool {
        match (progress.note.as_str(), progress.scan.stage) {
            // A call has just begun, and others before it were quick: there is nothing to report.
            ("", ScanStage::Waiting) => {
                if self.sent.elapsed() > NOTE_EVERY {
                    let told = self.told.as_ref().map(|(_, told)| told.clone());
                    self.send(&told.unwrap_or_else(|| progress.clone()));
                }
            }
            (note, _) => {
                self.since = match note {
                    "" => None,
                    _ => self.since.or_else(|| Some(Instant::now())),
                };
                let is_news = self
                    .told
                    .as_ref()
                    .is_none_or(|(at, told)| told.note != note || at.elapsed() > NOTE_EVERY);
                if is_news {
                    self.told = Some((Instant::now(), progress.clone()));
                    self.send(progress);
                }
            }
        }
        !self.is_gone && !self.is_late() && !self.stop.load(Ordering::Relaxed)
    }

    fn send(&mut self, progress: &OpenProgress) {
        self.sent = Instant::now();
        let message = wire::Progress {
            note: progress.note.clone(),
            files: progress.scan.files as u64,
            files_total: progress.scan.files_total as u64,
            bytes: progress.scan.bytes,
            bytes_total: progress.scan.bytes_total,
        };
        let mut wanted = || !self.stop.load(Ordering::Relaxed);
        let message = Message::Progress(message);
        self.is_gone |= send(self.sender, message, None, &mut wanted).is_err();
    }
}

/// Checks that the addresses given to a trainer are of this worker's cluster.
fn same_cluster(ours: &Coordinator, theirs: &str) -> Result<(), WireError> {
    let Ok(listed) = theirs.parse::<Addresses>() else {
        // A trainer without addresses trusts its worker; invalid ones it has rejected itself.
        return Ok(());
    };
    let ours_listed = ours.addresses();
    let is_ours = |address| ours_listed.as_ref().is_some_and(|listed| listed.contains(address));
    if listed.iter().any(is_ours) {
        return Ok(());
    }
    let credentials = ours.credentials().clone();
    let other = Coordinator::of(listed, "worker", OTHER_TIMEOUT, None, credentials);
    let status = other.call(&mut |_| true, &GetStatusRequest { context: None })?;
    match ours.cluster_id() {
        Some(id) if id != status.cluster_id => Err(WireError::new(
            ErrorKind::WrongCluster,
            format!(
                "this worker is of cluster {id} (coordinator {}), the loader's coordinator={theirs} is of \
                 cluster {}; give both the same coordinator",
                ours.whereabouts(),
                status.cluster_id
            ),
        )),
        _ => Ok(()),
    }
}

fn out_of_turn(what: &str) -> LoadError {
    WireError::new(ErrorKind::WrongVersion, format!("the trainer sent {what} out of turn")).into()
}

fn bad(error: impl std::fmt::Display) -> LoadError {
    WireError::new(ErrorKind::WrongVersion, format!("the trainer's request: {error}")).into()
}

#[cfg(test)]
mod tests {
    use shardfeed_socket::Connection;

    use super::*;

    /// Returns the result for a trainer with this timeout; the coordinator is unreachable twice.
    fn told(timeout_ms: u64) -> (Result<u32, String>, u32) {
        let (worker, trainer) = Connection::<wire::ToTrainer, wire::ToWorker>::pair().unwrap();
        let ((sender, _), hello) =
            (worker.split(), wire::Hello { timeout_ms, ..Default::default() });
        let stop = AtomicBool::new(false);
        let mut notes = Notes::new(&stop, &sender, &hello);
        let mut asked = 0;
        let got = notes.patiently(|notes| {
            asked += 1;
            // A trainer with a short timeout has none left at its second attempt.
            while timeout_ms == 1 && notes.since.is_some() && !notes.is_late() {
                std::thread::yield_now();
            }
            // Each call to a coordinator begins without a note.
            if !notes.wait("") {
                return Err(LoadError::Interrupted);
            }
            let silent = || WireError::new(ErrorKind::Unreachable, "no node answers").into();
            if asked > 2 { Ok(asked) } else { Err(silent()) }
        });
        drop(trainer);
        (got.map_err(|error| error.to_string()), asked)
    }

    #[test]
    fn a_start_waits_as_long_as_its_trainer_wants_to() {
        assert_eq!(told(600_000), (Ok(3), 3));
        assert_eq!(told(0), (Ok(3), 3), "as long as it takes");
        let (late, asked) = told(1);
        assert!(asked <= 2, "{asked}");
        assert!(late.unwrap_err().contains("did not answer for"));
    }

    #[test]
    fn a_trainer_sees_signs_of_life_while_there_is_nothing_to_report() {
        let (worker, mut trainer) = Connection::<wire::ToTrainer, wire::ToWorker>::pair().unwrap();
        let (sender, _receiver) = worker.split();
        let (stop, begun) = (AtomicBool::new(false), Instant::now());
        let mut notes = Notes::new(&stop, &sender, &wire::Hello::default());
        // Many quick calls in a row: none of them waits long enough for a note.
        while begun.elapsed() <= 2 * NOTE_EVERY {
            assert!(notes.wait(""));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(notes.since.is_none() && notes.told.is_none());
        let (message, _) = trainer.recv(Duration::ZERO).unwrap().unwrap();
        assert_eq!(message.message, Some(Message::Progress(wire::Progress::default())));
    }
}
