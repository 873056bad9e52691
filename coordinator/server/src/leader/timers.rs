//! Periodic work. The leader checks that it still leads, ends silent sessions and writes cursors;
//! every node ends the audit's seconds. Two loops: a blocked log does not delay the leader's check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_scheduler::{Change, State, WaitForDoubt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::leader::core::{Core, Live};
use crate::ticks::Ticks;

/// Maximum interval of the loop; short sessions reduce it.
const TICK_MAX: Duration = Duration::from_millis(200);

/// Interval between writes of cursors.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Maximum delay for committing session expiry, in multiples of the longest election timeout.
/// Without a majority the outcome is never known, and this node answers no calls until it is.
const EXPIRE_ELECTIONS: u64 = 2;

/// A scan without progress for this many session ttls goes to another worker: 30 s by default.
const SCAN_STALL_TTLS: u32 = 3;

/// Timeout for writing the last cursors.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Timers {
    core: Arc<Core>,
    /// Time of its last check as the leader; `None` while it does not lead.
    looked: Option<Instant>,
    /// Generations with an epoch that waits only for samples in doubt, and the start of the wait
    /// that is not counted yet.
    waits: BTreeMap<(String, u64), Instant>,
}

impl Timers {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, looked: None, waits: BTreeMap::new() }
    }

    /// Runs until `stop` is set, then writes the last cursors.
    pub(crate) async fn run(mut self, stop: watch::Receiver<bool>) {
        let core = Arc::clone(&self.core);
        tokio::join!(self.look(stop.clone()), write_cursors(&core, stop));
        // Without a majority they cannot be written.
        if self.core.available().is_ok() {
            let _ = timeout(LAST_WORDS, self.core.write_cursors()).await;
        }
    }

    async fn look(&mut self, stop: watch::Receiver<bool>) {
        let ttl = Duration::from_millis(self.core.options.session_ttl_ms);
        let mut ticks = Ticks::new((ttl / 10).min(TICK_MAX), stop);
        while ticks.next().await {
            self.tick().await;
        }
    }

    async fn tick(&mut self) {
        // Every node has its own audit.
        self.core.audit.tick(self.core.host.now(), self.core.host.wall_ms());
        if self.core.available().is_err() {
            self.looked = None;
            self.waits.clear();
            return;
        }
        if self.core.is_lonely() && !self.core.is_confirmed().await {
            tracing::warn!("leader lost quorum; rejecting requests");
            self.core.leave_office();
            self.looked = None;
            self.waits.clear();
            return;
        }
        let now = self.core.host.now();
        let looked = self.looked.replace(now);
        // A leader that was stopped, or has just started, has seen no epoch wait meanwhile.
        if looked.is_none_or(|looked| now.duration_since(looked) > REPORT_EVERY) {
            self.waits.clear();
        }
        self.core.read(|state| {
            let mut live = self.core.live();
            if let Some(looked) = looked {
                self.forgive(&mut live, now.duration_since(looked));
            }
            live.follow(state, now);
        });
        self.expire(now).await;
        self.release_scans(now).await;
        self.count_waits(now).await;
    }

    /// Counts the time for which epochs wait only for samples in doubt. The count is written once a
    /// second, so that the next leader continues from there: time without a leader does not count.
    async fn count_waits(&mut self, now: Instant) {
        let waiting = self.core.read(State::waiting_for_doubt);
        let mut before = std::mem::take(&mut self.waits);
        for (job, generation, epochs) in waiting {
            let key = (job.clone(), generation);
            let since = before.remove(&key).unwrap_or(now);
            let waited = now.saturating_duration_since(since);
            if waited < REPORT_EVERY {
                self.waits.insert(key, since);
                continue;
            }
            let ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            let wait = WaitForDoubt { job, generation, epochs, ms };
            match self.core.propose_own(Change::WaitForDoubt(wait)).await {
                Ok(_) => _ = self.waits.insert(key, now),
                Err(error) => tracing::warn!(%error, "cannot write down how long an epoch waits"),
            }
        }
    }

    async fn release_scans(&self, now: Instant) {
        let limit = Duration::from_millis(self.core.options.session_ttl_ms) * SCAN_STALL_TTLS;
        let scans = self.core.live().progress.stalled(limit, now);
        if scans.is_empty() {
            return;
        }
        tracing::warn!(?scans, limit_ms = limit.as_millis() as u64, "scans made no progress");
        let count = scans.len() as u64;
        match self.core.propose_own(Change::ReleaseScans { scans }).await {
            Ok(_) => _ = self.core.metrics.scans_stalled.inc_by(count),
            // They are returned again after another `limit`.
            Err(error) => tracing::warn!(%error, "cannot release scans"),
        }
    }

    /// Excludes time in which this process did not run (stopped, starved, suspended) from the
    /// silence of sessions: their heartbeats wait in its sockets.
    fn forgive(&self, live: &mut Live, gap: Duration) {
        let ttl = Duration::from_millis(self.core.options.session_ttl_ms);
        if gap > ttl / 2 {
            tracing::warn!(gap_ms = gap.as_millis() as u64, "the coordinator did not run");
            live.sessions.postpone(gap);
            live.progress.postpone_scans(gap);
        }
    }

    async fn expire(&mut self, now: Instant) {
        let sessions = self.core.live().sessions.expire(now);
        if sessions.is_empty() {
            return;
        }
        let count = sessions.len() as u64;
        let leases = self.core.read(|state| {
            let ended = sessions.iter().filter_map(|session| state.session(*session));
            ended.map(|session| session.leases.len() as u64).sum()
        });
        tracing::warn!(?sessions, "sessions ended in silence");
        let wait = Duration::from_millis(self.core.options.election_max_ms * EXPIRE_ELECTIONS);
        match timeout(wait, self.core.propose_own(Change::ExpireSessions { sessions })).await {
            Ok(Ok(_)) => {
                self.core.metrics.sessions_expired.inc_by(count);
                self.core.metrics.lease_expirations.inc_by(leases);
                // The wait for the log is not time in which this process did not run.
                self.looked = Some(self.core.host.now());
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot end sessions"),
            Err(_) => tracing::warn!(count, "the end of sessions is not written down in time"),
        }
        // They may still end: until that is known, this node answers no calls.
        self.core.leave_office();
        self.looked = None;
    }
}

async fn write_cursors(core: &Core, stop: watch::Receiver<bool>) {
    let mut ticks = Ticks::new(REPORT_EVERY, stop);
    while ticks.next().await {
        if core.available().is_ok() {
            core.write_cursors().await;
        }
    }
}
