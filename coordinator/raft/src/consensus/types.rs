//! Types that openraft is instantiated with.

use std::fmt;
use std::sync::Arc;

use openraft::impls::leader_id_adv::LeaderId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::machine_adapter::MachineAdapter;
use crate::machine::AnyAnswer;
use crate::storage::snapshot;

openraft::declare_raft_types!(
    /// Commands are bytes; nodes are numbers with an address.
    pub(crate) TypeConfig:
        D = RaftCommand,
        R = RaftAnswer,
        NodeId = u64,
        Node = MemberAddress,
        Term = u64,
        LeaderId = LeaderId<u64, u64>,
);

pub(crate) type Raft = openraft::Raft<TypeConfig, MachineAdapter>;
pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(crate) type RaftEntry = openraft::alias::EntryOf<TypeConfig>;
pub(crate) type RaftVote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<u64, MemberAddress>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type RaftSnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type RaftSnapshot = openraft::alias::SnapshotOf<TypeConfig, snapshot::Snapshot>;

/// Address of a member, and the incarnation that uses its number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberAddress {
    pub(crate) address: String,
    pub(crate) incarnation: Option<Uuid>,
}

/// Command; cloning it copies a pointer. openraft requires serde; the disk holds a `Record`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct RaftCommand(pub(crate) Arc<[u8]>);

impl From<Vec<u8>> for RaftCommand {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<RaftCommand> for Vec<u8> {
    fn from(command: RaftCommand) -> Self {
        command.0.to_vec()
    }
}

impl fmt::Debug for RaftCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command of {} bytes", self.0.len())
    }
}

impl fmt::Display for RaftCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The machine's answer; `None` for entries that are not commands. openraft requires the serde
/// traits, and never uses them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RaftAnswer {
    #[serde(skip)]
    pub(crate) answer: Option<AnyAnswer>,
}
