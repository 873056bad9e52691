//! Batches in a cluster: from this host's worker while there is one, else from this process, always
//! in sequence.

mod ahead;
mod replacement;
mod told;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use shardfeed_agent::{LeaseTime, traced};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Batch;
use shardfeed_plan::{LoaderState, Mode};
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_proto::{ErrorKind, WireError, intent_to, segments_to};
use shardfeed_reader::{Delivered, Demand, Skipped};
use shardfeed_source::LoadError;

use crate::contents::Contents;
use crate::link::connect::{Unavailable, default_worker_socket, greet_for, register};
use crate::link::exchange::{Deal, Event, Job, Place, Progress, Setting, waiting};
use crate::link::in_process::{InProcess, await_file, cluster_of, coordinator, open_here};
use crate::link::received::{samples_of, skipped_to};
use crate::link::standing::Standing;
use crate::link::worker::{Heard, Lost, WorkerLink};
use crate::pace::us;

/// Wait at start for a worker whose socket was configured, before this process reads instead.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// Wait for a worker that was lost during a run.
const RETURN_WAIT: Duration = Duration::from_millis(300);

/// Maximum corrupt records reported again at a start: the latest ones; the worker reported those
/// before.
const MET_MAX: usize = 1000;

/// Number of copies that are kept for reuse.
const COPIES_KEPT: usize = 2;

/// A rank in a cluster.
pub(crate) struct Cluster {
    setting: Setting,
    contents: Contents,
    job: Option<Job>,
    /// Socket path where a worker is or may come.
    worker: Option<PathBuf>,
    way: Way,
    /// Received batches, from any worker, that were not handed out yet.
    queue: VecDeque<Queued>,
    /// Error that is returned after the received batches.
    failure: Option<LoadError>,
    /// Of a dynamic job: the time until which received batches are valid.
    standing: Standing,
    /// Number of the current start; messages of earlier starts are dropped.
    start: u64,
    /// Number of the current worker connection.
    connection: u64,
    /// Origin of the batch that was offered and is not consumed yet; `None` also if this process
    /// read it.
    offered: Option<Origin>,
    hold_max: usize,
    copies: SlotPool,
    copied: u64,
    /// Time that copying the last returned batch took.
    copying: Duration,
    /// Connection attempt to a worker, made at the end of an epoch.
    returning: Option<Receiver<Connected>>,
    /// Corrupt records in batches that workers sent, each once, at most [`MET_MAX`].
    met: VecDeque<Skipped>,
    /// Workers lost since a worker sent a batch, and the time of the first loss.
    fruitless: Option<(u32, Instant)>,
    waited: Duration,
}

type Connected = Result<WorkerLink, Unavailable>;

/// Connection and start that a received batch belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Origin {
    connection: u64,
    start: u64,
}

struct Queued {
    origin: Origin,
    epoch: u64,
    step: u64,
    /// `None`: the epoch ended for this rank after `step` steps.
    batch: Option<Batch>,
    skipped: Vec<Skipped>,
}

/// Source of the next batches.
enum Way {
    /// A connection to a worker is being made.
    Connecting(Receiver<Connected>),
    /// A worker.
    Worker(Box<WorkerLink>, Phase),
    /// A worker in this process is being created.
    Opening(Receiver<Result<InProcess, LoadError>>),
    /// A worker in this process.
    Here(Box<InProcess>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Starting,
    Running,
}

impl Cluster {
    /// Connects to a worker, or becomes one, and opens the dataset.
    pub(crate) fn open(
        setting: Setting,
        progress: Progress<'_>,
    ) -> Result<(Self, Contents), LoadError> {
        let cluster = cluster_of(&setting);
        // An invalid address is rejected before anything is waited for.
        await_file(&coordinator(&setting)?, progress)?;
        let path = cluster.worker.clone().unwrap_or_else(default_worker_socket);
        let is_told = cluster.worker.is_some() || std::env::var_os("SHARDFEED_WORKER").is_some();
        let patience = match (is_told, cluster.fallback) {
            (_, false) => cluster.timeout,
            (true, true) => FIRST_WAIT.min(cluster.timeout),
            (false, true) => Duration::ZERO,
        };
        let (way, contents) = match greet_for(&setting, &path, None, patience, progress) {
            Ok((link, contents)) => (Way::Worker(Box::new(link), Phase::Idle), contents),
            Err(absent @ (Unavailable::Absent(_) | Unavailable::Cordoned(_)))
                if cluster.fallback =>
            {
                match absent {
                    Unavailable::Cordoned(reason) if is_told => {
                        tracing::warn!("{reason}; reading in this process");
                    }
                    // The reason was logged during the wait.
                    _ if is_told => tracing::warn!("no worker came; reading in this process"),
                    _ => {}
                }
                let (mut here, contents) = open_here(&setting, progress)?;
                if is_told {
                    here.here.took_over();
                }
                (Way::Here(Box::new(here)), contents)
            }
            Err(error) => return Err(error.into_error()),
        };
        let worker = (is_told || path.exists()).then_some(path);
        let link = Self {
            setting,
            contents: contents.clone(),
            job: None,
            worker,
            way,
            queue: VecDeque::new(),
            failure: None,
            standing: Standing::default(),
            start: 0,
            connection: 0,
            offered: None,
            hold_max: 1,
            copies: SlotPool::new(COPIES_KEPT),
            copied: 0,
            copying: Duration::ZERO,
            returning: None,
            met: VecDeque::new(),
            fruitless: None,
            waited: Duration::ZERO,
        };
        Ok((link, contents))
    }

    pub(crate) fn register(&mut self, job: &Job, progress: Progress<'_>) -> Result<(), LoadError> {
        self.stop();
        self.job = Some(job.clone());
        loop {
            let lost = match &mut self.way {
                Way::Worker(link, _) => match register(link, job, progress) {
                    Ok(()) => return Ok(()),
                    Err(Unavailable::Refused(error)) => return Err(error),
                    Err(Unavailable::Absent(reason) | Unavailable::Cordoned(reason)) => reason,
                },
                Way::Here(here) => return here.here.register(job, progress),
                Way::Connecting(_) | Way::Opening(_) => {
                    self.settle(progress)?;
                    continue;
                }
            };
            self.lose(&lost);
        }
    }

    pub(crate) fn latest(
        &mut self,
        job: &Job,
        progress: Progress<'_>,
    ) -> Result<Option<LoaderState>, LoadError> {
        loop {
            let lost = match &mut self.way {
                Way::Worker(link, _) => match link.ask(Ask::Latest(wire::Latest {}), progress) {
                    Ok(Message::State(state)) => {
                        let state = state.state.map(|text| LoaderState::from_json(&text));
                        return Ok(state.transpose()?);
                    }
                    Ok(other) => link.unexpected(&other),
                    Err(lost) => lost,
                },
                Way::Here(here) => {
                    let mut waiting = waiting(progress);
                    return Ok(here.here.control().latest(&job.name, &mut waiting)?);
                }
                Way::Connecting(_) | Way::Opening(_) => {
                    self.settle(progress)?;
                    continue;
                }
            };
            match lost {
                Lost::Failed(error) => return Err(error),
                Lost::Gone(reason) => self.lose(&reason),
            }
        }
    }

    pub(crate) fn poll(
        &mut self,
        place: &mut dyn FnMut(usize) -> Result<Place, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        let begun = Instant::now();
        let result = self.look(place, timeout);
        self.waited += begun.elapsed();
        result
    }

    fn look(
        &mut self,
        place: &mut dyn FnMut(usize) -> Result<Place, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        let begun = Instant::now();
        self.welcome_back();
        if let Some(event) = self.prepare(place)? {
            return Ok(event);
        }
        loop {
            // Received messages are processed first: they may invalidate the received batches.
            if let Some(event) = self.drain()? {
                return Ok(event);
            }
            let may_hand_out = self.may_hand_out();
            if let Some(queued) = self.queue.pop_front_if(|_| may_hand_out) {
                return self.hand_out(queued);
            }
            if let Some(error) = self.failure.take_if(|_| self.queue.is_empty()) {
                return Err(error);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            match &mut self.way {
                Way::Worker(_, Phase::Idle) => self.ask_for_batches(place)?,
                Way::Worker(link, _) => {
                    if left.is_zero() {
                        return Ok(Event::Pending);
                    }
                    match link.hear(left) {
                        Ok(None) => return Ok(Event::Pending),
                        Ok(Some(heard)) => {
                            if let Some(event) = self.take(heard)? {
                                return Ok(event);
                            }
                        }
                        Err(lost) => self.lost(lost)?,
                    }
                }
                Way::Here(here) => {
                    return here.here.poll(place, left);
                }
                Way::Connecting(_) | Way::Opening(_) => {
                    if left.is_zero() || !self.advance(left.min(Duration::from_millis(20)))? {
                        return Ok(Event::Pending);
                    }
                }
            }
        }
    }

    /// While received batches are left: lets the worker's replacement read the following ones.
    fn prepare(
        &mut self,
        place: &mut dyn FnMut(usize) -> Result<Place, LoadError>,
    ) -> Result<Option<Event>, LoadError> {
        let in_hand = self.queue.len();
        // A dynamic rank's next samples are agreed upon only at its current position.
        let is_dynamic = self.setting.options.mode == Mode::Dynamic;
        if in_hand == 0 || is_dynamic || self.failure.is_some() {
            return Ok(None);
        }
        if matches!(self.way, Way::Connecting(_) | Way::Opening(_)) {
            self.failure = self.advance(Duration::ZERO).err();
        }
        let Way::Here(here) = &mut self.way else {
            return Ok(None);
        };
        if here.here.is_running() {
            return Ok(None);
        }
        match here.here.poll(&mut |more| place(in_hand + more), Duration::ZERO) {
            Ok(event @ Event::Started { .. }) => return Ok(Some(event)),
            // A reader that is not running yet has no batch and no end of an epoch.
            Ok(Event::Pending | Event::Batch(_) | Event::EpochEnd { .. }) => {}
            Err(LoadError::Wire(error)) if is_over(&error) => {
                self.drop_in_hand();
                return Err(error.into());
            }
            // Received batches stay valid.
            Err(error) => self.failure = Some(error),
        }
        Ok(None)
    }

    /// Processes everything that the worker has sent.
    fn drain(&mut self) -> Result<Option<Event>, LoadError> {
        loop {
            let Way::Worker(link, _) = &mut self.way else {
                return Ok(None);
            };
            match link.try_hear() {
                Ok(None) => return Ok(None),
                Ok(Some(heard)) => {
                    if let Some(event) = self.take(heard)? {
                        return Ok(Some(event));
                    }
                }
                Err(lost) => self.lost(lost)?,
            }
        }
    }

    fn take(&mut self, heard: Heard) -> Result<Option<Event>, LoadError> {
        match heard {
            Heard::Other => {}
            Heard::Started(started) if started.start == self.start => {
                if let Way::Worker(_, phase) = &mut self.way {
                    *phase = Phase::Running;
                }
                self.hold_max = usize::try_from(started.hold_max).unwrap_or(1).max(1);
                return Ok(Some(Event::Started { generation: started.generation }));
            }
            Heard::Batch { start, epoch, step, batch, skipped } if start == self.start => {
                self.fruitless = None;
                for one in &skipped {
                    if self.met.iter().all(|met| met.sample != one.sample) {
                        self.met.truncate(MET_MAX - 1);
                        self.met.push_front(one.clone());
                    }
                }
                let (origin, batch) = (self.origin(start), Some(batch));
                self.queue.push_back(Queued { origin, epoch, step, batch, skipped });
            }
            Heard::EpochEnd { start, epoch, steps } if start == self.start => {
                let (origin, step) = (self.origin(start), steps);
                let (batch, skipped) = (None, vec![]);
                self.queue.push_back(Queued { origin, epoch, step, batch, skipped });
            }
            Heard::Again { start } if start == self.start => {
                self.drop_in_hand();
                if let Way::Worker(_, phase) = &mut self.way {
                    *phase = Phase::Idle;
                }
            }
            Heard::Pong { nonce, good_for } => self.standing.answered(nonce, good_for),
            Heard::Failed { start, error } if start == self.start || start == 0 => {
                if let Way::Worker(_, phase) = &mut self.way {
                    *phase = Phase::Idle;
                }
                if is_over(&error) {
                    // No batch received or under way belongs to this rank any more.
                    self.drop_in_hand();
                    self.start += 1;
                    return Err(error.into());
                }
                if error.kind == ErrorKind::Cordoned && cluster_of(&self.setting).fallback {
                    // The worker may serve other trainers for a long time: this loader does not ask
                    // it again.
                    self.worker = None;
                    self.replace_worker(&error.message)?;
                    return Ok(None);
                }
                self.failure = Some(error.into());
            }
            Heard::Goodbye(reason) => self.replace_worker(&reason)?,
            // Messages of an earlier start: dropping them returns their slots.
            Heard::Started(_)
            | Heard::Batch { .. }
            | Heard::EpochEnd { .. }
            | Heard::Again { .. }
            | Heard::Failed { .. } => {}
        }
        Ok(None)
    }

    fn ask_for_batches(
        &mut self,
        place: &mut dyn FnMut(usize) -> Result<Place, LoadError>,
    ) -> Result<(), LoadError> {
        let place = place(self.queue.len())?;
        let options = &self.setting.options;
        let _operation = traced::enter("start", None);
        tracing::info!(
            rank = options.rank,
            epoch = place.epoch,
            step = place.step,
            "asking for batches"
        );
        self.start += 1;
        let start = wire::Start {
            start: self.start,
            intent: Some(intent_to(&place.intent)),
            run: cluster_of(&self.setting).run.clone(),
            rank: options.rank,
            world_size: options.world_size,
            limit: options.limit,
            prefetch: options.prefetch.map_or(0, |prefetch| prefetch as u64),
            memory_budget: options.memory_budget_bytes,
            epoch: place.epoch,
            segments: segments_to(&place.segments),
            step: place.step,
            skipped: self.met.iter().map(skipped_to).collect(),
            in_doubt_drop: options.doubt.is_drop,
            in_doubt_grace_ms: u64::try_from(options.doubt.grace.as_millis()).ok(),
            left: place.left.map(|(epoch, step)| wire::Position { epoch, step }),
        };
        let Way::Worker(link, phase) = &mut self.way else {
            return Ok(());
        };
        *phase = Phase::Starting;
        match link.send(Ask::Start(start)) {
            Ok(()) => Ok(()),
            Err(lost) => self.lost(lost),
        }
    }

    fn is_dynamic(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.identity.is_dynamic())
    }

    /// True if received batches may be handed out.
    ///
    /// Batches of a dynamic job are valid only while the lease is, and are dropped when another
    /// worker takes over.
    fn may_hand_out(&mut self) -> bool {
        if !self.is_dynamic() {
            return true;
        }
        match &mut self.way {
            Way::Worker(_, Phase::Idle | Phase::Starting) | Way::Here(_) => self.drop_in_hand(),
            Way::Worker(link, Phase::Running) => {
                if let Some(nonce) = self.standing.question(LeaseTime::now()) {
                    // The next call that needs the worker notices that it is gone.
                    let _ = link.send(Ask::Ping(wire::Ping { nonce }));
                }
            }
            Way::Connecting(_) | Way::Opening(_) => {}
        }
        if !self.queue.is_empty() && self.standing.shall_tell(LeaseTime::now()) {
            tracing::warn!(
                "the coordinator has not confirmed the lease of this dynamic job for most of its \
                 life; batches in hand wait"
            );
        }
        self.standing.is_good(LeaseTime::now())
    }

    /// Drops a dynamic job's batches from a lost worker: they may belong to another rank by now.
    ///
    /// Samples that are still this rank's are delivered again.
    fn forget_granted(&mut self) {
        if self.is_dynamic() {
            self.drop_in_hand();
        }
    }

    fn drop_in_hand(&mut self) {
        self.queue.clear();
        self.offered = None;
        self.standing.forget();
    }

    fn hand_out(&mut self, queued: Queued) -> Result<Event, LoadError> {
        let Queued { origin, epoch, step, batch, skipped } = queued;
        let Some(mut batch) = batch else {
            return Ok(Event::EpochEnd { epoch, steps: step });
        };
        let samples = if self.setting.with_samples { samples_of(&mut batch) } else { vec![] };
        if let Way::Worker(link, _) = &self.way
            && origin == self.origin(self.start)
        {
            // Slots viewed by arrays: all borrowed ones except those of queued batches and of this
            // one.
            let held = link.regions.out().saturating_sub(self.queue.len() + 1);
            if held >= self.hold_max {
                batch = self.copy(batch)?;
            }
        }
        self.offered = Some(origin);
        Ok(Event::Batch(Box::new(Delivered { epoch, step, samples, skipped, batch })))
    }

    /// Copies a batch for a trainer that holds many, so that it never waits for slots that it holds
    /// itself.
    fn copy(&mut self, mut batch: Batch) -> Result<Batch, LoadError> {
        if self.copied == 0 {
            tracing::warn!(
                held = self.hold_max,
                "the trainer holds on to many batches; further ones are copied"
            );
        }
        self.copied += 1;
        let begun = Instant::now();
        let bytes = batch.slot.size_bytes();
        let copied = batch.slot.copy_into(&self.copies, bytes);
        self.copying = begun.elapsed();
        batch.slot =
            copied.map_err(|source| LoadError::Io { file: "a copy of a batch".into(), source })?;
        Ok(batch)
    }

    pub(crate) fn took(&mut self, epoch: u64, step: u64, demand: Option<Demand>) {
        let copy = std::mem::take(&mut self.copying);
        let current = self.origin(self.start);
        let is_current = self.offered.take() == Some(current);
        let lost = match &mut self.way {
            Way::Here(here) => return here.here.took(epoch, step, demand.as_ref()),
            Way::Worker(link, phase) => {
                let spent = demand.unwrap_or_default();
                let took = wire::Took {
                    start: self.start,
                    batches: u64::from(is_current),
                    epoch,
                    step,
                    free: link.regions.take_returned(),
                    wait_us: us(spent.wait),
                    work_us: us(spent.work),
                    copy_us: us(copy),
                    taken_epoch: spent.epoch,
                    rows: spent.samples,
                    bytes: spent.bytes,
                    waiting_us: Some(0),
                };
                if *phase != Phase::Running && took.free.is_empty() {
                    return;
                }
                link.send(Ask::Took(took)).err()
            }
            Way::Connecting(_) | Way::Opening(_) => return,
        };
        if let Some(Lost::Gone(reason)) = lost {
            self.lose(&reason);
        }
    }

    /// Reports how long the trainer at (epoch, step) has waited for its next batch.
    pub(crate) fn waits(&mut self, epoch: u64, step: u64, waiting: Duration) {
        match &mut self.way {
            Way::Here(here) => here.here.waits(waiting),
            Way::Worker(link, Phase::Running) => {
                let (start, waiting_us) = (self.start, Some(us(waiting)));
                // A worker of an earlier version reads this as a report of the rank's position.
                let took = wire::Took { start, epoch, step, waiting_us, ..wire::Took::default() };
                // The next call that needs the worker notices that it is gone.
                let _ = link.send(Ask::Took(took));
            }
            Way::Worker(..) | Way::Connecting(_) | Way::Opening(_) => {}
        }
    }

    pub(crate) fn stands_at(&mut self, epoch: u64, step: u64) {
        // The end of an epoch counts as no batch.
        self.took(epoch, step, None);
    }

    pub(crate) fn stop(&mut self) {
        self.end(None);
    }

    /// Stops for good, with the error that ends the trainer.
    pub(crate) fn end(&mut self, failure: Option<&str>) {
        self.drop_in_hand();
        self.failure = None;
        match &mut self.way {
            Way::Here(here) => {
                failure.into_iter().for_each(|failure| here.here.fail(failure));
                here.here.stop();
            }
            Way::Worker(link, phase) => {
                if *phase != Phase::Idle {
                    *phase = Phase::Idle;
                    self.start += 1;
                    // The next call that needs the worker notices that it is gone.
                    let _ = link.send(Ask::Stop(wire::Stop { failure: failure.map(Into::into) }));
                }
            }
            Way::Connecting(_) | Way::Opening(_) => {}
        }
    }

    /// Changes the rank and its part of each batch from the next start on.
    pub(crate) fn deal(&mut self, deal: Deal) {
        self.stop();
        deal.apply(&mut self.setting.options);
        if let Way::Here(here) = &mut self.way {
            here.here.deal(deal);
        }
    }

    /// Tries to connect to the worker again if this process reads in its place.
    pub(crate) fn epoch_ended(&mut self) {
        if let (Way::Here(here), Some(path), None) = (&self.way, &self.worker, &self.returning)
            && !here.here.has_untold()
        {
            let (path, job) = (path.clone(), self.job.clone());
            self.returning = self.connect_in_background(path, job, Duration::ZERO).ok();
        }
    }

    fn welcome_back(&mut self) {
        // The worker would report a generation that the coordinator does not know.
        if matches!(&self.way, Way::Here(here) if here.here.has_untold()) {
            return;
        }
        let Some(returning) = &self.returning else {
            return;
        };
        match returning.try_recv() {
            Err(TryRecvError::Empty) => return,
            Ok(Ok(link)) => {
                tracing::info!(worker = link.name(), "the worker is back");
                self.connection += 1;
                self.way = Way::Worker(Box::new(link), Phase::Idle);
            }
            Ok(Err(_)) | Err(TryRecvError::Disconnected) => {}
        }
        self.returning = None;
    }
}

/// True if the rank must stop: others were started in its place.
fn is_over(error: &WireError) -> bool {
    use ErrorKind::{Conflict, Fenced, Replaced, Superseded};
    matches!(error.kind, Superseded | Fenced | Replaced | Conflict)
}
