//! Identity of a directory before it is opened, and a new cluster from an exported state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardfeed_host::{Disk, Host};
use uuid::Uuid;

use crate::error::OpenError;
use crate::options::{NodeOptions, StartRole};
use crate::storage::directory;
use crate::storage::log::{LogChange, LogStore};
use crate::storage::record::{Members, Position, Vote};
use crate::storage::snapshot::{Snapshot, SnapshotMeta, SnapshotStore};

/// Owner of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub cluster: Uuid,
    pub node_id: u64,
    pub cluster_name: String,
    /// True if the directory was made to found a cluster with others.
    pub is_founder: bool,
}

/// Returns the owner of the directory `disk`; `None` if it is pristine. Blocks.
/// # Errors  As [`Node::open`](crate::Node::open): it is in use, damaged or not ours.
pub fn identity(disk: &dyn Disk) -> Result<Option<Identity>, OpenError> {
    let _lock = directory::take(disk)?;
    if !directory::has_log(disk)? {
        return Ok(None);
    }
    let (_, cluster, header) = directory::open_log(disk)?;
    let directory::LogOwner { cluster_name, node_id, origin, .. } = header;
    let is_founder = origin == StartRole::Found;
    Ok(Some(Identity { cluster, node_id, cluster_name, is_founder }))
}

/// Creates a new cluster of this node alone, from a state exported from another cluster.
///
/// Its log continues after `applied`, so that indexes do not repeat. Blocks; open the node then.
/// - `disk`: a pristine directory. `applied`, `state`: from [`Node::export`](crate::Node::export).
///   `options`: the new cluster's name, this node's number and address.
/// - Returns the new cluster's id.
/// # Errors  [`OpenError`]; a directory that is not pristine is rejected. After an error, empty it.
pub fn restore(
    host: &dyn Host,
    disk: &Arc<dyn Disk>,
    options: &NodeOptions,
    applied: u64,
    state: &[u8],
) -> Result<Uuid, OpenError> {
    let _lock = directory::take(disk.as_ref())?;
    if directory::has_log(disk.as_ref())? {
        let reason = "it has a log already; a restore needs an empty directory".to_owned();
        return Err(OpenError::Foreign { path: disk.path_text(""), reason });
    }
    let names = disk.list().map_err(|e| directory::io_error(disk.as_ref(), "", e))?;
    let cluster = shardfeed_host::uuid(host);
    let header = directory::header(host, options, StartRole::Alone);
    directory::create_log(disk.as_ref(), &names, cluster, &header)?;
    let last = Position { term: RESTORED_TERM, node: options.node_id, index: applied };
    let (mut log, _, _) = directory::open_log(disk.as_ref())?;
    // The vote precedes the first election of the new cluster, which thus has a later term.
    let vote = Vote { term: RESTORED_TERM, node: options.node_id, committed: true };
    log.write(&[LogChange::Vote(vote), LogChange::Purge(last)])
        .map_err(|e| directory::log_error(disk.as_ref(), "", e))?;
    drop(log);
    let node = options.node_id;
    let members = Members {
        voters: vec![BTreeSet::from([node])],
        addresses: BTreeMap::from([(node, options.address.clone())]),
        incarnations: header.incarnation.map(|id| (node, id)).into_iter().collect(),
    };
    let used = BTreeSet::from([node]);
    let meta = SnapshotMeta { last: Some(last), members_at: Some(last), members, used };
    let (snapshots, _) = SnapshotStore::open(disk.clone(), cluster)?;
    snapshots
        .save(&Snapshot { meta, state: state.to_vec() })
        .map_err(|e| directory::io_error(disk.as_ref(), "", e))?;
    directory::finish_log(disk.as_ref(), cluster, &header)?;
    Ok(cluster)
}

const RESTORED_TERM: u64 = 1;
