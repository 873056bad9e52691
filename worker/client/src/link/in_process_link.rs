//! Batches that are read in this process.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Batch;
use shardfeed_plan::{LoaderState, Start};
use shardfeed_reader::{
    Control, Delivery, Demand, JobSpec, LeaseGuard, LeaseRequest, PREFETCH_START, Plans,
    PrefetchOptions, RankReader, StartPosition, Waiting, default_budget_bytes,
};
use shardfeed_source::{Dataset, LoadError, OnProgress, waiting};

use crate::cluster_port::{InProcessWorker, Joined};
use crate::contents::Contents;
use crate::link::alone::Alone;
use crate::link::exchange::{Event, InHand, Setting, in_background};
use crate::link::{Link, LinkReport};
use crate::mixture;

/// Free slots kept in addition to the prefetched batches: for the viewed batch and the next one.
const SLOTS_BEYOND_PREFETCH: usize = 2;

/// A rank whose batches are read in this process.
pub(crate) struct InProcessLink {
    setting: Setting,
    pub(crate) control: Arc<dyn Control>,
    dataset: Arc<Dataset>,
    job: Option<(JobSpec, Arc<Plans>)>,
    slots: SlotPool,
    phase: Phase,
    /// True if a worker served this rank before, or should have.
    pub(crate) took_over: bool,
    /// Worker of the cluster in this process; `None`: there is no cluster. Dropped after `phase`,
    /// which releases the rank's lease in the worker's session.
    worker: Option<Box<dyn InProcessWorker>>,
}

enum Phase {
    Idle,
    /// A lease is being requested, on a thread that may wait.
    Starting {
        result: Receiver<Result<Running, LoadError>>,
        /// The thread gives up when it is dropped.
        _wanted: Arc<()>,
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
    pub(crate) fn alone(setting: Setting, dataset: Arc<Dataset>) -> Self {
        Self::new(setting, Arc::new(Alone), dataset, None)
    }

    /// Creates a link to this process as `worker`.
    pub(crate) fn in_cluster(
        setting: Setting,
        worker: Box<dyn InProcessWorker>,
        dataset: Arc<Dataset>,
    ) -> Self {
        Self::new(setting, worker.control(), dataset, Some(worker))
    }

    /// Becomes a worker: registers the datasets and scans for them, as any other worker does.
    pub(crate) fn open(
        setting: &Setting,
        progress: OnProgress<'_>,
    ) -> Result<(Self, Contents), LoadError> {
        let (port, options) = (setting.cluster().port, &setting.options);
        let Joined { worker, datasets } =
            port.open(options, &setting.requests, &setting.trainer, progress)?;
        let (name, rules) = match &datasets[..] {
            [only] if options.mixture.is_none() => (only.dataset_name.clone(), only.rules),
            _ => (String::new(), options.file_rules()),
        };
        let dataset = Arc::new(mixture::joined(options.mixture.as_ref(), datasets)?);
        let contents = Contents::of(&name, rules, &dataset);
        Ok((Self::in_cluster(setting.clone(), worker, dataset), contents))
    }

    fn new(
        setting: Setting,
        control: Arc<dyn Control>,
        dataset: Arc<Dataset>,
        worker: Option<Box<dyn InProcessWorker>>,
    ) -> Self {
        let ahead = setting.options.prefetch.unwrap_or(PREFETCH_START);
        let (slots, took_over) = (SlotPool::new(ahead + SLOTS_BEYOND_PREFETCH), false);
        let (job, phase) = (None, Phase::Idle);
        Self { setting, control, dataset, job, slots, phase, took_over, worker }
    }

    /// Sets a job that the control already knows.
    pub(crate) fn take_job(&mut self, job: &JobSpec) {
        let rules = (job.identity.tail, self.setting.options.limit);
        let plans = Plans::of_dataset(&self.dataset, rules);
        self.job = Some((job.clone(), Arc::new(plans)));
        self.phase = Phase::Idle;
    }

    fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Idle | Phase::Starting { .. } => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Returns an error if the rank's lease is known to have ended.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        self.running().map_or(Ok(()), |running| running.rank.check())
    }

    fn started(&mut self, running: Running) -> Event {
        let generation = running.rank.lease.generation;
        self.phase = Phase::Running(running);
        Event::Started { generation }
    }

    /// Reports the batches ahead and the time breakdown to a cluster.
    fn report_ahead(&self) {
        if let (Some(_), Phase::Running(running)) = (&self.worker, &self.phase) {
            running.reader.report(&[]);
        }
    }

    /// Returns the request of a lease and the start of reading, for a thread that may wait.
    fn start(
        &self,
        at: StartPosition,
    ) -> impl FnOnce(Waiting<'_>) -> Result<Running, LoadError> + Send + use<> {
        let options = &self.setting.options;
        let (job, plans) = self.job.clone().expect("a job is registered before it starts");
        let (cluster, (epoch, step)) = (options.cluster.as_ref(), (at.epoch, at.step));
        let request = LeaseRequest {
            job: job.name,
            run: cluster.and_then(|cluster| cluster.run.clone()),
            trainer: self.setting.trainer.clone(),
            rank: options.rank,
            world_size: options.world_size,
            limit: options.limit,
            mode: job.identity.mode,
            mixture: job.mixture.as_ref().map(|mixture| mixture.digest()),
            at,
            doubt: options.doubt,
            peer: None,
        };
        let options = PrefetchOptions {
            dataset: Arc::clone(&self.dataset),
            schemas: job.schemas,
            corrupt: options.corrupt,
            slots: self.slots.clone(),
            rank: options.rank,
            epoch,
            step,
            prefetch: options.prefetch,
            budget_bytes: options.memory_budget_bytes.unwrap_or_else(|| {
                let ranks = cluster.map_or(1, |cluster| cluster.ranks_on_host.max(1));
                default_budget_bytes() / ranks
            }),
            took_over: self.took_over,
        };
        let (control, identity) = (Arc::clone(&self.control), job.identity);
        move |waiting| {
            let lease = control.lease(&request, waiting)?;
            let rank = LeaseGuard::new(control, lease);
            let reader = rank.read(plans, &identity, request.world_size, options)?;
            Ok(Running { reader, is_offered: false, rank })
        }
    }

    fn start_in_background(&self, at: StartPosition) -> Phase {
        let (start, wanted) = (self.start(at), Arc::new(()));
        let (is_wanted, mut noted) = (Arc::downgrade(&wanted), false);
        let result = in_background("shardfeed-start", move || {
            start(&mut |note| {
                if !note.is_empty() && !noted {
                    noted = true;
                    tracing::warn!("{note}; trying again");
                }
                Weak::strong_count(&is_wanted) > 0
            })
        });
        Phase::Starting { result, _wanted: wanted }
    }
}

impl Link for InProcessLink {
    fn register(&mut self, job: &JobSpec, progress: OnProgress<'_>) -> Result<(), LoadError> {
        self.control.register(job, &mut waiting(progress))?;
        self.take_job(job);
        Ok(())
    }

    fn poll(
        &mut self,
        position: &mut dyn FnMut(usize) -> Result<StartPosition, LoadError>,
        timeout: Duration,
    ) -> Result<Event, LoadError> {
        let running = match &mut self.phase {
            Phase::Idle => {
                let position = position(0)?;
                if self.worker.is_none() {
                    // A control in this process answers at once.
                    let running = self.start(position)(&mut |_| true)?;
                    return Ok(self.started(running));
                }
                self.phase = self.start_in_background(position);
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
                self.phase = Phase::Idle;
                if !lapses {
                    return Err(error);
                }
                tracing::warn!(%error, "a lease lapsed, continuing after the consumed samples");
                Ok(Event::PENDING)
            }
        }
    }

    fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        if let Phase::Running(running) = &mut self.phase {
            running.reader.prefetch.peek(count, see);
        }
    }

    fn confirm(&mut self) -> Result<InHand, LoadError> {
        let Some(Running { rank, .. }) = self.running().filter(|running| running.is_offered) else {
            return Ok(InHand::Gone);
        };
        rank.check()?;
        Ok(if rank.withheld().is_some() { InHand::Unconfirmed } else { InHand::Good })
    }

    fn took(&mut self, epoch: u64, step: u64, demand: Option<Demand>) {
        if let Phase::Running(running) = &mut self.phase {
            running.is_offered = false;
            let consumer = running.reader.prefetch.consumer();
            running.rank.took(&consumer, (epoch, step), demand.as_ref());
            self.report_ahead();
        }
    }

    fn waits(&mut self, _epoch: u64, _step: u64, waiting: Duration) {
        if let Some(running) = self.running() {
            running.reader.prefetch.consumer().waits(waiting);
            self.report_ahead();
        }
    }

    fn end(&mut self, failure: Option<&str>) {
        if let (Some(running), Some(failure)) = (self.running(), failure) {
            running.rank.fail(failure);
        }
        self.phase = Phase::Idle;
    }

    fn set_part(&mut self, start: &Start) {
        self.stop();
        self.setting.options.set_part(start);
    }

    fn latest(
        &mut self,
        job: &JobSpec,
        progress: OnProgress<'_>,
    ) -> Result<Option<LoaderState>, LoadError> {
        if self.worker.is_none() {
            let message = "resume=\"latest\" needs a coordinator; pass a state_dict()";
            return Err(LoadError::Option(message.into()));
        }
        Ok(self.control.latest(&job.name, &mut waiting(progress))?)
    }

    fn report(&self) -> LinkReport {
        let cluster_id = self.worker.as_ref().and_then(|worker| worker.cluster_id());
        let stats = self.running().map(|running| running.reader.prefetch.stats());
        LinkReport { cluster_id, stats, copied: 0, source: "in process".into() }
    }
}
