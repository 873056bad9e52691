//! A view of a worker for monitoring: health pages, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cluster::report::WorkerReport;
use crate::serve::Hub;

/// Silence of the accepting thread that counts as stuck; it normally runs several times a second.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// A view of a worker; it does not keep the worker running.
#[derive(Clone)]
pub struct WorkerView {
    pub(crate) hub: Arc<Hub>,
}

impl WorkerView {
    pub fn report(&self) -> WorkerReport {
        let mut report = self.hub.session.shared.report();
        report.trainers = self.hub.trainers.load(Ordering::Relaxed) as u64;
        report.budget_bytes = self.hub.budget.total;
        report.budget_left_bytes = self.hub.budget.left();
        report
    }

    /// Returns why only a restart helps, if so. A worker serves without a coordinator, too.
    pub fn dead(&self) -> Option<String> {
        let silent = self.hub.pulse.silent();
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
