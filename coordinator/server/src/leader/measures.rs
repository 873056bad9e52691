//! Metrics of jobs, the trainers' waits first. Only the leader has them, independent of a trainer's
//! worker: heartbeats carry each rank's time breakdown, also of trainers that read in their own
//! processes. Labels are jobs, ranks, states and sources of mixtures, never shards, all bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use shardfeed_proto::common::v1::{Account, Spent};
use shardfeed_proto::coordinator::v1::get_epoch_map_response::Cell;
use shardfeed_scheduler::{Generation, Hold, Job, JobPhase, LeaseRef, State};
use tokio::time::Instant;

use crate::leader::core::{Core, Live};
use crate::leader::shard_counts::Counted;
use crate::metrics::Metrics;
use crate::page::{self, Labels, job_labels, rank_labels};

/// Maximum jobs that have lines: those that started last.
const JOBS_MAX: usize = 64;

/// Maximum ranks that have lines, of all these jobs together: more are too many to look at.
const RANKS_MAX: usize = 2_048;

/// Maximum sources that have lines, of all these jobs together.
const SOURCES_MAX: usize = 2_048;

#[derive(Debug, Default)]
pub(crate) struct RunningJobs {
    jobs: Vec<JobSeen>,
    ranks: Vec<RankSeen>,
    /// Delivered samples of sources of mixtures, in the first epoch that some rank has not left.
    sources: Vec<(Labels<2>, u64)>,
    /// Epochs with samples in doubt, of all jobs, even if none of their ranks is served.
    doubts: Vec<DoubtSeen>,
    phases: BTreeMap<JobPhase, u64>,
    /// Running jobs, and ranks and sources of shown jobs, beyond the bounds.
    jobs_left_out: usize,
    ranks_left_out: usize,
    sources_left_out: usize,
}

#[derive(Debug)]
struct JobSeen {
    job: String,
    /// First epoch that some rank has not left.
    epoch: u64,
    leases: u64,
    is_paused: bool,
    /// Time since one of its ranks consumed a batch.
    idle: Option<Duration>,
    corrupt_records: u64,
    /// Parts of ranks' lists that were returned for other ranks, in the kept epochs.
    returns: u64,
    /// `None` if they were not counted.
    shards: Option<Cell>,
}

#[derive(Debug)]
struct RankSeen {
    labels: Labels<2>,
    epoch: u64,
    step: u64,
    account: Option<Account>,
}

#[derive(Debug)]
struct DoubtSeen {
    job: String,
    /// For each rank, its samples in doubt and the time for which they have been in doubt.
    ranks: BTreeMap<u64, (u64, Duration)>,
    /// Time until the policy decides, if only samples in doubt are awaited and the job is not held.
    decides: Option<Duration>,
}

/// Returns the names of running jobs, at most `most`, latest start first. Empty if another leads.
pub(crate) fn running(core: &Core, most: usize) -> Vec<String> {
    match core.available() {
        Ok(()) => core.read(|state| {
            let jobs = newest(state).into_iter().take(most);
            jobs.map(|(job, _)| job.name.clone()).collect()
        }),
        Err(_) => vec![],
    }
}

/// Returns the running jobs, for monitoring; none if another node leads.
pub(crate) fn look(core: &Core) -> RunningJobs {
    if core.available().is_err() {
        return RunningJobs::default();
    }
    let (now, counted) = ((core.host.now(), core.host.wall_ms()), core.shard_counts.ask());
    core.read(|state| RunningJobs::of(state, &core.live(), counted, now))
}

/// Returns the jobs with served ranks, latest start first.
fn newest(state: &State) -> Vec<(&Job, &Generation)> {
    let current = |job| Some((job, Job::current(job).filter(|known| known.ranks_served() > 0)?));
    let mut running: Vec<_> = state.jobs().filter_map(current).collect();
    running.sort_by_key(|(job, known)| (std::cmp::Reverse(known.started_ms), &job.name));
    running
}

impl DoubtSeen {
    fn of(job: &Job, now_ms: u64) -> Option<Self> {
        let current = job.current().filter(|_| job.identity.is_dynamic())?;
        let (mut ranks, mut decides) = (BTreeMap::new(), None);
        for pool in current.pools.values() {
            for (&rank, share) in &pool.shares {
                let Some(doubt) = &share.doubt else { continue };
                let age = Duration::from_millis(now_ms.saturating_sub(doubt.since_ms));
                let (samples, longest) = ranks.entry(rank).or_insert((0, age));
                (*samples, *longest) = (*samples + share.in_doubt(), age.max(*longest));
            }
            if pool.waits_for_doubt() && job.held.is_none() {
                let left = current.doubt.grace_ms.saturating_sub(pool.waited_ms);
                decides = Some(Duration::from_millis(left));
            }
        }
        let job = job.name.clone();
        (!ranks.is_empty()).then_some(Self { job, ranks, decides })
    }
}

impl RunningJobs {
    fn of(state: &State, live: &Live, mut counted: Counted, (now, now_ms): (Instant, u64)) -> Self {
        let (running, jobs_left_out) = bounded(newest(state).into_iter(), JOBS_MAX);
        let shown: BTreeMap<&str, &Generation> =
            running.iter().map(|(job, known)| (job.name.as_str(), *known)).collect();
        let is_held = |lease: &LeaseRef| {
            let known = shown.get(lease.job.as_str()).filter(|g| g.number == lease.generation);
            let held = known.and_then(|known| known.ranks.get(&lease.rank)?.lease.as_ref());
            held.is_some_and(|held| held.fencing == lease.fencing)
        };
        // Excludes reports of earlier leases, removed later, so that one per rank remains.
        let told = || live.progress.ranks().filter(|(lease, _)| is_held(lease));
        let mut idle: BTreeMap<&str, Duration> = BTreeMap::new();
        for (lease, rank) in told() {
            let age = now.saturating_duration_since(rank.moved);
            let least = idle.entry(&lease.job).or_insert(age);
            *least = age.min(*least);
        }
        let (told, ranks_left_out) = bounded(told(), RANKS_MAX);
        let ranks = told.into_iter().map(|(lease, rank)| {
            let labels = rank_labels(&lease.job, lease.rank);
            let (epoch, step, account) = (rank.epoch, rank.step, rank.account(now));
            RankSeen { labels, epoch, step, account }
        });
        let ranks = ranks.collect();
        let sources = running.iter().filter_map(|(job, _)| Some((job, counted.get(&job.name)?)));
        let sources = sources.flat_map(|(job, counts)| {
            counts.sources.iter().map(|(source, delivered)| {
                let labels = [("job", job.name.clone()), ("source", source.clone())];
                (labels, *delivered)
            })
        });
        let (sources, sources_left_out) = bounded(sources, SOURCES_MAX);
        let jobs = running.iter().map(|(job, known)| JobSeen {
            job: job.name.clone(),
            epoch: known.cursor().epoch,
            leases: known.ranks_served(),
            is_paused: job.held.as_ref().is_some_and(|held| held.hold == Hold::Paused),
            idle: idle.get(job.name.as_str()).copied(),
            corrupt_records: job.skipped_count(),
            returns: known.pools.values().map(|pool| pool.returns.count()).sum(),
            shards: counted.remove(&job.name).map(|counts| counts.shards),
        });
        let jobs = jobs.collect();
        let doubts = state.jobs().filter_map(|job| DoubtSeen::of(job, now_ms));
        let doubts = doubts.take(JOBS_MAX).collect();
        let mut phases = BTreeMap::new();
        for job in state.jobs() {
            *phases.entry(job.phase()).or_default() += 1;
        }
        Self {
            jobs,
            ranks,
            sources,
            doubts,
            phases,
            jobs_left_out,
            ranks_left_out,
            sources_left_out,
        }
    }
}

/// Returns the first `most` items, and the number of the others.
fn bounded<T>(mut all: impl Iterator<Item = T>, most: usize) -> (Vec<T>, usize) {
    let first = all.by_ref().take(most).collect();
    (first, all.count())
}

/// Returns the whole page.
/// - `process`: metrics of the process, as lines of a page.
pub(crate) fn page(metrics: &Metrics, jobs: &RunningJobs, process: &str) -> String {
    let mut registry = Registry::with_prefix("shardfeed");
    of_ranks(&mut registry, &jobs.ranks);
    of_jobs(registry.sub_registry_with_prefix("job"), &jobs.jobs);
    of_sources(registry.sub_registry_with_prefix("job"), &jobs.sources);
    of_doubts(registry.sub_registry_with_prefix("job"), &jobs.doubts);
    let phases = JobPhase::ALL.map(|phase| {
        let count = jobs.phases.get(&phase).copied().unwrap_or_default();
        ([("phase", format!("{phase:?}"))], count)
    });
    page::gauges(&mut registry, ("jobs", "Jobs by phase"), phases);
    let coordinator = registry.sub_registry_with_prefix("coordinator");
    let left_out = [
        ("jobs_left_out", "Running jobs that have no lines: too many run", jobs.jobs_left_out),
        ("ranks_left_out", "Ranks that have no lines: there are too many", jobs.ranks_left_out),
        (
            "sources_left_out",
            "Sources of mixtures that have no lines: there are too many",
            jobs.sources_left_out,
        ),
    ];
    for (name, help, count) in left_out {
        page::gauge(coordinator, (name, help, None), count as u64);
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, &registry);
    text += &metrics.text();
    text += process;
    let _ = encode_eof(&mut text);
    text
}

fn of_ranks(registry: &mut Registry, ranks: &[RankSeen]) {
    let registry = registry.sub_registry_with_prefix("job_rank");
    let spent = |us: fn(&Spent) -> u64| {
        let known = ranks.iter().filter_map(|rank| Some((rank, rank.account.as_ref()?)));
        known.map(move |(rank, account)| {
            (rank.labels.clone(), us(&account.since_start.unwrap_or_default()))
        })
    };
    let help = "Time that the trainer waited for batches, from any reader";
    page::time_counters(registry, ("wait", help), spent(|spent| spent.wait_us));
    let help = "Time that the trainer worked";
    page::time_counters(registry, ("work", help), spent(|spent| spent.work_us));
    let waiting = ranks.iter().filter_map(|rank| {
        let us = rank.account.as_ref()?.waiting_us?;
        Some((rank.labels.clone(), page::seconds(us)))
    });
    let help = "How long the trainer had waited for its next batch at the last report";
    page::times(registry, ("waiting", help), waiting);
    let number =
        |of: fn(&RankSeen) -> u64| ranks.iter().map(move |rank| (rank.labels.clone(), of(rank)));
    let help = "Epoch of the first step that was not consumed";
    page::gauges(registry, ("epoch", help), number(|rank| rank.epoch));
    let help = "First step of the epoch that was not consumed";
    page::gauges(registry, ("step", help), number(|rank| rank.step));
}

fn of_jobs(registry: &mut Registry, jobs: &[JobSeen]) {
    let idle = jobs.iter().filter_map(|seen| {
        let age = seen.idle?;
        Some((job_labels(&seen.job), age.as_secs_f64()))
    });
    page::times(registry, ("idle", "Time since a rank of it last consumed a batch"), idle);
    let shards = jobs.iter().flat_map(|seen| {
        seen.shards
            .iter()
            .flat_map(by_state)
            .map(|(state, count)| ([("job", seen.job.clone()), ("state", state.to_owned())], count))
    });
    let help = "Shards by state, of the first epoch that some rank has not left; of the 8 jobs that began last";
    page::gauges(registry, ("epoch_shards", help), shards);
    let mut number = |name, help, of: fn(&JobSeen) -> u64| {
        let lines = jobs.iter().map(|seen| (job_labels(&seen.job), of(seen)));
        page::gauges(registry, (name, help), lines);
    };
    number("epoch", "First epoch that some rank has not left", |seen| seen.epoch);
    number("leases", "Ranks that a live session serves", |seen| seen.leases);
    number("paused", "1 while the job is paused", |seen| seen.is_paused.into());
    number("corrupt_records", "Corrupt records that were left out", |seen| seen.corrupt_records);
    let help = "Parts of ranks' lists that came back for others, in the epochs that are kept";
    number("returns", help, |seen| seen.returns);
}

fn of_sources(registry: &mut Registry, sources: &[(Labels<2>, u64)]) {
    let help = "Delivered samples of a source of the mixture, of the first epoch that some rank has not left; of the 8 jobs that began last";
    page::gauges(registry, ("source_samples", help), sources.iter().cloned());
}

fn of_doubts(registry: &mut Registry, doubts: &[DoubtSeen]) {
    let ranks = doubts.iter().flat_map(|doubt| {
        doubt.ranks.iter().map(|(rank, of)| (rank_labels(&doubt.job, *rank), *of))
    });
    let ranks = ranks.take(RANKS_MAX);
    let help = "Samples in doubt: the rank's trainer is gone and may have consumed them";
    let samples = ranks.clone().map(|(labels, (samples, _))| (labels, samples));
    page::gauges(registry, ("rank_in_doubt_samples", help), samples);
    let help = "How long samples of the rank have been in doubt";
    let since = ranks.map(|(labels, (_, age))| (labels, age.as_secs_f64()));
    page::times(registry, ("rank_in_doubt", help), since);
    let help = "Time until in_doubt= decides, while an epoch waits only for samples in doubt";
    let decides = doubts.iter().filter_map(|doubt| {
        let time = doubt.decides?;
        Some((job_labels(&doubt.job), time.as_secs_f64()))
    });
    page::times(registry, ("in_doubt_decides", help), decides);
}

fn by_state(cell: &Cell) -> [(&'static str, u64); 5] {
    [
        ("Pending", cell.pending),
        ("Leased", cell.leased),
        ("Reading", cell.reading),
        ("Done", cell.done),
        ("Skipped", cell.skipped),
    ]
}

/// Returns a job of one rank, in which every metric with labels has a line.
pub(crate) fn example() -> RunningJobs {
    let job = || "j".to_owned();
    let spent = Spent { wait_us: 1_500_000, work_us: 500_000, ..Spent::default() };
    let account =
        Account { since_start: Some(spent), waiting_us: Some(250_000), ..Account::default() };
    let rank = RankSeen { labels: rank_labels("j", 0), epoch: 2, step: 3, account: Some(account) };
    let seen = JobSeen {
        job: job(),
        epoch: 2,
        leases: 1,
        is_paused: false,
        idle: Some(Duration::from_millis(500)),
        corrupt_records: 4,
        returns: 0,
        shards: Some(Cell { pending: 1, leased: 2, reading: 3, done: 5, skipped: 0 }),
    };
    let source = [("job", job()), ("source", "web".to_owned())];
    let in_doubt = BTreeMap::from([(1, (40, Duration::from_secs(9)))]);
    let doubt = DoubtSeen { job: job(), ranks: in_doubt, decides: Some(Duration::from_secs(51)) };
    RunningJobs {
        jobs: vec![seen],
        ranks: vec![rank],
        sources: vec![(source, 7)],
        doubts: vec![doubt],
        phases: BTreeMap::from([(JobPhase::Running, 1)]),
        ..RunningJobs::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_job_has_its_lines_and_labels_name_no_shard() {
        let text = page(&Metrics::new(), &example(), "process_threads 7\n");
        for line in [
            r#"shardfeed_job_rank_wait_seconds_total{job="j",rank="0"} 1.5"#,
            r#"shardfeed_job_rank_work_seconds_total{job="j",rank="0"} 0.5"#,
            r#"shardfeed_job_rank_waiting_seconds{job="j",rank="0"} 0.25"#,
            r#"shardfeed_job_rank_epoch{job="j",rank="0"} 2"#,
            r#"shardfeed_job_rank_step{job="j",rank="0"} 3"#,
            r#"shardfeed_job_idle_seconds{job="j"} 0.5"#,
            r#"shardfeed_job_epoch_shards{job="j",state="Done"} 5"#,
            r#"shardfeed_job_epoch_shards{job="j",state="Skipped"} 0"#,
            r#"shardfeed_job_source_samples{job="j",source="web"} 7"#,
            r#"shardfeed_job_epoch{job="j"} 2"#,
            r#"shardfeed_job_leases{job="j"} 1"#,
            r#"shardfeed_job_paused{job="j"} 0"#,
            r#"shardfeed_jobs{phase="Running"} 1"#,
            r#"shardfeed_jobs{phase="Failed"} 0"#,
            r#"shardfeed_job_corrupt_records{job="j"} 4"#,
            r#"shardfeed_job_rank_in_doubt_samples{job="j",rank="1"} 40"#,
            r#"shardfeed_job_rank_in_doubt_seconds{job="j",rank="1"} 9.0"#,
            r#"shardfeed_job_in_doubt_decides_seconds{job="j"} 51.0"#,
            "shardfeed_coordinator_jobs_left_out 0",
            "shardfeed_coordinator_leader 0",
            "process_threads 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("process_threads 7\n# EOF\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
        let of_jobs = text.lines().filter(|line| line.starts_with("shardfeed_job_"));
        for line in of_jobs {
            let labels = line.split_once('{').unwrap().1.split_once('}').unwrap().0;
            for label in labels.split(',') {
                let name = label.split_once('=').unwrap().0;
                assert!(["job", "rank", "state", "source"].contains(&name), "{line}");
            }
        }
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted() {
        assert_eq!(bounded(0..5, 3), (vec![0, 1, 2], 2));
        assert_eq!(bounded(0..3, 3), (vec![0, 1, 2], 0));
        let (jobs_left_out, ranks_left_out, sources_left_out) = (7, 9, 3);
        let counts = RunningJobs { jobs_left_out, ranks_left_out, ..RunningJobs::default() };
        let jobs = RunningJobs { sources_left_out, ..counts };
        let text = page(&Metrics::new(), &jobs, "");
        for line in ["jobs_left_out 7\n", "ranks_left_out 9\n", "sources_left_out 3\n"] {
            let line = format!("shardfeed_coordinator_{line}");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn a_node_that_does_not_lead_says_nothing_of_jobs() {
        let text = page(&Metrics::new(), &RunningJobs::default(), "");
        assert!(!text.lines().any(|line| line.starts_with("shardfeed_job_")), "{text}");
    }
}
