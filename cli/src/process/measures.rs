//! Health and metrics of a worker over HTTP/1, for monitoring. Labels are jobs and ranks, never shards.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::UNIX_EPOCH;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use shardfeed_agent::{RankReport, WorkerReport, WorkerView};
use shardfeed_coordinator::page::{self, Labels, job_labels, rank_labels};
use shardfeed_coordinator::{Pages, StartError, serve_pages};
use shardfeed_pipeline::{CounterMetric, CounterUnit, Spent};

use crate::error::Problem;

/// Serves /livez, /readyz and /metrics of a worker until the runtime ends; returns the address.
///
/// # Errors
/// Listening at the address fails.
pub(super) async fn serve(address: SocketAddr, view: WorkerView) -> anyhow::Result<SocketAddr> {
    let pages = Pages {
        process: view,
        dead: WorkerView::dead,
        unready: WorkerView::unready,
        metrics: |view| text(&view.report()),
    };
    serve_pages(address, pages).await.map_err(|error| match error {
        StartError::Listen { source, .. } => {
            Problem::failed(format!("cannot listen at {address} (option `http`): {source}"))
                .hint("stop what uses the port, choose another one, or leave the option out")
                .into()
        }
        other => other.into(),
    })
}

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
    let mut stages = vec![];
    for (at, counter) in Spent::COUNTERS.iter().enumerate() {
        let values = ranks.iter().filter_map(|served| {
            let value = served.account?.since_start.values().nth(at)?;
            Some((rank_labels(&served.job, served.rank), value))
        });
        let (part, name) = match counter.metric {
            CounterMetric::None => continue,
            CounterMetric::Stage(stage) => {
                let labels = |[job, rank]: Labels<2>| [job, rank, ("stage", stage.to_owned())];
                stages.extend(values.map(|(of, us)| (labels(of), us)));
                continue;
            }
            CounterMetric::Of(part, name) => (part, name),
        };
        let (registry, help) = (registry.sub_registry_with_prefix(part), counter.help);
        match counter.unit() {
            CounterUnit::Microseconds => page::time_counters(registry, (name, help), values),
            CounterUnit::Bytes => page::counters(registry, (name, help, Some(Unit::Bytes)), values),
            _ => page::counters(registry, (name, help, None), values),
        }
    }
    let help = "Time by activity; that of reading and computing threads is summed over threads";
    let worker = registry.sub_registry_with_prefix("worker");
    page::time_counters(worker, ("stage", help), stages);
}

fn of_trainers(registry: &mut Registry, ranks: &[RankReport]) {
    let labels = |served: &RankReport| rank_labels(&served.job, served.rank);
    let waiting = ranks.iter().filter_map(|served| {
        let us = served.account?.waiting_us?;
        Some((labels(served), page::seconds(us)))
    });
    let help = "How long the trainer has waited for its next batch by now";
    page::times(registry, ("waiting", help), waiting);
    let number =
        |of: fn(&RankReport) -> u64| ranks.iter().map(move |served| (labels(served), of(served)));
    let help = "Epoch of the first step that was not consumed";
    page::gauges(registry, ("epoch", help), number(|served| served.epoch));
    let help = "First step of the epoch that was not consumed";
    page::gauges(registry, ("step", help), number(|served| served.step));
    let by_place = ranks.iter().filter_map(|served| {
        let account = served.account?;
        Some((labels(served), account.setup.by_place.into()))
    });
    let help =
        "1 while records are read one by one, because the memory budget holds no shuffle windows";
    page::gauges(registry, ("reading_by_offset", help), by_place);
    let help = "Batches that wait for the trainer";
    page::gauges(registry, ("ready_batches", help), number(|served| served.ready));
}

fn of_worker(registry: &mut Registry, report: &WorkerReport) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The release", build);
    let ends = report.certificate_not_after;
    let ends = ends.and_then(|ends| ends.duration_since(UNIX_EPOCH).ok());
    let (bytes, seconds) = (Some(Unit::Bytes), Some(Unit::Seconds));
    let gauges = [
        (
            "connected",
            "1 while the coordinator knows this worker",
            None,
            report.session.is_some().into(),
        ),
        ("draining", "1 while trainers are handed over", None, report.is_draining.into()),
        ("trainers", "Trainers that are connected", None, report.trainers),
        ("ranks", "Ranks that are served", None, report.ranks.len() as u64),
        ("memory_budget", "Memory for records and batches", bytes.clone(), report.budget_bytes),
        ("memory_budget_left", "Of it, the part that no rank has", bytes, report.budget_left_bytes),
        (
            "certificate_not_after",
            "When the certificate ends that it shows to coordinators; 0: it shows none",
            seconds,
            ends.map_or(0, |ends| ends.as_secs()),
        ),
    ];
    for (name, help, unit, value) in gauges {
        page::gauge(registry, (name, help, unit), value);
    }
    // Jobs that are over need no further report.
    let corrupt = report.ranks.iter().map(|RankReport { job, .. }| {
        (job_labels(job), report.corrupt_records.get(job).copied().unwrap_or(0))
    });
    page::gauges(registry, ("corrupt_records", "Corrupt records that were left out"), corrupt);
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
