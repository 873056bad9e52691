//! Batches that are read in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Batch;
use shardfeed_plan::JobIdentity;
use shardfeed_reader::{
    Control, Delivery, Demand, JobSpec, LeaseGuard, LeaseRequest, PREFETCH_START, Plans,
    PrefetchOptions, PrefetchStats, RankReader, default_budget_bytes,
};
use shardfeed_source::{Dataset, LoadError};

use crate::link::exchange::{
    ControlOf, Event, InHand, Job, Partition, Progress, Setting, StartPosition, in_background,
    waiting,
};

/// Free slots kept in addition to the prefetched batches: for the viewed batch and the next one.
const SLOTS_BEYOND_PREFETCH: usize = 2;

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
    reader: RankReader,
    /// A batch was offered and not consumed yet.
    is_offered: bool,
    /// Released after the reader has stopped.
    rank: LeaseGuard,
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
        let running = match &mut self.phase {
            Phase::Idle => {
                let position = position(0)?;
                let start = self.start(position);
                if self.control_of.is_some() {
                    // A control in this process answers at once.
                    return Ok(self.started(start.run(&mut |_| true)?));
                }
                self.phase = start.in_background();
                return Ok(Event::PENDING);
            }
            Phase::Starting { result, .. } => {
                let started = match result.recv_timeout(timeout) {
                    Err(RecvTimeoutError::Timeout) => return Ok(Event::PENDING),
                    Err(RecvTimeoutError::Disconnected) => Err(LoadError::ReaderLost),
                    Ok(started) => started,
                };
                self.phase = Phase::Idle;
                return started.map(|running| self.started(running));
            }
            Phase::Running(running) => running,
        };
        match running.reader.next(timeout) {
            Ok(delivery) => {
                if let Delivery::Batch(delivered) = &delivery {
                    let bytes = delivered.batch.slot.size_bytes();
                    running.reader.prefetch.consumer().take(1, bytes);
                    running.is_offered = true;
                }
                Ok(Event::Delivery(delivery))
            }
            Err(error) => {
                let lapses = running.reader.lapses(&error);
                self.stop();
                if !lapses {
                    return Err(error);
                }
                tracing::warn!(%error, "a lease lapsed, continuing after the consumed samples");
                Ok(Event::PENDING)
            }
        }
    }

    fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Idle | Phase::Starting { .. } => None,
        }
    }

    pub(crate) fn fail(&self, failure: &str) {
        self.running().into_iter().for_each(|running| running.rank.fail(failure));
    }

    /// Shows the ready batches of the next `count`.
    pub(crate) fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if let Phase::Running(running) = &mut self.phase {
            running.reader.prefetch.peek(count, see);
        }
    }

    /// Returns an error if the rank's lease is known to have ended.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        self.running().map_or(Ok(()), |running| running.rank.check())
    }

    /// Checks whether the batch that was offered last may be consumed.
    pub(crate) fn confirm(&self) -> Result<InHand, LoadError> {
        let Some(Running { rank, .. }) = self.running().filter(|running| running.is_offered) else {
            return Ok(InHand::Gone);
        };
        rank.check()?;
        Ok(if rank.withheld().is_some() { InHand::Unconfirmed } else { InHand::Good })
    }

    fn started(&mut self, running: Running) -> Event {
        let generation = running.rank.lease.generation;
        self.phase = Phase::Running(running);
        Event::Started { generation }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running().is_some()
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
            running.rank.took(&running.reader.prefetch.consumer(), (epoch, step), demand);
            self.report();
        }
    }

    /// Reports how long the trainer has waited for its next batch.
    pub(crate) fn waits(&self, waiting: Duration) {
        if let Some(running) = self.running() {
            running.reader.prefetch.consumer().waits(waiting);
            self.report();
        }
    }

    /// Reports the batches ahead and the time breakdown, which a control in this process ignores.
    fn report(&self) {
        if let Some(running) = self.running().filter(|_| self.control_of.is_none()) {
            running.reader.report(&[]);
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Phase::Starting { gave_up, .. } = std::mem::replace(&mut self.phase, Phase::Idle) {
            gave_up.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> Option<PrefetchStats> {
        self.running().map(|running| running.reader.prefetch.stats())
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
        let rank = LeaseGuard::new(&self.control, self.control.lease(&self.request, waiting)?);
        let world_size = self.request.world_size;
        let reader = rank.read(self.plans, &self.identity, world_size, self.options)?;
        Ok(Running { reader, is_offered: false, rank })
    }

    fn in_background(self) -> Phase {
        let gave_up = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&gave_up);
        let mut noted = false;
        let result = in_background("shardfeed-start", move || {
            self.run(&mut |note| {
                if !note.is_empty() && !noted {
                    noted = true;
                    tracing::warn!("{note}; trying again");
                }
                !told.load(Ordering::Relaxed)
            })
        });
        Phase::Starting { result, gave_up }
    }
}
