//! openraft's network on [`Links`]: converts its requests to our messages and our answers back.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use shardfeed_host::blocking;

use super::convert;
use super::types::{MemberAddress, RaftEntry, RaftSnapshot, RaftVote, TypeConfig};
use crate::network::links::Links;
use crate::network::message::{Ballot, Message, PeerAnswer, SnapshotPart};
use crate::network::peers::PeerError;
use crate::storage::record::Record;
use crate::storage::snapshot;

/// Maximum bytes of entries in a message that holds more than one entry: an answer must arrive
/// before the deadline, and transports have limits too.
const ENTRIES_BYTES_MAX: usize = 1 << 20;
const PART_BYTES_MAX: usize = 1 << 20;
/// Timeout of a part: the peer writes it to memory, but the connection may be slow.
const PART_WAIT: Duration = Duration::from_secs(5);
/// Timeout of the last part: the peer writes the whole state to disk and restores from it.
const INSTALL_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Network {
    links: Arc<Links>,
    /// Timeout of an append or a vote: shorter than any election timeout, so that one lost answer
    /// causes no election.
    deadline: Duration,
}

#[derive(Debug)]
pub(crate) struct Client {
    links: Arc<Links>,
    deadline: Duration,
    target: u64,
}

impl Network {
    pub(crate) fn new(links: Arc<Links>, deadline: Duration) -> Self {
        Self { links, deadline }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Client;

    /// The peer's address is looked up at each call, because it may change.
    async fn new_client(&mut self, target: u64, _place: &MemberAddress) -> Client {
        Client { links: self.links.clone(), deadline: self.deadline, target }
    }
}

impl Client {
    /// After any error openraft backs off and retries; `Links` logs the error.
    async fn call(
        &self,
        message: &Message,
        deadline: Duration,
    ) -> Result<PeerAnswer, Unreachable<TypeConfig>> {
        let answer = self.links.call_member(self.target, message, deadline).await;
        answer.map_err(|error| Unreachable::new(&AnyError::new(&error)))
    }

    fn odd(&self, answer: &PeerAnswer) -> Unreachable<TypeConfig> {
        let what = match answer {
            PeerAnswer::Failed { reason } => format!("node {}: {reason}", self.target),
            other => format!("node {} answers something else: {other:?}", self.target),
        };
        Unreachable::new(&AnyError::error(what))
    }

    async fn ask(&self, query: Message) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(&query, self.deadline).await? {
            PeerAnswer::Voted { vote, granted, last } => {
                let last = last.map(convert::log_id);
                Ok(VoteResponse::new(convert::raft_vote(vote), last, granted))
            }
            other => Err(self.odd(&other).into()),
        }
    }

    /// Sends the state in parts, starting where the peer's copy ends.
    async fn send_snapshot(
        &self,
        vote: crate::storage::record::Vote,
        snapshot: snapshot::Snapshot,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let total = snapshot.state.len();
        let hashed = blocking(self.links.host.as_ref(), move || {
            (snapshot::hash_text(&snapshot.state), snapshot)
        });
        let (hash, snapshot) = hashed.await.map_err(|error| NetworkError::new(&error))?;
        let mut part = SnapshotPart {
            vote,
            meta: snapshot.meta,
            hash,
            total: total as u64,
            offset: 0,
            bytes: Vec::new(),
        };
        // An answer has the number of bytes that the peer holds. The first part is empty: a query.
        let mut length = 0;
        loop {
            let offset = part.offset as usize;
            part.bytes = snapshot.state[offset..offset + length].to_vec();
            let last = offset + length == total;
            let wait = if last { INSTALL_WAIT } else { PART_WAIT };
            let held = match self.call(&Message::Part(part.clone()), wait).await? {
                PeerAnswer::Installed { vote } | PeerAnswer::Later { vote } => {
                    return Ok(SnapshotResponse::new(convert::raft_vote(vote)));
                }
                PeerAnswer::Held { bytes } if bytes <= total as u64 => bytes,
                other => return Err(self.odd(&other).into()),
            };
            self.links.took_snapshot_bytes(self.target, held.saturating_sub(part.offset));
            if length > 0 && held <= part.offset {
                // The peer lost its bytes, or accepted none: openraft starts over, after a pause.
                return Err(self.odd(&PeerAnswer::Held { bytes: held }).into());
            }
            part.offset = held;
            length = PART_BYTES_MAX.min(total - held as usize);
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = snapshot::Snapshot;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (vote, previous) = (convert::our_vote(&rpc.vote), rpc.prev_log_id);
        let previous = previous.as_ref().map(convert::position);
        let count = rpc.entries.len();
        let records = first_that_fit(rpc.entries);
        let last = records.last().map(|record| record.position).or(previous);
        let cut = records.len() < count;
        let committed = rpc.leader_commit.as_ref().map(convert::position);
        let message = Message::Append { vote, previous, committed, records };
        match self.call(&message, self.deadline).await? {
            PeerAnswer::Appended => {
                self.links.acknowledged(self.target, vote, last);
                Ok(match cut {
                    true => AppendEntriesResponse::PartialSuccess(last.map(convert::log_id)),
                    false => AppendEntriesResponse::Success,
                })
            }
            PeerAnswer::AppendedUpto { last: upto } => {
                self.links.acknowledged(self.target, vote, upto);
                Ok(AppendEntriesResponse::PartialSuccess(upto.map(convert::log_id)))
            }
            // openraft treats a log that went backwards as its own bug, and panics.
            PeerAnswer::Conflict if self.links.went_back(self.target, vote, previous) => {
                let node = self.target;
                let reason = format!(
                    "node {node} no longer has entries that it acknowledged: its disk went back in time; remove node {node} and let it join empty under a number that was never used"
                );
                let error = PeerError::Refused { node, reason };
                if let Some(peer) = self.links.peer(node) {
                    self.links.tell(&peer, Some(&error));
                }
                Err(Unreachable::new(&AnyError::new(&error)).into())
            }
            PeerAnswer::Conflict => Ok(AppendEntriesResponse::Conflict),
            PeerAnswer::Later { vote } => {
                Ok(AppendEntriesResponse::HigherVote(convert::raft_vote(vote)))
            }
            other => Err(self.odd(&other).into()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(Message::Vote(ballot(&rpc))).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(Message::PreVote(ballot(&rpc))).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let send = self.send_snapshot(convert::our_vote(&vote), snapshot.snapshot);
        match select(Box::pin(cancel), Box::pin(send)).await {
            Either::Left((closed, _)) => Err(closed.into()),
            Either::Right((sent, _)) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let message = Message::Transfer {
            vote: convert::our_vote(request.from_leader()),
            to: *request.to_node_id(),
            last: request.last_log_id().map(convert::position),
        };
        match self.call(&message, self.deadline).await? {
            PeerAnswer::Done => Ok(Ok(())),
            other => Err(self.odd(&other).into()),
        }
    }
}

fn ballot(rpc: &VoteRequest<TypeConfig>) -> Ballot {
    Ballot {
        vote: convert::our_vote(&rpc.vote),
        last: rpc.last_log_id.as_ref().map(convert::position),
        transfer: rpc.leadership_transfer,
    }
}

/// Returns the entries that fit into one message; the others follow in the next.
fn first_that_fit(entries: Vec<RaftEntry>) -> Vec<Record> {
    let mut bytes = 0;
    let mut records: Vec<Record> = Vec::with_capacity(entries.len());
    for entry in entries {
        let record = convert::record(entry);
        bytes += record.size_bytes();
        if bytes > ENTRIES_BYTES_MAX && !records.is_empty() {
            break;
        }
        records.push(record);
    }
    records
}
