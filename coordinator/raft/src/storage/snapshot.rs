//! Snapshots: immutable files, each a header and the machine's whole state. The last two are kept.
//!
//! A file is written under another name, synced, renamed, and its directory synced: a truncated
//! file never has a snapshot's name. Its header is framed and has the state's length and SHA-256.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use uuid::Uuid;

use crate::error::OpenError;
use crate::storage::framing::{self, FrameError, FrameKind};
use crate::storage::record::{Members, Position};
use shardfeed_host::Disk;

/// Snapshots to keep: the newest, and the previous one in case the newest cannot be read.
const KEPT: usize = 2;
const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".snap";
const UNFINISHED: &str = "snapshot.new";
const DAMAGED: &str = ".damaged";

/// Log position and members of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotMeta {
    /// Last entry applied to the state.
    pub(crate) last: Option<Position>,
    /// Entry that set the members.
    pub(crate) members_at: Option<Position>,
    pub(crate) members: Members,
    /// Every node number that a member ever had. None of them may be given to another node.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) used: BTreeSet<u64>,
}

impl SnapshotMeta {
    /// Returns the number of log entries that the state covers.
    pub(crate) fn entries(&self) -> u64 {
        self.last.map_or(0, |last| last.index + 1)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotHeader {
    meta: SnapshotMeta,
    state_bytes: u64,
    state_sha256: String,
}

#[derive(Debug)]
pub(crate) struct SnapshotStore {
    disk: Arc<dyn Disk>,
    cluster: Uuid,
    kept: Mutex<Kept>,
    /// Size of the newest snapshot's file; 0: there is none.
    bytes: AtomicU64,
    forgettable: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Entries covered by each good snapshot, ascending.
    entries: Vec<u64>,
    closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) meta: SnapshotMeta,
    pub(crate) state: Vec<u8>,
}

impl SnapshotStore {
    /// Opens the store, and returns the newest good snapshot. Damaged ones are renamed.
    /// # Errors  A snapshot of another cluster or of a newer release is rejected, not skipped.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        cluster: Uuid,
    ) -> Result<(Self, Option<Snapshot>), OpenError> {
        let io = |name: &str, source| OpenError::Io { path: disk.path_text(name), source };
        let names = disk.list().map_err(|e| io("", e))?;
        if names.iter().any(|name| name == UNFINISHED) {
            disk.remove(UNFINISHED).map_err(|e| io(UNFINISHED, e))?;
        }
        let mut entries: Vec<u64> = names.iter().filter_map(|name| entries_of(name)).collect();
        entries.sort_unstable();
        let (mut newest, mut newest_bytes) = (None, 0);
        let mut good = Vec::new();
        for covered in entries.into_iter().rev() {
            let name = name_of(covered);
            let bytes = disk.read(&name).map_err(|e| io(&name, e))?;
            match decode(cluster, &bytes) {
                Ok(snapshot) if snapshot.meta.entries() == covered => {
                    good.insert(0, covered);
                    if newest.is_none() {
                        (newest, newest_bytes) = (Some(snapshot), bytes.len() as u64);
                    }
                }
                Ok(_) => set_aside(disk.as_ref(), &name, "it is another snapshot by its header")?,
                Err(error) if fatal(&error) => {
                    return Err(open_error(disk.path_text(&name), &error));
                }
                Err(error) => set_aside(disk.as_ref(), &name, &error.to_string())?,
            }
        }
        let forgettable = watch::Sender::new(forgettable(&good));
        let kept = Mutex::new(Kept { entries: good, closed: false });
        let bytes = AtomicU64::new(newest_bytes);
        Ok((Self { disk, cluster, kept, bytes, forgettable }, newest))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// True if a directory listing contains snapshots.
    pub(crate) fn any(names: &[String]) -> bool {
        names.iter().any(|name| entries_of(name).is_some())
    }

    /// True if this store leaves files of this name in the directory.
    pub(crate) fn owns(name: &str) -> bool {
        name == UNFINISHED || entries_of(name.trim_end_matches(DAMAGED)).is_some()
    }

    /// Makes a snapshot durable, then removes those before the last two. A late one is not kept, if
    /// a newer snapshot of the leader was installed meanwhile.
    pub(crate) fn save(&self, snapshot: &Snapshot) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.closed {
            return Err(io::Error::other("the node is shutting down"));
        }
        let covered = snapshot.meta.entries();
        if kept.entries.last().is_some_and(|&newest| newest >= covered) {
            return Ok(());
        }
        let bytes = encode(self.cluster, snapshot);
        self.disk.write(UNFINISHED, &bytes)?;
        self.disk.rename(UNFINISHED, &name_of(covered))?;
        kept.entries.push(covered);
        self.bytes.store(bytes.len() as u64, Ordering::Relaxed);
        while kept.entries.len() > KEPT {
            self.disk.remove(&name_of(kept.entries.remove(0)))?;
        }
        self.forgettable.send_replace(forgettable(&kept.entries));
        tracing::info!(entries = covered, bytes = snapshot.state.len(), "snapshot saved");
        Ok(())
    }

    pub(crate) fn newest(&self) -> io::Result<Option<Snapshot>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&covered) = kept.entries.last() else { return Ok(None) };
        let name = name_of(covered);
        let bytes = self.disk.read(&name)?;
        let snapshot = decode(self.cluster, &bytes)
            .map_err(|e| io::Error::other(format!("{}: {e}", self.disk.path_text(&name))))?;
        Ok(Some(snapshot))
    }

    /// Returns the number of log entries that are no longer needed; the receiver sees each change.
    pub(crate) fn forgettable(&self) -> watch::Receiver<u64> {
        self.forgettable.subscribe()
    }

    /// Waits for a save in progress; no later one touches the directory.
    pub(crate) fn close(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }
}

/// Entries covered by the older of two snapshots: either of them and the log's rest give the state.
fn forgettable(kept: &[u64]) -> u64 {
    if kept.len() < KEPT { 0 } else { kept[0] }
}

fn name_of(entries: u64) -> String {
    format!("{PREFIX}{entries:020}{SUFFIX}")
}

fn entries_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    if digits.len() == 20 { digits.parse().ok() } else { None }
}

fn encode(cluster: Uuid, snapshot: &Snapshot) -> Vec<u8> {
    let header = SnapshotHeader {
        meta: snapshot.meta.clone(),
        state_bytes: snapshot.state.len() as u64,
        state_sha256: hash_text(&snapshot.state),
    };
    let body = serde_json::to_vec(&header).expect("numbers and strings are always JSON");
    let mut bytes = framing::seal(FrameKind::Snapshot, cluster, &body);
    bytes.extend_from_slice(&snapshot.state);
    bytes
}

fn decode(cluster: Uuid, bytes: &[u8]) -> Result<Snapshot, FrameError> {
    let (_, body, state) = framing::open_first(FrameKind::Snapshot, Some(cluster), bytes)?;
    let header: SnapshotHeader = serde_json::from_slice(body)
        .map_err(|e| FrameError::Malformed { what: format!("its header: {e}") })?;
    let (have, need) = (state.len() as u64, header.state_bytes);
    if have != need {
        let what = format!("its state has {have} of {need} bytes");
        return Err(FrameError::Malformed { what });
    }
    let found = hash_text(state);
    if found != header.state_sha256 {
        let what = format!("its state hashes to {found}, not to {}", header.state_sha256);
        return Err(FrameError::Malformed { what });
    }
    Ok(Snapshot { meta: header.meta, state: state.to_vec() })
}

pub(crate) fn hash_text(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True if an undamaged file of another cluster or of a later release looks like this.
fn fatal(error: &FrameError) -> bool {
    matches!(error, FrameError::NewerVersion { .. } | FrameError::OtherCluster { .. })
}

fn set_aside(disk: &dyn Disk, name: &str, reason: &str) -> Result<(), OpenError> {
    let path = disk.path_text(name);
    tracing::error!(path, reason, "damaged snapshot set aside");
    disk.rename(name, &format!("{name}{DAMAGED}")).map_err(|source| OpenError::Io { path, source })
}

pub(crate) fn open_error(path: String, error: &FrameError) -> OpenError {
    match error {
        &FrameError::NewerVersion { found } => {
            OpenError::NewerFormat { path, found, known: framing::VERSION }
        }
        FrameError::OtherCluster { .. } | FrameError::Foreign => {
            OpenError::Foreign { path, reason: error.to_string() }
        }
        _ => OpenError::Corrupt { path, reason: error.to_string() },
    }
}
