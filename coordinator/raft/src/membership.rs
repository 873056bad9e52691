//! Members of the cluster and their changes: a new node learns before it votes, a leader hands over
//! before it leaves, and a number is assigned only once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _, ServerState};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout_at};

use crate::consensus::MemberAddress;
use crate::error::{ChangeError, ProposeError};
use crate::machine::Machine;
use crate::network::message::{Message, PeerAnswer};
use crate::network::peers::Peer;
use crate::node::Node;
use crate::status::{Member, Role};

/// Maximum lag, in entries behind the leader, of a learner that counts as caught up.
const CAUGHT_UP_ENTRIES: u64 = 64;
/// A learner without progress for this time is not catching up.
const STALLED_AFTER: Duration = Duration::from_secs(15);
/// Interval between checks of a learner's progress, if the metrics do not change.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Timeout for the hello of a new node.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// Timeout of a change of members, committed by two majorities in turn; after it, a node is gone.
const CHANGE_WAIT: Duration = Duration::from_secs(30);
/// Timeout of a handover: an up-to-date successor needs one round of votes; meanwhile none leads.
const TRANSFER_WAIT: Duration = Duration::from_secs(5);
/// Timeout for a successor to remove its predecessor.
const REMOVE_WAIT: Duration = Duration::from_secs(60);

impl<M: Machine> Node<M> {
    /// Returns the members of the cluster in order of their numbers, as this node sees them.
    pub fn members(&self) -> Vec<Member> {
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership().clone();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let role = |node: u64| match voters.contains(&node) {
            true if metrics.current_leader == Some(node) => Role::Leader,
            true => Role::Voter,
            false => Role::Learner,
        };
        let member = |(&node, place): (&u64, &MemberAddress)| {
            let me = node == metrics.id;
            let matched = metrics.replication.as_ref().and_then(|all| all.get(&node).copied());
            let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(&node).copied());
            Member {
                node,
                address: place.address.clone(),
                role: role(node),
                matched: match me {
                    true => metrics.last_log_index,
                    false => matched.flatten().map(|id| id.index),
                },
                heard_ms: match me {
                    true => Some(0),
                    false => heard.flatten().map(|at| at.elapsed().as_millis() as u64),
                },
            }
        };
        membership.nodes().map(member).collect()
    }

    /// Adds a node: it learns until it has nearly caught up, then votes. Only the leader can.
    ///
    /// The node must be reachable and pristine, started with `Start::Join`. Repeating the call
    /// after an error continues where that one stopped; for a voter it does nothing.
    /// # Errors  [`ChangeError`]; a number that another node ever had is rejected.
    pub async fn add_member(&self, node: u64, address: &str) -> Result<(), ChangeError> {
        self.lead()?;
        let _changing = self.change_begins()?;
        let listed = self.members().into_iter().find(|member| member.node == node);
        match &listed {
            Some(member) if member.address != address => {
                return refuse(format!(
                    "node {node} is a member already, at `{}`; a node that moves says so itself",
                    member.address
                ));
            }
            Some(member) if member.role != Role::Learner => return Ok(()),
            Some(_) => {}
            None => self.admit(node, address).await?,
        }
        self.catch_up(node).await?;
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node])), true).await?;
        tracing::info!(node, address, "member added");
        Ok(())
    }

    /// Makes a reachable node without history a learner.
    async fn admit(&self, node: u64, address: &str) -> Result<(), ChangeError> {
        if node == 0 || address.is_empty() {
            return refuse("a member needs a number from 1 on, and an address".to_owned());
        }
        let me = self.inner.links.me.node;
        if self.inner.links.peer(me).is_none_or(|me| me.address.is_empty()) {
            return refuse(format!(
                "the others could not find node {me}; start it with the option `address` first"
            ));
        }
        if self.inner.machine.was_used(node) {
            return refuse(format!(
                "number {node} was a node's already, which may have voted under it; choose one that was never used"
            ));
        }
        let peer = Peer { node, address: address.to_owned() };
        let (speaker, answer) = self.inner.links.call(&peer, &Message::Hello, HELLO_WAIT).await?;
        if answer != (PeerAnswer::Here { pristine: true }) {
            return refuse(format!("{peer} has a history already; empty its directory first"));
        }
        let place = MemberAddress { address: peer.address, incarnation: speaker.incarnation };
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(node, place)])), true).await
    }

    /// Waits until a learner is close to the end of the log.
    async fn catch_up(&self, node: u64) -> Result<(), ChangeError> {
        let mut metrics = self.inner.raft.metrics();
        let mut seen = None;
        let mut stalled = self.inner.host.now() + STALLED_AFTER;
        loop {
            let now = metrics.borrow_watched().clone();
            // Only a leader has replication metrics.
            self.lead()?;
            let matched =
                now.replication.as_ref().and_then(|all| all.get(&node).copied().flatten());
            let entries = |index: Option<u64>| index.map_or(0, |index| index + 1);
            let matched = entries(matched.map(|id| id.index));
            let last = entries(now.last_log_index);
            if matched > 0 && matched + CAUGHT_UP_ENTRIES >= last {
                return Ok(());
            }
            let progress = Some((matched, self.inner.links.snapshot_bytes(node)));
            if seen != progress {
                (seen, stalled) = (progress, self.inner.host.now() + STALLED_AFTER);
            } else if self.inner.host.now() >= stalled {
                return Err(ChangeError::Behind { node, matched, last });
            }
            let look = self.inner.host.now() + LOOK_EVERY;
            // Waits for a change, or for the next check whether snapshot bytes arrived.
            if let Ok(Err(_)) = timeout_at(look, metrics.changed()).await {
                return Err(ProposeError::ShuttingDown.into());
            }
        }
    }

    /// Removes a node, alive or dead, voter or learner. Only the leader can remove it.
    ///
    /// A leader that removes itself hands over first, and its successor removes it. For a node that
    /// is not a member it does nothing.
    /// # Errors  [`ChangeError`]; the last voter is rejected.
    pub async fn remove_member(&self, node: u64) -> Result<(), ChangeError> {
        self.lead()?;
        let members = self.members();
        let Some(member) = members.iter().find(|member| member.node == node) else {
            return Ok(());
        };
        if member.role == Role::Learner {
            let _changing = self.change_begins()?;
            return self.change(ChangeMembers::RemoveNodes(BTreeSet::from([node])), false).await;
        }
        if members.iter().filter(|member| member.role != Role::Learner).count() == 1 {
            return refuse(format!("node {node} is the last that votes; add another one first"));
        }
        if node == self.inner.options.node_id {
            return self.hand_over_and_go(node).await;
        }
        let _changing = self.change_begins()?;
        self.change(ChangeMembers::RemoveVoters(BTreeSet::from([node])), false).await?;
        tracing::info!(node, "member removed");
        Ok(())
    }

    async fn hand_over_and_go(&self, node: u64) -> Result<(), ChangeError> {
        let successor = self.transfer_leader(None).await?;
        let message = Message::Remove { node };
        let reason = match self.inner.links.call_member(successor, &message, REMOVE_WAIT).await? {
            PeerAnswer::Done => return Ok(()),
            // The successor may have lost the lead again: the caller can ask the current leader.
            PeerAnswer::Failed { reason } => reason,
            other => format!("it answers {other:?}"),
        };
        Err(ChangeError::NotRemoved { node, to: successor, reason })
    }

    /// Hands the leadership to another voter: to `to`, or to the one with most of the log.
    /// - Returns the new leader.
    /// # Errors  [`ChangeError`]; meanwhile proposals get `NotLeader` or `Unknown` with a hint.
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let me = self.inner.options.node_id;
        self.lead()?;
        if to == Some(me) {
            return Ok(me);
        }
        let to = self.successor(to)?;
        self.reachable(to).await?;
        let begun = self.inner.host.now();
        let term = self.inner.raft.server_metrics().borrow_watched().vote.leader_id.term;
        self.inner.handed_over.store(term, Ordering::Release);
        let triggered = self.inner.raft.trigger().transfer_leader(to).await;
        triggered.map_err(|fatal| self.stopped(&fatal))?;
        let mut metrics = self.inner.raft.server_metrics();
        let deadline = begun + TRANSFER_WAIT;
        loop {
            let leader = metrics.borrow_watched().current_leader;
            if let Some(leader) = leader.filter(|leader| *leader != me) {
                let took_ms = self.inner.host.now().duration_since(begun).as_millis();
                tracing::info!(leader, took_ms, "leadership handed over");
                return Ok(leader);
            }
            match timeout_at(deadline, metrics.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(ProposeError::ShuttingDown.into()),
                Err(_) => {
                    let waited_ms = TRANSFER_WAIT.as_millis() as u64;
                    return Err(ChangeError::NotTaken { to, waited_ms });
                }
            }
        }
    }

    /// Returns the next leader: the requested voter, or the one with most of the log.
    fn successor(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let me = self.inner.options.node_id;
        let members = self.members();
        let mut voters = members.iter().filter(|member| member.role == Role::Voter);
        match to {
            Some(to) if voters.any(|voter| voter.node == to) => Ok(to),
            Some(to) => refuse(format!("node {to} has no vote; name a voter")),
            None => {
                let others = voters.filter(|voter| voter.node != me);
                let furthest = others.max_by_key(|voter| (voter.matched, u64::MAX - voter.node));
                match furthest {
                    Some(voter) => Ok(voter.node),
                    None => refuse("there is no other voter; add one first".to_owned()),
                }
            }
        }
    }

    /// Checks that a successor is up: a leader that has named one accepts no more proposals.
    async fn reachable(&self, node: u64) -> Result<(), ChangeError> {
        self.inner.links.call_member(node, &Message::Hello, HELLO_WAIT).await?;
        Ok(())
    }

    pub(crate) async fn move_member(&self, node: u64, address: String) -> Result<(), ChangeError> {
        self.lead()?;
        let Some(listed) = self.inner.links.peer(node) else {
            return refuse(format!("node {node} is no member"));
        };
        if listed.address == address || address.is_empty() {
            return Ok(());
        }
        let _changing = self.change_begins()?;
        let incarnation = self.inner.links.incarnation(node);
        let place = MemberAddress { address: address.clone(), incarnation };
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(node, place)])), true).await?;
        tracing::info!(node, from = listed.address, to = address, "member moved");
        Ok(())
    }

    /// # Errors  `NotLeader`, unless this node considers itself the leader.
    fn lead(&self) -> Result<(), ChangeError> {
        self.refuse_if_stopped()?;
        let metrics = self.inner.raft.server_metrics().borrow_watched().clone();
        if metrics.state == ServerState::Leader {
            return Ok(());
        }
        let leader = metrics.current_leader.and_then(|leader| self.inner.links.peer(leader));
        Err(ProposeError::NotLeader { leader }.into())
    }

    fn change_begins(&self) -> Result<MutexGuard<'_, ()>, ChangeError> {
        self.inner.changing.try_lock().map_err(|_| ChangeError::Busy)
    }

    /// Proposes a change of members and waits until both of its steps are committed.
    async fn change(
        &self,
        changes: ChangeMembers<u64, MemberAddress>,
        retain: bool,
    ) -> Result<(), ChangeError> {
        let deadline: Instant = self.inner.host.now() + CHANGE_WAIT;
        let changed = self.inner.raft.change_membership(changes, retain);
        let late = |_| ProposeError::Timeout { waited_ms: CHANGE_WAIT.as_millis() as u64 };
        match timeout_at(deadline, changed).await.map_err(late)? {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal).into()),
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => match error
            {
                ChangeMembershipError::InProgress(_)
                | ChangeMembershipError::UncommittedLeaderLog(_) => Err(ChangeError::Busy),
                other => refuse(other.to_string()),
            },
            Err(RaftError::APIError(ClientWriteError::PreconditionFailed(_))) => {
                Err(ChangeError::Busy)
            }
            Err(RaftError::APIError(error)) => Err(self.write_error(error).into()),
        }
    }
}

fn refuse<T>(reason: String) -> Result<T, ChangeError> {
    Err(ChangeError::Refused { reason })
}
