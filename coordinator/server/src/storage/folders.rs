//! Folders in the data folder, and the options of the log in one of them.

use shardfeed_raft::{NodeOptions, Start};

use crate::config::CoordinatorOptions;

pub(crate) const LOG_FOLDER: &str = "raft";

pub(crate) const CHUNK_FOLDER: &str = "chunks";

pub(crate) fn node_options(
    options: &CoordinatorOptions,
    advertise: &str,
    start: Start,
) -> NodeOptions {
    NodeOptions {
        cluster_name: options.cluster_name.clone(),
        node_id: options.node_id,
        start,
        address: advertise.to_owned(),
        heartbeat_ms: options.peer_heartbeat_ms,
        election_min_ms: options.election_min_ms,
        election_max_ms: options.election_max_ms,
        snapshot_every: options.snapshot_every,
        ..NodeOptions::default()
    }
}
