//! What a worker is doing, for those who watch it: health pages, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use shardfeed_pipeline::Account;

use crate::serve::Hub;

/// The accepting thread looks several times a second; one that has not for so long never will again.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// When a thread was seen last.
#[derive(Debug)]
pub(crate) struct Pulse {
    begun: Instant,
    seen_ms: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), seen_ms: AtomicU64::new(0) }
    }

    #[cfg(test)]
    pub(crate) fn silent_since(begun: Instant) -> Self {
        Self { begun, seen_ms: AtomicU64::new(0) }
    }

    pub(crate) fn beat(&self) {
        self.seen_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(crate) fn silent(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.seen_ms.load(Ordering::Relaxed)))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A look at a worker; it does not keep it running.
#[derive(Clone)]
pub struct WorkerView {
    pub(crate) hub: Arc<Hub>,
    pub(crate) trainers: Arc<AtomicUsize>,
    pub(crate) pulse: Arc<Pulse>,
}

/// A worker at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// Its session, while the coordinator knows it.
    pub session: Option<u64>,
    /// Whether the coordinator has ever known this process.
    pub has_joined: bool,
    /// Why the coordinator refuses it, if it does.
    pub refused: Option<String>,
    /// Time since the session was last known to live.
    pub confirmed: Option<Duration>,
    /// How long the coordinator took to answer the last heartbeat that it answered.
    pub heartbeat_took: Option<Duration>,
    /// Corrupt records that were left out, by job; of each as many as the coordinator remembers.
    pub corrupt_records: BTreeMap<String, u64>,
    /// Until when the certificate is good that it shows to coordinators, if it shows one.
    pub certificate_not_after: Option<SystemTime>,
    /// Whether it hands its trainers over, to leave.
    pub is_draining: bool,
    /// Trainers that are connected.
    pub trainers: u64,
    /// Bytes of its memory budget, and those of them that no rank has.
    pub budget_bytes: u64,
    /// See `budget_bytes`.
    pub budget_left_bytes: u64,
    /// The ranks that it serves.
    pub ranks: Vec<RankReport>,
}

/// A rank that a worker serves.
#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    /// Its job.
    pub job: String,
    /// Its number.
    pub rank: u64,
    /// Its generation.
    pub generation: u64,
    /// First step that was not consumed.
    pub epoch: u64,
    /// See `epoch`.
    pub step: u64,
    /// Batches that wait for the trainer.
    pub ready: u64,
    /// Where its time went; `None` before its first batch.
    pub account: Option<Account>,
}

impl WorkerView {
    /// What the worker does now.
    pub fn report(&self) -> WorkerReport {
        let mut report = self.hub.session.shared().report();
        report.trainers = self.trainers.load(Ordering::Relaxed) as u64;
        report.budget_bytes = self.hub.budget.total();
        report.budget_left_bytes = self.hub.budget.left();
        report
    }

    /// Why only another start helps, if so. The coordinator has no part in it: without one the worker
    /// serves on.
    pub fn dead(&self) -> Option<String> {
        let silent = self.pulse.silent();
        (silent > STUCK_AFTER).then(|| {
            format!("the thread that accepts trainers has not run for {} s", silent.as_secs())
        })
    }

    /// Why a trainer that comes now would not be served, if so. A worker that was in a cluster once is
    /// ready also while no coordinator answers.
    pub fn unready(&self) -> Option<String> {
        let report = self.report();
        let refused = report.refused.map(|reason| format!("the coordinator refuses it: {reason}"));
        let waits = || {
            let coordinator = self.hub.session.coordinator().whereabouts().named();
            (!report.has_joined).then(|| format!("it waits for {coordinator}"))
        };
        let drains = || report.is_draining.then(|| "it is drained".to_owned());
        self.dead().or(refused).or_else(waits).or_else(drains)
    }
}
