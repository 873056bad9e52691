//! Signals that end a process.

use std::future::Future;
use std::process;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// A request to end this process by SIGTERM or SIGINT. A second signal ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    asked: watch::Receiver<bool>,
}

impl Stop {
    /// Starts to listen for the signals. Must be called within a runtime.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("listen for signals");
        let mut signals = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        let (ask, asked) = watch::channel(false);
        tokio::spawn(async move {
            let name = next(&mut signals).await;
            tracing::info!(signal = name, "asked to stop");
            ask.send_replace(true);
            let name = next(&mut signals).await;
            tracing::warn!(signal = name, "asked again, stopping at once");
            process::exit(1);
        });
        Ok(Self { asked })
    }

    pub(crate) fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Waits until the process is asked to stop.
    pub(crate) fn asked(&self) -> impl Future<Output = ()> + use<> {
        let mut asked = self.asked.clone();
        async move {
            // The sender lives as long as the runtime.
            let _ = asked.wait_for(|asked| *asked).await;
        }
    }
}

async fn next((terminate, interrupt): &mut (Signal, Signal)) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
