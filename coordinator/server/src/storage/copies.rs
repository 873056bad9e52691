//! Replication of chunks: an acknowledged chunk is on a majority of the voters, and a node that
//! lacks a chunk of a dataset fetches it from the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_plan::Digest;
use shardfeed_proto::ErrorKind;
use shardfeed_raft::{Member, Role};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;

use crate::error::{Result, retry};
use crate::leader::core::{Core, blocking, referenced};
use crate::storage::chunks::ChunkStoreError;
use crate::ticks::Ticks;

/// Timeout for a chunk of 1 MiB to reach another node's disk, or to arrive from there.
const CARRY_MAX: Duration = Duration::from_secs(5);

/// Interval between a node's checks for missing chunks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Rounds of checks between two log messages about chunks that are missing everywhere.
const TELL_ROUNDS: u32 = 30;

/// Stores a chunk here and on a majority of the voters.
/// - `owner`: the principal whose share of the allowance it uses; empty: an unlimited one.
///
/// # Errors  `Retry`: a majority cannot be reached; copies stored meanwhile are harmless.
pub(crate) async fn put(core: &Arc<Core>, content: Vec<u8>, owner: String) -> Result<Digest> {
    if !owner.is_empty() {
        // Checked before other nodes get it, which do not know its owner.
        core.chunks.check_room(content.len(), &owner)?;
    }
    put_without(core, content, owner, None).await
}

/// Before a node is removed, stores the referenced chunks on a majority of the nodes that stay,
/// which may lack them.
///
/// # Errors  `Retry`: a majority of them cannot be reached.
pub(crate) async fn put_before_removal(core: &Arc<Core>, node: u64) -> Result<()> {
    let referenced: BTreeSet<Digest> = core.read(referenced).into_iter().collect();
    for digest in referenced {
        match get(core, digest).await {
            Ok(content) => {
                put_without(core, content, String::new(), Some(node)).await?;
            }
            // No node has a valid copy, with or without the removed node.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt) => {
                tracing::warn!(%digest, %error, "a chunk is lost");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// - `gone`: a node whose copy does not count.
async fn put_without(
    core: &Arc<Core>,
    content: Vec<u8>,
    owner: String,
    gone: Option<u64>,
) -> Result<Digest> {
    let mut members = core.node.members();
    members.retain(|member| Some(member.node) != gone);
    let votes = |member: &&Member| member.role != Role::Learner;
    let needed = members.iter().filter(votes).count() / 2 + 1;
    let (enough, done) = watch::channel(false);
    let (told, mut stored) = mpsc::channel(members.len().max(1));
    let others = members.iter().filter(|member| member.node != core.options.node_id);
    for member in others {
        let push = push(Arc::clone(core), member.clone(), content.clone(), done.clone());
        let (told, votes) = (told.clone(), votes(&member));
        tokio::spawn(async move {
            let pushed = push.await;
            // The caller may have its majority, or have given up.
            let _ = told.send(pushed.map(|()| votes)).await;
        });
    }
    drop(told);
    let put = move |core: &Core| Ok(core.chunks.put(&content, &owner, core.host.now())?);
    let digest = blocking(core, "storing a chunk", put).await?;
    let counts = Some(core.options.node_id) != gone;
    let (mut copies, mut missing) = (usize::from(counts), Vec::new());
    while copies < needed {
        match stored.recv().await {
            Some(Ok(votes)) => copies += usize::from(votes),
            Some(Err(error)) => missing.push(error.message),
            None => {
                let message = format!(
                    "the chunk is on {copies} of the {needed} nodes that must have it; try again: {}",
                    missing.join("; ")
                );
                return Err(retry(message));
            }
        }
    }
    let _ = enough.send(true);
    Ok(digest)
}

/// Sends a chunk to a node; gives up before it starts if enough other nodes have the chunk by then.
async fn push(
    core: Arc<Core>,
    to: Member,
    content: Vec<u8>,
    mut done: watch::Receiver<bool>,
) -> Result<()> {
    let turn = core.turns.of(to.node).acquire_owned();
    let late = || retry(format!("node {} has no turn for it", to.node));
    let turn: OwnedSemaphorePermit = tokio::select! {
        turn = timeout(CARRY_MAX, turn) => match turn {
            Ok(Ok(turn)) => turn,
            _ => return Err(late()),
        },
        _ = done.wait_for(|done| *done) => return Err(late()),
    };
    let links = core.links.clone();
    drop(core);
    let pushed = links.push_chunk(&to.address, content, CARRY_MAX).await;
    drop(turn);
    pushed
}

/// Returns a chunk's content, from here or from another node; it replaces a missing or damaged one.
///
/// # Errors  `NotFound`, `Corrupt`: no valid copy; `Retry`: some were not reached; `Storage`.
pub(crate) async fn get(core: &Arc<Core>, digest: Digest) -> Result<Vec<u8>> {
    let read = move |core: &Core| Ok(core.chunks.read(&digest));
    let error = match blocking(core, "reading a chunk", read).await? {
        Ok(content) => return Ok(content),
        Err(error @ ChunkStoreError::Io { .. }) => return Err(error.into()),
        Err(error) => error,
    };
    pull(core, digest).await.map_err(|unreached| match unreached.is_empty() {
        true => error.into(),
        false => retry(format!("{error}; not asked: {}", unreached.join("; "))),
    })
}

/// Makes sure that chunks are here, before work that cannot wait for other nodes reads them.
pub(crate) async fn bring(core: &Arc<Core>, digests: &[Digest]) -> Result<()> {
    for digest in core.chunks.missing(digests) {
        get(core, digest).await?;
    }
    Ok(())
}

/// Fetches a chunk from another node and stores it.
///
/// # Errors  The nodes that were not reached; empty if none of the nodes has it.
async fn pull(core: &Arc<Core>, digest: Digest) -> Result<Vec<u8>, Vec<String>> {
    let mut unreached = Vec::new();
    for member in core.node.members() {
        if member.node == core.options.node_id {
            continue;
        }
        let name = digest.as_bytes().to_vec();
        match core.links.pull_chunk(&member.address, name, CARRY_MAX).await {
            Ok(Some(content)) if Digest::of_parts([content.as_slice()]) == digest => {
                let kept = content.clone();
                let fill = move |core: &Core| Ok(core.chunks.fill(&kept)?);
                if let Err(error) = blocking(core, "storing a chunk", fill).await {
                    tracing::warn!(%digest, %error, "cannot keep a chunk of another node");
                }
                return Ok(content);
            }
            Ok(Some(_)) => {
                tracing::warn!(%digest, from = member.node, "another node sent a damaged chunk");
            }
            Ok(None) => {}
            Err(error) => unreached.push(format!("node {}: {error}", member.node)),
        }
    }
    Err(unreached)
}

/// Keeps this node's chunks as the state requires, leader or not. Runs until `stop` is set.
pub(crate) async fn keep(core: Arc<Core>, stop: watch::Receiver<bool>) {
    let mut ticks = Ticks::new(LOOK_EVERY, stop);
    let mut looked = None;
    let mut rounds = 0_u32;
    while ticks.next().await {
        if core.chunks.failure().is_some() {
            let probe = |core: &Core| Ok(core.chunks.probe()?);
            if blocking(&core, "looking at the disk", probe).await.is_ok() {
                tracing::info!("chunks can be stored again");
            }
        }
        let applied = core.node.status().applied;
        if looked == Some(applied) {
            continue;
        }
        let wanted: BTreeSet<Digest> = core.read(referenced).into_iter().collect();
        core.chunks.follow(&wanted, core.host.now());
        let missing = core.chunks.missing(&wanted);
        let mut lost = 0_u64;
        for digest in &missing {
            if ticks.is_stopped() {
                return;
            }
            lost += u64::from(pull(&core, *digest).await.is_err());
        }
        if missing.is_empty() {
            (looked, rounds) = (Some(applied), 0);
            continue;
        }
        tracing::info!(missing = missing.len(), lost, "got chunks from other nodes");
        if lost > 0 && rounds.is_multiple_of(TELL_ROUNDS) {
            tracing::error!(chunks = lost, "chunks of datasets are on no node that can be reached");
        }
        rounds = rounds.wrapping_add(1);
    }
}
