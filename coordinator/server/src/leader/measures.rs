//! Metrics of jobs, the trainers' waits first. Only the leader has them, independent of a trainer's
//! worker: heartbeats carry each rank's time breakdown, also of trainers that read in their own
//! processes. Labels are jobs, ranks, states and sources of mixtures, never shards, all bounded.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shardfeed_proto::common::v1::{Account, Spent};
use shardfeed_proto::coordinator::v1::get_epoch_map_response::Cell;
use shardfeed_scheduler::{Generation, Hold, Job, JobPhase, LeaseRef, State};
use tokio::time::Instant;

use crate::leader::core::{Core, Live};
use crate::leader::progress::RankState;
use crate::leader::shard_counts::Counted;
use crate::metrics::{Metrics, Page, metrics};
use crate::page::{Labels, job_labels, rank_labels, seconds};

/// Maximum jobs that have lines: those that started last.
const JOBS_MAX: usize = 64;

/// Maximum ranks that have lines, of all these jobs together: more are too many to look at.
const RANKS_MAX: usize = 2_048;

/// Maximum sources that have lines, of all these jobs together.
const SOURCES_MAX: usize = 2_048;

/// Gauges of times, s.
type Times<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;

type Gauges<const N: usize> = Family<Labels<N>, Gauge>;

type TimeCounters = Family<Labels<2>, Counter<f64, AtomicU64>>;

metrics! {
    /// The metrics of jobs, made for one page.
    pub(crate) struct JobMetrics;
    rank_wait: TimeCounters =
        time("job_rank_wait", "Time that the trainer waited for batches, from any reader");
    rank_work: TimeCounters = time("job_rank_work", "Time that the trainer worked");
    rank_waiting: Times<2> = time(
        "job_rank_waiting",
        "How long the trainer had waited for its next batch at the last report"
    );
    rank_epoch: Gauges<2> =
        plain("job_rank_epoch", "Epoch of the first step that was not consumed");
    rank_step: Gauges<2> =
        plain("job_rank_step", "First step of the epoch that was not consumed");
    idle: Times<1> = time("job_idle", "Time since a rank of it last consumed a batch");
    epoch_shards: Gauges<2> = plain(
        "job_epoch_shards",
        "Shards by state, of the first epoch that some rank has not left; of the 8 jobs that began \
         last"
    );
    epoch: Gauges<1> = plain("job_epoch", "First epoch that some rank has not left");
    leases: Gauges<1> = plain("job_leases", "Ranks that a live session serves");
    paused: Gauges<1> = plain("job_paused", "1 while the job is paused");
    corrupt_records: Gauges<1> =
        plain("job_corrupt_records", "Corrupt records that were left out");
    /// Parts of ranks' lists that were returned for other ranks, in the kept epochs.
    returns: Gauges<1> = plain(
        "job_returns",
        "Parts of ranks' lists that came back for others, in the epochs that are kept"
    );
    source_samples: Gauges<2> = plain(
        "job_source_samples",
        "Delivered samples of a source of the mixture, of the first epoch that some rank has not \
         left; of the 8 jobs that began last"
    );
    in_doubt_samples: Gauges<2> = plain(
        "job_rank_in_doubt_samples",
        "Samples in doubt: the rank's trainer is gone and may have consumed them"
    );
    in_doubt: Times<2> =
        time("job_rank_in_doubt", "How long samples of the rank have been in doubt");
    /// Only if samples in doubt alone are awaited and the job is not held.
    in_doubt_decides: Times<1> = time(
        "job_in_doubt_decides",
        "Time until in_doubt= decides, while an epoch waits only for samples in doubt"
    );
    phases: Gauges<1> = plain("jobs", "Jobs by phase");
    jobs_left_out: Gauge =
        plain("coordinator_jobs_left_out", "Running jobs that have no lines: too many run");
    ranks_left_out: Gauge =
        plain("coordinator_ranks_left_out", "Ranks that have no lines: there are too many");
    sources_left_out: Gauge = plain(
        "coordinator_sources_left_out",
        "Sources of mixtures that have no lines: there are too many"
    );
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

/// Returns the metrics of the running jobs; no lines of jobs if another node leads.
pub(crate) fn look(core: &Core) -> JobMetrics {
    let metrics = JobMetrics::new();
    if core.available().is_ok() {
        let (now, counted) = ((core.host.now(), core.host.wall_ms()), core.shard_counts.ask());
        core.read(|state| metrics.fill(state, &core.live(), &counted, now));
    }
    metrics
}

/// Returns the jobs with served ranks, latest start first.
fn newest(state: &State) -> Vec<(&Job, &Generation)> {
    let is_served = |known: &&Generation| known.leases().next().is_some();
    let current = |job| Some((job, Job::current(job).filter(is_served)?));
    let mut running: Vec<_> = state.jobs().filter_map(current).collect();
    running.sort_by_key(|(job, known)| (std::cmp::Reverse(known.started_ms), &job.name));
    running
}

impl JobMetrics {
    pub(crate) fn new() -> Self {
        let metrics = Self::on(Page(Registry::with_prefix("shardfeed")));
        for phase in JobPhase::ALL {
            metrics.phases.get_or_create(&phase_labels(phase)).set(0);
        }
        metrics
    }

    fn fill(&self, state: &State, live: &Live, counted: &Counted, (now, now_ms): (Instant, u64)) {
        for job in state.jobs() {
            self.phases.get_or_create(&phase_labels(job.phase())).inc();
        }
        let running = bounded(newest(state).into_iter(), JOBS_MAX, &self.jobs_left_out);
        self.fill_ranks(&running, live, now);
        self.fill_jobs(&running, counted);
        self.fill_doubts(state, now_ms);
    }

    fn fill_ranks(&self, running: &[(&Job, &Generation)], live: &Live, now: Instant) {
        let shown: BTreeMap<&str, &Generation> =
            running.iter().map(|(job, known)| (job.name.as_str(), *known)).collect();
        let is_held = |lease: &LeaseRef| {
            let known = shown.get(lease.job.as_str()).filter(|g| g.number == lease.generation);
            let held = known.and_then(|known| known.ranks.get(&lease.rank)?.lease.as_ref());
            held.is_some_and(|held| held.fencing == lease.fencing)
        };
        // Excludes reports of earlier leases, removed later, so that one per rank remains.
        let told = || live.progress.ranks().filter(|(lease, _)| is_held(lease));
        let mut moved: BTreeMap<&str, Instant> = BTreeMap::new();
        for (lease, rank) in told() {
            let last = moved.entry(&lease.job).or_insert(rank.moved);
            *last = rank.moved.max(*last);
        }
        for (job, moved) in moved {
            let idle = now.saturating_duration_since(moved);
            self.idle.get_or_create(&job_labels(job)).set(idle.as_secs_f64());
        }
        for (lease, rank) in bounded(told(), RANKS_MAX, &self.ranks_left_out) {
            self.fill_rank(&rank_labels(&lease.job, lease.rank), rank, now);
        }
    }

    fn fill_rank(&self, labels: &Labels<2>, rank: &RankState, now: Instant) {
        self.rank_epoch.get_or_create(labels).set(rank.epoch as i64);
        self.rank_step.get_or_create(labels).set(rank.step as i64);
        if let Some(account) = rank.account(now) {
            self.fill_account(labels, &account);
        }
    }

    fn fill_account(&self, labels: &Labels<2>, account: &Account) {
        let Spent { wait_us, work_us, .. } = account.since_start.unwrap_or_default();
        self.rank_wait.get_or_create(labels).inc_by(seconds(wait_us));
        self.rank_work.get_or_create(labels).inc_by(seconds(work_us));
        if let Some(us) = account.waiting_us {
            self.rank_waiting.get_or_create(labels).set(seconds(us));
        }
    }

    fn fill_jobs(&self, running: &[(&Job, &Generation)], counted: &Counted) {
        let mut sources = vec![];
        for (job, known) in running {
            let labels = job_labels(&job.name);
            let set = |gauges: &Gauges<1>, value: u64| {
                gauges.get_or_create(&labels).set(value as i64);
            };
            set(&self.epoch, known.cursor().epoch);
            set(&self.leases, known.ranks_served());
            let is_paused = job.held.as_ref().is_some_and(|held| held.hold == Hold::Paused);
            set(&self.paused, is_paused.into());
            set(&self.corrupt_records, job.skipped_count());
            set(&self.returns, known.pools.values().map(|pool| pool.returns.count()).sum());
            if let Some(counts) = counted.get(&job.name) {
                self.fill_shards(&job.name, &counts.shards);
                sources.extend(counts.sources.iter().map(|source| (&job.name, source)));
            }
        }
        let sources = bounded(sources.into_iter(), SOURCES_MAX, &self.sources_left_out);
        for (job, (source, delivered)) in sources {
            let labels = [("job", job.clone()), ("source", source.clone())];
            self.source_samples.get_or_create(&labels).set(*delivered as i64);
        }
    }

    fn fill_shards(&self, job: &str, shards: &Cell) {
        for (state, count) in by_state(shards) {
            let labels = [("job", job.to_owned()), ("state", state.to_owned())];
            self.epoch_shards.get_or_create(&labels).set(count as i64);
        }
    }

    /// Sets the metrics of epochs with samples in doubt, even if none of a job's ranks is served.
    fn fill_doubts(&self, state: &State, now_ms: u64) {
        let in_doubt = state.jobs().filter_map(|job| Some((job, ranks_in_doubt(job, now_ms)?)));
        let mut left = RANKS_MAX;
        for (job, ranks) in in_doubt.take(JOBS_MAX) {
            for (rank, (samples, age)) in ranks.into_iter().take(left) {
                let labels = rank_labels(&job.name, rank);
                self.in_doubt_samples.get_or_create(&labels).set(samples as i64);
                self.in_doubt.get_or_create(&labels).set(age.as_secs_f64());
                left -= 1;
            }
            if let Some(time) = decides(job) {
                self.in_doubt_decides.get_or_create(&job_labels(&job.name)).set(time.as_secs_f64());
            }
        }
    }
}

/// Returns for each rank its samples in doubt and the time for which they have been in doubt;
/// `None` if there are none.
fn ranks_in_doubt(job: &Job, now_ms: u64) -> Option<BTreeMap<u64, (u64, Duration)>> {
    let current = job.current().filter(|_| job.identity.is_dynamic())?;
    let mut ranks = BTreeMap::new();
    for (&rank, share) in current.pools.values().flat_map(|pool| &pool.shares) {
        let Some(doubt) = &share.doubt else { continue };
        let age = Duration::from_millis(now_ms.saturating_sub(doubt.since_ms));
        let (samples, longest) = ranks.entry(rank).or_insert((0, age));
        (*samples, *longest) = (*samples + share.in_doubt(), age.max(*longest));
    }
    Some(ranks).filter(|ranks| !ranks.is_empty())
}

/// Returns the time until the policy decides about samples in doubt.
fn decides(job: &Job) -> Option<Duration> {
    let current = job.current().filter(|_| job.held.is_none())?;
    let pool = current.pools.values().rev().find(|pool| pool.waits_for_doubt())?;
    Some(Duration::from_millis(current.doubt.grace_ms.saturating_sub(pool.waited_ms)))
}

/// Returns the first `most` items, and sets the number of the others.
fn bounded<T>(mut all: impl Iterator<Item = T>, most: usize, left_out: &Gauge) -> Vec<T> {
    let first = all.by_ref().take(most).collect();
    left_out.set(all.count() as i64);
    first
}

/// Returns the whole page.
/// - `process`: metrics of the process, as lines of a page.
pub(crate) fn page(metrics: &Metrics, jobs: &JobMetrics, process: &str) -> String {
    let mut text = jobs.text() + &metrics.text() + process;
    // Writing to a string cannot fail.
    let _ = encode_eof(&mut text);
    text
}

fn phase_labels(phase: JobPhase) -> Labels<1> {
    [("phase", format!("{phase:?}"))]
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

/// Returns metrics of a job of one rank, in which every metric with labels has a line.
pub(crate) fn example() -> JobMetrics {
    let metrics = JobMetrics::new();
    let (job, rank, in_doubt) = (job_labels("j"), rank_labels("j", 0), rank_labels("j", 1));
    let spent = Spent { wait_us: 1_500_000, work_us: 500_000, ..Spent::default() };
    let account =
        Account { since_start: Some(spent), waiting_us: Some(250_000), ..Account::default() };
    metrics.fill_account(&rank, &account);
    metrics.rank_epoch.get_or_create(&rank).set(2);
    metrics.rank_step.get_or_create(&rank).set(3);
    metrics.idle.get_or_create(&job).set(0.5);
    metrics.fill_shards("j", &Cell { pending: 1, leased: 2, reading: 3, done: 5, skipped: 0 });
    metrics.epoch.get_or_create(&job).set(2);
    metrics.leases.get_or_create(&job).set(1);
    metrics.paused.get_or_create(&job).set(0);
    metrics.corrupt_records.get_or_create(&job).set(4);
    metrics.returns.get_or_create(&job).set(0);
    let source = [("job", "j".to_owned()), ("source", "web".to_owned())];
    metrics.source_samples.get_or_create(&source).set(7);
    metrics.in_doubt_samples.get_or_create(&in_doubt).set(40);
    metrics.in_doubt.get_or_create(&in_doubt).set(9.0);
    metrics.in_doubt_decides.get_or_create(&job).set(51.0);
    metrics.phases.get_or_create(&phase_labels(JobPhase::Running)).set(1);
    metrics
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
        let jobs = JobMetrics::new();
        assert_eq!(bounded(0..10, 3, &jobs.jobs_left_out), [0, 1, 2]);
        assert_eq!(bounded(0..12, 3, &jobs.ranks_left_out), [0, 1, 2]);
        assert_eq!(bounded(0..3, 3, &jobs.sources_left_out), [0, 1, 2]);
        let text = page(&Metrics::new(), &jobs, "");
        for line in ["jobs_left_out 7\n", "ranks_left_out 9\n", "sources_left_out 0\n"] {
            let line = format!("shardfeed_coordinator_{line}");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn a_node_that_does_not_lead_says_nothing_of_jobs() {
        let text = page(&Metrics::new(), &JobMetrics::new(), "");
        assert!(!text.lines().any(|line| line.starts_with("shardfeed_job_")), "{text}");
    }
}
