//! `shardfeed worker cordon`, `uncordon` and `drain`: control which workers get work.

use std::time::{Duration, Instant};

use shardfeed_dataset_tools::progress;
use shardfeed_proto::coordinator::v1 as wire;

use super::{NamedWorker, find, print};
use crate::cluster::Client;
use crate::error::Problem;
use crate::output::Format;

/// Polling interval of the ranks that a worker still serves.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Time after which a worker that still serves is reported, even if stderr is not a terminal.
const TOLD_AFTER: Duration = Duration::from_secs(10);

fn set(client: &Client, name: &str, cordon: wire::Cordon) -> anyhow::Result<()> {
    let (worker, cordon) = (name.to_owned(), cordon.into());
    match client.call(wire::CordonWorkerRequest { context: None, worker, cordon }) {
        Ok(wire::CordonWorkerResponse {}) => Ok(()),
        // If the worker is unknown, this error lists the known ones.
        Err(error) => find(client, name).and_then(|_| Err(error.into())),
    }
}

pub(crate) fn cordon(of: &NamedWorker, format: Format) -> anyhow::Result<()> {
    // An unknown name would cordon a later worker of that name.
    let (client, _) = of.find()?;
    set(&client, &of.name, wire::Cordon::Cordoned)?;
    print(find(&client, &of.name)?, format)
}

pub(crate) fn uncordon(of: &NamedWorker, format: Format) -> anyhow::Result<()> {
    let (client, name) = (of.cluster.client()?, &of.name);
    let before = find(&client, name).map(|worker| worker.cordon());
    set(&client, name, wire::Cordon::Open)?;
    if before.is_ok_and(|before| before == wire::Cordon::Draining) {
        // A drain cannot be undone: the process serves no trainer any more.
        tracing::warn!(
            worker = name,
            "it was drained and gets no work until its process is restarted"
        );
    }
    match find(&client, name) {
        Ok(worker) => print(worker, format),
        Err(_) => {
            tracing::warn!(worker = name, "it is not known now, and may join");
            Ok(())
        }
    }
}

pub(crate) fn drain(of: &NamedWorker, no_wait: bool, format: Format) -> anyhow::Result<()> {
    let (client, worker) = of.find()?;
    let name = &of.name;
    if worker.in_process {
        let message = format!("worker `{name}` lives in a trainer's process");
        return Err(Problem::failed(message).hint("it ends with its trainer").into());
    }
    set(&client, name, wire::Cordon::Draining)?;
    let client = client.patient();
    let bar = progress::bytes_bar("draining", 0);
    let (begun, mut is_told) = (Instant::now(), false);
    let worker = loop {
        let worker = find(&client, name)?;
        if no_wait || worker.state() != wire::WorkerState::Live {
            break worker;
        }
        bar.set_message(format!("draining, {} ranks", worker.leases));
        if !is_told && begun.elapsed() > TOLD_AFTER {
            is_told = true;
            tracing::warn!(worker = name, ranks = worker.leases, "it still serves; waiting");
        }
        std::thread::sleep(ASK_EVERY);
    };
    bar.finish_and_clear();
    print(worker, format)
}
