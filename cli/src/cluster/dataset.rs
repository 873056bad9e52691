//! `shardfeed dataset list`, `show` and `remove`: datasets of a cluster.

pub(crate) mod add;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_plan::Digest;
use shardfeed_proto::coordinator::v1 as wire;

use super::answer::{Failure, digest, naming};
use super::confirm::Confirm;
use super::{CallError, Client, ClusterArgs};
use crate::duration;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, percent, text, word};
use crate::output::{self, Format, Report};

/// Arguments of `dataset list`.
#[derive(Debug, Args)]
pub(crate) struct DatasetListArgs {
    /// Show all datasets, not only the first 20
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `dataset show`.
#[derive(Debug, Args)]
pub(crate) struct DatasetShowArgs {
    /// Name of the dataset
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) const REMOVE_ABOUT: &str = "\
Remove a dataset from the cluster; its files stay as they are

One that a job reads is refused: remove the job first. The name may then be used for other files.";

/// Arguments of `dataset remove`.
#[derive(Debug, Args)]
pub(crate) struct DatasetRemoveArgs {
    /// Name of the dataset
    name: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Result of `dataset remove`.
#[derive(Debug, Serialize)]
struct RemovedDataset {
    dataset: String,
}

/// Datasets of a cluster.
#[derive(Debug, Serialize)]
struct DatasetsReport {
    datasets: Vec<DatasetReport>,
    #[serde(skip)]
    all: bool,
}

/// A dataset of a cluster.
#[derive(Debug, Serialize)]
struct DatasetReport {
    name: String,
    /// `listing`, `scanning`, `ready` or `failed`.
    state: String,
    patterns: Vec<String>,
    /// Compression as requested.
    compression: String,
    /// Folder that the shards' paths are relative to; `null` until they are listed.
    root: Option<String>,
    /// `null` until it is ready.
    content_digest: Option<Digest>,
    shard_count: u64,
    /// Number of records known so far.
    records: u64,
    /// Total size of the files, bytes.
    stored_bytes: u64,
    shards_scanned: u64,
    bytes_scanned: u64,
    /// `null` unless it failed.
    failure: Option<Failure>,
    /// Worker that reported the failure, and its principal; `null`: no worker did.
    failure_from: Option<String>,
    /// Reason why it makes no progress; `null` if it does.
    waiting: Option<String>,
    /// Time since it was added.
    age_ms: u64,
    /// Digests of the manifest's chunks, in order; only for `dataset show`, and when it is ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    manifest_chunks: Vec<Digest>,
}

/// Lists the datasets.
pub(super) fn list(client: &Client) -> Result<Vec<wire::Dataset>, CallError> {
    let answer = client.call(|mut admin, context| async move {
        admin.list_datasets(wire::ListDatasetsRequest { context }).await
    });
    answer.map(|answer| answer.datasets)
}

/// Returns a dataset.
pub(super) fn get(client: &Client, name: &str) -> Result<wire::Dataset, CallError> {
    let name = name.to_owned();
    let answer = client.call(|mut admin, context| async move {
        admin.get_dataset(wire::GetDatasetRequest { context, name }).await
    });
    answer.map(|answer| answer.dataset.unwrap_or_default())
}

/// Runs `dataset list`.
pub(crate) fn run_list(args: &DatasetListArgs, format: Format) -> anyhow::Result<()> {
    let datasets = list(&args.cluster.client()?)?;
    let datasets = datasets.into_iter().map(DatasetReport::new).collect();
    Ok(format.print(&DatasetsReport { datasets, all: args.all })?)
}

/// Runs `dataset show`.
pub(crate) fn run_show(args: &DatasetShowArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let dataset = get(&client, &args.name);
    let dataset = dataset.map_err(|error| explain(&client, &args.name, error))?;
    Ok(format.print(&DatasetReport::new(dataset))?)
}

/// Runs `dataset remove`.
pub(crate) fn run_remove(args: &DatasetRemoveArgs, format: Format) -> anyhow::Result<()> {
    let name = args.name.clone();
    args.confirm.check(&format!("dataset `{name}` would be removed from the cluster"))?;
    let client = args.cluster.client()?;
    let removed = client.call(|mut admin, context| async move {
        admin.remove_dataset(wire::RemoveDatasetRequest { context, name }).await
    });
    removed.map_err(|error| explain(&client, &args.name, error))?;
    Ok(format.print(&RemovedDataset { dataset: args.name.clone() })?)
}

/// Adds the names of all datasets to an error if the dataset does not exist.
fn explain(client: &Client, name: &str, error: CallError) -> anyhow::Error {
    let known = list(client).map(|known| known.into_iter().map(|d| d.name).collect());
    naming(error, "datasets", name, known)
}

impl Report for RemovedDataset {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        output::write_facts(out, &[("removed dataset", self.dataset.clone())])
    }
}

impl DatasetReport {
    fn new(dataset: wire::Dataset) -> Self {
        Self {
            state: word(dataset.state().as_str_name(), "DATASET_STATE_"),
            name: dataset.name,
            patterns: dataset.patterns,
            compression: dataset.compression,
            root: Some(dataset.root).filter(|root| !root.is_empty()),
            content_digest: digest(&dataset.content),
            shard_count: dataset.files,
            records: dataset.records,
            stored_bytes: dataset.bytes,
            shards_scanned: dataset.files_scanned,
            bytes_scanned: dataset.bytes_scanned,
            failure: dataset.failure.map(Failure::new),
            failure_from: Some(dataset.failure_from).filter(|from| !from.is_empty()),
            waiting: Some(dataset.waiting).filter(|waiting| !waiting.is_empty()),
            age_ms: dataset.age_ms,
            manifest_chunks: dataset.chunks.iter().filter_map(|chunk| digest(chunk)).collect(),
        }
    }

    /// The state and the progress.
    fn progress(&self) -> String {
        match self.state.as_str() {
            "scanning" => format!("scanning {}", percent(self.bytes_scanned, self.stored_bytes)),
            state => state.to_owned(),
        }
    }

    fn digest(&self) -> String {
        self.content_digest.map_or_else(|| NONE.into(), |digest| digest.to_string())
    }
}

fn columns() -> [Column<DatasetReport>; 9] {
    [
        column("DATASET", |dataset| dataset.name.clone()),
        column("STATE", DatasetReport::progress),
        column(">SHARDS", |dataset| output::count(dataset.shard_count)),
        column(">RECORDS", |dataset| output::count(dataset.records)),
        column(">SIZE", |dataset| output::size(dataset.stored_bytes)),
        column(">AGE", |dataset| duration::text(dataset.age_ms)),
        wide("COMPRESSION", |dataset| dataset.compression.clone()),
        wide("ROOT", |dataset| text(dataset.root.as_deref().unwrap_or_default())),
        wide("CONTENT DIGEST", DatasetReport::digest),
    ]
}

impl DatasetsReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        listing::write(
            out,
            "datasets",
            &self.datasets,
            &columns(),
            Shown { is_wide, all: self.all },
        )
    }
}

impl Report for DatasetsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("datasets", "name"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}

impl Report for DatasetReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut facts = vec![("dataset", self.name.clone()), ("state", self.progress())];
        if let Some(failure) = &self.failure {
            facts.push(("failure", text(&failure.message)));
        }
        if let Some(from) = &self.failure_from {
            facts.push(("reported by", text(from)));
        }
        if let Some(waiting) = &self.waiting {
            facts.push(("waits for", text(waiting)));
        }
        facts.extend([
            ("patterns", text(&self.patterns.join(", "))),
            ("compression", self.compression.clone()),
            ("root", text(self.root.as_deref().unwrap_or_default())),
            ("shards", output::count(self.shard_count)),
            ("records", output::count(self.records)),
            ("stored", output::bytes(self.stored_bytes)),
            ("content digest", self.digest()),
            ("added", format!("{} ago", duration::text(self.age_ms))),
        ]);
        output::write_facts(out, &facts)
    }
}
