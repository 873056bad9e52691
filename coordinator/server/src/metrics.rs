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
use prometheus_client::registry::{Registry, Unit};

/// The calls of both services.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Rpc {
    Join,
    Heartbeat,
    Leave,
    ClaimScans,
    ReportListing,
    ReportScan,
    FailScan,
    PutChunk,
    GetChunk,
    RegisterJob,
    StartRank,
    EndRank,
    ReportSkipped,
    LatestState,
    ClaimGroups,
    BatchClaimGroups,
    GetStatus,
    GetCluster,
    AddMember,
    RemoveMember,
    TransferLeader,
    SaveSnapshot,
    CordonWorker,
    HoldJob,
    DeclareGone,
    RemoveDataset,
    RemoveJob,
    AddDataset,
    GetDataset,
    ListDatasets,
    ListJobs,
    GetJob,
    ListEpochs,
    ListShards,
    ListRanks,
    ListWorkers,
    GetBatch,
    ListEvents,
    GetShardHistory,
    GetEpochMap,
    WhoAmI,
    CreateAccess,
    RevokeAccess,
    ListAccess,
    ExchangeAccess,
    ListAudit,
    Introduce,
    Exchange,
    PushChunk,
    PullChunk,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    /// Answered.
    Done,
    /// Rejected: the caller made an error, or came too late.
    Refused,
    /// Failed in the coordinator.
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

/// Reason why a call was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Denial {
    /// Neither a certificate nor an access token was presented.
    Nothing,
    /// The presented access token is malformed.
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

/// Outcome of an audited call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Audited {
    /// Completed.
    Done,
    /// Rejected or failed, for another reason than its caller.
    Refused,
    /// Denied, because of its caller.
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

/// State of a live session's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum WorkerIs {
    /// Its heartbeats arrive, and it may get work.
    Live,
    /// Two heartbeats are missing; its session has not ended yet.
    Silent,
    /// It gets no new work.
    Cordoned,
    /// It hands over its work.
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

/// The metrics of a coordinator, `shardfeed_coordinator_*`.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<CallLabels, Counter>,
    request_seconds: Family<RpcLabels, Histogram>,
    denials: Family<DenialLabels, Counter>,
    audit_events: Family<AuditLabels, Counter>,
    workers: Family<WorkerLabels, Gauge>,
    peer_round_trip: Family<PeerLabels, Histogram>,
    /// Time that a completed command took: durable on a majority, and applied here.
    pub(crate) proposal: Histogram,
    /// Time that the disk took to make writes to the log durable.
    pub(crate) log_fsync: Histogram,
    /// Size of the log's file.
    pub(crate) log_bytes: Gauge,
    /// Size of the snapshot that was written last.
    pub(crate) snapshot_bytes: Gauge,
    /// Term of the log.
    pub(crate) term: Gauge,
    /// Last index of the log that can never change.
    pub(crate) committed_index: Gauge,
    /// Last index of the log.
    pub(crate) last_index: Gauge,
    /// 1 while this node has no vote.
    pub(crate) learner: Gauge,
    /// Commands proposed here that are not answered yet.
    pub(crate) proposals_pending: Gauge,
    /// Commands proposed here that were not acknowledged; some may have been applied.
    pub(crate) proposals_failed: Counter,
    /// Ranks that a live session serves.
    pub(crate) leases: Gauge,
    /// Leases of ranks that ended because their worker was silent.
    pub(crate) lease_expirations: Counter,
    /// Sessions that ended because they were silent.
    pub(crate) sessions_expired: Counter,
    /// Listings and scans taken from a worker because they made no progress.
    pub(crate) scans_stalled: Counter,
    /// Cursors that became part of a command.
    pub(crate) cursors_reported: Counter,
    /// Live sessions.
    pub(crate) sessions: Gauge,
    /// Datasets in the state.
    pub(crate) datasets: Gauge,
    /// Jobs in the state.
    pub(crate) jobs: Gauge,
    /// Bytes of chunks that no dataset refers to.
    pub(crate) unreferenced_bytes: Gauge,
    /// Last index of the log that was applied.
    pub(crate) applied_index: Gauge,
    /// 1 while this node leads.
    pub(crate) leader: Gauge,
    /// 1 after the log could not be written.
    pub(crate) storage_failed: Gauge,
    /// 1 while chunks cannot be stored.
    pub(crate) chunks_failed: Gauge,
    /// Number of changes of the leader that this node saw.
    pub(crate) leader_changes: Counter,
    /// Commands that were proposed here.
    pub(crate) proposals: Counter,
    /// Group ranges granted by this leader.
    pub(crate) grants: Counter,
    /// Requests of this leader to ranks to return group ranges.
    pub(crate) revocations: Counter,
    /// Last index of the log that a snapshot covers.
    pub(crate) snapshot_index: Gauge,
    /// Nodes of the cluster.
    pub(crate) members: Gauge,
    /// Other nodes with recent contact to the leader; only the leader knows.
    pub(crate) peers_heard: Gauge,
    /// 1 while every caller has full access.
    pub(crate) insecure: Gauge,
    /// Expiry of its certificate, Unix seconds; 0: it has none.
    pub(crate) certificate_not_after: Gauge,
}

impl Metrics {
    /// Creates all metrics at zero.
    pub(crate) fn new() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 4.0, 9));
        let waits = || Histogram::new(exponential_buckets(0.000_25, 2.0, 14));
        let mut metrics = Self {
            registry: Registry::with_prefix("shardfeed_coordinator"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            denials: Family::default(),
            audit_events: Family::default(),
            workers: Family::default(),
            peer_round_trip: Family::new_with_constructor(waits),
            proposal: waits(),
            log_fsync: waits(),
            log_bytes: Gauge::default(),
            snapshot_bytes: Gauge::default(),
            term: Gauge::default(),
            committed_index: Gauge::default(),
            last_index: Gauge::default(),
            learner: Gauge::default(),
            proposals_pending: Gauge::default(),
            proposals_failed: Counter::default(),
            leases: Gauge::default(),
            lease_expirations: Counter::default(),
            sessions_expired: Counter::default(),
            scans_stalled: Counter::default(),
            cursors_reported: Counter::default(),
            sessions: Gauge::default(),
            datasets: Gauge::default(),
            jobs: Gauge::default(),
            unreferenced_bytes: Gauge::default(),
            applied_index: Gauge::default(),
            leader: Gauge::default(),
            storage_failed: Gauge::default(),
            chunks_failed: Gauge::default(),
            leader_changes: Counter::default(),
            proposals: Counter::default(),
            grants: Counter::default(),
            revocations: Counter::default(),
            snapshot_index: Gauge::default(),
            members: Gauge::default(),
            peers_heard: Gauge::default(),
            insecure: Gauge::default(),
            certificate_not_after: Gauge::default(),
        };
        for reason in Denial::ALL {
            metrics.denials.get_or_create(&DenialLabels { reason }).inc_by(0);
        }
        for outcome in Audited::ALL {
            metrics.audit_events.get_or_create(&AuditLabels { outcome }).inc_by(0);
        }
        metrics.register();
        metrics
    }

    /// Counts a call that has ended.
    pub(crate) fn called(&self, rpc: Rpc, outcome: Outcome, took: Duration) {
        self.requests.get_or_create(&CallLabels { rpc, outcome }).inc();
        self.request_seconds.get_or_create(&RpcLabels { rpc }).observe(took.as_secs_f64());
    }

    /// Records another node's answer to a message of consensus.
    pub(crate) fn answered(&self, peer: u64, took: Duration) {
        self.peer_round_trip.get_or_create(&PeerLabels { peer }).observe(took.as_secs_f64());
    }

    /// Counts a denied call.
    pub(crate) fn denied(&self, reason: Denial) {
        self.denials.get_or_create(&DenialLabels { reason }).inc();
    }

    /// Counts an audited call.
    pub(crate) fn audited(&self, outcome: Audited) {
        self.audit_events.get_or_create(&AuditLabels { outcome }).inc();
    }

    /// Sets the number of workers in each state.
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

    fn register(&mut self) {
        let registry = &mut self.registry;
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The release", build);
        registry.register("requests", "Calls by outcome", self.requests.clone());
        let help = "Calls that were denied, and connections that did not come to TLS";
        registry.register("auth_failures", help, self.denials.clone());
        let help = "Entries for the audit, including those of calls that were too many to write";
        registry.register("audit_events", help, self.audit_events.clone());
        registry.register(
            "workers",
            "Live sessions by state of their worker",
            self.workers.clone(),
        );
        let (name, help) = ("request", "How long calls took");
        registry.register_with_unit(name, help, Unit::Seconds, self.request_seconds.clone());
        let help = "How long the disk took to make log entries durable";
        registry.register_with_unit("log_fsync", help, Unit::Seconds, self.log_fsync.clone());
        let help =
            "How long commands took until a majority had them durable and they were carried out";
        registry.register_with_unit("proposal", help, Unit::Seconds, self.proposal.clone());
        let help = "How long another node took to answer a consensus request, its disk included";
        let family = self.peer_round_trip.clone();
        registry.register_with_unit("peer_round_trip", help, Unit::Seconds, family);
        let counters = [
            ("sessions_expired", "Sessions that ended in silence", &self.sessions_expired),
            ("lease_expirations", "Leases of ranks that ended with them", &self.lease_expirations),
            (
                "scans_stalled",
                "Listings and scans without progress that others got",
                &self.scans_stalled,
            ),
            ("cursors_reported", "Cursors that were written to the log", &self.cursors_reported),
            ("leader_changes", "Times that another leader was seen", &self.leader_changes),
            ("proposals", "Commands that were proposed here", &self.proposals),
            (
                "proposals_failed",
                "Of these, those that were not acknowledged; some may have been carried out",
                &self.proposals_failed,
            ),
            ("grants", "Group ranges of dynamic jobs that were granted here", &self.grants),
            ("revocations", "Group ranges of dynamic jobs that were revoked", &self.revocations),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let gauges = [
            ("sessions", "Live sessions of workers", &self.sessions),
            ("leases", "Ranks that a live session serves", &self.leases),
            ("datasets", "Datasets", &self.datasets),
            ("jobs", "Jobs", &self.jobs),
            ("term", "Term of the log", &self.term),
            ("last_index", "Last index of the log, durable or not yet", &self.last_index),
            ("committed_index", "Last index that can never change", &self.committed_index),
            ("applied_index", "Last index of the log that was applied", &self.applied_index),
            ("proposals_pending", "Proposals that are not answered yet", &self.proposals_pending),
            ("leader", "1 while this node leads", &self.leader),
            ("learner", "1 while this node learns the log and has no vote", &self.learner),
            ("storage_failed", "1 after the log could not be written", &self.storage_failed),
            ("chunks_failed", "1 while chunks cannot be stored", &self.chunks_failed),
            ("snapshot_index", "Last index that a snapshot covers", &self.snapshot_index),
            ("members", "Nodes of the cluster", &self.members),
            ("peers_heard", "Other nodes that answered the leader lately", &self.peers_heard),
            ("insecure", "1 while every caller may do anything", &self.insecure),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let (name, help) = ("certificate_not_after", "When its certificate ends; 0: it has none");
        let gauge = self.certificate_not_after.clone();
        registry.register_with_unit(name, help, Unit::Seconds, gauge);
        let sized = [
            ("chunks_unreferenced", "Chunks that no dataset refers to", &self.unreferenced_bytes),
            ("log", "Size of the log's file", &self.log_bytes),
            ("snapshot", "Size of the snapshot that was written last", &self.snapshot_bytes),
        ];
        for (name, help, gauge) in sized {
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        }
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
