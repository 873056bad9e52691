//! A view of a worker for monitoring: health pages, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use shardfeed_pipeline::Account;

use crate::serve::Hub;

/// Silence of the accepting thread after which it counts as stuck; it normally runs several times a
/// second.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Time of a thread's last sign of life.
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

/// A view of a worker; it does not keep the worker running.
#[derive(Clone)]
pub struct WorkerView {
    pub(crate) hub: Arc<Hub>,
    pub(crate) trainers: Arc<AtomicUsize>,
    pub(crate) pulse: Arc<Pulse>,
}

/// State of a worker at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// Session id, while the coordinator knows it.
    pub session: Option<u64>,
    /// True if the coordinator has ever accepted this process.
    pub has_joined: bool,
    /// Reason why the coordinator rejects it, if it does.
    pub refused: Option<String>,
    /// Time since the session was last known to be alive.
    pub confirmed: Option<Duration>,
    /// Response time of the last answered heartbeat.
    pub heartbeat_took: Option<Duration>,
    /// Corrupt records that were left out, by job; for each job at most as many as the coordinator
    /// remembers.
    pub corrupt_records: BTreeMap<String, u64>,
    /// Expiry of the certificate that it presents to coordinators, if any.
    pub certificate_not_after: Option<SystemTime>,
    /// True if it hands its trainers over, to leave.
    pub is_draining: bool,
    /// Number of connected trainers.
    pub trainers: u64,
    /// Bytes of its memory budget; `budget_left_bytes` are those not assigned to a rank.
    pub budget_bytes: u64,
    /// See `budget_bytes`.
    pub budget_left_bytes: u64,
    /// The ranks that it serves.
    pub ranks: Vec<RankReport>,
}

/// A rank that a worker serves.
#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    /// Job name.
    pub job: String,
    /// Rank number.
    pub rank: u64,
    /// Generation of the rank.
    pub generation: u64,
    /// First step that was not consumed.
    pub epoch: u64,
    /// See `epoch`.
    pub step: u64,
    /// Batches that are ready for the trainer.
    pub ready: u64,
    /// Time breakdown; `None` before its first batch.
    pub account: Option<Account>,
}

impl WorkerView {
    /// Returns the worker's current state.
    pub fn report(&self) -> WorkerReport {
        let mut report = self.hub.session.shared().report();
        report.trainers = self.trainers.load(Ordering::Relaxed) as u64;
        report.budget_bytes = self.hub.budget.total();
        report.budget_left_bytes = self.hub.budget.left();
        report
    }

    /// Returns why only a restart helps, if so. The coordinator is not considered: without one the
    /// worker continues to serve.
    pub fn dead(&self) -> Option<String> {
        let silent = self.pulse.silent();
        (silent > STUCK_AFTER).then(|| {
            format!("the thread that accepts trainers has not run for {} s", silent.as_secs())
        })
    }

    /// Returns why a new trainer would not be served, if so. A worker that has been in a cluster is
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
