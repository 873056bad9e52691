//! `shardfeed dataset list`, `show` and `remove`: datasets of a cluster.

pub(crate) mod add;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use serde_json::json;
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::answer::naming;
use super::{CallError, Client, ClusterArgs, Confirm};
use crate::duration;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{ago, digest, percent, text};
use crate::output::{self, Format, Report};

pub(crate) const REMOVE_ABOUT: &str = "\
Remove a dataset from the cluster; its files stay as they are

One that a job reads is refused: remove the job first. The name may then be used for other files.";

/// A dataset as an argument.
#[derive(Debug, Args)]
pub(crate) struct NamedDataset {
    /// Name of the dataset
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct DatasetsReport {
    datasets: Vec<wire::Dataset>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct DatasetReport(wire::Dataset);

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

impl NamedDataset {
    pub(crate) fn show(&self, format: Format) -> anyhow::Result<()> {
        let client = self.cluster.client()?;
        let dataset = get(&client, &self.name);
        let dataset = dataset.map_err(|error| explain(&client, &self.name, error))?;
        Ok(format.print(&DatasetReport(dataset))?)
    }

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

/// The state and the progress.
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

impl Report for DatasetsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("datasets", "name"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let shown = Shown { is_wide, all: self.all };
        listing::write(out, "datasets", &self.datasets, &columns(), shown)
    }
}

impl Report for DatasetReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let Self(of) = self;
        let failure = of.failure.as_ref().map_or("", |failure| failure.message.as_str());
        let mut facts = vec![("dataset", of.name.clone()), ("state", progress(of))];
        let reasons = [
            ("failure", failure),
            ("reported by", of.failure_from.as_str()),
            ("waits for", of.waiting.as_str()),
        ];
        let reasons = reasons.into_iter().filter(|(_, reason)| !reason.is_empty());
        facts.extend(reasons.map(|(name, reason)| (name, reason.to_owned())));
        let counted = if of.program.is_empty() { "records" } else { "samples" };
        facts.extend([
            ("patterns", text(&of.patterns.join(", "))),
            ("compression", of.compression.clone()),
            ("root", text(&of.root)),
            ("shards", output::count(of.files)),
            (counted, output::count(of.records)),
            ("stored", output::bytes(of.bytes)),
            ("content digest", digest(&of.content)),
            ("added", ago(of.age_ms)),
        ]);
        output::write_facts(out, &facts)
    }
}
