//! Maintenance tasks of a node: purges the log, publishes the current leader, founds the cluster,
//! completes a change that an earlier leader began, and reports the node's current address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::{Mutex, watch};

use crate::consensus::{self, MemberAddress, Raft};
use crate::network::links::Links;
use crate::network::message::{Message, PeerAnswer};
use crate::network::peers::{Peer, PeerError};
use crate::options::{NodeOptions, Start, StartRole};
use crate::status::Leadership;

/// Interval between maintenance checks; their findings are rare and not urgent.
const TEND_EVERY: Duration = Duration::from_millis(500);
const ASK_WAIT: Duration = Duration::from_secs(2);

/// Purges from the log, after each snapshot, the entries that the previous snapshot covers.
pub(crate) async fn compact(raft: Raft, mut forgettable: watch::Receiver<u64>) {
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

/// Resets the retry backoff of peers that have answered again.
pub(crate) async fn welcome(raft: Raft, links: Arc<Links>) {
    loop {
        let peers = links.recovered().await;
        if raft.trigger().reset_backoff(peers).await.is_err() {
            return;
        }
    }
}

/// Keeps the list of members and the published leadership up to date.
pub(crate) async fn observe(raft: Raft, links: Arc<Links>, publish: watch::Sender<Leadership>) {
    let mut metrics = raft.server_metrics();
    drop(raft);
    let mut seen = None;
    loop {
        let now = metrics.borrow_watched().clone();
        let membership = now.membership_config;
        if seen != *membership.log_id() {
            seen = *membership.log_id();
            links.set_members(consensus::members(membership.membership()));
        }
        let leader = now
            .current_leader
            .map(|node| links.peer(node).unwrap_or(Peer { node, address: String::new() }));
        let is_leader = now.state == ServerState::Leader;
        let found = Leadership { term: now.vote.leader_id.term, leader, is_leader };
        publish.send_if_modified(|published| {
            let changed = *published != found;
            *published = found;
            changed
        });
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

/// Periodic maintenance, as long as the node runs.
pub(crate) struct Tend {
    raft: Raft,
    links: Arc<Links>,
    /// Locked by the task that changes the members.
    changing: Arc<Mutex<()>>,
    address: String,
    /// Members with which this node founds the cluster, if it does.
    founders: Option<BTreeMap<u64, String>>,
    /// Last message that was logged about the founding.
    said: Option<String>,
}

impl Tend {
    pub(crate) fn new(
        raft: &Raft,
        links: &Arc<Links>,
        changing: &Arc<Mutex<()>>,
        options: &NodeOptions,
        origin: StartRole,
    ) -> Self {
        let (raft, links, changing) = (raft.clone(), links.clone(), changing.clone());
        let founders = match &options.start {
            Start::Found { members } if origin == StartRole::Found => Some(members.clone()),
            _ => None,
        };
        Self { raft, links, changing, address: options.address.clone(), founders, said: None }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let Ok(initialized) = self.raft.is_initialized().await else { return };
            if initialized {
                self.finish_change().await;
                self.keep_address().await;
            } else if let Some(founders) = self.founders.clone() {
                self.found(&founders).await;
            }
            tokio::time::sleep(TEND_EVERY).await;
        }
    }

    /// The founder with the lowest number queries all the others, and starts the cluster's history
    /// when each has reported that it has none. The others wait to be contacted. A node that lost
    /// its directory thus never starts a second history beside that of its peers.
    async fn found(&mut self, founders: &BTreeMap<u64, String>) {
        let me = self.links.me;
        if founders.keys().next() != Some(&me.node) {
            return;
        }
        let place =
            |address: &str, incarnation| MemberAddress { address: address.to_owned(), incarnation };
        let mut places = BTreeMap::from([(me.node, place(&self.address, me.incarnation))]);
        for (&node, address) in founders.iter().filter(|(node, _)| **node != me.node) {
            match self.ask(&Peer { node, address: address.clone() }).await {
                Ok(incarnation) => places.insert(node, place(address, incarnation)),
                Err(error) => return self.say_why(&error),
            };
        }
        match self.raft.initialize(places).await {
            Ok(()) => tracing::info!(cluster = %self.links.cluster, "cluster founded"),
            Err(error) => tracing::error!(%error, "the cluster could not be founded"),
        }
    }

    /// Logs why the cluster is not founded, once per reason.
    fn say_why(&mut self, error: &PeerError) {
        let why = error.to_string();
        if self.said.as_ref() == Some(&why) {
            return;
        }
        match error {
            PeerError::Refused { .. } => tracing::error!(why, "the cluster cannot be founded"),
            PeerError::Unreachable { .. } => tracing::info!(why, "the cluster waits to be founded"),
        }
        self.said = Some(why);
    }

    /// Returns the incarnation of a peer, if the peer is pristine.
    async fn ask(&self, peer: &Peer) -> Result<Option<uuid::Uuid>, PeerError> {
        let (speaker, answer) = self.links.call(peer, &Message::Hello, ASK_WAIT).await?;
        match answer {
            PeerAnswer::Here { pristine: true } => Ok(speaker.incarnation),
            _ => {
                let reason = format!(
                    "it is part of this cluster already, so node {} has lost its directory; remove node {} there and let it join empty under a number that was never used",
                    self.links.me.node, self.links.me.node
                );
                Err(PeerError::Refused { node: peer.node, reason })
            }
        }
    }

    /// Completes a change whose leader was lost and left two sets of voters: one must be removed.
    async fn finish_change(&self) {
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        let joint = metrics.membership_config.membership().get_joint_config().len() > 1;
        if metrics.state == ServerState::Leader && joint {
            // The task that holds the lock completes the change.
            let Ok(_changing) = self.changing.try_lock() else { return };
            let nothing = ChangeMembers::AddVoterIds(Default::default());
            // It fails while the change is still in progress, and is retried then.
            if let Err(error) = self.raft.change_membership(nothing, false).await {
                tracing::debug!(%error, "the members are still being changed");
            }
        }
    }

    /// Updates this node's address in the list of members, if the list has another one.
    async fn keep_address(&self) {
        let me = self.links.me.node;
        let listed = self.links.peer(me);
        let Some(listed) = listed.filter(|_| !self.address.is_empty()) else { return };
        if listed.address == self.address {
            return;
        }
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        if metrics.state == ServerState::Leader {
            let Ok(_changing) = self.changing.try_lock() else { return };
            let (address, incarnation) = (self.address.clone(), self.links.me.incarnation);
            let place = MemberAddress { address, incarnation };
            let moved = ChangeMembers::SetNodes(BTreeMap::from([(me, place)]));
            if let Err(error) = self.raft.change_membership(moved, true).await {
                tracing::debug!(%error, "the address is not changed yet");
            }
            return;
        }
        let message = Message::Moved { address: self.address.clone() };
        for peer in self.links.others() {
            // Only the leader can apply it, and this node may not know the leader: others refuse.
            if let Ok((_, PeerAnswer::Done)) = self.links.call(&peer, &message, ASK_WAIT).await {
                return;
            }
        }
    }
}
