//! One member of the cluster: accepts proposals, answers other nodes, gives access to its machine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{
    ClientWriteError, Fatal, ForwardToLeader, LinearizableReadError, RaftError,
};
use openraft::{ReadPolicy, ServerState};
use shardfeed_host::{Disk, Host, blocking};
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::consensus::{Raft, RaftCommand, Receiver, Shared, TypeConfig};
use crate::error::{ChangeError, OpenError, ProposeError};
use crate::machine::Machine;
use crate::network::links::Links;
use crate::network::message::{Envelope, Message, PeerAnswer};
use crate::network::peers::{Peer, PeerError, Peers};
use crate::opening;
use crate::options::NodeOptions;
use crate::status::{Leadership, Status};
use crate::storage::committer::Committer;
use crate::storage::redb_log::{LogMeter, SyncMeter};
use crate::storage::snapshot::SnapshotStore;

/// A command's log index, and the machine's answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedCommand<A> {
    pub index: u64,
    pub answer: A,
}

#[derive(Debug, Clone)]
pub struct Footing {
    pub host: Arc<dyn Host>,
    pub disk: Arc<dyn Disk>,
    pub peers: Arc<dyn Peers>,
    /// Receiver of the times that syncs of the log take.
    pub syncs: Option<Arc<dyn SyncMeter>>,
}

/// One member of the cluster. A handle: its clones share the node. Ensures: a command that
/// `propose` answered survives any crash; every replica applies it there.
pub struct Node<M: Machine> {
    pub(crate) inner: Arc<NodeInner<M>>,
}

pub(crate) struct NodeInner<M: Machine> {
    pub(crate) raft: Raft,
    pub(crate) machine: Arc<Shared<M>>,
    pub(crate) committer: Committer,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) log_meter: Arc<LogMeter>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) links: Arc<Links>,
    pub(crate) receiver: Receiver,
    pub(crate) options: NodeOptions,
    pub(crate) cluster_id: String,
    pub(crate) leadership: watch::Receiver<Leadership>,
    /// Locked by the task that changes the members.
    pub(crate) changing: Arc<Mutex<()>>,
    /// Last term in which this node handed over leadership, or tried to.
    pub(crate) handed_over: AtomicU64,
    pub(crate) closing: AtomicBool,
    pub(crate) tasks: Vec<AbortHandle>,
}

impl<M: Machine> Drop for NodeInner<M> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl<M: Machine> Clone for Node<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<M: Machine> fmt::Debug for Node<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cluster, node) = (&self.inner.cluster_id, self.inner.options.node_id);
        f.debug_struct("Node").field("cluster_id", cluster).field("node_id", &node).finish()
    }
}

impl<M: Machine> Node<M> {
    /// Opens a node: recovers it, or starts a pristine disk as `options.start` says. On return a
    /// single voter leads and has replayed its whole log; any other node participates from now on,
    /// and its messages must reach [`Node::handle`].
    /// - `machine`: in its initial state; snapshot and log are replayed into it.
    pub async fn open(
        footing: Footing,
        options: NodeOptions,
        machine: M,
    ) -> Result<Self, OpenError> {
        opening::open(footing, options, machine).await
    }

    /// Answers a message that another node sent through its [`Peers`].
    /// - `from`: the sender, as identified by the transport.
    /// # Errors  `Refused` if the two nodes do not belong together; `Unreachable` if this node has
    /// stopped. The transport returns both to the sender unchanged.
    pub async fn handle(&self, from: u64, message: &[u8]) -> Result<Vec<u8>, PeerError> {
        let inner = &self.inner;
        let (sender, message) = inner.receiver.open(from, message)?;
        let stopped = |reason| PeerError::Unreachable { node: inner.options.node_id, reason };
        self.refuse_if_stopped().map_err(|error| stopped(error.to_string()))?;
        let answer = match message {
            Message::Moved { address } => done(self.move_member(from, address).await),
            Message::Remove { node } => done(self.remove_member(node).await),
            other => {
                let answer = inner.receiver.answer(other).await;
                answer.map_err(|error| stopped(error.to_string()))?
            }
        };
        let envelope = Envelope { from: inner.links.me, to: sender };
        Ok(answer.encode(inner.links.cluster, envelope))
    }

    /// Appends a command, and returns when it is durable on a majority and applied here.
    /// # Errors  [`ProposeError`]; each variant says whether the command may still take effect.
    pub async fn propose(
        &self,
        command: Vec<u8>,
    ) -> Result<AppliedCommand<M::Answer>, ProposeError> {
        self.refuse_if_stopped()?;
        let written =
            self.in_time(self.inner.raft.client_write(RaftCommand::from(command))).await?;
        match written {
            Ok(applied) => {
                let answer = applied.data.answer.and_then(|answer| answer.downcast().ok());
                let answer = *answer.expect("the machine answers each of its commands");
                Ok(AppliedCommand { index: applied.log_id.index, answer })
            }
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal)),
            Err(RaftError::APIError(error)) => Err(self.write_error(error)),
        }
    }

    /// Runs `view` on the machine as of the last applied entry, under a lock: `view` must be short.
    /// After `linearize`, the machine includes everything acknowledged before.
    /// # Panics  If the machine panicked in `apply`; the node has then stopped.
    pub fn read<T>(&self, view: impl FnOnce(&M) -> T) -> T {
        self.inner.machine.read(view)
    }

    /// Returns the index of the last applied entry, 0 if none, and the hash of the state there.
    /// Nodes that return the same index must return the same hash.
    /// # Panics  As [`Node::read`].
    pub fn state_hash(&self) -> (u64, [u8; 32]) {
        let (applied, hash) = self.inner.machine.read_at(Machine::hash);
        (applied.unwrap_or(0), hash)
    }

    /// Returns the index of the last applied entry, and the state there for
    /// [`restore`](crate::restore).
    /// # Panics  As [`Node::read`].
    pub fn export(&self) -> (u64, Vec<u8>) {
        let (applied, state) = self.inner.machine.read_at(Machine::snapshot);
        (applied.unwrap_or(0), state)
    }

    /// Waits until this node proved that it leads and applied all that was acknowledged before.
    /// # Errors  As [`Node::propose`]; nothing was appended.
    pub async fn linearize(&self) -> Result<(), ProposeError> {
        self.refuse_if_stopped()?;
        let read = self.in_time(self.inner.raft.ensure_linearizable(ReadPolicy::ReadIndex)).await?;
        match read {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal)),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(ProposeError::NotLeader { leader: self.leader_of(&forward) })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ProposeError::NotLeader { leader: None })
            }
        }
    }

    /// Returns the time since the newest message was sent that a majority has answered.
    ///
    /// No other leader is elected before this time exceeds the longest election timeout. `None` if
    /// the node does not lead, has no answer yet, or hands over: its successor awaits no timeout.
    pub fn heard_majority(&self) -> Option<Duration> {
        let metrics = self.inner.raft.metrics();
        let (acked, term) = {
            let metrics = metrics.borrow_watched();
            (metrics.last_quorum_acked, metrics.current_term)
        };
        let hands_over = self.inner.handed_over.load(Ordering::Acquire) == term;
        acked.filter(|_| !hands_over).map(|sent| sent.elapsed())
    }

    /// Returns the leadership as this node sees it; the receiver is notified of each change.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

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
            log_bytes: self.inner.log_meter.bytes(),
            snapshot_bytes: self.inner.snapshots.bytes(),
            fatal,
        }
    }

    /// Returns the cluster's id: a UUID made at bootstrap, and written to every file and message.
    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster_id
    }

    /// Stops the node, and returns when its directory can be opened again. Other handles to it
    /// return `ShuttingDown` from now on.
    pub async fn shutdown(self) {
        let inner = &self.inner;
        inner.closing.store(true, Ordering::Release);
        inner.tasks.iter().for_each(AbortHandle::abort);
        if let Err(error) = inner.raft.shutdown().await {
            tracing::error!(%error, "consensus did not end in good order");
        }
        let snapshots = inner.snapshots.clone();
        // It fails only if the runtime is shutting down, and then nothing is saved either.
        let _ = blocking(inner.host.as_ref(), move || snapshots.close()).await;
        inner.committer.stop().await;
    }

    pub(crate) fn refuse_if_stopped(&self) -> Result<(), ProposeError> {
        if let Some(message) = self.failure_message() {
            return Err(ProposeError::Stopped { message });
        }
        if self.inner.closing.load(Ordering::Acquire) {
            return Err(ProposeError::ShuttingDown);
        }
        Ok(())
    }

    pub(crate) fn failure_message(&self) -> Option<String> {
        self.inner.machine.failure.message().map(str::to_owned)
    }

    pub(crate) fn stopped(&self, fatal: &Fatal<TypeConfig>) -> ProposeError {
        match (self.failure_message(), fatal) {
            (Some(message), _) => ProposeError::Stopped { message },
            (None, Fatal::Stopped) => ProposeError::ShuttingDown,
            (None, other) => ProposeError::Stopped { message: other.to_string() },
        }
    }

    pub(crate) fn leader_of(&self, forward: &ForwardToLeader<TypeConfig>) -> Option<Peer> {
        let (node, place) = (forward.leader_id?, forward.leader_node.as_ref());
        let address = place.map(|place| place.address.clone());
        Some(Peer { node, address: address.unwrap_or_default() })
    }

    pub(crate) fn write_error(&self, error: ClientWriteError<TypeConfig>) -> ProposeError {
        match error {
            ClientWriteError::ForwardToLeader(forward) => {
                ProposeError::NotLeader { leader: self.leader_of(&forward) }
            }
            ClientWriteError::LogEntryDiscarded(forward) => {
                ProposeError::Unknown { leader: self.leader_of(&forward) }
            }
            // Only membership changes and conditional writes return these; a proposal is neither.
            other => ProposeError::Stopped { message: other.to_string() },
        }
    }

    fn deadline(&self) -> Instant {
        self.inner.host.now() + Duration::from_millis(self.inner.options.propose_timeout_ms)
    }

    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, ProposeError> {
        let waited_ms = self.inner.options.propose_timeout_ms;
        timeout_at(self.deadline(), work).await.map_err(|_| ProposeError::Timeout { waited_ms })
    }
}

fn done(result: Result<(), ChangeError>) -> PeerAnswer {
    match result {
        Ok(()) => PeerAnswer::Done,
        Err(error) => PeerAnswer::Failed { reason: error.to_string() },
    }
}
