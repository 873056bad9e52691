//! What monitoring sees: one struct, closed sets of labels, no names of jobs or workers.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The calls of both services.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Rpc {
    Join,
    Heartbeat,
    Leave,
    TakeScans,
    ReportListing,
    ReportScan,
    FailScan,
    PutChunk,
    GetChunk,
    RegisterJob,
    StartRank,
    EndRank,
    ReportSkipped,
    LatestToken,
    TakeGroups,
    BatchTakeGroups,
    GetStatus,
    GetCluster,
    AddMember,
    RemoveMember,
    TransferLeader,
    SaveSnapshot,
    CordonWorker,
    HoldJob,
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
    Introduce,
    Exchange,
    PushChunk,
    PullChunk,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    /// Answered.
    Done,
    /// The caller is wrong, or came too late.
    Refused,
    /// The coordinator cannot.
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

/// The metrics of a coordinator, `shardfeed_coordinator_*`.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<CallLabels, Counter>,
    request_seconds: Family<RpcLabels, Histogram>,
    /// Sessions that ended because nothing was heard of them.
    pub(crate) sessions_expired: Counter,
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
    /// Times that another leader than before was seen.
    pub(crate) leader_changes: Counter,
    /// Commands that were proposed here.
    pub(crate) proposals: Counter,
    /// Groups that were granted by this leader.
    pub(crate) grants: Counter,
    /// Groups that this leader asked ranks to give back.
    pub(crate) revocations: Counter,
    /// Last index of the log that a snapshot covers.
    pub(crate) snapshot_index: Gauge,
    /// Nodes of the cluster.
    pub(crate) members: Gauge,
    /// Other nodes that the leader has heard of lately; only it knows.
    pub(crate) peers_heard: Gauge,
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 4.0, 9));
        let mut metrics = Self {
            registry: Registry::with_prefix("shardfeed_coordinator"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            sessions_expired: Counter::default(),
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
        };
        metrics.register();
        metrics
    }

    /// A call is over.
    pub(crate) fn called(&self, rpc: Rpc, outcome: Outcome, took: Duration) {
        self.requests.get_or_create(&CallLabels { rpc, outcome }).inc();
        self.request_seconds.get_or_create(&RpcLabels { rpc }).observe(took.as_secs_f64());
    }

    /// All of them as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("requests", "Calls by what became of them", self.requests.clone());
        let (name, help) = ("request", "How long calls took");
        registry.register_with_unit(name, help, Unit::Seconds, self.request_seconds.clone());
        let counters = [
            ("sessions_expired", "Sessions that ended in silence", &self.sessions_expired),
            ("cursors_reported", "Cursors that were written to the log", &self.cursors_reported),
            ("leader_changes", "Times that another leader was seen", &self.leader_changes),
            ("proposals", "Commands that were proposed here", &self.proposals),
            ("grants", "Pieces of dynamic jobs that were granted here", &self.grants),
            ("revocations", "Pieces of dynamic jobs that were asked back", &self.revocations),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let gauges = [
            ("sessions", "Live sessions of workers", &self.sessions),
            ("datasets", "Datasets", &self.datasets),
            ("jobs", "Jobs", &self.jobs),
            ("applied_index", "Last index of the log that was applied", &self.applied_index),
            ("leader", "1 while this node leads", &self.leader),
            ("storage_failed", "1 after the log could not be written", &self.storage_failed),
            ("chunks_failed", "1 while chunks cannot be stored", &self.chunks_failed),
            ("snapshot_index", "Last index that a snapshot covers", &self.snapshot_index),
            ("members", "Nodes of the cluster", &self.members),
            ("peers_heard", "Other nodes that the leader heard of lately", &self.peers_heard),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let (name, help) = ("chunks_unreferenced", "Chunks that no dataset refers to");
        registry.register_with_unit(name, help, Unit::Bytes, self.unreferenced_bytes.clone());
    }
}
