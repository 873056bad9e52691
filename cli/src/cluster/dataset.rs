//! `shardfeed dataset list`, `show` and `remove`: datasets of a cluster.

pub(crate) mod add;

use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use shardfeed_agent::maps_of_shards;
use shardfeed_dataset_tools::samples::CountedReport;
use shardfeed_proto::Word;
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::coordinator::v1 as wire;

use super::answer::naming;
use super::{CallError, Client, ClusterArgs, Confirm};
use crate::duration;
use crate::error::Problem;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{ago, digest, percent, text};
use crate::output::{self, Format, Report, list_report};

/// A dataset as an argument.
#[derive(Debug, Args)]
pub(crate) struct NamedDataset {
    /// Name of the dataset
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Show a dataset of the cluster
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    of: NamedDataset,
    /// Also show how much is left out and why, for which the sample maps of all files are fetched
    #[arg(long)]
    samples: bool,
}

list_report!(DatasetsReport { datasets: wire::Dataset }, "name", "datasets");

#[derive(Debug, Serialize)]
struct DatasetReport {
    #[serde(flatten)]
    dataset: wire::Dataset,
    /// Record spec of its samples, in words; only of `dataset show`.
    #[serde(skip_serializing_if = "Option::is_none")]
    record_spec: Option<String>,
    /// Counts of its program; only of `dataset show --samples`.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<CountedReport>,
}

pub(super) fn list(client: &Client) -> Result<Vec<wire::Dataset>, CallError> {
    client.call(wire::ListDatasetsRequest::default()).map(|answer| answer.datasets)
}

pub(crate) fn get(client: &Client, name: &str) -> Result<wire::Dataset, CallError> {
    let request = wire::GetDatasetRequest { context: None, name: name.to_owned() };
    client.call(request).map(|answer| answer.dataset.unwrap_or_default())
}

pub(crate) fn print_list(client: &Client, all: bool, format: Format) -> anyhow::Result<()> {
    Ok(format.print(&DatasetsReport { datasets: list(client)?, all })?)
}

impl ShowArgs {
    pub(crate) fn show(&self, format: Format) -> anyhow::Result<()> {
        let NamedDataset { name, cluster } = &self.of;
        let client = cluster.client()?;
        let dataset = get(&client, name).map_err(|error| explain(&client, name, error))?;
        let mut report = DatasetReport { dataset, record_spec: None, counted: None };
        if !report.dataset.program.is_empty() {
            let program = client.chunk(&report.dataset.program)?;
            let spec = RecordSpec::decode_canonical(&program[..]);
            report.record_spec = Some(match spec {
                Ok(spec) => spec.to_string(),
                Err(error) => format!("unknown: {error}"),
            });
        }
        if self.samples {
            report.counted = Some(counted(&client, &report.dataset)?);
        }
        Ok(format.print(&report)?)
    }
}

/// Counts the samples of a dataset, and the records, rows and tokens that are left out.
fn counted(client: &Client, dataset: &wire::Dataset) -> anyhow::Result<CountedReport> {
    let name = &dataset.name;
    if dataset.program.is_empty() {
        let problem = Problem::usage(format!("each record of dataset `{name}` is a sample"));
        return Err(problem.hint("leave out --samples").into());
    }
    if dataset.state() != wire::DatasetState::Ready {
        let problem = Problem::failed(format!("dataset `{name}` is not ready"));
        return Err(problem.hint(format!("wait for it: shardfeed wait dataset {name}")).into());
    }
    let shards = (0..dataset.files).collect();
    let get = |digest: &[u8]| Ok::<_, anyhow::Error>(client.chunk(digest)?);
    let maps = maps_of_shards(dataset, &shards, get).context("reading the sample maps")?;
    let (maps, _) = maps.ok_or_else(|| {
        Problem::failed(format!(
            "the sample maps of dataset `{name}` are in the index of the workers"
        ))
        .hint("shardfeed dataset inspect --source MODULE:NAME reads them there")
    })?;
    Ok(CountedReport::of_maps(&maps))
}

impl NamedDataset {
    pub(crate) fn remove(&self, confirm: &Confirm, format: Format) -> anyhow::Result<()> {
        let name = &self.name;
        confirm.check(&format!("dataset `{name}` would be removed from the cluster"))?;
        let client = self.cluster.client()?;
        let request = wire::RemoveDatasetRequest { context: None, name: name.clone() };
        client.call(request).map_err(|error| explain(&client, name, error))?;
        let text = output::facts(&[("removed dataset", name.clone())]);
        Ok(format.print_brief(json!({ "dataset": name }), text)?)
    }
}

/// Adds the names of all datasets to an error if the dataset does not exist.
fn explain(client: &Client, name: &str, error: CallError) -> anyhow::Error {
    let known = list(client).map(|known| known.into_iter().map(|d| d.name).collect());
    naming(error, "datasets", name, known)
}

fn progress(dataset: &wire::Dataset) -> String {
    match dataset.state() {
        wire::DatasetState::Scanning => {
            format!("scanning {}", percent(dataset.bytes_scanned, dataset.bytes))
        }
        state => state.word(),
    }
}

fn columns() -> [Column<wire::Dataset>; 9] {
    [
        column("DATASET", |dataset| dataset.name.clone()),
        column("STATE", progress),
        column(">SHARDS", |dataset| output::count(dataset.files)),
        column(">RECORDS", |dataset| output::count(dataset.records)),
        column(">SIZE", |dataset| output::size(dataset.bytes)),
        column(">AGE", |dataset| duration::text(dataset.age_ms)),
        wide("COMPRESSION", |dataset| dataset.compression.clone()),
        wide("ROOT", |dataset| text(&dataset.root)),
        wide("CONTENT DIGEST", |dataset| digest(&dataset.content)),
    ]
}

impl Report for DatasetReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let Self { dataset: of, record_spec, counted } = self;
        let failure = of.failure.as_ref().map_or("", |failure| failure.message.as_str());
        let mut facts = vec![("dataset", of.name.clone()), ("state", progress(of))];
        let reasons = [
            ("failure", failure),
            ("reported by", of.failure_from.as_str()),
            ("waits for", of.waiting.as_str()),
        ];
        let reasons = reasons.into_iter().filter(|(_, reason)| !reason.is_empty());
        facts.extend(reasons.map(|(name, reason)| (name, reason.to_owned())));
        let records = if of.program.is_empty() { "records" } else { "samples" };
        facts.extend([
            ("patterns", text(&of.patterns.join(", "))),
            ("compression", of.compression.clone()),
            ("root", text(&of.root)),
            ("shards", output::count(of.files)),
            (records, output::count(of.records)),
            ("stored", output::bytes(of.bytes)),
            ("content digest", digest(&of.content)),
            ("added", ago(of.age_ms)),
        ]);
        facts.extend(record_spec.iter().map(|spec| ("record spec", text(spec))));
        facts.extend(counted.iter().flat_map(CountedReport::facts));
        output::write_facts(out, &facts)
    }
}
