//! `shardfeed up`: a cluster of one host in one process, for a first try.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use shardfeed_agent::Address;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions};

use super::runtime::runtime;
use super::worker::{self, Serving, WorkerConfig};
use super::{Stop, coordinator};
use crate::error::Problem;
use crate::output;
use crate::size::Bytes;

const EXAMPLES: &str = "\
Examples:
  shardfeed up
  shardfeed up --data ~/shardfeed --listen 127.0.0.1:0 --http 127.0.0.1:0";

/// Run a coordinator and a worker in one process, for a first try
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpArgs {
    /// Folder for all persistent data [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// gRPC address for workers and people; port 0 picks a free port [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// HTTP address for health and metrics; port 0 picks a free port [default: 127.0.0.1:7071]
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// Path of the socket for trainers [default: /run/shardfeed/worker.sock as root, else
    /// $XDG_RUNTIME_DIR/shardfeed/worker.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Memory for records and batches of all trainers [default: a quarter of the available memory]
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<Bytes>,
}

pub(crate) fn run(args: &UpArgs) -> anyhow::Result<()> {
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("shardfeed-up-").tempdir()),
    };
    let temporary = temporary.transpose().map_err(|error| {
        let folder = std::env::temp_dir();
        let what = format!("cannot make a folder in {}: {}", folder.display(), error.kind());
        Problem::failed(what)
            .hint("set TMPDIR to a folder that this user may write to, or give --data DIR")
    })?;
    let folder = temporary.as_ref().map(|folder| folder.path().to_owned());
    let mut options = CoordinatorOptions::new(folder.or(args.data.clone()).unwrap_or_default());
    options.listen = args.listen.unwrap_or(options.listen);
    options.http = args.http.or(options.http);
    let runtime = runtime(None)?;
    let (stop, running) = runtime
        .block_on(async { anyhow::Ok((Stop::listen()?, Coordinator::start(options).await?)) })?;
    let address = Address::from(running.grpc_address());
    let config = WorkerConfig {
        coordinator: Some(address.clone().into()),
        socket: args.socket.clone(),
        memory_budget: args.memory_budget,
        ..WorkerConfig::default()
    };
    let ended = worker::serve(&config, &stop).and_then(|serving| {
        let Some(Serving { worker, ready }) = serving else {
            return Ok(());
        };
        output::line(&coordinator::ready(&running))?;
        output::line(&ready)?;
        output::line(&next(&address, args))?;
        runtime.block_on(stop.asked());
        drop(worker);
        Ok(())
    });
    runtime.block_on(running.stop());
    ended
}

/// Returns the instructions for the next steps.
fn next(address: &Address, args: &UpArgs) -> String {
    let at = match address.is_default() {
        true => String::new(),
        false => format!(" --coordinator {address}"),
    };
    let worker = args.socket.as_ref().map(|socket| format!(", worker=\"{}\"", socket.display()));
    let worker = worker.unwrap_or_default();
    let end = match args.data {
        Some(_) => "Ctrl-C ends it; its state is kept.",
        None => "Ctrl-C ends it and removes its state (--data DIR keeps it).",
    };
    format!(
        "
Type next, in another shell:
  shardfeed dataset add train '/path/to/train-*.tfrecord'{at}
  shardfeed status{at}
and in Python:
  loader = shardfeed.Loader(dataset=\"train\", batch_size=32, coordinator=\"{address}\"{worker})
{end}"
    )
}
