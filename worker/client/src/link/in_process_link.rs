//! Batches that are read in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Batch;
use shardfeed_plan::JobIdentity;
use shardfeed_proto::ErrorKind;
use shardfeed_reader::{
    Assignment, Control, Delivery, Demand, JobSpec, Lease, LeaseRequest, PREFETCH_START, Plans,
    Prefetch, PrefetchOptions, PrefetchStats, default_budget_bytes,
};
use shardfeed_source::{Dataset, LoadError};

use crate::link::exchange::{
    ControlOf, Event, InHand, Job, Partition, Progress, Setting, StartPosition, waiting,
};

/// Free slots kept in addition to the prefetched batches: for the viewed batch and the next one.
const SLOTS_BEYOND_PREFETCH: usize = 2;

/// Interval at which an unconfirmed lease is checked again.
const UNCONFIRMED_PAUSE: Duration = Duration::from_millis(20);

/// A rank whose batches are read in this process.
pub(crate) struct InProcessLink {
    setting: Setting,
    control_of: Option<ControlOf>,
    pub(crate) control: Arc<dyn Control>,
    dataset: Arc<Dataset>,
    dataset_name: String,
    job: Option<Job>,
    plans: Option<Arc<Plans>>,
    slots: SlotPool,
    phase: Phase,
    took_over: bool,
}

enum Phase {
    Idle,
    /// A lease is being requested, on a thread that may wait.
    Starting {
        result: Receiver<Result<Running, LoadError>>,
        gave_up: Arc<AtomicBool>,
    },
    Running(Running),
}

struct Running {
    prefetch: Prefetch,
    /// A batch was offered and not consumed yet.
    is_offered: bool,
    lease: Lease,
    is_dynamic: bool,
    /// A warning about the unconfirmed lease was logged.
    is_told: bool,
}

impl Running {
    /// Returns the next batch if it may be handed out.
    ///
    /// Samples of a dynamic job are valid only while the coordinator confirms the lease.
    fn poll(
        &mut self,
        control: &Arc<dyn Control>,
        timeout: Duration,
    ) -> Result<Delivery, LoadError> {
        if control.paused(&self.lease).is_some() {
            // The session logs who paused the job.
            control.check(&self.lease)?;
            std::thread::sleep(timeout.min(UNCONFIRMED_PAUSE));
            return Ok(Delivery::Pending);
        }
        let Some(good) = control.good_for(&self.lease) else {
            return self.prefetch.poll(timeout);
        };
        control.check(&self.lease)?;
        if !good.is_zero() {
            self.is_told = false;
            self.prefetch.confirmed(true);
            return self.prefetch.poll(timeout.min(good));
        }
        self.prefetch.confirmed(false);
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                job = %self.lease.job,
                "the coordinator has not confirmed the lease of this dynamic job for most of its \
                 life; waiting"
            );
        }
        std::thread::sleep(timeout.min(UNCONFIRMED_PAUSE));
        Ok(Delivery::Pending)
    }

    /// Checks whether the batch that was offered last may be consumed.
    fn confirm(&self, control: &Arc<dyn Control>) -> Result<InHand, LoadError> {
        if !self.is_offered {
            return Ok(InHand::Gone);
        }
        control.check(&self.lease)?;
        let waits = control.paused(&self.lease).is_some()
            || control.good_for(&self.lease).is_some_and(|good| good.is_zero());
        Ok(if waits { InHand::Unconfirmed } else { InHand::Good })
    }

    /// Reports the prefetched batches and the time breakdown.
    fn report(&self, control: &Arc<dyn Control>) {
        let stats = self.prefetch.stats();
        control.report_ahead(&self.lease, stats.ready as u64, &[]);
        control.report_account(&self.lease, &stats.account);
    }

    /// True if this error requires a restart from the rank's position.
    fn has_lapsed(&self, error: &LoadError) -> bool {
        self.is_dynamic
            && matches!(error, LoadError::Wire(error) if error.kind == ErrorKind::Fenced)
    }
}

impl InProcessLink {
    /// Creates a link to this process without a cluster.
    /// - `control_of`: makes a new control for each job that is registered.
    pub(crate) fn embedded(setting: Setting, control_of: ControlOf, dataset: Arc<Dataset>) -> Self {
        let control = control_of();
        Self::new(setting, control, Some(control_of), (String::new(), dataset))
    }

    /// Creates a link to this process in a cluster.
    pub(crate) fn in_cluster(
        setting: Setting,
        control: Arc<dyn Control>,
        dataset: (String, Arc<Dataset>),
    ) -> Self {
        Self::new(setting, control, None, dataset)
    }

    fn new(
        setting: Setting,
        control: Arc<dyn Control>,
        control_of: Option<ControlOf>,
        (dataset_name, dataset): (String, Arc<Dataset>),
    ) -> Self {
        let ahead = setting.options.prefetch.unwrap_or(PREFETCH_START);
        Self {
            setting,
            control_of,
            control,
            dataset,
            dataset_name,
            job: None,
            plans: None,
            slots: SlotPool::new(ahead + SLOTS_BEYOND_PREFETCH),
            phase: Phase::Idle,
            took_over: false,
        }
    }

    pub(crate) fn register(&mut self, job: &Job, progress: Progress<'_>) -> Result<(), LoadError> {
        if let Some(control_of) = &self.control_of {
            // Only this loader uses it: each registration begins with a new control.
            self.control = control_of();
        }
        let Job { name, identity, record_spec, mixture, .. } = job.clone();
        let dataset = self.dataset_name.clone();
        let spec = JobSpec { name, dataset, mixture, identity, record_spec };
        self.control.register(&spec, &mut waiting(progress))?;
        self.take_job(job);
        Ok(())
    }

    /// Sets a job that the control already knows.
    pub(crate) fn take_job(&mut self, job: &Job) {
        let rules = (job.identity.tail, self.setting.options.limit);
        self.plans = Some(Arc::new(Plans::of_dataset(&self.dataset, rules)));
        self.job = Some(job.clone());
        self.stop();
    }

    pub(crate) fn poll(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        match &mut self.phase {
            Phase::Idle => {
                let position = position(0)?;
                let start = self.start(position);
                if self.control_of.is_some() {
                    // A control in this process answers at once.
                    return self.started(start.run(&mut |_| true)?);
                }
                self.phase = start.in_background()?;
                Ok(Event::PENDING)
            }
            Phase::Starting { result, .. } => match result.recv_timeout(timeout) {
                Err(RecvTimeoutError::Timeout) => Ok(Event::PENDING),
                Ok(Ok(running)) => self.started(running),
                Ok(Err(error)) => {
                    self.phase = Phase::Idle;
                    Err(error)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.phase = Phase::Idle;
                    Err(LoadError::ReaderLost)
                }
            },
            Phase::Running(running) => match running.poll(&self.control, timeout) {
                Err(error) if running.has_lapsed(&error) => {
                    tracing::warn!(%error, "a lease lapsed, continuing after the consumed samples");
                    self.stop();
                    Ok(Event::PENDING)
                }
                Ok(delivery) => {
                    if let Delivery::Batch(delivered) = &delivery {
                        let Lease { job, mixture, .. } = &running.lease;
                        self.control.report_skipped(job, *mixture, &delivered.skipped);
                        running.is_offered = true;
                    }
                    Ok(Event::Delivery(delivery))
                }
                Err(error) => {
                    if error.fails_job() {
                        self.fail(&error.to_string());
                    }
                    self.stop();
                    Err(error)
                }
            },
        }
    }

    pub(crate) fn fail(&self, failure: &str) {
        if let Phase::Running(running) = &self.phase {
            self.control.report_failure(&running.lease, failure);
        }
    }

    /// Shows the ready batches of the next `count`.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if let Phase::Running(running) = &mut self.phase {
            running.prefetch.peek(count, see);
        }
    }

    /// Returns an error if the rank's lease is known to have ended.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        if let Phase::Running(Running { lease, .. }) = &self.phase {
            self.control.check(lease)?;
        }
        Ok(())
    }

    /// Checks whether the batch that was offered last may be consumed.
    pub(crate) fn confirm(&self) -> Result<InHand, LoadError> {
        match &self.phase {
            Phase::Running(running) => running.confirm(&self.control),
            Phase::Idle | Phase::Starting { .. } => Ok(InHand::Gone),
        }
    }

    fn started(&mut self, running: Running) -> Result<Event, LoadError> {
        let generation = running.lease.generation;
        self.phase = Phase::Running(running);
        Ok(Event::Started { generation })
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// True if only this process can report the rank's position to the coordinator.
    pub(crate) fn has_untold(&self) -> bool {
        self.control.has_untold()
    }

    /// Changes the rank and its part of each batch from the next start on.
    pub(crate) fn set_partition(&mut self, partition: Partition) {
        self.stop();
        partition.apply(&mut self.setting.options);
    }

    pub(crate) fn took(&mut self, epoch: u64, step: u64, demand: Option<&Demand>) {
        if let Phase::Running(running) = &mut self.phase {
            running.is_offered = false;
            if let Some(demand) = demand {
                running.prefetch.consumer().account(demand);
            }
            // If the lease has just ended, the next batch returns that error.
            let _ = self.control.report(&running.lease, epoch, step);
            if self.control_of.is_none() {
                running.report(&self.control);
            }
        }
    }

    /// Reports how long the trainer has waited for its next batch.
    pub(crate) fn waits(&mut self, waiting: Duration) {
        if let Phase::Running(running) = &self.phase {
            running.prefetch.consumer().waits(waiting);
            if self.control_of.is_none() {
                running.report(&self.control);
            }
        }
    }

    pub(crate) fn stop(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Starting { gave_up, .. } => gave_up.store(true, Ordering::Relaxed),
            Phase::Running(running) => {
                let Running { prefetch, lease, .. } = running;
                drop(prefetch);
                if self.control_of.is_none() {
                    self.control.release(&lease, true);
                }
            }
        }
    }

    pub(crate) fn stats(&self) -> Option<PrefetchStats> {
        match &self.phase {
            Phase::Running(running) => Some(running.prefetch.stats()),
            _ => None,
        }
    }

    /// Records that a worker served this rank before, or should have.
    pub(crate) fn took_over(&mut self) {
        self.took_over = true;
    }

    fn start(&self, position: StartPosition) -> Start {
        let options = &self.setting.options;
        let job = self.job.clone().expect("a job is registered before it starts");
        let plans = Arc::clone(self.plans.as_ref().expect("made with the job"));
        let cluster = options.cluster.as_ref();
        let request = LeaseRequest {
            job: job.name.clone(),
            run: cluster.and_then(|cluster| cluster.run.clone()),
            trainer: self.setting.trainer.clone(),
            rank: options.rank,
            world_size: options.world_size,
            limit: options.limit,
            mode: job.identity.mode,
            mixture: job.mixture.as_ref().map(|mixture| mixture.digest()),
            intent: position.intent,
            left: position.left,
            left_out: position.left_out,
            epoch: position.epoch,
            segments: position.segments,
            doubt: options.doubt,
            peer: None,
        };
        let options = PrefetchOptions {
            dataset: Arc::clone(&self.dataset),
            schemas: job.schemas,
            corrupt: options.corrupt,
            slots: self.slots.clone(),
            rank: options.rank,
            epoch: request.epoch,
            step: position.step,
            prefetch: options.prefetch,
            budget_bytes: options.memory_budget_bytes.unwrap_or_else(|| {
                let ranks = cluster.map_or(1, |cluster| cluster.ranks_on_host.max(1));
                default_budget_bytes() / ranks
            }),
            took_over: self.took_over,
        };
        let (control, identity) = (Arc::clone(&self.control), job.identity);
        Start { control, request, identity, plans, options }
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Data for a start, to be moved to another thread.
struct Start {
    control: Arc<dyn Control>,
    request: LeaseRequest,
    identity: JobIdentity,
    plans: Arc<Plans>,
    options: PrefetchOptions,
}

impl Start {
    fn run(self, waiting: &mut dyn FnMut(&str) -> bool) -> Result<Running, LoadError> {
        let lease = self.control.lease(&self.request, waiting)?;
        let (control, world_size) = (Arc::clone(&self.control), self.request.world_size);
        let is_dynamic = self.identity.is_dynamic();
        let assignment = Assignment::of(control, &lease, self.plans, &self.identity, world_size);
        match Prefetch::start(assignment, self.options) {
            Ok(prefetch) => {
                let (is_offered, is_told) = (false, false);
                Ok(Running { prefetch, is_offered, lease, is_dynamic, is_told })
            }
            Err(error) => {
                self.control.release(&lease, true);
                Err(error)
            }
        }
    }

    fn in_background(self) -> Result<Phase, LoadError> {
        let (sender, result) = sync_channel(1);
        let gave_up = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&gave_up);
        let run = move || {
            let control = Arc::clone(&self.control);
            let mut noted = false;
            let started = self.run(&mut |note| {
                if !note.is_empty() && !noted {
                    noted = true;
                    tracing::warn!("{note}; trying again");
                }
                !told.load(Ordering::Relaxed)
            });
            if let Err(unheard) = sender.send(started)
                && let Ok(running) = unheard.0
            {
                control.release(&running.lease, true);
            }
        };
        std::thread::Builder::new()
            .name("shardfeed-start".into())
            .spawn(run)
            .map_err(|source| LoadError::Io { file: "starting threads".into(), source })?;
        Ok(Phase::Starting { result, gave_up })
    }
}
