//! `shardfeed dataset add`: adds a dataset to a cluster, and waits until it is scanned.

use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::ProgressBar;
use shardfeed_dataset_tools::files::{POLICIES, SCHEMES};
use shardfeed_dataset_tools::progress;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_source::absolute_pattern;

use super::{DatasetReport, get};
use crate::cluster::{Client, ClusterArgs, worker};
use crate::output::Format;

/// Polling interval of the scan's progress.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Time without progress after which the reason is checked.
const IDLE_MAX: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset add train '/data/train-*.tfrecord'
  shardfeed dataset add whole @/data/whole.txt
  shardfeed dataset add --no-wait train '/data/train-*.tfrecord.gz'";

/// Add a dataset to the cluster and wait until it is scanned
///
/// The files must be at the same paths on every worker. The files of a name never change: the same
/// name with other files is refused, the same request again is not.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DatasetAddArgs {
    /// Name of the dataset
    name: String,
    /// Files for the workers to find: paths, quoted globs (*, ?, [a-z], **), or @LIST, a text file
    /// with one per line
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Compression of the files
    #[arg(long, default_value = "auto", value_name = "SCHEME")]
    #[arg(value_parser = PossibleValuesParser::new(SCHEMES))]
    compression: String,
    /// Policy for damaged files: fail; leave out records from a broken framing on; leave out every
    /// damaged file
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[arg(value_parser = PossibleValuesParser::new(POLICIES))]
    corrupt: String,
    /// Wait until it is ready (default); Ctrl-C ends the wait, not the scan
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Do not wait until it is ready
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &DatasetAddArgs, format: Format) -> anyhow::Result<()> {
    let patterns = args.patterns.iter().map(|pattern| absolute_pattern(pattern));
    let patterns = patterns.collect::<Result<Vec<_>, _>>()?;
    let client = args.cluster.client()?;
    client.call(wire::AddDatasetRequest {
        context: None,
        name: args.name.clone(),
        patterns,
        compression: args.compression.clone(),
        corrupt: args.corrupt.clone(),
        listing: None,
        program: vec![],
    })?;
    let dataset = match args.no_wait && !args.wait {
        true => get(&client, &args.name)?,
        false => wait(&client.patient(), &args.name)?,
    };
    Ok(format.print(&DatasetReport { dataset, record_spec: None, counted: None })?)
}

/// Waits until the dataset is ready, also across restarts of the coordinator.
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
        std::thread::sleep(ASK_EVERY);
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

/// Reports if there is no worker or no progress, even if stderr is not a terminal.
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
