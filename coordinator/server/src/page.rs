//! Pages of metrics: each metric is added with all of its lines.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

/// Names and values of labels.
pub type Labels<const N: usize> = [(&'static str, String); N];

pub fn job_labels(job: &str) -> Labels<1> {
    [("job", job.to_owned())]
}

pub fn rank_labels(job: &str, rank: u64) -> Labels<2> {
    [("job", job.to_owned()), ("rank", rank.to_string())]
}

pub fn gauges<const N: usize>(
    registry: &mut Registry,
    (name, help): (&str, &str),
    lines: impl IntoIterator<Item = (Labels<N>, u64)>,
) {
    let set = |gauge: &Gauge, value| {
        gauge.set(value as i64);
    };
    add(registry, (name, help, None), family(lines, set));
}

/// Adds a gauge of times, s.
pub fn times<const N: usize>(
    registry: &mut Registry,
    (name, help): (&str, &str),
    lines: impl IntoIterator<Item = (Labels<N>, f64)>,
) {
    let set = |gauge: &Gauge<f64, AtomicU64>, value| {
        gauge.set(value);
    };
    add(registry, (name, help, Some(Unit::Seconds)), family(lines, set));
}

pub fn counters<const N: usize>(
    registry: &mut Registry,
    (name, help, unit): (&str, &str, Option<Unit>),
    lines: impl IntoIterator<Item = (Labels<N>, u64)>,
) {
    let count = |counter: &Counter, value| {
        counter.inc_by(value);
    };
    add(registry, (name, help, unit), family(lines, count));
}

/// Adds a counter of seconds.
/// - `lines`: with their times in µs; those with equal labels are summed.
pub fn time_counters<const N: usize>(
    registry: &mut Registry,
    (name, help): (&str, &str),
    lines: impl IntoIterator<Item = (Labels<N>, u64)>,
) {
    let count = |counter: &Counter<f64, AtomicU64>, us| {
        counter.inc_by(seconds(us));
    };
    add(registry, (name, help, Some(Unit::Seconds)), family(lines, count));
}

/// Adds a gauge without labels.
pub fn gauge(registry: &mut Registry, (name, help, unit): (&str, &str, Option<Unit>), value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(value as i64);
    add(registry, (name, help, unit), gauge);
}

pub fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn family<const N: usize, M: Default, V>(
    lines: impl IntoIterator<Item = (Labels<N>, V)>,
    set: impl Fn(&M, V),
) -> Family<Labels<N>, M> {
    let family = Family::default();
    for (labels, value) in lines {
        set(&*family.get_or_create(&labels), value);
    }
    family
}

fn add(
    registry: &mut Registry,
    (name, help, unit): (&str, &str, Option<Unit>),
    metric: impl Metric,
) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric),
        None => registry.register(name, help, metric),
    }
}
