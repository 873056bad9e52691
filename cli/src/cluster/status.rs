//! `shardfeed status`: the cluster as a whole.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::words::number;
use super::{Client, ClusterArgs};
use crate::duration;
use crate::output::{self, Format, Report};

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A cluster, as one of its coordinators sees it.
#[derive(Debug, Serialize)]
struct StatusReport {
    coordinator: String,
    cluster_id: String,
    version: String,
    node: u64,
    /// `null`: none leads at the moment.
    leader: Option<u64>,
    term: u64,
    /// Index of the last log entry that was carried out.
    applied_index: u64,
    /// Index of the last one in a snapshot; 0 if there is none.
    snapshot_index: u64,
    uptime_ms: u64,
    /// `null` if none leads at the moment.
    counts: Option<Counts>,
}

/// How much there is of what.
#[derive(Debug, Serialize)]
struct Counts {
    workers: u64,
    datasets: u64,
    datasets_ready: u64,
    jobs: u64,
    ranks_served: u64,
}

/// Runs `status`.
pub(crate) fn run(args: &StatusArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let status = client.call(|mut admin, context| async move {
        admin.get_status(wire::GetStatusRequest { context }).await
    })?;
    let coordinator = client.address().to_string();
    // Who leads knows them, whoever answered.
    let counts = status.leader.map(|_| counts(&client)).transpose()?;
    let wire::GetStatusResponse { cluster_id, version, node, leader, term, .. } = status;
    Ok(format.print(&StatusReport {
        coordinator,
        cluster_id,
        version,
        node,
        leader,
        term,
        applied_index: status.applied,
        snapshot_index: status.snapshot,
        uptime_ms: status.uptime_ms,
        counts,
    })?)
}

fn counts(client: &Client) -> anyhow::Result<Counts> {
    let workers = super::worker::list(client, false)?;
    let datasets = super::dataset::list(client)?;
    let jobs = super::job::list(client)?;
    let ready = datasets.iter().filter(|d| d.state() == wire::DatasetState::Ready);
    let served = jobs.iter().filter_map(|job| job.generation.as_ref()).map(|g| g.ranks_served);
    Ok(Counts {
        workers: workers.len() as u64,
        datasets: datasets.len() as u64,
        datasets_ready: ready.count() as u64,
        jobs: jobs.len() as u64,
        ranks_served: served.sum(),
    })
}

impl Report for StatusReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut facts = vec![
            ("cluster", self.cluster_id.clone()),
            ("coordinator", format!("{} (version {})", self.coordinator, self.version)),
            ("node", self.node.to_string()),
            ("leader", number(self.leader)),
            ("term", self.term.to_string()),
            ("applied index", output::count(self.applied_index)),
            ("snapshot index", output::count(self.snapshot_index)),
            ("uptime", duration::text(self.uptime_ms)),
        ];
        if let Some(counts) = &self.counts {
            facts.extend([
                ("workers", output::count(counts.workers)),
                ("datasets", format!("{}, {} ready", counts.datasets, counts.datasets_ready)),
                ("jobs", output::count(counts.jobs)),
                ("ranks served", output::count(counts.ranks_served)),
            ]);
        }
        output::write_facts(out, &facts)
    }
}
