//! What the leader does by the clock: ends silent sessions, writes cursors down. One loop that never
//! waits for anything but the log.

use std::sync::Arc;
use std::time::Duration;

use shardfeed_scheduler::Change;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use crate::core::Core;
use crate::sessions::Sessions;

/// How often the loop looks; with short sessions more often.
const TICK_MAX: Duration = Duration::from_millis(200);

/// How often cursors are written down.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long the last cursors may take to be written down.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The loop and what it remembers.
#[derive(Debug)]
pub(crate) struct Timers {
    core: Arc<Core>,
    reported: Instant,
    /// When it last looked as the leader; `None` while it does not lead.
    looked: Option<Instant>,
}

impl Timers {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let reported = core.host.now();
        Self { core, reported, looked: None }
    }

    /// Runs until `stop` is told, then writes the last cursors down.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let ttl = Duration::from_millis(self.core.options.session_ttl_ms);
        let mut ticks = tokio::time::interval((ttl / 10).min(TICK_MAX));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !*stop.borrow() {
            tokio::select! {
                _ = ticks.tick() => self.tick().await,
                _ = stop.changed() => break,
            }
        }
        // Without a majority there is nobody to write them down with.
        if self.core.available().is_ok() {
            let _ = timeout(LAST_WORDS, self.core.write_cursors()).await;
        }
    }

    async fn tick(&mut self) {
        if self.core.available().is_err() {
            self.looked = None;
            return;
        }
        if self.core.is_lonely() && !self.core.is_confirmed().await {
            tracing::warn!("this node leads but hears of no majority; it answers nobody");
            self.core.leave_office();
            self.looked = None;
            return;
        }
        let now = self.core.host.now();
        let looked = self.looked.replace(now);
        self.core.read(|state| {
            let mut live = self.core.live();
            if let Some(looked) = looked {
                self.forgive(&mut live.sessions, now.duration_since(looked));
            }
            live.follow(state, now);
        });
        self.expire(now).await;
        if now.duration_since(self.reported) >= REPORT_EVERY {
            self.reported = now;
            self.core.write_cursors().await;
        }
    }

    /// Time in which this process did not run (stopped, starved, suspended) does not count against
    /// sessions: their heartbeats wait in its sockets.
    fn forgive(&self, sessions: &mut Sessions, gap: Duration) {
        let ttl = Duration::from_millis(self.core.options.session_ttl_ms);
        if gap > ttl / 2 {
            tracing::warn!(gap_ms = gap.as_millis() as u64, "the coordinator did not run");
            sessions.postpone(gap);
        }
    }

    async fn expire(&self, now: Instant) {
        let sessions = self.core.live().sessions.expired(now);
        if sessions.is_empty() {
            return;
        }
        let count = sessions.len() as u64;
        tracing::warn!(?sessions, "sessions ended in silence");
        match self.core.propose_own(Change::ExpireSessions { sessions }).await {
            Ok(_) => {
                self.core.metrics.sessions_expired.inc_by(count);
            }
            Err(error) => tracing::warn!(%error, "cannot end sessions"),
        }
    }
}
