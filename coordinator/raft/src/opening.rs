//! Startup of a node from its options.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::{Config, ServerState, SnapshotPolicy};
use shardfeed_host::blocking;
use tokio::sync::{Mutex, watch};

use crate::consensus::{
    self, LogAdapter, MachineAdapter, MemberAddress, Network, Raft, Receiver, Shared,
};
use crate::error::OpenError;
use crate::machine::Machine;
use crate::network::links::Links;
use crate::network::message::Speaker;
use crate::node::{Footing, Node, NodeInner};
use crate::options::{NodeOptions, StartRole};
use crate::status::Leadership;
use crate::storage::committer::{Committer, StopReason};
use crate::storage::directory::{self, LogOwner, Recovered};
use crate::storage::log::LogStore;
use crate::tending;

/// Timeout for a single member to elect itself: it takes two disk writes; a slower disk is broken.
const LEADERSHIP_WAIT: Duration = Duration::from_secs(30);
/// Maximum pause before an unreachable peer is retried, in longest election timeouts; the pauses
/// double up to it. A leader whose messages arrive but that receives no answers must fall silent
/// for longer than its followers' election timeout, as they would never elect another one. A peer
/// that is back is retried at once.
const BACKOFF_ELECTIONS_MAX: u64 = 3;
/// A leader that no majority answers stops its heartbeats for this many longest election timeouts,
/// then tries again for the same time, and repeats this.
const QUIET_ELECTIONS: u64 = 2;

pub(crate) async fn open<M: Machine>(
    footing: Footing,
    options: NodeOptions,
    mut machine: M,
) -> Result<Node<M>, OpenError> {
    let Footing { host, disk, peers, syncs } = footing;
    let recovery = {
        let host = host.clone();
        move || {
            let found = directory::recover(host.as_ref(), &disk, &options, &mut machine);
            found.map(|found| (found, options, machine))
        }
    };
    let (recovered, options, machine) =
        blocking(host.as_ref(), recovery).await.map_err(start_error)??;
    if let Some(syncs) = syncs {
        recovered.log.meter().measure(Arc::clone(&host), syncs);
    }
    let header = recovered.header.clone();
    let me = Speaker { node: options.node_id, incarnation: header.incarnation };
    let links = Arc::new(Links::new(me, recovered.cluster, host, peers));
    let node = start(links, options, machine, recovered).await?;
    if let Err(error) = take_office(&node, &header).await {
        node.shutdown().await;
        return Err(error);
    }
    Ok(node)
}

async fn start<M: Machine>(
    links: Arc<Links>,
    options: NodeOptions,
    machine: M,
    recovered: Recovered,
) -> Result<Node<M>, OpenError> {
    let host = links.host.clone();
    let Recovered { lock, cluster, header, log, snapshots, restored } = recovered;
    let failure = StopReason::default();
    let machine = Arc::new(Shared::new(machine, restored.as_ref(), failure.clone()));
    let snapshots = Arc::new(snapshots);
    let adapter =
        MachineAdapter::new(host.clone(), machine.clone(), snapshots.clone(), restored.as_ref())
            .map_err(start_error)?;
    let config = Arc::new(config(&options)?);
    let (state, log_meter) = (log.state(), log.meter());
    tracing::info!(%cluster, node = options.node_id, ?state, "log opened");
    let committer =
        Committer::start(log, lock, failure, host.has_threads()).map_err(start_error)?;
    // Two thirds of the shortest election timeout: a lost answer causes no election.
    let deadline = Duration::from_millis(options.election_min_ms * 2 / 3);
    let network = Network::new(links.clone(), deadline);
    let log = LogAdapter::new(committer.clone());
    let raft = Raft::new(options.node_id, config, network, log, adapter).await;
    let raft = raft.map_err(start_error)?;
    links.set_members(consensus::members(
        raft.server_metrics().borrow_watched().membership_config.membership(),
    ));
    let (publish, leadership) = watch::channel(Leadership::default());
    let receiver = Receiver::new(raft.clone(), machine.clone(), links.clone());
    let mut tasks = vec![
        tokio::spawn(tending::compact(raft.clone(), snapshots.forgettable())).abort_handle(),
        tokio::spawn(tending::welcome(raft.clone(), links.clone())).abort_handle(),
        tokio::spawn(tending::observe(raft.clone(), links.clone(), publish)).abort_handle(),
    ];
    let changing = Arc::new(Mutex::new(()));
    let tend = tending::Tend::new(&raft, &links, &changing, &options, header.origin);
    tasks.push(tokio::spawn(tend.run()).abort_handle());
    let inner = NodeInner {
        raft,
        machine,
        committer,
        snapshots,
        log_meter,
        host,
        links,
        receiver,
        options,
        cluster_id: cluster.to_string(),
        leadership,
        changing,
        handed_over: AtomicU64::new(0),
        closing: AtomicBool::new(false),
        tasks,
    };
    Ok(Node { inner: Arc::new(inner) })
}

/// Makes a pristine standalone directory a cluster of one; lets a single voter campaign at once, as
/// there is no other voter to wait for.
async fn take_office<M: Machine>(node: &Node<M>, header: &LogOwner) -> Result<(), OpenError> {
    let (raft, options) = (&node.inner.raft, &node.inner.options);
    let failed = |error: &dyn fmt::Display| OpenError::Start {
        reason: match node.inner.machine.failure.message() {
            Some(message) => message.to_owned(),
            None => error.to_string(),
        },
    };
    if raft.is_initialized().await.map_err(|e| failed(&e))? {
        let membership = raft.server_metrics().borrow_watched().membership_config.clone();
        let members = consensus::members(membership.membership());
        if !members.voters.iter().all(|voters| voters.iter().eq([&options.node_id])) {
            return Ok(());
        }
        raft.trigger().elect(false).await.map_err(|e| failed(&e))?;
    } else if header.origin == StartRole::Alone {
        // The first member campaigns automatically once it is initialized.
        let place =
            MemberAddress { address: options.address.clone(), incarnation: header.incarnation };
        let me = BTreeMap::from([(options.node_id, place)]);
        raft.initialize(me).await.map_err(|e| failed(&e))?;
    } else {
        return Ok(());
    }
    let leads = raft.wait(Some(LEADERSHIP_WAIT)).state(ServerState::Leader, "open").await;
    leads.map_err(|e| failed(&e))?;
    node.linearize().await.map_err(|e| failed(&e))?;
    // A caller may send requests as soon as the node is open.
    let mut leadership = node.leadership();
    leadership.wait_for(|seen| seen.is_leader).await.map_err(|e| failed(&e))?;
    Ok(())
}

fn config(options: &NodeOptions) -> Result<Config, OpenError> {
    let config = Config {
        cluster_name: options.cluster_name.clone(),
        heartbeat_interval: options.heartbeat_ms,
        election_timeout_min: options.election_min_ms,
        election_timeout_max: options.election_max_ms,
        enable_pre_vote: Some(true),
        // The committed mark on disk lags: a leader must win a term and commit in it to learn more.
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(options.snapshot_every),
        // `compact` purges the log, and knows which snapshots exist.
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: options.snapshot_every.saturating_mul(2),
        backoff: format!("50ms 100ms ...{}ms", options.election_max_ms * BACKOFF_ELECTIONS_MAX),
        quorum_loss_probe_interval: Some(options.election_max_ms * QUIET_ELECTIONS),
        ..Config::default()
    };
    config.validate().map_err(|e| OpenError::Options { reason: e.to_string() })
}

pub(crate) fn start_error(error: impl fmt::Display) -> OpenError {
    OpenError::Start { reason: error.to_string() }
}
