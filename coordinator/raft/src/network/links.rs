//! Calls of one node to the others: members, their addresses, and failures of the calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardfeed_host::Host;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::network::message::{Envelope, Message, PeerAnswer, Speaker};
use crate::network::peers::{Peer, PeerError, Peers};
use crate::storage::framing::FrameError;
use crate::storage::record::{Members, Position, Vote};

/// Interval at which a refusal is logged again: it lasts until an operator acts.
const REFUSAL_EVERY: Duration = Duration::from_secs(60);

/// Maximum peers remembered, as non-members may claim any number.
const CONTACTS_MAX: usize = 1024;

/// Calls to the other nodes.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) me: Speaker,
    pub(crate) cluster: Uuid,
    pub(crate) host: Arc<dyn Host>,
    peers: Arc<dyn Peers>,
    state: Mutex<LinksState>,
    /// Notified when a peer answers again.
    recovery: Notify,
}

#[derive(Debug, Default)]
struct LinksState {
    /// Peers that answer again, until `recovered` takes them.
    recovered: BTreeSet<u64>,
    /// Members according to this node's log, committed or not.
    members: Members,
    contacts: BTreeMap<u64, Contact>,
}

/// State of a peer, in the memory of this process.
#[derive(Debug, Default)]
struct Contact {
    /// Last logged refusal by the peer, and its time.
    refuses: Option<(String, Instant)>,
    refused: Option<(String, Instant)>,
    silent: bool,
    /// This node's vote when it led, and the last position that the peer had on disk then.
    acknowledged: Option<(Vote, Position)>,
    /// Snapshot bytes that the peer accepted.
    snapshot_bytes: u64,
}

impl Links {
    pub(crate) fn new(
        me: Speaker,
        cluster: Uuid,
        host: Arc<dyn Host>,
        peers: Arc<dyn Peers>,
    ) -> Self {
        Self { me, cluster, host, peers, state: Mutex::default(), recovery: Notify::new() }
    }

    /// Waits for peers that answer again, and returns them.
    pub(crate) async fn recovered(&self) -> BTreeSet<u64> {
        loop {
            let recovered = std::mem::take(&mut self.state().recovered);
            if !recovered.is_empty() {
                return recovered;
            }
            self.recovery.notified().await;
        }
    }

    pub(crate) fn set_members(&self, members: Members) {
        self.state().members = members;
    }

    pub(crate) fn peer(&self, node: u64) -> Option<Peer> {
        let state = self.state();
        let address = state.members.addresses.get(&node)?.clone();
        Some(Peer { node, address })
    }

    pub(crate) fn others(&self) -> Vec<Peer> {
        let state = self.state();
        let others = state.members.addresses.iter().filter(|(node, _)| **node != self.me.node);
        others.map(|(&node, address)| Peer { node, address: address.clone() }).collect()
    }

    /// Returns the incarnation with which a member was admitted.
    pub(crate) fn incarnation(&self, node: u64) -> Option<Uuid> {
        self.state().members.incarnations.get(&node).copied()
    }

    /// Calls a member. # Errors  As [`Links::call`]; also if it is no longer a member.
    pub(crate) async fn call_member(
        &self,
        node: u64,
        message: &Message,
        deadline: Duration,
    ) -> Result<PeerAnswer, PeerError> {
        let Some(peer) = self.peer(node) else {
            let reason = "it is no member of this cluster".to_owned();
            return Err(PeerError::Unreachable { node, reason });
        };
        let (_, answer) = self.call(&peer, message, deadline).await?;
        Ok(answer)
    }

    pub(crate) async fn call(
        &self,
        to: &Peer,
        message: &Message,
        deadline: Duration,
    ) -> Result<(Speaker, PeerAnswer), PeerError> {
        let answer = self.call_quietly(to, message, deadline).await;
        self.tell(to, answer.as_ref().err());
        answer
    }

    async fn call_quietly(
        &self,
        to: &Peer,
        message: &Message,
        deadline: Duration,
    ) -> Result<(Speaker, PeerAnswer), PeerError> {
        let node = to.node;
        if to.address.is_empty() {
            let reason = "it has never said an address; set the option `address` there".to_owned();
            return Err(PeerError::Unreachable { node, reason });
        }
        let incarnation = self.incarnation(node);
        let envelope = Envelope { from: self.me, to: Speaker { node, incarnation } };
        let bytes = message.encode(self.cluster, envelope);
        let call = self.peers.call(to, bytes, deadline);
        let answer = timeout(deadline, call).await.map_err(|_| {
            let reason = format!("no answer within {} ms", deadline.as_millis());
            PeerError::Unreachable { node, reason }
        })??;
        let refused = |reason| PeerError::Refused { node, reason };
        let (envelope, answer) = PeerAnswer::decode(self.cluster, &answer)
            .map_err(|error| refused(format!("its answer: {}", frame_text(&error))))?;
        if envelope.to != self.me || envelope.from.node != node {
            let reason = format!(
                "node {} answered, to node {}; look at the addresses of both",
                envelope.from.node, envelope.to.node
            );
            return Err(refused(reason));
        }
        if incarnation.is_some() && incarnation != envelope.from.incarnation {
            return Err(refused(lost_directory(node)));
        }
        Ok((envelope.from, answer))
    }

    /// Logs a refusal, and its end; records whether the call failed.
    pub(crate) fn tell(&self, to: &Peer, error: Option<&PeerError>) {
        let now = self.host.now();
        let mut state = self.state();
        let contact = state.contacts.entry(to.node).or_default();
        let was_silent = std::mem::replace(&mut contact.silent, error.is_some());
        match error {
            Some(PeerError::Refused { reason, .. }) if news(&mut contact.refuses, reason, now) => {
                tracing::error!(peer = to.node, address = to.address, reason, "peer refuses");
            }
            None if contact.refuses.take().is_some() => {
                tracing::info!(peer = to.node, address = to.address, "peer refuses no longer");
            }
            _ => {}
        }
        if was_silent && error.is_none() {
            state.recovered.insert(to.node);
            self.recovery.notify_one();
        }
    }

    pub(crate) fn tell_refused(&self, from: u64, reason: &str) {
        let now = self.host.now();
        let mut state = self.state();
        if state.contacts.len() >= CONTACTS_MAX && !state.contacts.contains_key(&from) {
            return;
        }
        if news(&mut state.contacts.entry(from).or_default().refused, reason, now) {
            tracing::error!(peer = from, reason, "message refused");
        }
    }

    /// Records that a peer has the log up to `position`, as sent by the leader of `vote`, on disk.
    pub(crate) fn acknowledged(&self, node: u64, vote: Vote, position: Option<Position>) {
        let Some(position) = position else { return };
        let mut state = self.state();
        let noted = &mut state.contacts.entry(node).or_default().acknowledged;
        match noted {
            Some((leader, last)) if *leader == vote => *last = (*last).max(position),
            _ => *noted = Some((vote, position)),
        }
    }

    /// True if a peer lacks `previous` although it acknowledged that, or more, to the same leader:
    /// its disk went back in time, and none of its acknowledgements are valid.
    pub(crate) fn went_back(&self, node: u64, vote: Vote, previous: Option<Position>) -> bool {
        let state = self.state();
        let noted = state.contacts.get(&node).and_then(|contact| contact.acknowledged);
        noted.is_some_and(|(leader, last)| leader == vote && previous <= Some(last))
    }

    pub(crate) fn took_snapshot_bytes(&self, node: u64, bytes: u64) {
        self.state().contacts.entry(node).or_default().snapshot_bytes += bytes;
    }

    pub(crate) fn snapshot_bytes(&self, node: u64) -> u64 {
        self.state().contacts.get(&node).map_or(0, |contact| contact.snapshot_bytes)
    }

    /// No code that can panic runs under this lock.
    fn state(&self) -> MutexGuard<'_, LinksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if a reason must be logged: it is new, or `REFUSAL_EVERY` has passed.
fn news(told: &mut Option<(String, Instant)>, reason: &str, now: Instant) -> bool {
    let recent = told
        .as_ref()
        .is_some_and(|(last, at)| last == reason && now.duration_since(*at) < REFUSAL_EVERY);
    if !recent {
        *told = Some((reason.to_owned(), now));
    }
    !recent
}

/// Returns the message for a frame's error between nodes.
pub(crate) fn frame_text(error: &FrameError) -> String {
    match error {
        FrameError::OtherCluster { found, expected } => {
            format!(
                "it is for cluster {found}, this is cluster {expected}; look at the addresses, or start the node that does not belong here with an empty directory"
            )
        }
        FrameError::NewerVersion { .. } => {
            format!("{error}; upgrade the older node")
        }
        other => format!("{other}; run the same release on both"),
    }
}

/// Returns the message for a node whose incarnation is not the one that the cluster knows.
pub(crate) fn lost_directory(node: u64) -> String {
    format!(
        "node {node} lost the directory it was admitted with, and with it everything that it had \
         acknowledged; remove node {node} from the cluster and let the node join with an empty \
         directory under a number that was never used"
    )
}
