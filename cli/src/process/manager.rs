//! Notifications to a service manager such as systemd, if NOTIFY_SOCKET is set.

use std::time::Duration;

use sd_notify::NotifyState;

/// Interval of notifications while the process waits.
const WAITS_EVERY: Duration = Duration::from_secs(5);

/// Extension of the start timeout with each of them, µs.
const MAY_TAKE_US: u32 = 60_000_000;

/// Notifies that the process serves.
pub(super) fn ready(line: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(line)]);
}

/// Notifies that the process was asked to stop.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Awaits `start`, and meanwhile notifies periodically what the process waits for.
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

/// Notifies the watchdog at half its limit from now on.
///
/// Must be called within a runtime: if the runtime hangs, the notifications stop.
/// - `dead`: the reason why the process is not alive, if it is not.
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
