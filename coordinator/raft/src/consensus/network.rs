//! The network of a cluster of one: nobody can be reached.

use std::future::Future;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use super::types::{Snapshot, TypeConfig, Vote};

/// Makes connections that lead nowhere. Peers come with a factory of their own.
#[derive(Debug)]
pub(crate) struct NoPeers;

/// A connection to a peer that does not exist.
#[derive(Debug)]
pub(crate) struct Nowhere {
    target: u64,
}

impl RaftNetworkFactory<TypeConfig> for NoPeers {
    type Network = Nowhere;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Nowhere {
        Nowhere { target }
    }
}

impl Nowhere {
    fn unreachable(&self) -> Unreachable<TypeConfig> {
        let what = format!("node {} has no address: this cluster has one member", self.target);
        Unreachable::new(&AnyError::error(what))
    }
}

impl RaftNetworkV2<TypeConfig> for Nowhere {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(self.unreachable().into())
    }
}
