//! Metrics of a worker. Labels are jobs and ranks, never shards.

use std::sync::atomic::AtomicU64;
use std::time::UNIX_EPOCH;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use shardfeed_agent::{RankReport, WorkerReport};
use shardfeed_pipeline::{CounterMetric, CounterUnit, Spent};

/// Names and values of labels.
type Labels<const N: usize> = [(&'static str, String); N];

fn job_labels(job: &str) -> Labels<1> {
    [("job", job.to_owned())]
}

fn rank_labels(served: &RankReport) -> Labels<2> {
    [("job", served.job.clone()), ("rank", served.rank.to_string())]
}

type Seconds<const N: usize> = Family<Labels<N>, Counter<f64, AtomicU64>>;

pub(super) fn text(report: &WorkerReport) -> String {
    let mut registry = Registry::with_prefix("shardfeed");
    of_counters(&mut registry, &report.ranks);
    of_trainers(registry.sub_registry_with_prefix("trainer"), &report.ranks);
    of_worker(registry.sub_registry_with_prefix("worker"), report);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, &registry);
    text += &shardfeed_telemetry::process::page();
    let _ = encode_eof(&mut text);
    text
}

/// Adds the counters of the ranks since their reading began, as [`Spent::COUNTERS`] declares them.
fn of_counters(registry: &mut Registry, ranks: &[RankReport]) {
    let stages = Seconds::<3>::default();
    for (at, counter) in Spent::COUNTERS.iter().enumerate() {
        let values = ranks.iter().filter_map(|served| {
            let value = served.account?.since_start.values().nth(at)?;
            Some((rank_labels(served), value))
        });
        let (part, name) = match counter.metric {
            CounterMetric::None => continue,
            CounterMetric::Stage(stage) => {
                for ([job, rank], us) in values {
                    let labels = [job, rank, ("stage", stage.to_owned())];
                    stages.get_or_create(&labels).inc_by(seconds(us));
                }
                continue;
            }
            CounterMetric::Of(part, name) => (part, name),
        };
        let registry = registry.sub_registry_with_prefix(part);
        if counter.unit() == CounterUnit::Microseconds {
            let metric = Seconds::<2>::default();
            for (labels, us) in values {
                metric.get_or_create(&labels).inc_by(seconds(us));
            }
            registry.register_with_unit(name, counter.help, Unit::Seconds, metric);
            continue;
        }
        let metric = Family::<Labels<2>, Counter>::default();
        for (labels, value) in values {
            metric.get_or_create(&labels).inc_by(value);
        }
        match counter.unit() {
            CounterUnit::Bytes => {
                registry.register_with_unit(name, counter.help, Unit::Bytes, metric);
            }
            _ => registry.register(name, counter.help, metric),
        }
    }
    let help = "Time by activity; that of reading and computing threads is summed over threads";
    let worker = registry.sub_registry_with_prefix("worker");
    worker.register_with_unit("stage", help, Unit::Seconds, stages);
}

fn of_trainers(registry: &mut Registry, ranks: &[RankReport]) {
    let waiting = Family::<Labels<2>, Gauge<f64, AtomicU64>>::default();
    let number = Family::<Labels<2>, Gauge>::default;
    let (epoch, step, ready, by_place) = (number(), number(), number(), number());
    for served in ranks {
        let labels = rank_labels(served);
        epoch.get_or_create(&labels).set(served.epoch as i64);
        step.get_or_create(&labels).set(served.step as i64);
        ready.get_or_create(&labels).set(served.ready as i64);
        let Some(account) = served.account else { continue };
        by_place.get_or_create(&labels).set(account.setup.by_place.into());
        if let Some(us) = account.waiting_us {
            waiting.get_or_create(&labels).set(seconds(us));
        }
    }
    let help = "How long the trainer has waited for its next batch by now";
    registry.register_with_unit("waiting", help, Unit::Seconds, waiting);
    registry.register("epoch", "Epoch of the first step that was not consumed", epoch);
    registry.register("step", "First step of the epoch that was not consumed", step);
    let help =
        "1 while records are read one by one, because the memory budget holds no shuffle windows";
    registry.register("reading_by_offset", help, by_place);
    registry.register("ready_batches", "Batches that wait for the trainer", ready);
}

fn of_worker(registry: &mut Registry, report: &WorkerReport) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The release", build);
    let gauges = [
        ("connected", "1 while the coordinator knows this worker", report.session.is_some().into()),
        ("draining", "1 while trainers are handed over", report.is_draining.into()),
        ("trainers", "Trainers that are connected", report.trainers),
        ("ranks", "Ranks that are served", report.ranks.len() as u64),
    ];
    for (name, help, value) in gauges {
        registry.register(name, help, gauge(value));
    }
    let sized = [
        ("memory_budget", "Memory for records and batches", report.budget_bytes),
        ("memory_budget_left", "Of it, the part that no rank has", report.budget_left_bytes),
    ];
    for (name, help, value) in sized {
        registry.register_with_unit(name, help, Unit::Bytes, gauge(value));
    }
    let ends = report.certificate_not_after;
    let ends = ends.and_then(|ends| ends.duration_since(UNIX_EPOCH).ok());
    let metric = gauge(ends.map_or(0, |ends| ends.as_secs()));
    let help = "When the certificate ends that it shows to coordinators; 0: it shows none";
    registry.register_with_unit("certificate_not_after", help, Unit::Seconds, metric);
    let corrupt = Family::<Labels<1>, Gauge>::default();
    for served in &report.ranks {
        corrupt.get_or_create(&job_labels(&served.job)).set(0);
    }
    // Jobs that are over need no further report.
    let is_served = |job: &String| report.ranks.iter().any(|served| served.job == *job);
    for (job, count) in report.corrupt_records.iter().filter(|(job, _)| is_served(job)) {
        corrupt.get_or_create(&job_labels(job)).set(*count as i64);
    }
    let help = "Corrupt records that were left out";
    registry.register("corrupt_records", help, corrupt);
    let timed = [
        ("session_age", "Time since the coordinator last confirmed the session", report.confirmed),
        (
            "heartbeat",
            "How long the coordinator took to answer the last heartbeat",
            report.heartbeat_took,
        ),
    ];
    for (name, help, known) in timed {
        let Some(time) = known else { continue };
        let metric = Gauge::<f64, AtomicU64>::default();
        metric.set(time.as_secs_f64());
        registry.register_with_unit(name, help, Unit::Seconds, metric);
    }
}

fn gauge(value: u64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(value as i64);
    gauge
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
pub(crate) mod tests {
    use shardfeed_pipeline::{Account, Setup};

    use super::*;

    /// A worker with a rank that reported its times, and one that did not.
    pub(crate) fn report() -> WorkerReport {
        let since_start =
            Spent { wait_us: 1_500_000, batches: 7, parse_us: 250_000, ..Spent::default() };
        let setup = Setup { by_place: true, ..Setup::default() };
        let waiting_us = Some(2_000_000);
        let account = Account { setup, since_start, waiting_us, ..Account::default() };
        let rank = |rank, account| RankReport {
            job: "a \"job\"".into(),
            rank,
            generation: 1,
            epoch: 2,
            step: 3,
            ready: 4,
            account,
        };
        WorkerReport {
            session: Some(9),
            has_joined: true,
            refused: None,
            confirmed: Some(std::time::Duration::from_millis(500)),
            heartbeat_took: Some(std::time::Duration::from_millis(4)),
            corrupt_records: [("a \"job\"".to_owned(), 3), ("over".to_owned(), 5)].into(),
            certificate_not_after: Some(UNIX_EPOCH + std::time::Duration::from_secs(1_900_000_000)),
            is_draining: false,
            trainers: 2,
            budget_bytes: 1 << 30,
            budget_left_bytes: 5,
            ranks: vec![rank(0, Some(account)), rank(1, None)],
        }
    }

    #[test]
    fn the_trainers_wait_is_there_for_each_rank_that_told() {
        let text = text(&report());
        for line in [
            r#"shardfeed_trainer_wait_seconds_total{job="a \"job\"",rank="0"} 1.5"#,
            r#"shardfeed_trainer_waiting_seconds{job="a \"job\"",rank="0"} 2.0"#,
            r#"shardfeed_trainer_batches_total{job="a \"job\"",rank="0"} 7"#,
            r#"shardfeed_trainer_step{job="a \"job\"",rank="1"} 3"#,
            r#"shardfeed_trainer_reading_by_offset{job="a \"job\"",rank="0"} 1"#,
            r#"shardfeed_worker_stage_seconds_total{job="a \"job\"",rank="0",stage="parse"} 0.25"#,
            r#"shardfeed_worker_corrupt_records{job="a \"job\""} 3"#,
            "shardfeed_worker_heartbeat_seconds 0.004",
            "shardfeed_worker_connected 1",
            "shardfeed_worker_certificate_not_after_seconds 1900000000",
            "shardfeed_worker_memory_budget_bytes 1073741824",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains(r#"wait_seconds_total{job="a \"job\"",rank="1"}"#), "{text}");
        assert!(!text.contains(r#"job="over""#), "a job that this worker no longer serves: {text}");
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    }
}
