//! openraft's state machine traits, implemented by a [`Machine`] and the snapshot store.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use shardfeed_host::{Host, blocking};

use super::convert;
use super::types::{
    LogId, RaftAnswer, RaftSnapshot, RaftSnapshotMeta, StoredMembership, TypeConfig,
};
use crate::machine::{AnyMachine, Machine, MachineError};
use crate::storage::committer::StopReason;
use crate::storage::record::Position;
use crate::storage::snapshot::{self, SnapshotMeta, SnapshotStore};

/// The machine, shared between the log that drives it and its readers.
#[derive(Debug)]
pub(crate) struct Shared<M: ?Sized> {
    pub(crate) failure: StopReason,
    held: RwLock<AppliedMachine<M>>,
}

#[derive(Debug)]
struct AppliedMachine<M: ?Sized> {
    /// Last entry applied, or restored.
    applied: Option<Position>,
    /// Every node number that a member ever had.
    used: BTreeSet<u64>,
    machine: M,
}

impl<M: Machine> Shared<M> {
    /// - `restored`: snapshot from which the machine's state was restored.
    pub(crate) fn new(machine: M, restored: Option<&SnapshotMeta>, failure: StopReason) -> Self {
        let applied = restored.and_then(|meta| meta.last);
        let used = restored.map(known_numbers).unwrap_or_default();
        Self { failure, held: RwLock::new(AppliedMachine { applied, used, machine }) }
    }
}

impl<M: ?Sized> Shared<M> {
    pub(crate) fn read<T>(&self, view: impl FnOnce(&M) -> T) -> T {
        view(&self.held().machine)
    }

    /// Like `read`, with the index of the last entry applied to the machine.
    pub(crate) fn read_at<T>(&self, view: impl FnOnce(&M) -> T) -> (Option<u64>, T) {
        let held = self.held();
        (held.applied.map(|position| position.index), view(&held.machine))
    }

    /// True if a node ever had this number, according to the entries applied here.
    pub(crate) fn was_used(&self, node: u64) -> bool {
        self.held().used.contains(&node)
    }

    fn held(&self) -> RwLockReadGuard<'_, AppliedMachine<M>> {
        self.held.read().expect("a machine that panicked in `apply` is never shown")
    }

    /// A panic leaves the machine half changed: the lock stays poisoned and the node stops.
    fn change<T>(&self, at: u64, work: impl FnOnce(&mut AppliedMachine<M>) -> T) -> io::Result<T> {
        let changed = catch_unwind(AssertUnwindSafe(|| {
            let mut held = self.held.write().expect("a node that panicked applies no more");
            work(&mut held)
        }));
        changed.map_err(|_| self.failure.fail(format!("the machine panicked at index {at}")))
    }
}

/// Returns the numbers in a snapshot; one of an earlier release lists only current members.
fn known_numbers(meta: &SnapshotMeta) -> BTreeSet<u64> {
    meta.used.iter().chain(meta.members.addresses.keys()).copied().collect()
}

/// The machine as openraft drives it: in memory, rebuilt from the newest snapshot and the log.
pub(crate) struct MachineAdapter {
    host: Arc<dyn Host>,
    shared: Arc<Shared<dyn AnyMachine>>,
    snapshots: Arc<SnapshotStore>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl MachineAdapter {
    /// - `restored`: snapshot from which the machine's state was restored.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        shared: Arc<Shared<dyn AnyMachine>>,
        snapshots: Arc<SnapshotStore>,
        restored: Option<&SnapshotMeta>,
    ) -> io::Result<Self> {
        let membership = restored.map(convert::stored).transpose()?.unwrap_or_default();
        let applied = restored.and_then(|meta| meta.last).map(convert::log_id);
        Ok(Self { host, shared, snapshots, applied, membership })
    }
}

impl RaftStateMachine<TypeConfig> for MachineAdapter {
    type SnapshotData = snapshot::Snapshot;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let (log_id, position) = (entry.log_id, convert::position(&entry.log_id));
            let index = position.index;
            let answer = self.shared.change(index, |held| {
                let answer = match &entry.payload {
                    EntryPayload::Blank => None,
                    EntryPayload::Normal(command) => Some(held.machine.apply(index, &command.0)?),
                    EntryPayload::Membership(membership) => {
                        held.used.extend(membership.nodes().map(|(node, _)| *node));
                        None
                    }
                };
                held.applied = Some(position);
                Ok(answer)
            })?;
            let answer = answer.map_err(|error: MachineError| {
                let what = format!("the command at index {index} cannot be applied: {error}");
                self.shared.failure.fail(what)
            })?;
            if let EntryPayload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(Some(log_id), membership);
            }
            self.applied = Some(log_id);
            if let Some(responder) = responder {
                responder.send(RaftAnswer { answer });
            }
        }
        Ok(())
    }

    /// Encodes the state at once, so that it belongs to `applied`, but off the async threads.
    async fn get_snapshot_builder(&mut self) -> Builder {
        let shared = self.shared.clone();
        let used = shared.held().used.clone();
        let state =
            blocking(self.host.as_ref(), move || shared.read(|machine| machine.snapshot())).await;
        Builder {
            host: self.host.clone(),
            meta: convert::our_meta(self.applied, &self.membership, used),
            state: state.map_err(|e| format!("the machine's state could not be encoded: {e}")),
            snapshots: self.snapshots.clone(),
            failure: self.shared.failure.clone(),
        }
    }

    /// The file is durable before the machine changes: recovery after a crash in between uses it.
    async fn install_snapshot(
        &mut self,
        meta: &RaftSnapshotMeta,
        snapshot: snapshot::Snapshot,
    ) -> io::Result<()> {
        let used = snapshot.meta.used.clone();
        let meta = convert::our_meta(meta.last_log_id, &meta.last_membership, used);
        let index = meta.last.map_or(0, |last| last.index);
        let (applied, membership) = (meta.last.map(convert::log_id), convert::stored(&meta)?);
        let failure = &self.shared.failure;
        let snapshot = snapshot::Snapshot { meta, state: snapshot.state };
        let snapshot = save(self.host.as_ref(), self.snapshots.clone(), failure, snapshot).await?;
        let restored = self.shared.change(index, |held| {
            held.applied = snapshot.meta.last;
            held.used = known_numbers(&snapshot.meta);
            held.machine.restore(&snapshot.state)
        })?;
        restored.map_err(|error| {
            let message = format!("the leader's snapshot cannot be restored: {error}");
            self.shared.failure.note(message);
            io::Error::other(error)
        })?;
        (self.applied, self.membership) = (applied, membership);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        let snapshots = self.snapshots.clone();
        let newest = blocking(self.host.as_ref(), move || snapshots.newest()).await;
        newest??.map(raft_snapshot).transpose()
    }
}

#[derive(Debug)]
pub(crate) struct Builder {
    host: Arc<dyn Host>,
    meta: SnapshotMeta,
    state: Result<Vec<u8>, String>,
    snapshots: Arc<SnapshotStore>,
    failure: StopReason,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = snapshot::Snapshot;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        let state = std::mem::replace(&mut self.state, Err("it was saved already".to_owned()));
        let state = state.map_err(io::Error::other)?;
        let snapshot = snapshot::Snapshot { meta: self.meta.clone(), state };
        let host = self.host.as_ref();
        let snapshot = save(host, self.snapshots.clone(), &self.failure, snapshot).await?;
        raft_snapshot(snapshot)
    }
}

async fn save(
    host: &dyn Host,
    snapshots: Arc<SnapshotStore>,
    failure: &StopReason,
    snapshot: snapshot::Snapshot,
) -> io::Result<snapshot::Snapshot> {
    let saved = blocking(host, move || snapshots.save(&snapshot).map(|()| snapshot)).await?;
    saved.inspect_err(|error| failure.note(format!("a snapshot could not be saved: {error}")))
}

fn raft_snapshot(snapshot: snapshot::Snapshot) -> io::Result<RaftSnapshot> {
    Ok(RaftSnapshot { meta: convert::raft_meta(&snapshot.meta)?, snapshot })
}
