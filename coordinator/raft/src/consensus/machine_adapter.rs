//! openraft's state machine traits on a [`Machine`] and the snapshot store.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, RwLock};

use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};

use super::convert;
use super::types::{Answer, LogId, Snapshot, SnapshotMeta, StoredMembership, TypeConfig};
use crate::committer::Failure;
use crate::machine::Machine;
use crate::snapshot::{self, SnapshotStore};

/// The machine, shared between the log that drives it and those who look at it.
#[derive(Debug)]
pub(crate) struct Shared<M> {
    machine: RwLock<M>,
    pub(crate) failure: Failure,
}

impl<M: Machine> Shared<M> {
    pub(crate) fn new(machine: M, failure: Failure) -> Self {
        Self { machine: RwLock::new(machine), failure }
    }

    pub(crate) fn read<T>(&self, view: impl FnOnce(&M) -> T) -> T {
        view(&self.machine.read().expect("a machine that panicked in `apply` is never shown"))
    }

    /// A panic leaves the machine half changed: the lock stays poisoned and the node stops.
    fn change<T>(&self, index: u64, work: impl FnOnce(&mut M) -> T) -> io::Result<T> {
        let changed = catch_unwind(AssertUnwindSafe(|| {
            let mut machine = self.machine.write().expect("a node that panicked applies no more");
            work(&mut machine)
        }));
        changed.map_err(|_| {
            let message = format!("the machine panicked at index {index}");
            self.failure.note(message.clone());
            io::Error::other(message)
        })
    }
}

/// The machine as openraft drives it: in memory, rebuilt from the newest snapshot and the log.
#[derive(Debug)]
pub(crate) struct MachineAdapter<M> {
    shared: Arc<Shared<M>>,
    snapshots: Arc<SnapshotStore>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl<M: Machine> MachineAdapter<M> {
    /// - `restored`: the snapshot that the machine's state was taken from.
    pub(crate) fn new(
        shared: Arc<Shared<M>>,
        snapshots: Arc<SnapshotStore>,
        restored: Option<&snapshot::SnapshotMeta>,
    ) -> io::Result<Self> {
        let membership = restored.map(convert::stored).transpose()?.unwrap_or_default();
        let applied = restored.and_then(|meta| meta.last).map(convert::log_id);
        Ok(Self { shared, snapshots, applied, membership })
    }
}

impl<M: Machine> RaftStateMachine<TypeConfig> for MachineAdapter<M> {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let index = entry.log_id.index;
            let answer = match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(command) => {
                    self.shared.change(index, |machine| machine.apply(index, &command.0))?
                }
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Vec::new()
                }
            };
            self.applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(Answer(answer));
            }
        }
        Ok(())
    }

    /// Takes the state at once, so that it belongs to `applied`, but off the async threads.
    async fn get_snapshot_builder(&mut self) -> Builder {
        let shared = self.shared.clone();
        let state = tokio::task::spawn_blocking(move || shared.read(Machine::snapshot)).await;
        Builder {
            meta: convert::our_meta(self.applied, &self.membership),
            state: state.map_err(|e| format!("the machine's state could not be encoded: {e}")),
            snapshots: self.snapshots.clone(),
            failure: self.shared.failure.clone(),
        }
    }

    /// The file is durable before the machine is changed: a crash in between finds the snapshot.
    async fn install_snapshot(&mut self, meta: &SnapshotMeta, state: Vec<u8>) -> io::Result<()> {
        let meta = convert::our_meta(meta.last_log_id, &meta.last_membership);
        let index = meta.last.map_or(0, |last| last.index);
        let (applied, membership) = (meta.last.map(convert::log_id), convert::stored(&meta)?);
        let snapshot = save(self.snapshots.clone(), &self.shared.failure, meta, state).await?;
        let restored = self.shared.change(index, |machine| machine.restore(&snapshot.state))?;
        restored.map_err(io::Error::other)?;
        (self.applied, self.membership) = (applied, membership);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let snapshots = self.snapshots.clone();
        let newest = tokio::task::spawn_blocking(move || snapshots.newest()).await;
        newest.map_err(io::Error::other)??.map(raft_snapshot).transpose()
    }
}

/// A state on its way to disk.
#[derive(Debug)]
pub(crate) struct Builder {
    meta: snapshot::SnapshotMeta,
    state: Result<Vec<u8>, String>,
    snapshots: Arc<SnapshotStore>,
    failure: Failure,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let state = std::mem::replace(&mut self.state, Err("it was saved already".to_owned()));
        let state = state.map_err(io::Error::other)?;
        let snapshot =
            save(self.snapshots.clone(), &self.failure, self.meta.clone(), state).await?;
        raft_snapshot(snapshot)
    }
}

async fn save(
    snapshots: Arc<SnapshotStore>,
    failure: &Failure,
    meta: snapshot::SnapshotMeta,
    state: Vec<u8>,
) -> io::Result<snapshot::Snapshot> {
    let saved = tokio::task::spawn_blocking(move || {
        let snapshot = snapshot::Snapshot { meta, state };
        snapshots.save(&snapshot).map(|()| snapshot)
    });
    let saved = saved.await.map_err(io::Error::other)?;
    saved.inspect_err(|error| failure.note(format!("a snapshot could not be saved: {error}")))
}

fn raft_snapshot(snapshot: snapshot::Snapshot) -> io::Result<Snapshot> {
    Ok(Snapshot { meta: convert::raft_meta(&snapshot.meta)?, snapshot: snapshot.state })
}
