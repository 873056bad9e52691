//! What a service manager is told, such as systemd: whatever NOTIFY_SOCKET names. Without it nothing is.

use std::time::Duration;

use sd_notify::NotifyState;

/// Somebody who waits says so again after this time,
const WAITS_EVERY: Duration = Duration::from_secs(5);

/// and that it may take so long still.
const MAY_TAKE_US: u32 = 60_000_000;

/// The process serves.
pub(super) fn ready(line: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(line)]);
}

/// The process was asked to stop.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says again and again that the process waits, and for what, as long as `start` does.
pub(super) async fn while_waiting<T>(
    waits_for: impl Fn() -> Option<String>,
    start: impl Future<Output = T>,
) -> T {
    let mut start = std::pin::pin!(start);
    let mut ticks = tokio::time::interval(WAITS_EVERY);
    loop {
        tokio::select! {
            started = &mut start => return started,
            _ = ticks.tick() => {
                if let Some(what) = waits_for() {
                    let status = format!("starting: {what}");
                    tell(&[NotifyState::ExtendTimeoutUsec(MAY_TAKE_US), NotifyState::Status(&status)]);
                }
            }
        }
    }
}

/// Says that the process is alive, as often as the manager wants to hear it, from now on. Call it within
/// a runtime: one that is stuck says nothing.
/// - `dead`: why it is not, if so.
pub(super) fn watch(dead: impl Fn() -> Option<String> + Send + 'static) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(limit / 2);
        loop {
            ticks.tick().await;
            match dead() {
                None => tell(&[NotifyState::Watchdog]),
                Some(reason) => tell(&[NotifyState::Status(&reason)]),
            }
        }
    });
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager at NOTIFY_SOCKET does not listen");
    }
}
