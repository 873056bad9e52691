//! From a directory to a log, a state and a cluster id: bootstrap of a pristine one, recovery of any
//! other, refusal of what is not ours.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::OpenError;
use crate::framing::{self, Kind};
use crate::log::{LogError, LogStore};
use crate::machine::Machine;
use crate::options::NodeOptions;
use crate::redb_log::{RedbLog, RedbLogError};
use crate::snapshot::{self, SnapshotMeta, SnapshotStore};
use crate::witness::Witness;
use shardfeed_host::{Disk, DiskLock};

const LOG: &str = "log.redb";
/// A log under construction; it counts only once it has been renamed.
const LOG_UNFINISHED: &str = "log.redb.new";
const WITNESS: &str = "log.witness";
/// File systems make this one in their root.
const LOST_AND_FOUND: &str = "lost+found";

/// What the log's first page says about its owner.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    cluster_name: String,
    node_id: u64,
}

/// A directory, taken and read.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) lock: DiskLock,
    pub(crate) cluster: Uuid,
    pub(crate) log: RedbLog,
    pub(crate) snapshots: SnapshotStore,
    /// The snapshot that the machine was restored from.
    pub(crate) restored: Option<SnapshotMeta>,
}

/// Takes the directory, checks everything in it and restores the machine from the newest snapshot.
/// The log's rest is replayed by consensus. Blocks.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    options: &NodeOptions,
    machine: &mut impl Machine,
) -> Result<Recovered, OpenError> {
    let lock = disk.lock().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { dir: disk.path_text("") },
        _ => io_error(disk.as_ref(), "", source),
    })?;
    let names = disk.list().map_err(|e| io_error(disk.as_ref(), "", e))?;
    if !names.iter().any(|name| name == LOG) {
        bootstrap(disk.as_ref(), options, &names)?;
    }
    let (log, cluster) = open_log(disk.as_ref(), options)?;
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
    Ok(Recovered { lock, cluster, log, snapshots, restored })
}

/// Makes the log of a new cluster. A crash at any point leaves the directory pristine or bootstrapped.
fn bootstrap(disk: &dyn Disk, options: &NodeOptions, names: &[String]) -> Result<(), OpenError> {
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
    let cluster = Uuid::new_v4();
    let header = Header { cluster_name: options.cluster_name.clone(), node_id: options.node_id };
    let body = serde_json::to_vec(&header).expect("numbers and strings are always JSON");
    let header = framing::seal(Kind::Header, cluster, &body);
    let file = disk.open(LOG_UNFINISHED).map_err(|e| io_error(disk, LOG_UNFINISHED, e))?;
    // The witness has its name before the log has its own: no log is ever without one.
    disk.write(WITNESS, &Witness::pristine(cluster)).map_err(|e| io_error(disk, WITNESS, e))?;
    RedbLog::create(file, cluster, &header).map_err(|e| log_error(disk, LOG_UNFINISHED, e))?;
    disk.rename(LOG_UNFINISHED, LOG).map_err(|e| io_error(disk, LOG, e))?;
    tracing::info!(%cluster, node = options.node_id, "cluster bootstrapped");
    Ok(())
}

fn open_log(disk: &dyn Disk, options: &NodeOptions) -> Result<(RedbLog, Uuid), OpenError> {
    let path = || disk.path_text(LOG);
    let file = disk.open(LOG).map_err(|e| io_error(disk, LOG, e))?;
    if file.is_empty().map_err(|e| io_error(disk, LOG, e))? {
        return Err(OpenError::Corrupt { path: path(), reason: "it is empty".to_owned() });
    }
    let witness = disk.open(WITNESS).map_err(|e| io_error(disk, WITNESS, e))?;
    let opened = RedbLog::open(file, witness, |bytes| {
        let (cluster, body) = framing::open(Kind::Header, None, bytes)?;
        Ok((cluster, (cluster, body.to_vec())))
    });
    let (log, (cluster, body)) = opened.map_err(|error| match error {
        RedbLogError::Log(error) => log_error(disk, LOG, error),
        RedbLogError::Frame { source, .. } => snapshot::open_error(path(), &source),
        RedbLogError::NoHeader => OpenError::Foreign { path: path(), reason: error.to_string() },
    })?;
    let header: Header = serde_json::from_slice(&body)
        .map_err(|e| OpenError::Corrupt { path: path(), reason: format!("its header: {e}") })?;
    let wanted = Header { cluster_name: options.cluster_name.clone(), node_id: options.node_id };
    if header != wanted {
        let reason = format!(
            "it is the log of node {} of `{}`, the options say node {} of `{}`",
            header.node_id, header.cluster_name, wanted.node_id, wanted.cluster_name
        );
        return Err(OpenError::Foreign { path: path(), reason });
    }
    Ok((log, cluster))
}

/// Snapshot and log must overlap or touch; else entries that were acknowledged are in neither.
fn check_no_gap(
    disk: &dyn Disk,
    log: &RedbLog,
    newest: Option<&SnapshotMeta>,
) -> Result<(), OpenError> {
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

fn io_error(disk: &dyn Disk, name: &str, source: io::Error) -> OpenError {
    OpenError::Io { path: disk.path_text(name), source }
}

fn log_error(disk: &dyn Disk, name: &str, error: LogError) -> OpenError {
    match error {
        LogError::Io(source) => io_error(disk, name, source),
        LogError::NewerFormat { found } => {
            let path = disk.path_text(name);
            OpenError::NewerFormat { path, found, known: framing::VERSION }
        }
        other => OpenError::Corrupt { path: disk.path_text(name), reason: other.to_string() },
    }
}
