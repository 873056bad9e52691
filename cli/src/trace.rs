//! `shardfeed trace`: a timeline of a worker's threads, for Perfetto.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use shardfeed_embedded::{default_worker_socket, worker_timeline};

use crate::duration;
use crate::output::{self, Format};

/// Record the threads of this host's worker for Perfetto
///
/// FILE is a timeline of the activity of each thread; open it at https://ui.perfetto.dev. It shows
/// the reading threads (chunk, read), the thread that plans (room: enough is ahead; fill window,
/// gather, wait for shard, grant), the computing threads (assemble: check and parse, operate and
/// write) and the ones that send. Nothing is recorded before and after. For loaders that work in
/// their trainer's process set SHARDFEED_TRACE=DIR there: each writes DIR/rank-R-PID.json when it
/// is closed.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// File to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Duration of the recording, at most 60s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// Path of the worker's socket [default: SHARDFEED_WORKER, else the default path]
    #[arg(long, value_name = "PATH")]
    worker: Option<PathBuf>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(duration) if duration > Duration::from_secs(60) => Err("must be 60s at most".into()),
        other => other,
    }
}

pub(crate) fn run(args: &TraceArgs, format: Format) -> anyhow::Result<()> {
    let socket = args.worker.clone().unwrap_or_else(default_worker_socket);
    let content = worker_timeline(&socket, args.duration, &mut |_| true)?;
    let file = args.file.display().to_string();
    std::fs::write(&args.file, &content).with_context(|| format!("cannot write {file}"))?;
    let bytes = content.len() as u64;
    let text = output::facts(&[("timeline", file.clone()), ("size", output::bytes(bytes))]);
    Ok(format.print_brief(json!({ "file": file, "bytes": bytes }), text)?)
}
