//! Metrics of a node: closed sets of labels, no names of workers. Those of jobs are in `measures`.

use std::time::Duration;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use shardfeed_raft::SyncMeter;

use crate::rpc::rights::Rpc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    Done,
    /// Rejected: the caller made an error, or came too late.
    Refused,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CallLabels {
    rpc: Rpc,
    outcome: Outcome,
}

type Label<T> = [(&'static str, T); 1];

/// Declares the values of a label. With counters that begin at 0 for all of them, rates miss no
/// increase, and no state lacks its line.
macro_rules! values {
    ($(pub(crate) enum $label:ident { $($(#[$doc:meta])* $value:ident,)* })*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
        pub(crate) enum $label { $($(#[$doc])* $value,)* }

        impl $label {
            const ALL: &[Self] = &[$(Self::$value,)*];
        }
    )*};
}

values! {
    pub(crate) enum Denial {
        /// Neither a certificate nor an access token was presented.
        Nothing,
        Malformed,
        /// There is no such access token, or its secret is wrong.
        Unknown,
        /// The access token expired, was revoked, or was used already.
        Unusable,
        /// The role may not make the call.
        Role,
        /// The access token is for other jobs.
        Job,
        /// The session belongs to another principal.
        Session,
        /// Only coordinators may make this call.
        Node,
        /// The TLS handshake failed: often a certificate of another authority, or an expired one.
        Handshake,
        /// The state rejected it, for example because a name belongs to another principal.
        State,
        /// The session has no lease of the listing or scan that it reports.
        Lease,
    }

    pub(crate) enum Audited {
        Done,
        /// Rejected or failed, for another reason than its caller.
        Refused,
        Denied,
        /// Not known: the caller left before the end.
        Unknown,
    }

    pub(crate) enum WorkerIs {
        /// Its heartbeats arrive, and it may get work.
        Live,
        /// Two heartbeats are missing; its session has not ended yet.
        Silent,
        Cordoned,
        Draining,
    }
}

/// A registry to which metrics are added, in the order of the page.
pub(crate) struct Page(pub(crate) Registry);

impl Page {
    fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }

    pub(crate) fn time<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.seconds(name, help, M::default())
    }

    pub(crate) fn plain<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    fn bytes(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        gauge
    }
}

fn calls() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 4.0, 9))
}

fn waits() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 14))
}

/// Declares a struct of metrics, in the order of the page: each field, and how it is added.
macro_rules! metrics {
    (
        $(#[$of:meta])*
        pub(crate) struct $name:ident;
        $($(#[$doc:meta])* $field:ident: $metric:ty = $add:ident($($with:expr),*);)*
    ) => {
        $(#[$of])*
        #[derive(Debug)]
        pub(crate) struct $name {
            registry: Registry,
            $($(#[$doc])* pub(crate) $field: $metric,)*
        }

        impl $name {
            fn on(mut page: Page) -> Self {
                Self { $($field: page.$add($($with),*),)* registry: page.0 }
            }

            /// Returns all metrics as text, without the end mark of a page.
            pub(crate) fn text(&self) -> String {
                let mut text = String::new();
                // Writing to a string cannot fail.
                let _ = encode_registry(&mut text, &self.registry);
                text
            }
        }
    };
}
pub(crate) use metrics;

metrics! {
    /// The metrics of a coordinator, `shardfeed_coordinator_*`.
    pub(crate) struct Metrics;
    requests: Family<CallLabels, Counter> = plain("requests", "Calls by outcome");
    denials: Family<Label<Denial>, Counter> =
        plain("auth_failures", "Calls that were denied, and connections that did not come to TLS");
    audit_events: Family<Label<Audited>, Counter> = plain(
        "audit_events",
        "Entries for the audit, including those of calls that were too many to write"
    );
    workers: Family<Label<WorkerIs>, Gauge> =
        plain("workers", "Live sessions by state of their worker");
    request_seconds: Family<Label<Rpc>, Histogram> =
        seconds("request", "How long calls took", Family::new_with_constructor(calls));
    log_fsync: Histogram =
        seconds("log_fsync", "How long the disk took to make log entries durable", waits());
    proposal: Histogram = seconds(
        "proposal",
        "How long commands took until a majority had them durable and they were carried out",
        waits()
    );
    peer_round_trip: Family<Label<u64>, Histogram> = seconds(
        "peer_round_trip",
        "How long another node took to answer a consensus request, its disk included",
        Family::new_with_constructor(waits)
    );
    sessions_expired: Counter = plain("sessions_expired", "Sessions that ended in silence");
    lease_expirations: Counter = plain("lease_expirations", "Leases of ranks that ended with them");
    scans_stalled: Counter =
        plain("scans_stalled", "Listings and scans without progress that others got");
    cursors_reported: Counter = plain("cursors_reported", "Cursors that were written to the log");
    leader_changes: Counter = plain("leader_changes", "Times that another leader was seen");
    proposals: Counter = plain("proposals", "Commands that were proposed here");
    proposals_failed: Counter = plain(
        "proposals_failed",
        "Of these, those that were not acknowledged; some may have been carried out"
    );
    grants: Counter = plain("grants", "Group ranges of dynamic jobs that were granted here");
    revocations: Counter = plain("revocations", "Group ranges of dynamic jobs that were revoked");
    sessions: Gauge = plain("sessions", "Live sessions of workers");
    leases: Gauge = plain("leases", "Ranks that a live session serves");
    datasets: Gauge = plain("datasets", "Datasets");
    jobs: Gauge = plain("jobs", "Jobs");
    term: Gauge = plain("term", "Term of the log");
    last_index: Gauge = plain("last_index", "Last index of the log, durable or not yet");
    committed_index: Gauge = plain("committed_index", "Last index that can never change");
    applied_index: Gauge = plain("applied_index", "Last index of the log that was applied");
    proposals_pending: Gauge = plain("proposals_pending", "Proposals that are not answered yet");
    leader: Gauge = plain("leader", "1 while this node leads");
    learner: Gauge = plain("learner", "1 while this node learns the log and has no vote");
    storage_failed: Gauge = plain("storage_failed", "1 after the log could not be written");
    chunks_failed: Gauge = plain("chunks_failed", "1 while chunks cannot be stored");
    snapshot_index: Gauge = plain("snapshot_index", "Last index that a snapshot covers");
    members: Gauge = plain("members", "Nodes of the cluster");
    /// Only the leader knows.
    peers_heard: Gauge = plain("peers_heard", "Other nodes that answered the leader lately");
    insecure: Gauge = plain("insecure", "1 while every caller may do anything");
    /// Unix seconds.
    certificate_not_after: Gauge =
        time("certificate_not_after", "When its certificate ends; 0: it has none");
    unreferenced_bytes: Gauge = bytes("chunks_unreferenced", "Chunks that no dataset refers to");
    log_bytes: Gauge = bytes("log", "Size of the log's file");
    snapshot_bytes: Gauge = bytes("snapshot", "Size of the snapshot that was written last");
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("shardfeed_coordinator");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The release", build);
        let metrics = Self::on(Page(registry));
        for reason in Denial::ALL {
            metrics.denials.get_or_create(&[("reason", *reason)]).inc_by(0);
        }
        for outcome in Audited::ALL {
            metrics.audit_events.get_or_create(&[("outcome", *outcome)]).inc_by(0);
        }
        metrics
    }

    pub(crate) fn called(&self, rpc: Rpc, outcome: Outcome, took: Duration) {
        self.requests.get_or_create(&CallLabels { rpc, outcome }).inc();
        self.request_seconds.get_or_create(&[("rpc", rpc)]).observe(took.as_secs_f64());
    }

    /// Records another node's answer to a message of consensus.
    pub(crate) fn answered(&self, peer: u64, took: Duration) {
        self.peer_round_trip.get_or_create(&[("peer", peer)]).observe(took.as_secs_f64());
    }

    pub(crate) fn denied(&self, reason: Denial) {
        self.denials.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn audited(&self, outcome: Audited) {
        self.audit_events.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn set_workers(&self, workers: impl Iterator<Item = WorkerIs>) {
        let found: Vec<_> = workers.collect();
        for state in WorkerIs::ALL {
            let count = found.iter().filter(|found| *found == state).count();
            self.workers.get_or_create(&[("state", *state)]).set(count as i64);
        }
    }

    /// Returns metrics after one call, in which every metric with labels has a line.
    pub(crate) fn example() -> Self {
        let metrics = Self::new();
        metrics.called(Rpc::Join, Outcome::Done, Duration::ZERO);
        metrics.answered(2, Duration::ZERO);
        metrics.set_workers(std::iter::empty());
        metrics
    }
}

impl SyncMeter for Metrics {
    fn synced(&self, took: Duration) {
        self.log_fsync.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_workers_has_a_line_also_without_workers() {
        let metrics = Metrics::new();
        metrics.set_workers([WorkerIs::Live, WorkerIs::Live, WorkerIs::Silent].into_iter());
        metrics.denied(Denial::Unusable);
        metrics.audited(Audited::Denied);
        let text = metrics.text();
        for line in [
            "shardfeed_coordinator_workers{state=\"Live\"} 2",
            "shardfeed_coordinator_workers{state=\"Silent\"} 1",
            "shardfeed_coordinator_workers{state=\"Cordoned\"} 0",
            "shardfeed_coordinator_workers{state=\"Draining\"} 0",
            "shardfeed_coordinator_auth_failures_total{reason=\"Unusable\"} 1",
            "shardfeed_coordinator_auth_failures_total{reason=\"Handshake\"} 0",
            "shardfeed_coordinator_audit_events_total{outcome=\"Denied\"} 1",
            "shardfeed_coordinator_log_fsync_seconds_count 0",
            "shardfeed_coordinator_proposals_pending 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("shardfeed_coordinator_build_info{version="), "{text}");
        metrics.set_workers(std::iter::empty());
        assert!(metrics.text().contains("shardfeed_coordinator_workers{state=\"Live\"} 0\n"));
    }
}
