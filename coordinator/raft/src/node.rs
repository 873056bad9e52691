//! One member of the cluster: opens its directory, takes proposals, shows its machine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, LinearizableReadError, RaftError};
use openraft::impls::BasicNode;
use openraft::{Config, ReadPolicy, ServerState, SnapshotPolicy};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::committer::{Committer, Failure};
use crate::consensus::{
    self, Command, LogAdapter, MachineAdapter, NoPeers, Raft, Shared, TypeConfig,
};
use crate::directory::{self, Recovered};
use crate::error::{OpenError, ProposeError};
use crate::log::LogStore;
use crate::machine::Machine;
use crate::options::NodeOptions;
use crate::snapshot::SnapshotStore;
use crate::status::Status;
use shardfeed_host::{Disk, RealDisk};

/// A single member elects itself in two disk writes; a disk that needs longer is broken.
const LEADERSHIP_WAIT: Duration = Duration::from_secs(30);

/// A command's place in the log, and the machine's answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The command's index in the log.
    pub index: u64,
    /// What the machine answered.
    pub answer: Vec<u8>,
}

/// One member of the cluster. A handle: copies share the node.
/// Ensures: what `propose` answered survives any crash, and every replica applied it at that index.
pub struct Node<M: Machine> {
    inner: Arc<Inner<M>>,
}

struct Inner<M: Machine> {
    raft: Raft<M>,
    machine: Arc<Shared<M>>,
    committer: Committer,
    snapshots: Arc<SnapshotStore>,
    cluster_id: String,
    propose_timeout_ms: u64,
    closing: AtomicBool,
    compaction: JoinHandle<()>,
}

impl<M: Machine> Drop for Inner<M> {
    fn drop(&mut self) {
        self.compaction.abort();
    }
}

impl<M: Machine> Clone for Node<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<M: Machine> fmt::Debug for Node<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("cluster_id", &self.inner.cluster_id).finish_non_exhaustive()
    }
}

impl<M: Machine> Node<M> {
    /// Opens the node in `options.dir`: recovers it, or bootstraps a pristine directory as a cluster of
    /// one. A single member leads and has replayed its whole log when this returns.
    /// - `machine`: in its initial state; snapshot and log are replayed into it.
    /// # Errors  [`OpenError`] says what is wrong, where, and what to do.
    pub async fn open(options: NodeOptions, machine: M) -> Result<Self, OpenError> {
        options.validate()?;
        let disk = RealDisk::new(&options.dir)
            .map_err(|source| OpenError::Io { path: options.dir.display().to_string(), source })?;
        Self::open_on(Arc::new(disk), options, machine).await
    }

    /// Opens the node on another disk than the file system's, such as one that fails on purpose.
    /// `options.dir` is not looked at.
    /// # Errors  As [`Node::open`].
    pub async fn open_on(
        disk: Arc<dyn Disk>,
        options: NodeOptions,
        mut machine: M,
    ) -> Result<Self, OpenError> {
        options.validate()?;
        let recovery = tokio::task::spawn_blocking(move || {
            directory::recover(&disk, &options, &mut machine).map(|found| (found, options, machine))
        });
        let (recovered, options, machine) = recovery.await.map_err(start_error)??;
        let node = Self::start(recovered, &options, machine).await?;
        if let Err(error) = node.take_office(&options).await {
            node.shutdown().await;
            return Err(error);
        }
        Ok(node)
    }

    async fn start(
        recovered: Recovered,
        options: &NodeOptions,
        machine: M,
    ) -> Result<Self, OpenError> {
        let Recovered { lock, cluster, log, snapshots, restored } = recovered;
        let failure = Failure::default();
        let machine = Arc::new(Shared::new(machine, failure.clone()));
        let snapshots = Arc::new(snapshots);
        let adapter = MachineAdapter::new(machine.clone(), snapshots.clone(), restored.as_ref())
            .map_err(start_error)?;
        let config = Arc::new(config(options)?);
        let state = log.state();
        tracing::info!(%cluster, node = options.node_id, ?state, "log opened");
        let committer = Committer::start(log, lock, failure).map_err(start_error)?;
        let log = LogAdapter::new(committer.clone());
        let raft = Raft::new(options.node_id, config, NoPeers, log, adapter).await;
        let raft = raft.map_err(start_error)?;
        let compaction = tokio::spawn(compact(raft.clone(), snapshots.forgettable()));
        let inner = Inner {
            raft,
            machine,
            committer,
            snapshots,
            cluster_id: Uuid::to_string(&cluster),
            propose_timeout_ms: options.propose_timeout_ms,
            closing: AtomicBool::new(false),
            compaction,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes a pristine node a cluster of one; lets a single voter campaign at once, as it has nobody
    /// to wait for.
    async fn take_office(&self, options: &NodeOptions) -> Result<(), OpenError> {
        let raft = &self.inner.raft;
        let failed = |error: &dyn fmt::Display| OpenError::Start {
            reason: match self.inner.machine.failure.message() {
                Some(message) => message.to_owned(),
                None => error.to_string(),
            },
        };
        if raft.is_initialized().await.map_err(|e| failed(&e))? {
            let membership = raft.metrics().borrow_watched().membership_config.clone();
            let members = consensus::members(membership.membership());
            if !members.voters.iter().all(|voters| voters.iter().eq([&options.node_id])) {
                return Ok(());
            }
            raft.trigger().elect(false).await.map_err(|e| failed(&e))?;
        } else {
            // The first member campaigns by itself once it is initialized.
            let me = BTreeMap::from([(options.node_id, BasicNode::default())]);
            raft.initialize(me).await.map_err(|e| failed(&e))?;
        }
        let leads = raft.wait(Some(LEADERSHIP_WAIT)).state(ServerState::Leader, "open").await;
        leads.map_err(|e| failed(&e))?;
        self.linearize().await.map_err(|e| failed(&e))
    }

    /// Appends a command, and answers when it is durable on a majority and applied here.
    /// # Errors  [`ProposeError`]; each variant says whether the command may still take effect.
    pub async fn propose(&self, command: Vec<u8>) -> Result<Applied, ProposeError> {
        self.refuse_if_stopped()?;
        let written = self.in_time(self.inner.raft.client_write(Command::from(command))).await?;
        match written {
            Ok(applied) => Ok(Applied { index: applied.log_id.index, answer: applied.data.0 }),
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal)),
            Err(RaftError::APIError(error)) => Err(write_error(error)),
        }
    }

    /// Shows the machine as of the last applied entry, under a lock: be short.
    /// After `linearize`, that includes everything acknowledged before.
    /// # Panics  If the machine panicked in `apply`; the node has stopped then.
    pub fn read<T>(&self, view: impl FnOnce(&M) -> T) -> T {
        self.inner.machine.read(view)
    }

    /// Waits until this node has proved that it leads and has applied all that was acknowledged by any
    /// leader before this call.
    /// # Errors  As [`Node::propose`]; nothing was appended.
    pub async fn linearize(&self) -> Result<(), ProposeError> {
        self.refuse_if_stopped()?;
        let read = self.in_time(self.inner.raft.ensure_linearizable(ReadPolicy::ReadIndex)).await?;
        match read {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal)),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(ProposeError::NotLeader { hint: forward.leader_id })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ProposeError::NotLeader { hint: None })
            }
        }
    }

    /// This node's place in the log and the cluster.
    pub fn status(&self) -> Status {
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        let fatal = match &metrics.running_state {
            Err(fatal) if !matches!(fatal, Fatal::Stopped) => Some(fatal.to_string()),
            _ => None,
        };
        let fatal = self.failure_message().or(fatal);
        Status {
            node_id: metrics.id,
            term: metrics.current_term,
            leader: metrics.current_leader,
            is_leader: metrics.state == ServerState::Leader && fatal.is_none(),
            last: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index),
            applied: metrics.last_applied.map(|id| id.index),
            snapshot: metrics.snapshot.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            fatal,
        }
    }

    /// The cluster's id: a UUID made at bootstrap, and stamped into every file.
    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster_id
    }

    /// Saves a snapshot that covers at least what is applied now.
    /// - Returns the last index it covers.
    /// # Errors  As [`Node::propose`]; without an applied entry, `Timeout`.
    pub async fn snapshot_now(&self) -> Result<u64, ProposeError> {
        self.refuse_if_stopped()?;
        let mut metrics = self.inner.raft.metrics();
        let wanted = metrics.borrow_watched().last_applied.map(|id| id.index);
        let saved = async {
            loop {
                let found = metrics.borrow_watched().snapshot.map(|id| id.index);
                if let Some(index) = found.filter(|_| found >= wanted) {
                    return Ok(index);
                }
                // One that is being made already may stop short of `wanted`: ask again after it.
                self.inner.raft.trigger().snapshot().await.map_err(|e| self.stopped(&e))?;
                metrics.changed().await.map_err(|_| self.stopped(&Fatal::Stopped))?;
            }
        };
        self.in_time(saved).await?
    }

    /// Stops the node, and returns when its directory can be opened again. Other handles of it answer
    /// `ShuttingDown` from now on.
    pub async fn shutdown(self) {
        self.inner.closing.store(true, Ordering::Release);
        self.inner.compaction.abort();
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::error!(%error, "consensus did not end in good order");
        }
        let snapshots = self.inner.snapshots.clone();
        // It fails only if the runtime is going down, and then nothing is saved either.
        let _ = tokio::task::spawn_blocking(move || snapshots.close()).await;
        self.inner.committer.stop().await;
    }

    fn refuse_if_stopped(&self) -> Result<(), ProposeError> {
        if let Some(message) = self.failure_message() {
            return Err(ProposeError::Stopped { message });
        }
        if self.inner.closing.load(Ordering::Acquire) {
            return Err(ProposeError::ShuttingDown);
        }
        Ok(())
    }

    fn failure_message(&self) -> Option<String> {
        self.inner.machine.failure.message().map(str::to_owned)
    }

    fn stopped(&self, fatal: &Fatal<TypeConfig>) -> ProposeError {
        match (self.failure_message(), fatal) {
            (Some(message), _) => ProposeError::Stopped { message },
            (None, Fatal::Stopped) => ProposeError::ShuttingDown,
            (None, other) => ProposeError::Stopped { message: other.to_string() },
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, ProposeError> {
        let waited_ms = self.inner.propose_timeout_ms;
        let deadline = Instant::now() + Duration::from_millis(waited_ms);
        timeout_at(deadline, work).await.map_err(|_| ProposeError::Timeout { waited_ms })
    }
}

fn config(options: &NodeOptions) -> Result<Config, OpenError> {
    let config = Config {
        cluster_name: options.cluster_name.clone(),
        heartbeat_interval: options.heartbeat_ms,
        election_timeout_min: options.election_min_ms,
        election_timeout_max: options.election_max_ms,
        enable_pre_vote: Some(true),
        // The committed mark on disk lags: a leader must win a term, and commit in it, to know more.
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(options.snapshot_every),
        // `compact` purges, and knows which snapshots there are.
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: options.snapshot_every.saturating_mul(2),
        ..Config::default()
    };
    config.validate().map_err(|e| OpenError::Options { reason: e.to_string() })
}

/// Lets the log forget, after each snapshot, what the one before it covers already.
async fn compact<M: Machine>(raft: Raft<M>, mut forgettable: watch::Receiver<u64>) {
    loop {
        let entries = *forgettable.borrow_and_update();
        if entries > 0 && raft.trigger().purge_log(entries - 1).await.is_err() {
            return;
        }
        if forgettable.changed().await.is_err() {
            return;
        }
    }
}

fn write_error(error: ClientWriteError<TypeConfig>) -> ProposeError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => {
            ProposeError::NotLeader { hint: forward.leader_id }
        }
        ClientWriteError::LogEntryDiscarded(forward) => {
            ProposeError::Unknown { hint: forward.leader_id }
        }
        // Only membership changes and conditional writes meet these; a proposal is neither.
        other => ProposeError::Stopped { message: other.to_string() },
    }
}

fn start_error(error: impl fmt::Display) -> OpenError {
    OpenError::Start { reason: error.to_string() }
}
