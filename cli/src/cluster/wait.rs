//! `shardfeed wait`: waits for a condition, for scripts.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::{Client, ClusterArgs, dataset, epoch, worker};
use crate::duration;
use crate::error::{Exit, Problem, exit_of};
use crate::order::parse_epoch;
use crate::output::{self, Format};

const EXAMPLES: &str = "\
Examples:
  shardfeed wait leader --for 30s
  shardfeed wait dataset train
  shardfeed wait worker node-3 --until gone
  shardfeed wait epoch --job digits --epoch 2 --for 2h && ./evaluate";

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Wait for a leader, a dataset, a worker or the end of an epoch
///
/// It exits with 0 as soon as the condition holds, with 7 if it does not within --for, and at once
/// with 1 if it can no longer hold. It also waits for coordinators that do not answer or have no
/// leader.
#[derive(Debug, Subcommand)]
pub(crate) enum WaitCommand {
    /// Wait until there is a leader
    #[command(after_help = EXAMPLES)]
    Leader {
        #[command(flatten)]
        limit: Limit,
    },
    /// Wait until a dataset is scanned
    #[command(after_help = EXAMPLES)]
    Dataset {
        /// Name of the dataset
        name: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Wait until a worker is live, or gone
    #[command(after_help = EXAMPLES)]
    Worker {
        /// Name of the worker
        name: String,
        /// State to wait for
        #[arg(long, value_enum, default_value_t)]
        until: Presence,
        #[command(flatten)]
        limit: Limit,
    },
    /// Wait until an epoch is over
    #[command(after_help = EXAMPLES)]
    Epoch {
        /// Name of the job
        #[arg(long)]
        job: String,
        /// Epoch, from 0
        #[arg(long, value_parser = parse_epoch)]
        epoch: u64,
        #[command(flatten)]
        limit: Limit,
    },
}

/// Options of all conditions.
#[derive(Debug, Args)]
pub(crate) struct Limit {
    /// Maximum time to wait
    #[arg(long = "for", value_name = "TIME", default_value = "10min", value_parser = duration::parse)]
    limit: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Presence of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Presence {
    /// Its session is live
    #[default]
    Live,
    /// It left, or its session expired
    Gone,
}

enum Condition {
    So(String),
    /// The condition is not met yet; the current state.
    NotYet(String),
}

impl WaitCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let (limit, what) = match self {
            Self::Leader { limit } => (limit, "a leader".to_owned()),
            Self::Dataset { name, limit } => (limit, format!("dataset `{name}`")),
            Self::Worker { name, limit, .. } => (limit, format!("worker `{name}`")),
            Self::Epoch { job, epoch, limit } => (limit, format!("epoch {epoch} of job `{job}`")),
        };
        let client = limit.cluster.client()?;
        let begun = Instant::now();
        let waited = loop {
            let now = match self.look(&client) {
                Ok(Condition::So(what)) => break what,
                Ok(Condition::NotYet(now)) => now,
                // `wait` also waits for coordinators that do not answer.
                Err(error) => match exit_of(&error) {
                    Exit::NoLeader | Exit::NotFound => error.to_string(),
                    _ => return Err(error),
                },
            };
            if begun.elapsed() >= limit.limit {
                let time = duration::text(duration::ms(limit.limit));
                let what = format!("{what}, waited for {time}: {now}");
                return Err(Problem::late(what).hint("--for gives it more time").into());
            }
            std::thread::sleep(LOOK_EVERY.min(limit.limit));
        };
        let text = format!("{}\n", output::printable(&waited));
        let waited_ms = duration::ms(begun.elapsed());
        Ok(format.print_brief(json!({ "what": waited, "waited_ms": waited_ms }), text)?)
    }

    fn look(&self, client: &Client) -> anyhow::Result<Condition> {
        match self {
            Self::Leader { .. } => Ok(match client.status()?.leader {
                Some(node) => Condition::So(format!("node {node} leads")),
                None => Condition::NotYet("no node leads".into()),
            }),
            Self::Dataset { name, .. } => dataset_look(client, name),
            Self::Worker { name, until, .. } => {
                let workers = worker::list(client, true)?;
                let named = workers.iter().filter(|worker| worker.name == *name);
                let live = named.clone().any(|worker| worker.state() == wire::WorkerState::Live);
                let known = named.count() > 0;
                Ok(match (until, live, known) {
                    (Presence::Live, true, _) => Condition::So(format!("worker {name} is live")),
                    (Presence::Gone, false, _) => Condition::So(format!("worker {name} is gone")),
                    (_, true, _) => Condition::NotYet("it is live".into()),
                    (_, _, true) => Condition::NotYet("it is gone".into()),
                    _ => Condition::NotYet("no such worker has joined".into()),
                })
            }
            Self::Epoch { job, epoch, .. } => epoch_look(client, job, *epoch),
        }
    }
}

fn dataset_look(client: &Client, name: &str) -> anyhow::Result<Condition> {
    let dataset = dataset::get(client, name)?;
    match dataset.state() {
        wire::DatasetState::Ready => Ok(Condition::So(format!("dataset {name} is ready"))),
        wire::DatasetState::Failed => {
            let reason = dataset.failure.map_or_else(|| "it failed".into(), |error| error.message);
            Err(Problem::failed(format!("dataset `{name}` cannot be scanned: {reason}")).into())
        }
        state => Ok(Condition::NotYet(format!("it is {}", state.word()))),
    }
}

fn epoch_look(client: &Client, job: &str, epoch: u64) -> anyhow::Result<Condition> {
    let found = epoch::list(client, job, Some(epoch))?;
    let Some(found) = found.into_iter().find(|found| found.epoch == epoch) else {
        return Ok(Condition::NotYet("its ranks have not reached it".into()));
    };
    Ok(match found.state() {
        wire::EpochState::Sealed => {
            let delivered = output::count(found.delivered);
            Condition::So(format!("epoch {epoch} of {job} is over: {delivered} samples delivered"))
        }
        _ => Condition::NotYet(progress(&found)),
    })
}

/// Describes the progress of an epoch that is not over.
fn progress(found: &wire::Epoch) -> String {
    let whole = epoch::deliverable(found);
    let done = match found.steps {
        // The steps of a dynamic job are not known before the end.
        0 => format!("{} of {whole} samples are delivered", found.delivered),
        steps => format!("{} of {steps} steps are done", found.steps_done),
    };
    let awaited = epoch::awaited(&found.waiting_for).map(|ranks| format!("it waits for {ranks}"));
    let parts = [Some(done), awaited, epoch::doubt(found)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_whose_steps_are_not_known_is_told_by_samples() {
        let known = wire::Epoch { steps: 31, steps_done: 12, ..wire::Epoch::default() };
        assert_eq!(progress(&known), "12 of 31 steps are done");
        let dynamic = wire::Epoch {
            total: 500,
            delivered: 120,
            dropped: 4,
            skipped: 6,
            steps_done: 12,
            ..wire::Epoch::default()
        };
        assert_eq!(progress(&dynamic), "120 of 490 samples are delivered");
        let waiting = wire::Epoch { waiting_for: vec![1, 2], ..dynamic };
        let expected = "120 of 490 samples are delivered; it waits for ranks 1, 2";
        assert_eq!(progress(&waiting), expected);
        let in_doubt = vec![wire::RankInDoubt { rank: 1, samples: 8, age_ms: 4_000 }];
        let doubt = wire::Epoch { in_doubt, decides_in_ms: Some(56_000), ..waiting };
        let expected = "120 of 490 samples are delivered; it waits for ranks 1, 2; samples in doubt: 8 of rank 1 for \
                        4 s; in_doubt=\"redeliver\" decides in 56 s";
        assert_eq!(progress(&doubt), expected);
    }
}
