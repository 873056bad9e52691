//! `shardfeed worker cordon`, `uncordon` and `drain`: control which workers get work.

use std::time::{Duration, Instant};

use clap::Args;
use shardfeed_dataset_tools::progress;
use shardfeed_proto::coordinator::v1 as wire;

use super::{WorkerReport, find};
use crate::cluster::{Client, ClusterArgs};
use crate::error::Problem;
use crate::output::Format;

/// Polling interval of the ranks that a worker still serves.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Time after which a worker that still serves is reported, even if stderr is not a terminal.
const TOLD_AFTER: Duration = Duration::from_secs(10);

pub(crate) const UNCORDON_ABOUT: &str = "\
Allow a cordoned or drained worker to get work again

A drained worker has left the cluster: restart its process. Trainers return to it with the next \
epoch, those that were refused when they are restarted.";

pub(crate) const DRAIN_ABOUT: &str = "\
Remove the work of a worker, without a trainer waiting, and wait until it serves nothing

Its trainers continue in their own processes from the batch that it sent last. Then it leaves the \
cluster, and runs until it is stopped; once uncordoned, it gets work again when its process is \
restarted.";

/// Arguments of `worker cordon` and `uncordon`.
#[derive(Debug, Args)]
pub(crate) struct CordonArgs {
    /// Name of the worker
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `worker drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Name of the worker
    name: String,
    /// Do not wait until it serves nothing
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn set(client: &Client, name: &str, cordon: wire::Cordon) -> anyhow::Result<()> {
    let (worker, cordon) = (name.to_owned(), i32::from(cordon));
    let set = client.call(|mut admin, context| async move {
        admin.cordon_worker(wire::CordonWorkerRequest { context, worker, cordon }).await
    });
    match set {
        Ok(wire::CordonWorkerResponse {}) => Ok(()),
        // If the worker is unknown, this error lists the known ones.
        Err(error) => find(client, name).and_then(|_| Err(error.into())),
    }
}

/// Runs `worker cordon` and `uncordon`.
pub(crate) fn run(args: &CordonArgs, cordon: wire::Cordon, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    if cordon == wire::Cordon::Open {
        let before = find(&client, &args.name).map(|worker| worker.cordon());
        set(&client, &args.name, cordon)?;
        if before.is_ok_and(|before| before == wire::Cordon::Draining) {
            // A drain cannot be undone: the process serves no trainer any more.
            tracing::warn!(
                worker = args.name,
                "it was drained and gets no work until its process is restarted"
            );
        }
        return match find(&client, &args.name) {
            Ok(worker) => Ok(format.print(&WorkerReport::new(worker))?),
            Err(_) => {
                tracing::warn!(worker = args.name, "it is not known now, and may join");
                Ok(())
            }
        };
    }
    // An unknown name would cordon a later worker of that name.
    find(&client, &args.name)?;
    set(&client, &args.name, cordon)?;
    Ok(format.print(&WorkerReport::new(find(&client, &args.name)?))?)
}

/// Runs `worker drain`.
pub(crate) fn run_drain(args: &DrainArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    if find(&client, &args.name)?.in_process {
        let message = format!("worker `{}` lives in a trainer's process", args.name);
        return Err(Problem::failed(message).hint("it ends with its trainer").into());
    }
    set(&client, &args.name, wire::Cordon::Draining)?;
    let client = client.patient();
    let bar = progress::bytes_bar("draining", 0);
    let (begun, mut is_told) = (Instant::now(), false);
    let worker = loop {
        let worker = find(&client, &args.name)?;
        let is_over = worker.state() != wire::WorkerState::Live;
        if args.no_wait || is_over {
            break worker;
        }
        bar.set_message(format!("draining, {} ranks", worker.leases));
        if !is_told && begun.elapsed() > TOLD_AFTER {
            is_told = true;
            tracing::warn!(worker = args.name, ranks = worker.leases, "it still serves; waiting");
        }
        client.pause(ASK_EVERY);
    };
    bar.finish_and_clear();
    Ok(format.print(&WorkerReport::new(worker))?)
}
