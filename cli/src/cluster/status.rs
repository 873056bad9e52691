//! `shardfeed status`: overview of the cluster.

use std::cmp::Reverse;
use std::io::{self, Write};

use serde::Serialize;
use shardfeed_embedded::{account_from, finding};
use shardfeed_proto::coordinator::v1 as wire;

use super::{Client, ClusterArgs};
use crate::duration;
use crate::output::words::number;
use crate::output::{self, Format, Report};

#[derive(Debug, Serialize)]
struct StatusReport {
    /// Address that answered.
    coordinator: String,
    #[serde(flatten)]
    status: wire::GetStatusResponse,
    /// Numbers of workers, datasets and jobs; `null` if there is currently no leader.
    counts: Option<ClusterCounts>,
}

#[derive(Debug, Serialize)]
struct ClusterCounts {
    /// Live workers.
    workers: u64,
    /// Number of datasets.
    datasets: u64,
    /// Datasets that can be used.
    datasets_ready: u64,
    /// Number of jobs.
    jobs: u64,
    /// Ranks with a live lease.
    ranks_served: u64,
    /// Rank whose trainer waits most for its batches; `null` if no worker has reported.
    worst_wait: Option<WorstWait>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct WorstWait {
    job: String,
    rank: u64,
    /// Fraction of the time that its trainer waits for batches, in percent.
    wait_percent: u64,
}

pub(crate) fn run(cluster: &ClusterArgs, format: Format) -> anyhow::Result<()> {
    let client = cluster.client()?;
    let status = client.status()?;
    let coordinator = client.address().to_string();
    // Only a leader has the counts; the client finds it, whichever node answered.
    let counts = status.leader.map(|_| counts(&client)).transpose()?;
    Ok(format.print(&StatusReport { coordinator, status, counts })?)
}

fn counts(client: &Client) -> anyhow::Result<ClusterCounts> {
    let workers = super::worker::list(client, false)?;
    let datasets = super::dataset::list(client)?;
    let jobs = super::job::list(client)?;
    let ready = datasets.iter().filter(|d| d.state() == wire::DatasetState::Ready);
    let served = jobs.iter().filter_map(|job| job.generation.as_ref()).map(|g| g.ranks_served);
    Ok(ClusterCounts {
        workers: workers.len() as u64,
        datasets: datasets.len() as u64,
        datasets_ready: ready.count() as u64,
        jobs: jobs.len() as u64,
        ranks_served: served.sum(),
        worst_wait: worst_wait(&workers),
    })
}

/// Returns the rank that waits most, of those whose workers have reported; the first one of equals.
fn worst_wait(workers: &[wire::Worker]) -> Option<WorstWait> {
    let served = workers.iter().flat_map(|worker| worker.serving.iter().zip(&worker.accounts));
    let waits = served.filter(|(_, account)| account.setup.is_some()).map(|(lease, account)| {
        let wait_percent = finding(&account_from(account)).wait_percent;
        WorstWait { job: lease.job.clone(), rank: lease.rank, wait_percent }
    });
    waits.min_by_key(|wait| (Reverse(wait.wait_percent), wait.job.clone(), wait.rank))
}

impl Report for StatusReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let Self { coordinator, status, counts } = self;
        let mut facts = vec![
            ("cluster", status.cluster_id.clone()),
            ("coordinator", format!("{coordinator} (version {})", status.version)),
            ("node", status.node.to_string()),
            ("leader", number(status.leader)),
            ("term", status.term.to_string()),
            ("applied index", output::count(status.applied)),
            ("snapshot index", output::count(status.snapshot)),
            ("uptime", duration::text(status.uptime_ms)),
        ];
        if let Some(counts) = counts {
            facts.extend([
                ("workers", output::count(counts.workers)),
                ("datasets", format!("{}, {} ready", counts.datasets, counts.datasets_ready)),
                ("jobs", output::count(counts.jobs)),
                ("ranks served", output::count(counts.ranks_served)),
            ]);
            facts.extend(counts.worst_wait.iter().map(|WorstWait { job, rank, wait_percent }| {
                ("longest wait", format!("rank {rank} of {job}, {wait_percent} % of its time"))
            }));
        }
        output::write_facts(out, &facts)
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_proto::common::v1::{Account, Setup, Spent};

    use super::*;

    fn worker(job: &str, ranks: &[(u64, Option<u64>)]) -> wire::Worker {
        let lease = |rank| wire::Lease { job: job.into(), rank, ..wire::Lease::default() };
        let account = |wait_us: Option<u64>| {
            let spent =
                |wait_us| Spent { batches: 1, wait_us, work_us: 100 - wait_us, ..Spent::default() };
            let setup = wait_us.map(|_| Setup::default());
            Account { setup, recent: wait_us.map(spent), ..Account::default() }
        };
        wire::Worker {
            serving: ranks.iter().map(|(rank, _)| lease(*rank)).collect(),
            accounts: ranks.iter().map(|(_, wait_us)| account(*wait_us)).collect(),
            ..wire::Worker::default()
        }
    }

    #[test]
    fn the_longest_wait_is_of_all_workers_ranks_that_told() {
        assert_eq!(worst_wait(&[]), None);
        assert_eq!(worst_wait(&[worker("a", &[(0, None)])]), None);
        let workers =
            [worker("b", &[(0, Some(3)), (1, None)]), worker("a", &[(5, Some(40)), (4, Some(40))])];
        let worst = WorstWait { job: "a".into(), rank: 4, wait_percent: 40 };
        assert_eq!(worst_wait(&workers), Some(worst));
    }

    #[test]
    fn it_stands_with_the_counts() {
        let worst_wait = Some(WorstWait { job: "j".into(), rank: 3, wait_percent: 25 });
        let (workers, datasets, datasets_ready, jobs, ranks_served) = (1, 1, 1, 1, 4);
        let counts =
            ClusterCounts { workers, datasets, datasets_ready, jobs, ranks_served, worst_wait };
        let report = StatusReport {
            coordinator: "head:7070".into(),
            status: wire::GetStatusResponse { leader: Some(1), ..Default::default() },
            counts: Some(counts),
        };
        let mut out = Vec::new();
        report.write(&mut out, false).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("rank 3 of j, 25 % of its time"), "{out}");
    }
}
