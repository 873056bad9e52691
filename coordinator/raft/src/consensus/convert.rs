//! Conversions between openraft's types and ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use openraft::EntryPayload;
use openraft::impls::leader_id_adv::LeaderId;

use super::types::{
    self, LogId, MemberAddress, Membership, RaftCommand, RaftEntry, StoredMembership,
};
use crate::storage::record::{Members, Payload, Position, Record, Vote};
use crate::storage::snapshot::SnapshotMeta;

pub(crate) fn position(id: &LogId) -> Position {
    Position { term: id.leader_id.term, node: id.leader_id.node_id, index: id.index }
}

pub(crate) fn log_id(position: Position) -> LogId {
    LogId::new(LeaderId { term: position.term, node_id: position.node }, position.index)
}

pub(crate) fn our_vote(vote: &types::RaftVote) -> Vote {
    let leader = &vote.leader_id;
    Vote { term: leader.term, node: leader.node_id, committed: vote.committed }
}

pub(crate) fn raft_vote(vote: Vote) -> types::RaftVote {
    let leader_id = LeaderId { term: vote.term, node_id: vote.node };
    types::RaftVote { leader_id, committed: vote.committed }
}

pub(crate) fn record(entry: RaftEntry) -> Record {
    let position = position(&entry.log_id);
    let payload = match entry.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(command) => Payload::Command(command.0),
        EntryPayload::Membership(membership) => Payload::Members(members(&membership)),
    };
    Record { position, payload }
}

pub(crate) fn entry(record: Record) -> io::Result<RaftEntry> {
    let payload = match record.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Command(command) => EntryPayload::Normal(RaftCommand(command)),
        Payload::Members(members) => EntryPayload::Membership(membership(&members)?),
    };
    Ok(RaftEntry { log_id: log_id(record.position), payload })
}

pub(crate) fn members(membership: &Membership) -> Members {
    Members {
        voters: membership.get_joint_config().clone(),
        addresses: membership.nodes().map(|(id, node)| (*id, node.address.clone())).collect(),
        incarnations: membership
            .nodes()
            .filter_map(|(id, node)| Some((*id, node.incarnation?)))
            .collect(),
    }
}

fn membership(members: &Members) -> io::Result<Membership> {
    if members.voters.is_empty() && members.addresses.is_empty() {
        // The state before the first entry; openraft's constructor rejects it.
        return Ok(Membership::default());
    }
    let nodes = members.addresses.iter().map(|(id, address)| {
        let incarnation = members.incarnations.get(id).copied();
        (*id, MemberAddress { address: address.clone(), incarnation })
    });
    let nodes: BTreeMap<u64, MemberAddress> = nodes.collect();
    Membership::new(members.voters.clone(), nodes).map_err(io::Error::other)
}

pub(crate) fn our_meta(
    last: Option<LogId>,
    members_of: &StoredMembership,
    used: BTreeSet<u64>,
) -> SnapshotMeta {
    SnapshotMeta {
        last: last.as_ref().map(position),
        members_at: members_of.log_id().as_ref().map(position),
        members: members(members_of.membership()),
        used,
    }
}

pub(crate) fn raft_meta(meta: &SnapshotMeta) -> io::Result<types::RaftSnapshotMeta> {
    let (last_log_id, last_membership) = (meta.last.map(log_id), stored(meta)?);
    Ok(types::RaftSnapshotMeta { last_log_id, last_membership })
}

pub(crate) fn stored(meta: &SnapshotMeta) -> io::Result<StoredMembership> {
    Ok(StoredMembership::new(meta.members_at.map(log_id), membership(&meta.members)?))
}
