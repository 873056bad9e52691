//! `shardfeed why`: reports what limits a job, in one sentence.

use std::io::{self, Write};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use shardfeed_embedded::{Account, Finding, Limit, account_from, finding};
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::{Client, ClusterArgs, epoch as epochs, job};
use crate::output::listing::{self, Column, Shown, column};
use crate::output::words::{ago, known, text};
use crate::output::{Format, Report};

const NAMED_MAX: usize = 8;

/// Report what limits a job, and what to change
///
/// All ranks of a job go in step, so the one that waits longest for its batches decides; if none
/// waits, trainers do. Figures are of the last seconds, as the workers measured them; of a rank
/// that waits for one batch for long, since the batch before. `shardfeed bench JOB` says how fast
/// it could be read.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Name of the job
    job: String,
    /// Show all ranks, not only the first 20
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct WhyReport {
    job: String,
    /// Bottleneck; `ranks` if ranks are missing, `in_doubt` if the epoch waits only for samples in
    /// doubt, and `paused` or `cancelled` if the job is held.
    limit: String,
    /// Rank with this bottleneck; `null` if it is not a single rank's.
    rank: Option<u64>,
    /// Bottleneck and remedy, in words.
    sentence: String,
    ranks: Vec<RankTimeReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct RankTimeReport {
    rank: u64,
    /// `missing`, `served`, `unserved` or `ended`.
    state: String,
    /// Worker that serves the rank; may be empty.
    worker: String,
    /// `null` if its worker has reported nothing.
    #[serde(flatten)]
    told: Option<RankDiagnosis>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RankDiagnosis {
    finding: Finding,
    account: Account,
}

pub(crate) fn run(args: &WhyArgs, format: Format) -> Result<()> {
    let client = args.cluster.client()?;
    let (ranks, held) = ask(&client, &args.job)?;
    let epochs = epochs::list(&client, &args.job, None)?;
    let open = epochs.iter().find(|epoch| epoch.state() != wire::EpochState::Sealed);
    Ok(format.print(&WhyReport::new(&args.job, ranks, (held, open), args.all))?)
}

pub(crate) fn ask(client: &Client, job: &str) -> Result<(Vec<wire::Rank>, Option<wire::Held>)> {
    let request = wire::ListRanksRequest { context: None, job: job.to_owned() };
    let ranks = job::ask(client, job, request)?.ranks;
    Ok((ranks, job::get(client, job)?.job.and_then(|known| known.held)))
}

/// Returns what limits a job, in one sentence.
/// - `epoch`: epoch of the slowest rank.
pub(crate) fn verdict(
    job: &str,
    ranks: &[wire::Rank],
    held: Option<wire::Held>,
    epoch: Option<&wire::Epoch>,
) -> String {
    WhyReport::new(job, ranks.to_vec(), (held, epoch), false).sentence
}

impl RankTimeReport {
    fn new(rank: wire::Rank) -> Self {
        let account = rank.account.as_ref().map(account_from);
        Self {
            rank: rank.rank,
            state: rank.state().word(),
            worker: rank.worker,
            told: account.map(|account| RankDiagnosis { finding: finding(&account), account }),
        }
    }

    fn is_there(&self) -> bool {
        matches!(self.state.as_str(), "served" | "ended")
    }
}

impl WhyReport {
    fn new(
        job: &str,
        ranks: Vec<wire::Rank>,
        (held, epoch): (Option<wire::Held>, Option<&wire::Epoch>),
        all: bool,
    ) -> Self {
        let ranks: Vec<_> = ranks.into_iter().map(RankTimeReport::new).collect();
        let (limit, rank, sentence) = match held {
            Some(held) => held_by(job, &held),
            None => judge(job, &ranks, epoch),
        };
        Self { job: job.to_owned(), limit, rank, sentence, ranks, all }
    }
}

/// Diagnosis of a job that is held: no other bottleneck matters.
fn held_by(job: &str, held: &wire::Held) -> (String, Option<u64>, String) {
    let wire::Held { principal, reason, age_ms, .. } = held;
    let (limit, since) = (held.hold().word(), ago(*age_ms));
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let sentence = format!(
        "job `{job}` was {limit} by {principal} {since}{reason}; `shardfeed job resume {job}` \
         resumes it"
    );
    (limit, None, sentence)
}

fn judge(
    job: &str,
    ranks: &[RankTimeReport],
    epoch: Option<&wire::Epoch>,
) -> (String, Option<u64>, String) {
    let doubt = epoch.and_then(epochs::doubt);
    if let (Some(epoch), Some(doubt)) = (epoch.filter(|e| e.decides_in_ms.is_some()), &doubt) {
        let (number, rank) = (epoch.epoch, epoch.in_doubt.first().map(|of| of.rank));
        let sentence = format!(
            "epoch {number} of job `{job}` waits only for {doubt}; start those ranks again, or, if \
             one is gone for good, `shardfeed rank gone {job} {}`",
            rank.unwrap_or_default()
        );
        return ("in_doubt".into(), rank, sentence);
    }
    let (limit, rank, sentence) = judge_ranks(job, ranks, epoch);
    (limit, rank, [Some(sentence), doubt].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

fn judge_ranks(
    job: &str,
    ranks: &[RankTimeReport],
    epoch: Option<&wire::Epoch>,
) -> (String, Option<u64>, String) {
    // In a dynamic job, served ranks consume the samples of the missing ones.
    let is_dynamic = epoch.is_some_and(|e| e.policy() != wire::InDoubt::Unspecified);
    let goes_on = is_dynamic && ranks.iter().any(|rank| rank.state == "served");
    let missing: Vec<_> = ranks.iter().filter(|rank| !goes_on && !rank.is_there()).collect();
    if !missing.is_empty() {
        let named =
            missing.iter().take(NAMED_MAX).map(|rank| format!("{} ({})", rank.rank, rank.state));
        let named: Vec<_> = named.collect();
        let sentence = format!(
            "job `{job}` waits for {} of its {} ranks: {}{}; see `shardfeed rank list --job \
             {job}`, start them again, or continue without them with loader.reshard()",
            missing.len(),
            ranks.len(),
            named.join(", "),
            if missing.len() > NAMED_MAX { ", …" } else { "" },
        );
        return ("ranks".into(), None, sentence);
    }
    let told = ranks.iter().filter_map(|rank| Some((rank, rank.told.as_ref()?)));
    // A rank that waits for data delays the other ranks, whose trainers wait as part of their work.
    let kept = |told: &RankDiagnosis| match told.finding.limit {
        Limit::Trainer => (1, told.account.recent.work_us.max(told.account.idle_us)),
        Limit::Unknown => (0, 0),
        _ => (2, told.finding.wait_percent),
    };
    match told.max_by_key(|(rank, told)| (kept(told), u64::MAX - rank.rank)) {
        Some((rank, told)) => {
            let limit = serde_json::to_value(told.finding.limit);
            let limit = limit.ok().and_then(|limit| limit.as_str().map(ToOwned::to_owned));
            let sentence = format!("job `{job}`, rank {}: {}", rank.rank, told.finding.sentence());
            (limit.unwrap_or_default(), Some(rank.rank), sentence)
        }
        None => {
            let sentence = format!(
                "nothing is known of job `{job}` yet: no worker has reported how its ranks spend \
                 their time, which starts once batches flow; ask again then"
            );
            ("unknown".into(), None, sentence)
        }
    }
}

fn told(of: &RankTimeReport, said: impl Fn(&RankDiagnosis) -> String) -> String {
    known(of.told.as_ref(), said)
}

fn columns() -> [Column<RankTimeReport>; 4] {
    [
        column(">RANK", |rank| rank.rank.to_string()),
        column("LIMITED BY", |rank| told(rank, |told| told.finding.limit.name().into())),
        column(">WAITS", |rank| told(rank, |t| format!("{} %", t.finding.wait_percent))),
        column("WORKER", |rank| text(&rank.worker)),
    ]
}

impl Report for WhyReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        writeln!(out, "{}", self.sentence)?;
        if self.ranks.len() < 2 {
            return Ok(());
        }
        writeln!(out)?;
        let shown = Shown { is_wide: false, all: self.all };
        listing::write(out, "ranks", &self.ranks, &columns(), shown)
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_embedded::Spent;

    use super::*;

    fn rank(rank: u64, state: &str, recent: Option<Spent>) -> RankTimeReport {
        let told = recent.map(|recent| {
            let account = Account { recent, ..Account::default() };
            RankDiagnosis { finding: finding(&account), account }
        });
        RankTimeReport { rank, state: state.into(), worker: "w".into(), told }
    }

    fn spent(wait_us: u64, read_wait_us: u64) -> Option<Spent> {
        let (wall_us, work_us, batches) = (1_000_000, 1_000_000 - wait_us, 10);
        let storage_us = 2 * read_wait_us;
        Some(Spent {
            wall_us,
            wait_us,
            work_us,
            batches,
            read_wait_us,
            storage_us,
            ..Spent::default()
        })
    }

    #[test]
    fn the_rank_that_is_kept_waiting_longest_decides() {
        let ranks = [
            rank(0, "served", spent(10_000, 0)),
            rank(1, "served", spent(200_000, 150_000)),
            rank(2, "served", spent(700_000, 600_000)),
        ];
        let (limit, of, sentence) = judge("j", &ranks, None);
        assert_eq!((limit.as_str(), of), ("storage", Some(2)), "{sentence}");
        let (limit, of, _) = judge("j", &ranks[..1], None);
        assert_eq!((limit.as_str(), of), ("trainer", Some(0)));
    }

    #[test]
    fn ranks_that_are_not_there_are_waited_for_first() {
        let ranks = [rank(0, "served", spent(10_000, 0)), rank(1, "missing", None)];
        let (limit, of, sentence) = judge("j", &ranks, None);
        assert_eq!((limit.as_str(), of), ("ranks", None));
        assert!(sentence.contains("waits for 1 of its 2 ranks: 1 (missing)"), "{sentence}");
        let (limit, _, _) = judge("j", &[rank(0, "served", None)], None);
        assert_eq!(limit, "unknown");
    }
    #[test]
    fn an_epoch_that_waits_for_samples_in_doubt_says_whose_and_until_when() {
        let in_doubt = vec![wire::RankInDoubt { rank: 1, samples: 40, age_ms: 9_000 }];
        let (policy, epoch) = (wire::InDoubt::Drop.into(), 2);
        let working = wire::Epoch { epoch, in_doubt, policy, ..wire::Epoch::default() };
        let waiting = wire::Epoch { decides_in_ms: Some(51_000), ..working.clone() };
        let ranks = [rank(0, "served", spent(10_000, 0)), rank(1, "missing", None)];
        let (limit, of, sentence) = judge("j", &ranks, Some(&waiting));
        assert_eq!((limit.as_str(), of), ("in_doubt", Some(1)));
        let expected = "epoch 2 of job `j` waits only for samples in doubt: 40 of rank 1 for 9 s; \
                        in_doubt=\"drop\" decides in 51 s; start those ranks again, or, if one is \
                        gone for good, `shardfeed rank gone j 1`";
        assert_eq!(sentence, expected);
        // As long as another rank has work, that rank is the bottleneck.
        let (limit, of, sentence) = judge("j", &ranks, Some(&working));
        assert_eq!((limit.as_str(), of), ("trainer", Some(0)));
        let end = "; samples in doubt: 40 of rank 1 for 9 s; in_doubt=\"drop\" decides some time after all other \
                   samples are consumed";
        assert!(sentence.ends_with(end), "{sentence}");
        // No rank is left to consume the rest.
        let (limit, _, _) = judge("j", &ranks[1..], Some(&working));
        assert_eq!(limit, "ranks");
    }
}
