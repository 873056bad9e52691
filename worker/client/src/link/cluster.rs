//! Batches in a cluster: from this host's worker while there is one, else from this process, always
//! in sequence.
//!
//! [`Machine`] decides; [`Cluster`] has the sockets, threads and clocks.

mod copies;
mod machine;
mod replacement;

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use shardfeed_pipeline::Batch;
use shardfeed_plan::{LoaderState, Mode, Start};
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_proto::{ErrorKind, WireError, intent_to, left_out_to, segments_to};
use shardfeed_reader::{Delivered, Delivery, Demand, JobSpec, LeaseTime, StartPosition, traced};
use shardfeed_source::{LoadError, OnProgress};

use crate::contents::Contents;
use crate::link::connect::{default_worker_socket, greet_for, register};
use crate::link::exchange::{Event, InHand, Setting};
use crate::link::in_process_link::InProcessLink;
use crate::link::outcome::Unavailable;
use crate::link::received::{Broken, Received, prefetch_stats, samples_of};
use crate::link::worker::WorkerLink;
use crate::link::{Link, LinkReport};
use crate::pace::us;
use copies::Copies;
use machine::{Effect, Input, Machine, Next, Queued, Rules, State, Step};

/// Wait at start for a worker whose socket was configured, before this process reads instead.
const FIRST_WAIT: Duration = Duration::from_secs(5);

pub(crate) struct Cluster {
    setting: Setting,
    contents: Contents,
    job: Option<JobSpec>,
    backend: Backend,
    machine: Machine<Received>,
    copies: Copies,
    waited: Duration,
}

type Attempt<T, E> = Receiver<Result<T, E>>;

/// Connection or process that the machine's state is about.
enum Backend {
    Connecting(Attempt<WorkerLink, Unavailable>),
    Worker(Box<WorkerLink>),
    /// A worker in this process is being created.
    Opening(Attempt<InProcessLink, LoadError>),
    /// A worker in this process, and the attempt to connect to a worker again.
    InProcess(Box<InProcessLink>, Option<Attempt<WorkerLink, Unavailable>>),
}

impl Cluster {
    /// Connects to a worker, or becomes one, and opens the dataset.
    pub(crate) fn open(
        setting: Setting,
        progress: OnProgress<'_>,
    ) -> Result<(Self, Contents), LoadError> {
        let cluster = setting.cluster();
        // An invalid address is rejected before anything is waited for.
        cluster.port.await_addresses(cluster, progress)?;
        let path = cluster.worker.clone().unwrap_or_else(default_worker_socket);
        let is_told = cluster.worker.is_some() || std::env::var_os("SHARDFEED_WORKER").is_some();
        let patience = match (is_told, cluster.fallback) {
            (_, false) => cluster.timeout,
            (true, true) => FIRST_WAIT.min(cluster.timeout),
            (false, true) => Duration::ZERO,
        };
        let (backend, state, contents) = match greet_for(&setting, &path, None, patience, progress)
        {
            Ok((link, contents)) => (Backend::Worker(Box::new(link)), State::Idle, contents),
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
                let (mut in_process, contents) = InProcessLink::open(&setting, progress)?;
                if is_told {
                    in_process.took_over = true;
                }
                (Backend::InProcess(Box::new(in_process), None), State::InProcess, contents)
            }
            Err(error) => return Err(error.into()),
        };
        let worker = (is_told || path.exists()).then_some(path);
        let rules = Rules {
            fallback: cluster.fallback,
            timeout: cluster.timeout,
            is_dynamic: setting.options.mode == Mode::Dynamic,
        };
        let link = Self {
            setting,
            contents: contents.clone(),
            job: None,
            backend,
            machine: Machine::new(rules, state, worker),
            copies: Copies::new(),
            waited: Duration::ZERO,
        };
        Ok((link, contents))
    }

    fn look(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        let begun = Instant::now();
        self.welcome_back();
        if let Some(event) = self.prepare(position)? {
            return Ok(event);
        }
        loop {
            // Received messages are processed first: they may invalidate the received batches.
            if let Some(event) = self.drain()? {
                return Ok(event);
            }
            let may_return = self.may_return();
            let next = self.machine.next(may_return);
            let left = timeout.saturating_sub(begun.elapsed());
            match (next, &mut self.backend) {
                (Next::Return(queued), _) => return self.hand_out(queued),
                (Next::Fail(error), _) => return Err(error),
                (Next::Ask, _) => self.ask_for_batches(position)?,
                (Next::Read, Backend::InProcess(in_process, _)) => {
                    return in_process.poll(position, left);
                }
                (_, _) if left.is_zero() => return Ok(Event::PENDING),
                (Next::Hear, Backend::Worker(link)) => match link.hear(left) {
                    Ok(None) => return Ok(Event::PENDING),
                    Ok(Some(heard)) => {
                        if let Some(event) = self.apply(Input::Heard(heard))? {
                            return Ok(event);
                        }
                    }
                    Err(lost) => self.lost(lost)?,
                },
                (Next::Settle | Next::Hear | Next::Read, _) => {
                    if !self.advance(left.min(Duration::from_millis(20)))? {
                        return Ok(Event::PENDING);
                    }
                }
            }
        }
    }

    /// While received batches are left: lets the worker's replacement read the following ones.
    fn prepare(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
    ) -> Result<Option<Event>, LoadError> {
        if !self.machine.may_read_ahead() {
            return Ok(None);
        }
        if let Err(error) = self.advance(Duration::ZERO) {
            self.machine.fail_later(error);
        }
        let in_hand = self.machine.in_hand();
        let Backend::InProcess(in_process, _) = &mut self.backend else {
            return Ok(None);
        };
        if in_process.is_running() {
            return Ok(None);
        }
        match in_process.poll(&mut |more| position(in_hand + more), Duration::ZERO) {
            Ok(event @ Event::Started { .. }) => Ok(Some(event)),
            // A reader that is not running yet has no batch and no end of an epoch.
            Ok(Event::Delivery(_)) => Ok(None),
            Err(error) => self.apply(Input::NotRead(error)),
        }
    }

    /// Processes everything that the worker has sent.
    fn drain(&mut self) -> Result<Option<Event>, LoadError> {
        loop {
            let Backend::Worker(link) = &mut self.backend else {
                return Ok(None);
            };
            match link.try_hear() {
                Ok(None) => return Ok(None),
                Ok(Some(heard)) => {
                    if let Some(event) = self.apply(Input::Heard(heard))? {
                        return Ok(Some(event));
                    }
                }
                Err(lost) => self.lost(lost)?,
            }
        }
    }

    /// Processes an input and runs its effect.
    fn apply(&mut self, input: Input<Received>) -> Result<Option<Event>, LoadError> {
        let Step { effect, reply } = self.machine.on(input, Instant::now());
        if let Some(effect) = effect {
            self.run(effect)?;
        }
        reply
    }

    /// Processes an input that has no reply.
    fn inform(&mut self, input: Input<Received>) {
        let reply = self.apply(input);
        debug_assert!(matches!(reply, Ok(None)), "{reply:?}");
    }

    fn lost(&mut self, lost: Unavailable) -> Result<(), LoadError> {
        match lost {
            Unavailable::Absent(reason) => self.apply(Input::Gone(reason)).map(drop),
            refused => Err(refused.into()),
        }
    }

    fn run(&mut self, effect: Effect) -> Result<(), LoadError> {
        match (effect, &mut self.backend) {
            (Effect::Connect { path, patience }, _) => {
                let path = path.unwrap_or_else(default_worker_socket);
                let attempt = self.connect_in_background(path, self.job.clone(), patience);
                self.backend = Backend::Connecting(attempt);
            }
            (Effect::Open, _) => self.backend = Backend::Opening(self.open_in_background()),
            (Effect::Start { start, position }, _) => return self.send_start(start, &position),
            (Effect::Reconnect { path }, Backend::InProcess(..)) => {
                let job = self.job.clone();
                let attempt = self.connect_in_background(path, job, Duration::ZERO);
                if let Backend::InProcess(_, returning) = &mut self.backend {
                    *returning = Some(attempt);
                }
            }
            (Effect::ReportSkipped, Backend::InProcess(in_process, _)) => {
                if let Some(job) = &self.job {
                    // The worker that found them may have died before it reported them.
                    let mixture = job.mixture.as_ref().map(|mixture| mixture.digest());
                    let control = &in_process.control;
                    control.report_skipped(&job.name, mixture, self.machine.met());
                }
            }
            (Effect::Stop { failure }, Backend::InProcess(in_process, _)) => {
                in_process.end(failure.as_deref());
            }
            // The next call that needs the worker notices that it is gone.
            (Effect::Stop { failure }, Backend::Worker(link)) => {
                let _ = link.send(Ask::Stop(wire::Stop { failure }));
            }
            (Effect::Ping(nonce), Backend::Worker(link)) => {
                let _ = link.send(Ask::Ping(wire::Ping { nonce }));
            }
            (effect, _) => debug_assert!(false, "{effect:?} for another backend"),
        }
        Ok(())
    }

    fn ask_for_batches(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
    ) -> Result<(), LoadError> {
        let position = position(self.machine.in_hand())?;
        let _operation = traced::enter("start", None);
        tracing::info!(
            rank = self.setting.options.rank,
            epoch = position.epoch,
            step = position.step,
            "asking for batches"
        );
        self.apply(Input::Ask(position)).map(drop)
    }

    fn send_start(&mut self, start: u64, position: &StartPosition) -> Result<(), LoadError> {
        let options = &self.setting.options;
        let start = wire::Start {
            start,
            intent: Some(intent_to(&position.intent)),
            run: self.setting.cluster().run.clone(),
            rank: options.rank,
            world_size: options.world_size,
            limit: options.limit,
            prefetch: options.prefetch.map_or(0, |prefetch| prefetch as u64),
            memory_budget: options.memory_budget_bytes,
            epoch: position.epoch,
            segments: segments_to(&position.segments),
            step: position.step,
            skipped: self.machine.met().iter().cloned().map(Into::into).collect(),
            in_doubt_drop: options.doubt.is_drop,
            in_doubt_grace_ms: u64::try_from(options.doubt.grace.as_millis()).ok(),
            left: position.left.map(|(epoch, step)| wire::Position { epoch, step }),
            left_out: left_out_to(&position.left_out),
        };
        match &self.backend {
            Backend::Worker(link) => link.send(Ask::Start(start)).or_else(|lost| self.lost(lost)),
            Backend::Connecting(_) | Backend::Opening(_) | Backend::InProcess(..) => Ok(()),
        }
    }

    fn hand_out(&mut self, queued: Queued<Received>) -> Result<Event, LoadError> {
        let Queued { origin, epoch, step, batch, skipped } = queued;
        let Some(Received { mut batch, samples, source_epochs }) = batch else {
            return Ok(Event::Delivery(Delivery::EpochEnd { epoch, steps: step }));
        };
        let is_named = self.setting.with_samples && self.setting.has_program();
        let is_mixed = self.setting.with_samples && self.contents.mixed.is_some();
        if is_named && samples.len() != batch.rows || is_mixed && source_epochs.len() != batch.rows
        {
            let message = Broken::new("a batch without its samples").to_string();
            return Err(WireError::new(ErrorKind::WrongVersion, message).into());
        }
        let samples = match self.setting.with_samples {
            true => samples_of(&mut batch, samples, &source_epochs),
            false => vec![],
        };
        if let Backend::Worker(link) = &self.backend
            && self.machine.must_copy(origin, link.regions.out())
        {
            batch = self.copies.copy(batch, self.machine.hold_max())?;
        }
        self.machine.offer(origin);
        let delivered = Delivered { epoch, step, samples, skipped, batch };
        Ok(Event::Delivery(Delivery::Batch(Box::new(delivered))))
    }

    /// True if received batches may be returned.
    fn may_return(&mut self) -> bool {
        self.inform(Input::Check(LeaseTime::now()));
        // A ping may have taken time.
        self.machine.may_return(LeaseTime::now())
    }

    fn welcome_back(&mut self) {
        let Backend::InProcess(in_process, returning) = &mut self.backend else {
            return;
        };
        // The worker would report a generation that the coordinator does not know.
        if in_process.control.has_untold() {
            return;
        }
        match returning.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(Ok(link))) => {
                tracing::info!(worker = link.name, "the worker is back");
                let before = std::mem::replace(&mut self.backend, Backend::Worker(Box::new(link)));
                self.inform(Input::Reconnected);
                drop(before);
            }
            Some(Ok(Err(_)) | Err(TryRecvError::Disconnected)) => {
                *returning = None;
                self.inform(Input::NotReconnected);
            }
        }
    }
}

impl Link for Cluster {
    fn register(&mut self, job: &JobSpec, progress: OnProgress<'_>) -> Result<(), LoadError> {
        self.stop();
        self.job = Some(job.clone());
        loop {
            let lost = match &mut self.backend {
                Backend::Worker(link) => match register(link, job, progress) {
                    Ok(()) => return Ok(()),
                    Err(Unavailable::Refused(error)) => return Err(error),
                    Err(Unavailable::Absent(reason) | Unavailable::Cordoned(reason)) => reason,
                },
                Backend::InProcess(in_process, returning) => {
                    let was_returning = returning.take().is_some();
                    let registered = in_process.register(job, progress);
                    // The attempt greeted the worker with the previous job.
                    if was_returning {
                        self.inform(Input::NotReconnected);
                    }
                    return registered;
                }
                Backend::Connecting(_) | Backend::Opening(_) => {
                    self.settle(progress)?;
                    continue;
                }
            };
            self.inform(Input::Gone(lost));
        }
    }

    fn poll(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        let begun = Instant::now();
        let result = self.look(position, timeout);
        self.waited += begun.elapsed();
        result
    }

    fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if self.machine.state() == State::Running
            && !self.machine.has_failure()
            && let Err(error) = self.drain()
        {
            // Returned to the caller that asks for a batch after the received ones.
            self.machine.fail_later(error);
        }
        let in_hand = self.machine.in_hand();
        self.machine.batches_mut(count).for_each(|received| see(&mut received.batch));
        if let Backend::InProcess(in_process, _) = &mut self.backend {
            in_process.peek(count.saturating_sub(in_hand), see);
        }
    }

    fn confirm(&mut self) -> Result<InHand, LoadError> {
        // No request is open while a batch is offered, so this event is no answer.
        if self.drain()?.is_some() {
            self.stop();
        }
        if let Backend::InProcess(in_process, _) = &mut self.backend {
            if !self.machine.is_offered() {
                return in_process.confirm();
            }
            in_process.check()?;
        }
        let is_good = self.may_return();
        Ok(match self.machine.is_offered() {
            false => InHand::Gone,
            true if is_good => InHand::Good,
            true => InHand::Unconfirmed,
        })
    }

    fn took(&mut self, epoch: u64, step: u64, demand: Option<Demand>) {
        let copy = self.copies.take_time();
        let is_current = self.machine.consume();
        let sent = match &mut self.backend {
            Backend::InProcess(in_process, _) => {
                return in_process.took(epoch, step, demand);
            }
            Backend::Worker(link) => {
                let spent = demand.unwrap_or_default();
                let took = wire::Took {
                    start: self.machine.start(),
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
                if self.machine.state() != State::Running && took.free.is_empty() {
                    return;
                }
                link.send(Ask::Took(took))
            }
            Backend::Connecting(_) | Backend::Opening(_) => return,
        };
        if let Err(Unavailable::Absent(reason)) = sent {
            self.inform(Input::Gone(reason));
        }
    }

    fn waits(&mut self, epoch: u64, step: u64, waiting: Duration) {
        match &mut self.backend {
            Backend::InProcess(in_process, _) => in_process.waits(epoch, step, waiting),
            Backend::Worker(link) if self.machine.state() == State::Running => {
                let (start, waiting_us) = (self.machine.start(), Some(us(waiting)));
                // A worker of an earlier version reads this as a report of the rank's position.
                let took = wire::Took { start, epoch, step, waiting_us, ..wire::Took::default() };
                // The next call that needs the worker notices that it is gone.
                let _ = link.send(Ask::Took(took));
            }
            Backend::Worker(_) | Backend::Connecting(_) | Backend::Opening(_) => {}
        }
    }

    fn end(&mut self, failure: Option<&str>) {
        self.inform(Input::Stop { failure: failure.map(Into::into) });
    }

    fn set_part(&mut self, start: &Start) {
        self.stop();
        self.setting.options.set_part(start);
        if let Backend::InProcess(in_process, _) = &mut self.backend {
            in_process.set_part(start);
        }
    }

    fn epoch_ended(&mut self) {
        if let Backend::InProcess(in_process, _) = &self.backend {
            let is_reported = !in_process.control.has_untold();
            self.inform(Input::EpochEnded { is_reported });
        }
    }

    fn latest(
        &mut self,
        job: &JobSpec,
        progress: OnProgress<'_>,
    ) -> Result<Option<LoaderState>, LoadError> {
        loop {
            let lost = match &mut self.backend {
                Backend::Worker(link) => match link.ask(Ask::Latest(wire::Latest {}), progress) {
                    Ok(Message::State(state)) => {
                        let state = state.state.map(|text| LoaderState::from_json(&text));
                        return Ok(state.transpose()?);
                    }
                    Ok(other) => link.unexpected(&other),
                    Err(lost) => lost,
                },
                Backend::InProcess(in_process, _) => {
                    return in_process.latest(job, progress);
                }
                Backend::Connecting(_) | Backend::Opening(_) => {
                    self.settle(progress)?;
                    continue;
                }
            };
            self.lost(lost)?;
        }
    }

    fn report(&self) -> LinkReport {
        let (cluster_id, stats, source) = match &self.backend {
            Backend::Worker(link) => {
                let (copies, in_hand) = (self.copies.stats(), self.machine.in_hand());
                let held = link.regions.out().saturating_sub(in_hand);
                let stats = link.stats.as_ref();
                let stats =
                    stats.map(|stats| prefetch_stats(stats, in_hand, held, copies, self.waited));
                let cluster_id = Some(link.cluster_id.clone()).filter(|id| !id.is_empty());
                (cluster_id, stats, format!("worker {}", link.name))
            }
            Backend::InProcess(in_process, _) => {
                return LinkReport { copied: self.copies.made, ..in_process.report() };
            }
            Backend::Opening(_) => (None, None, "in process".into()),
            Backend::Connecting(_) => (None, None, "connecting".into()),
        };
        LinkReport { cluster_id, stats, copied: self.copies.made, source }
    }
}
