//! Handling of messages from other nodes.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::RaftError;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest,
};
use shardfeed_host::blocking;
use tokio::sync::Mutex;

use super::convert;
use super::machine_adapter::Shared;
use super::types::{Raft, RaftSnapshot, TypeConfig};
use crate::machine::AnyMachine;
use crate::network::incoming::Incoming;
use crate::network::links::{Links, frame_text, lost_directory};
use crate::network::message::{Ballot, Envelope, Message, PeerAnswer, SnapshotPart, Speaker};
use crate::network::peers::PeerError;
use crate::storage::record::{Position, Record, Vote};

pub(crate) struct Receiver {
    raft: Raft,
    machine: Arc<Shared<dyn AnyMachine>>,
    links: Arc<Links>,
    incoming: Mutex<Incoming>,
}

impl Receiver {
    pub(crate) fn new(raft: Raft, machine: Arc<Shared<dyn AnyMachine>>, links: Arc<Links>) -> Self {
        Self { raft, machine, links, incoming: Mutex::default() }
    }

    /// Decodes a message, and checks that it is for this node and from a permitted sender.
    pub(crate) fn open(&self, from: u64, bytes: &[u8]) -> Result<(Speaker, Message), PeerError> {
        let opened = Message::decode(self.links.cluster, bytes)
            .map_err(|error| format!("a message of node {from}: {}", frame_text(&error)));
        let checked = opened.and_then(|(envelope, message)| {
            self.check(from, envelope)?;
            Ok((envelope.from, message))
        });
        checked.map_err(|reason| {
            self.links.tell_refused(from, &reason);
            PeerError::Refused { node: self.links.me.node, reason }
        })
    }

    fn check(&self, from: u64, envelope: Envelope) -> Result<(), String> {
        let (me, Envelope { from: sender, to }) = (self.links.me, envelope);
        if sender.node != from {
            let said = sender.node;
            return Err(format!("the message says it is of node {said}, the connection {from}"));
        }
        if to.node != me.node {
            let reason = format!(
                "this is node {}, the message is for node {}; look at the address of node {}",
                me.node, to.node, to.node
            );
            return Err(reason);
        }
        if to.incarnation.is_some() && to.incarnation != me.incarnation {
            return Err(lost_directory(me.node));
        }
        let known = self.links.incarnation(from);
        if known.is_some() && known != sender.incarnation {
            return Err(lost_directory(from));
        }
        let metrics = self.raft.server_metrics();
        let current = metrics.borrow_watched().membership_config.clone();
        if current.membership().get_node(&from).is_none() && self.machine.was_used(from) {
            return Err(format!(
                "node {from} was removed from the cluster; stop it, or let it join with an empty directory under a number that was never used"
            ));
        }
        Ok(())
    }

    /// Answers messages of consensus; the node answers the rest.
    pub(crate) async fn answer(
        &self,
        message: Message,
    ) -> Result<PeerAnswer, RaftError<TypeConfig>> {
        match message {
            Message::Append { vote, previous, committed, records } => {
                self.append(vote, (previous, committed), records).await
            }
            Message::Vote(ballot) => self.vote(ballot, false).await,
            Message::PreVote(ballot) => self.vote(ballot, true).await,
            Message::Part(part) => self.part(part).await,
            Message::Transfer { vote, to, last } => {
                let last = last.map(convert::log_id);
                let request = TransferLeaderRequest::new(convert::raft_vote(vote), to, last);
                Ok(match self.raft.handle_transfer_leader(request).await? {
                    Ok(()) => PeerAnswer::Done,
                    Err(error) => PeerAnswer::Failed { reason: error.to_string() },
                })
            }
            Message::Hello => Ok(PeerAnswer::Here {
                pristine: !self.raft.is_initialized().await.map_err(RaftError::Fatal)?,
            }),
            Message::Moved { .. } | Message::Remove { .. } => {
                Ok(PeerAnswer::Failed { reason: "this is no matter of consensus".to_owned() })
            }
        }
    }

    async fn append(
        &self,
        vote: Vote,
        (previous, committed): (Option<Position>, Option<Position>),
        records: Vec<Record>,
    ) -> Result<PeerAnswer, RaftError<TypeConfig>> {
        let entries: Result<Vec<_>, _> = records.into_iter().map(convert::entry).collect();
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => return Ok(PeerAnswer::Failed { reason: error.to_string() }),
        };
        if let Ok(mut incoming) = self.incoming.try_lock() {
            incoming.forget_older_than(vote);
        }
        let request = AppendEntriesRequest {
            vote: convert::raft_vote(vote),
            prev_log_id: previous.map(convert::log_id),
            entries,
            leader_commit: committed.map(convert::log_id),
        };
        Ok(match self.raft.append_entries(request).await? {
            AppendEntriesResponse::Success => PeerAnswer::Appended,
            AppendEntriesResponse::PartialSuccess(upto) => {
                PeerAnswer::AppendedUpto { last: upto.as_ref().map(convert::position) }
            }
            AppendEntriesResponse::Conflict => PeerAnswer::Conflict,
            AppendEntriesResponse::HigherVote(vote) => {
                PeerAnswer::Later { vote: convert::our_vote(&vote) }
            }
        })
    }

    async fn vote(&self, ballot: Ballot, pre: bool) -> Result<PeerAnswer, RaftError<TypeConfig>> {
        let request = VoteRequest {
            vote: convert::raft_vote(ballot.vote),
            last_log_id: ballot.last.map(convert::log_id),
            leadership_transfer: ballot.transfer,
        };
        let voted = match pre {
            true => self.raft.pre_vote(request).await?,
            false => self.raft.vote(request).await?,
        };
        Ok(PeerAnswer::Voted {
            vote: convert::our_vote(&voted.vote),
            granted: voted.vote_granted,
            last: voted.last_log_id.as_ref().map(convert::position),
        })
    }

    async fn part(&self, part: SnapshotPart) -> Result<PeerAnswer, RaftError<TypeConfig>> {
        let known = convert::our_vote(&self.raft.server_metrics().borrow_watched().vote);
        if part.vote < known {
            return Ok(PeerAnswer::Later { vote: known });
        }
        // A repeated last part, whose answer was lost: its entries are already applied.
        let applied = self.raft.metrics().borrow_watched().last_applied;
        if part.meta.last <= applied.as_ref().map(convert::position) {
            return Ok(PeerAnswer::Installed { vote: known });
        }
        // The lock is held during the installation: a repeated last part waits, then starts over.
        let mut incoming = self.incoming.lock().await;
        let vote = convert::raft_vote(part.vote);
        let snapshot = match incoming.take(part) {
            Ok(all) => all,
            Err(answer) => return Ok(answer),
        };
        let verified = blocking(self.links.host.as_ref(), move || snapshot.verify()).await;
        let snapshot = match verified.map_err(|error| error.to_string()).flatten() {
            Ok(snapshot) => snapshot,
            Err(reason) => return Ok(PeerAnswer::Failed { reason }),
        };
        let meta = match convert::raft_meta(&snapshot.meta) {
            Ok(meta) => meta,
            Err(error) => return Ok(PeerAnswer::Failed { reason: error.to_string() }),
        };
        let snapshot = RaftSnapshot { meta, snapshot };
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        let installed = installed.map_err(RaftError::Fatal)?;
        Ok(PeerAnswer::Installed { vote: convert::our_vote(&installed.vote) })
    }
}
