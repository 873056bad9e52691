//! What a node does of its own accord: it lets the log forget, sees who leads, founds the cluster,
//! finishes what a leader before it began, and tells the others where it is now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::{Mutex, watch};

use crate::consensus::{self, Place, Raft};
use crate::leadership::Leadership;
use crate::links::Links;
use crate::message::{Answer, Message};
use crate::options::NodeOptions;
use crate::peers::{Peer, PeerError};
use crate::start::{Origin, Start};

/// How often it is looked after what should be otherwise; what is found is rare and can wait.
const TEND_EVERY: Duration = Duration::from_millis(500);
/// A question to another node has no answer after this.
const ASK_WAIT: Duration = Duration::from_secs(2);

/// Lets the log forget, after each snapshot, what the one before it covers already.
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

/// Ends the pause before a peer is tried again, once it has answered anything.
pub(crate) async fn welcome(raft: Raft, links: Arc<Links>) {
    loop {
        let peers = links.recovered().await;
        if raft.trigger().reset_backoff(peers).await.is_err() {
            return;
        }
    }
}

/// Keeps everyone who asks informed of the members and of who leads.
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

/// Looks after what should be otherwise, as long as the node runs.
pub(crate) struct Tend {
    raft: Raft,
    links: Arc<Links>,
    /// Taken by whoever changes the members.
    changing: Arc<Mutex<()>>,
    address: String,
    /// Whom this node founds the cluster with, if it does.
    founders: Option<BTreeMap<u64, String>>,
    /// What people were told of the founding last.
    said: Option<String>,
}

impl Tend {
    pub(crate) fn new(
        raft: &Raft,
        links: &Arc<Links>,
        changing: &Arc<Mutex<()>>,
        options: &NodeOptions,
        origin: Origin,
    ) -> Self {
        let (raft, links, changing) = (raft.clone(), links.clone(), changing.clone());
        let founders = match &options.start {
            Start::Found { members } if origin == Origin::Found => Some(members.clone()),
            _ => None,
        };
        Self { raft, links, changing, address: options.address.clone(), founders, said: None }
    }

    /// Runs until consensus has stopped.
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

    /// The founder with the lowest number asks all the others, and begins the cluster's history when
    /// each has said that it has none. The others wait to hear of it. A node that lost its directory
    /// thus never begins a second history beside the one its peers have.
    async fn found(&mut self, founders: &BTreeMap<u64, String>) {
        let me = self.links.me;
        if founders.keys().next() != Some(&me.node) {
            return;
        }
        let place = |address: &str, incarnation| Place { address: address.to_owned(), incarnation };
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

    /// Tells people once why nothing is founded.
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

    /// Which incarnation of a node is there, if it is pristine.
    async fn ask(&self, peer: &Peer) -> Result<Option<uuid::Uuid>, PeerError> {
        let (speaker, answer) = self.links.call(peer, &Message::Hello, ASK_WAIT).await?;
        match answer {
            Answer::Here { pristine: true } => Ok(speaker.incarnation),
            _ => {
                let reason = format!(
                    "it is part of this cluster already, so node {} has lost its directory; remove node {} there and let it join empty under a number that was never used",
                    self.links.me.node, self.links.me.node
                );
                Err(PeerError::Refused { node: peer.node, reason })
            }
        }
    }

    /// A leader that was lost in the middle of a change left two sets of voters: one must go.
    async fn finish_change(&self) {
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        let joint = metrics.membership_config.membership().get_joint_config().len() > 1;
        if metrics.state == ServerState::Leader && joint {
            // Whoever is at it finishes it.
            let Ok(_changing) = self.changing.try_lock() else { return };
            let nothing = ChangeMembers::AddVoterIds(Default::default());
            // It fails while the change is still under way, and is tried again then.
            if let Err(error) = self.raft.change_membership(nothing, false).await {
                tracing::debug!(%error, "the members are still being changed");
            }
        }
    }

    /// Tells the leader where this node is found, if the members' list says otherwise.
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
            let place =
                Place { address: self.address.clone(), incarnation: self.links.me.incarnation };
            let moved = ChangeMembers::SetNodes(BTreeMap::from([(me, place)]));
            if let Err(error) = self.raft.change_membership(moved, true).await {
                tracing::debug!(%error, "the address is not changed yet");
            }
            return;
        }
        let message = Message::Moved { address: self.address.clone() };
        for peer in self.links.others() {
            // Only the leader can, and who that is may not be known here: the others say no.
            if let Ok((_, Answer::Done)) = self.links.call(&peer, &message, ASK_WAIT).await {
                return;
            }
        }
    }
}
