//! Metrics of a node: one struct, closed sets of labels, no names of workers. Metrics of jobs are
//! in `measures`.

use std::time::Duration;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::rpc::rights::Rpc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    Done,
    /// Rejected: the caller made an error, or came too late.
    Refused,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    rpc: Rpc,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcLabels {
    rpc: Rpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
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
    /// The TLS handshake failed: most often a certificate of another authority, or an expired one.
    Handshake,
    /// The state rejected it, for example because a name belongs to another principal.
    State,
    /// The session has no lease of the listing or scan that it reports.
    Lease,
}

impl Denial {
    /// All reasons: with a counter that begins at 0, rates miss no increase.
    const ALL: [Self; 11] = [
        Self::Nothing,
        Self::Malformed,
        Self::Unknown,
        Self::Unusable,
        Self::Role,
        Self::Job,
        Self::Session,
        Self::Node,
        Self::Handshake,
        Self::State,
        Self::Lease,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DenialLabels {
    reason: Denial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Audited {
    Done,
    /// Rejected or failed, for another reason than its caller.
    Refused,
    Denied,
    /// Not known: the caller left before the end.
    Unknown,
}

impl Audited {
    const ALL: [Self; 4] = [Self::Done, Self::Refused, Self::Denied, Self::Unknown];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuditLabels {
    outcome: Audited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum WorkerIs {
    /// Its heartbeats arrive, and it may get work.
    Live,
    /// Two heartbeats are missing; its session has not ended yet.
    Silent,
    Cordoned,
    Draining,
}

impl WorkerIs {
    /// All states, so that each has a line even without such workers.
    const ALL: [Self; 4] = [Self::Live, Self::Silent, Self::Cordoned, Self::Draining];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    state: WorkerIs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabels {
    peer: u64,
}

/// The metrics of a coordinator, `shardfeed_coordinator_*`; their meaning is in [`Metrics::new`].
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<CallLabels, Counter>,
    denials: Family<DenialLabels, Counter>,
    audit_events: Family<AuditLabels, Counter>,
    workers: Family<WorkerLabels, Gauge>,
    request_seconds: Family<RpcLabels, Histogram>,
    pub(crate) log_fsync: Histogram,
    pub(crate) proposal: Histogram,
    peer_round_trip: Family<PeerLabels, Histogram>,
    pub(crate) sessions_expired: Counter,
    pub(crate) lease_expirations: Counter,
    pub(crate) scans_stalled: Counter,
    pub(crate) cursors_reported: Counter,
    pub(crate) leader_changes: Counter,
    pub(crate) proposals: Counter,
    pub(crate) proposals_failed: Counter,
    pub(crate) grants: Counter,
    pub(crate) revocations: Counter,
    pub(crate) sessions: Gauge,
    pub(crate) leases: Gauge,
    pub(crate) datasets: Gauge,
    pub(crate) jobs: Gauge,
    pub(crate) term: Gauge,
    pub(crate) last_index: Gauge,
    pub(crate) committed_index: Gauge,
    pub(crate) applied_index: Gauge,
    pub(crate) proposals_pending: Gauge,
    pub(crate) leader: Gauge,
    pub(crate) learner: Gauge,
    pub(crate) storage_failed: Gauge,
    pub(crate) chunks_failed: Gauge,
    pub(crate) snapshot_index: Gauge,
    pub(crate) members: Gauge,
    /// Only the leader knows.
    pub(crate) peers_heard: Gauge,
    pub(crate) insecure: Gauge,
    /// Unix seconds.
    pub(crate) certificate_not_after: Gauge,
    pub(crate) unreferenced_bytes: Gauge,
    pub(crate) log_bytes: Gauge,
    pub(crate) snapshot_bytes: Gauge,
}

/// A registry to which metrics are added, in the order of the page.
struct Page(Registry);

impl Page {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }

    fn counter(&mut self, name: &str, help: &str) -> Counter {
        self.add(name, help, Counter::default())
    }

    fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        self.add(name, help, Gauge::default())
    }

    fn bytes(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        gauge
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 4.0, 9));
        let waits = || Histogram::new(exponential_buckets(0.000_25, 2.0, 14));
        let mut page = Page(Registry::with_prefix("shardfeed_coordinator"));
        page.0.register(
            "build",
            "The release",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let metrics = Self {
            requests: page.add("requests", "Calls by outcome", Family::default()),
            denials: page.add(
                "auth_failures",
                "Calls that were denied, and connections that did not come to TLS",
                Family::default(),
            ),
            audit_events: page.add(
                "audit_events",
                "Entries for the audit, including those of calls that were too many to write",
                Family::default(),
            ),
            workers: page.add(
                "workers",
                "Live sessions by state of their worker",
                Family::default(),
            ),
            request_seconds: page.seconds(
                "request",
                "How long calls took",
                Family::new_with_constructor(seconds),
            ),
            log_fsync: page.seconds(
                "log_fsync",
                "How long the disk took to make log entries durable",
                waits(),
            ),
            proposal: page.seconds(
                "proposal",
                "How long commands took until a majority had them durable and they were carried out",
                waits(),
            ),
            peer_round_trip: page.seconds(
                "peer_round_trip",
                "How long another node took to answer a consensus request, its disk included",
                Family::new_with_constructor(waits),
            ),
            sessions_expired: page.counter("sessions_expired", "Sessions that ended in silence"),
            lease_expirations: page
                .counter("lease_expirations", "Leases of ranks that ended with them"),
            scans_stalled: page.counter(
                "scans_stalled",
                "Listings and scans without progress that others got",
            ),
            cursors_reported: page
                .counter("cursors_reported", "Cursors that were written to the log"),
            leader_changes: page.counter("leader_changes", "Times that another leader was seen"),
            proposals: page.counter("proposals", "Commands that were proposed here"),
            proposals_failed: page.counter(
                "proposals_failed",
                "Of these, those that were not acknowledged; some may have been carried out",
            ),
            grants: page.counter("grants", "Group ranges of dynamic jobs that were granted here"),
            revocations: page
                .counter("revocations", "Group ranges of dynamic jobs that were revoked"),
            sessions: page.gauge("sessions", "Live sessions of workers"),
            leases: page.gauge("leases", "Ranks that a live session serves"),
            datasets: page.gauge("datasets", "Datasets"),
            jobs: page.gauge("jobs", "Jobs"),
            term: page.gauge("term", "Term of the log"),
            last_index: page.gauge("last_index", "Last index of the log, durable or not yet"),
            committed_index: page.gauge("committed_index", "Last index that can never change"),
            applied_index: page
                .gauge("applied_index", "Last index of the log that was applied"),
            proposals_pending: page
                .gauge("proposals_pending", "Proposals that are not answered yet"),
            leader: page.gauge("leader", "1 while this node leads"),
            learner: page.gauge("learner", "1 while this node learns the log and has no vote"),
            storage_failed: page.gauge("storage_failed", "1 after the log could not be written"),
            chunks_failed: page.gauge("chunks_failed", "1 while chunks cannot be stored"),
            snapshot_index: page.gauge("snapshot_index", "Last index that a snapshot covers"),
            members: page.gauge("members", "Nodes of the cluster"),
            peers_heard: page.gauge("peers_heard", "Other nodes that answered the leader lately"),
            insecure: page.gauge("insecure", "1 while every caller may do anything"),
            certificate_not_after: page.seconds(
                "certificate_not_after",
                "When its certificate ends; 0: it has none",
                Gauge::default(),
            ),
            unreferenced_bytes: page
                .bytes("chunks_unreferenced", "Chunks that no dataset refers to"),
            log_bytes: page.bytes("log", "Size of the log's file"),
            snapshot_bytes: page
                .bytes("snapshot", "Size of the snapshot that was written last"),
            registry: page.0,
        };
        for reason in Denial::ALL {
            metrics.denials.get_or_create(&DenialLabels { reason }).inc_by(0);
        }
        for outcome in Audited::ALL {
            metrics.audit_events.get_or_create(&AuditLabels { outcome }).inc_by(0);
        }
        metrics
    }

    pub(crate) fn called(&self, rpc: Rpc, outcome: Outcome, took: Duration) {
        self.requests.get_or_create(&CallLabels { rpc, outcome }).inc();
        self.request_seconds.get_or_create(&RpcLabels { rpc }).observe(took.as_secs_f64());
    }

    /// Records another node's answer to a message of consensus.
    pub(crate) fn answered(&self, peer: u64, took: Duration) {
        self.peer_round_trip.get_or_create(&PeerLabels { peer }).observe(took.as_secs_f64());
    }

    pub(crate) fn denied(&self, reason: Denial) {
        self.denials.get_or_create(&DenialLabels { reason }).inc();
    }

    pub(crate) fn audited(&self, outcome: Audited) {
        self.audit_events.get_or_create(&AuditLabels { outcome }).inc();
    }

    pub(crate) fn set_workers(&self, workers: impl Iterator<Item = WorkerIs>) {
        let mut counts = WorkerIs::ALL.map(|state| (state, 0));
        for found in workers {
            counts.iter_mut().filter(|(state, _)| *state == found).for_each(|(_, n)| *n += 1);
        }
        for (state, count) in counts {
            self.workers.get_or_create(&WorkerLabels { state }).set(count);
        }
    }

    /// Returns all metrics as text, without the end mark of a page.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, &self.registry);
        text
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
