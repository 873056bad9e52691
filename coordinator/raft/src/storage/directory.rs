//! Turns a directory into a log, a state and a cluster id: bootstraps a pristine one, recovers any
//! other, and rejects one that is not ours.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_host::{Disk, DiskLock, Host};
use uuid::Uuid;

use crate::error::OpenError;
use crate::machine::Machine;
use crate::options::{NodeOptions, StartRole};
use crate::storage::framing::{self, FrameKind};
use crate::storage::log::{LogError, LogState, LogStore};
use crate::storage::redb_log::RedbLog;
use crate::storage::snapshot::{SnapshotMeta, SnapshotStore};
use crate::storage::witness::Witness;

type Result<T, E = OpenError> = std::result::Result<T, E>;

const LOG: &str = "log.redb";
/// Log under construction; it is valid only once it has been renamed.
const LOG_UNFINISHED: &str = "log.redb.new";
const WITNESS: &str = "log.witness";
/// Directory that file systems create in their root.
const LOST_AND_FOUND: &str = "lost+found";

/// Owner of the log, as stored in the log's first page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogOwner {
    pub(crate) cluster_name: String,
    pub(crate) node_id: u64,
    /// Made with the directory; differs from that of every other directory of this node number.
    #[serde(default)]
    pub(crate) incarnation: Option<Uuid>,
    #[serde(default)]
    pub(crate) origin: StartRole,
}

/// A directory, locked and read.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) lock: DiskLock,
    pub(crate) cluster: Uuid,
    pub(crate) header: LogOwner,
    pub(crate) log: RedbLog,
    pub(crate) snapshots: SnapshotStore,
    /// Snapshot from which the machine was restored.
    pub(crate) restored: Option<SnapshotMeta>,
}

/// Locks the directory, checks everything in it and restores the machine from the newest snapshot.
/// Consensus replays the rest of the log. Blocks.
pub(crate) fn recover(
    host: &dyn Host,
    disk: &Arc<dyn Disk>,
    options: &NodeOptions,
    machine: &mut impl Machine,
) -> Result<Recovered> {
    let lock = take(disk.as_ref())?;
    let names = disk.list().map_err(|e| io_error(disk.as_ref(), "", e))?;
    if !names.iter().any(|name| name == LOG) {
        let cluster = options.start.cluster(&options.cluster_name);
        let cluster = cluster.unwrap_or_else(|| shardfeed_host::uuid(host));
        let header = header(host, options, options.start.origin());
        create_log(disk.as_ref(), &names, cluster, &header)?;
        finish_log(disk.as_ref(), cluster, &header)?;
    }
    let (log, cluster, header) = open_log(disk.as_ref())?;
    check_owner(disk.as_ref(), options, &header)?;
    check_start(disk.as_ref(), options, &log.state(), cluster)?;
    let (snapshots, newest) = SnapshotStore::open(disk.clone(), cluster)?;
    check_no_gap(disk.as_ref(), &log, newest.as_ref().map(|snapshot| &snapshot.meta))?;
    let restored = match newest {
        Some(snapshot) => {
            let path = disk.path_text("");
            let restored = machine.restore(&snapshot.state);
            restored.map_err(|e| OpenError::Restore { path, reason: e.message })?;
            Some(snapshot.meta)
        }
        None => None,
    };
    Ok(Recovered { lock, cluster, header, log, snapshots, restored })
}

/// Locks the directory for this process.
pub(crate) fn take(disk: &dyn Disk) -> Result<DiskLock> {
    disk.lock().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { dir: disk.path_text("") },
        _ => io_error(disk, "", source),
    })
}

pub(crate) fn has_log(disk: &dyn Disk) -> Result<bool> {
    let names = disk.list().map_err(|e| io_error(disk, "", e))?;
    Ok(names.iter().any(|name| name == LOG))
}

/// Returns the header of a new directory, with a new incarnation.
pub(crate) fn header(host: &dyn Host, options: &NodeOptions, origin: StartRole) -> LogOwner {
    LogOwner {
        cluster_name: options.cluster_name.clone(),
        node_id: options.node_id,
        incarnation: Some(shardfeed_host::uuid(host)),
        origin,
    }
}

/// Creates the log of a pristine directory. It is valid only after `finish_log`.
pub(crate) fn create_log(
    disk: &dyn Disk,
    names: &[String],
    cluster: Uuid,
    header: &LogOwner,
) -> Result<()> {
    if SnapshotStore::any(names) {
        let reason = format!("there are snapshots, but `{LOG}` is missing");
        return Err(OpenError::Corrupt { path: disk.path_text(""), reason });
    }
    let known = |name: &str| {
        [LOG_UNFINISHED, WITNESS, LOST_AND_FOUND].contains(&name) || SnapshotStore::owns(name)
    };
    if let Some(stray) = names.iter().find(|name| !known(name)) {
        let reason = format!("it holds `{stray}`");
        return Err(OpenError::Foreign { path: disk.path_text(""), reason });
    }
    if names.iter().any(|name| name == LOG_UNFINISHED) {
        disk.remove(LOG_UNFINISHED).map_err(|e| io_error(disk, LOG_UNFINISHED, e))?;
    }
    let body = serde_json::to_vec(header).expect("numbers and strings are always JSON");
    let sealed = framing::seal(FrameKind::Header, cluster, &body);
    let file = disk.open(LOG_UNFINISHED).map_err(|e| io_error(disk, LOG_UNFINISHED, e))?;
    // The commit mark gets its name before the log does: no log ever lacks one.
    disk.write(WITNESS, &Witness::pristine(cluster)).map_err(|e| io_error(disk, WITNESS, e))?;
    RedbLog::create(file, cluster, &sealed).map_err(|e| log_error(disk, LOG_UNFINISHED, e))
}

/// Renames a new log to its final name. A crash before this leaves the directory pristine.
pub(crate) fn finish_log(disk: &dyn Disk, cluster: Uuid, header: &LogOwner) -> Result<()> {
    disk.rename(LOG_UNFINISHED, LOG).map_err(|e| io_error(disk, LOG, e))?;
    tracing::info!(%cluster, node = header.node_id, origin = ?header.origin, "directory made");
    Ok(())
}

/// Opens a log with all checks: `LOG`, or `LOG_UNFINISHED` if it is not renamed yet.
pub(crate) fn open_log(disk: &dyn Disk) -> Result<(RedbLog, Uuid, LogOwner)> {
    let name = if has_log(disk)? { LOG } else { LOG_UNFINISHED };
    let path = || disk.path_text(name);
    let file = disk.open(name).map_err(|e| io_error(disk, name, e))?;
    if file.is_empty().map_err(|e| io_error(disk, name, e))? {
        return Err(OpenError::Corrupt { path: path(), reason: "it is empty".to_owned() });
    }
    let witness = disk.open(WITNESS).map_err(|e| io_error(disk, WITNESS, e))?;
    let opened = RedbLog::open(file, witness);
    let (log, cluster, body) = opened.map_err(|error| log_error(disk, name, error))?;
    let header: LogOwner = serde_json::from_slice(&body)
        .map_err(|e| OpenError::Corrupt { path: path(), reason: format!("its header: {e}") })?;
    Ok((log, cluster, header))
}

fn check_owner(disk: &dyn Disk, options: &NodeOptions, header: &LogOwner) -> Result<()> {
    let (name, node) = (&options.cluster_name, options.node_id);
    if (&header.cluster_name, header.node_id) == (name, node) {
        return Ok(());
    }
    let reason = format!(
        "it is the log of node {} of `{}`, the options say node {node} of `{name}`",
        header.node_id, header.cluster_name
    );
    Err(OpenError::Foreign { path: disk.path_text(LOG), reason })
}

/// Rejects a start for another cluster than the one that a directory without history waits for.
fn check_start(disk: &dyn Disk, options: &NodeOptions, state: &LogState, own: Uuid) -> Result<()> {
    let wanted = options.start.cluster(&options.cluster_name);
    if *state != LogState::default() || wanted.is_none_or(|wanted| wanted == own) {
        return Ok(());
    }
    let reason = format!(
        "it waits to become part of cluster {own}, but is started for another one; it has no data yet, so empty it, or start it as before"
    );
    Err(OpenError::Foreign { path: disk.path_text(""), reason })
}

/// Snapshot and log must overlap or touch; otherwise acknowledged entries are in neither.
fn check_no_gap(disk: &dyn Disk, log: &RedbLog, newest: Option<&SnapshotMeta>) -> Result<()> {
    let covered = newest.map_or(0, SnapshotMeta::entries);
    let first = log.state().first_index();
    if first <= covered {
        return Ok(());
    }
    let reason = format!(
        "the log begins at entry {first}, the newest good snapshot ends before entry {covered}"
    );
    Err(OpenError::Corrupt { path: disk.path_text(""), reason })
}

pub(crate) fn io_error(disk: &dyn Disk, name: &str, source: io::Error) -> OpenError {
    OpenError::Io { path: disk.path_text(name), source }
}

pub(crate) fn log_error(disk: &dyn Disk, name: &str, error: LogError) -> OpenError {
    match error {
        // The disk works, but its content is not a log.
        LogError::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
            OpenError::Corrupt { path: disk.path_text(name), reason: source.to_string() }
        }
        LogError::Io(source) => io_error(disk, name, source),
        LogError::NewerFormat { found } => {
            let path = disk.path_text(name);
            OpenError::NewerFormat { path, found, known: framing::VERSION }
        }
        LogError::Foreign { reason } => OpenError::Foreign { path: disk.path_text(name), reason },
        LogError::Corrupt { place, reason } => {
            let reason = format!("{place}: {reason}");
            OpenError::Corrupt { path: disk.path_text(name), reason }
        }
        other @ LogError::Gap { .. } => {
            OpenError::Corrupt { path: disk.path_text(name), reason: other.to_string() }
        }
    }
}
