//! `shardfeed dataset add`: gives a cluster a dataset, and waits until it is scanned.

use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::ProgressBar;
use shardfeed_agent::absolute_pattern;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;

use super::{DatasetReport, get};
use crate::cluster::{Client, ClusterArgs, worker};
use crate::output::Format;
use crate::progress;

/// How often it is asked how far the scan is.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// After so long without progress it is looked whether there is a worker at all.
const IDLE_MAX: Duration = Duration::from_secs(2);

pub(crate) const ABOUT: &str = "\
Give a dataset to the cluster, and wait until its workers have scanned it

The files must be at the same paths on every worker. What a name stands for never changes: the same name \
with other files is refused, the same again is not.";

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset add train '/data/train-*.tfrecord'
  shardfeed dataset add whole @/data/whole.txt
  shardfeed dataset add --no-wait train '/data/train-*.tfrecord.gz'";

/// Arguments of `dataset add`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddArgs {
    /// The dataset's name
    name: String,
    /// Its files: paths, globs in quotes (*, ?, [a-z], **), or @LIST, a text with one in each line; the
    /// workers look for them
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
    /// How the files are compressed
    #[arg(long, default_value = "auto", value_name = "SCHEME")]
    #[arg(value_parser = PossibleValuesParser::new(["auto", "none", "gzip", "zlib"]))]
    compression: String,
    /// What is left out of damaged files: nothing, it is an error; what follows where the framing breaks; any
    /// file with damage
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[arg(value_parser = PossibleValuesParser::new(["error", "skip-record", "skip-file"]))]
    corrupt: String,
    /// Wait until it is ready, the default; Ctrl-C ends the waiting, not the scan
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Do not wait until it is ready
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Runs `dataset add`.
pub(crate) fn run(args: &AddArgs, format: Format) -> anyhow::Result<()> {
    let patterns = args.patterns.iter().map(|pattern| absolute_pattern(pattern));
    let patterns = patterns.collect::<Result<Vec<_>, _>>()?;
    let client = args.cluster.client()?;
    let (name, compression) = (args.name.clone(), args.compression.clone());
    let corrupt = args.corrupt.clone();
    client.call(|mut admin, context| async move {
        let listing = None;
        let request =
            wire::AddDatasetRequest { context, name, patterns, compression, corrupt, listing };
        admin.add_dataset(request).await
    })?;
    let dataset = match args.no_wait && !args.wait {
        true => get(&client, &args.name)?,
        false => wait(&client.patient(), &args.name)?,
    };
    Ok(format.print(&DatasetReport::new(dataset))?)
}

/// Waits until the dataset is ready, whatever becomes of the coordinator in the meantime.
fn wait(client: &Client, name: &str) -> anyhow::Result<wire::Dataset> {
    let bar = progress::bytes_bar("waiting", 0);
    let (mut moved, mut told) = (Instant::now(), false);
    let mut seen = (0, 0);
    loop {
        let dataset = get(client, name)?;
        match dataset.state() {
            wire::DatasetState::Ready => {
                bar.finish_and_clear();
                return Ok(dataset);
            }
            wire::DatasetState::Failed => {
                bar.finish_and_clear();
                let failure = WireError::from_message(dataset.failure);
                let what = format!("dataset `{name}` cannot be scanned");
                return Err(anyhow::Error::new(failure).context(what));
            }
            _ => show(&bar, &dataset),
        }
        let now = (dataset.files, dataset.bytes_scanned);
        if now != seen {
            (seen, moved) = (now, Instant::now());
        }
        if !told && moved.elapsed() > IDLE_MAX {
            told = tell_what_is_waited_for(client, &dataset)?;
        }
        client.pause(ASK_EVERY);
    }
}

fn show(bar: &ProgressBar, dataset: &wire::Dataset) {
    match dataset.state() {
        wire::DatasetState::Listing => bar.set_message("listing files"),
        _ => {
            bar.set_message("scanning");
            bar.set_length(dataset.bytes);
            bar.set_position(dataset.bytes_scanned);
        }
    }
}

/// Says that no worker scans, or makes progress, if so; also where stderr is no terminal.
fn tell_what_is_waited_for(client: &Client, dataset: &wire::Dataset) -> anyhow::Result<bool> {
    if worker::list(client, false)?.is_empty() {
        tracing::warn!("no worker is live to scan it; `shardfeed worker start` starts one");
        return Ok(true);
    }
    if !dataset.waiting.is_empty() {
        tracing::warn!("{}", dataset.waiting);
    }
    Ok(!dataset.waiting.is_empty())
}
