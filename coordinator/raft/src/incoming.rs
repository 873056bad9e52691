//! A snapshot on its way in: parts in memory, nothing on disk before the whole is verified.

use tokio::time::Instant;

use crate::message::Part;
use crate::record::Vote;
use crate::snapshot::{Snapshot, SnapshotMeta, hash_text};

/// A state of more bytes is refused before memory is taken for it.
const STATE_BYTES_MAX: u64 = 4 << 30;

/// At most one snapshot comes in at a time: from the leader.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    current: Option<Transfer>,
}

#[derive(Debug)]
struct Transfer {
    vote: Vote,
    meta: SnapshotMeta,
    hash: String,
    total: u64,
    bytes: Vec<u8>,
    touched: Instant,
}

/// What a part led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// So many bytes are here.
    Held(u64),
    /// All are, and they are what was sent.
    Whole(Snapshot),
    /// They are not what was sent, or make no sense.
    Bad(String),
}

impl Incoming {
    /// Takes a part. One of another snapshot, or of another leader, begins anew; one that does not
    /// follow what is here changes nothing, and the answer says where to go on.
    pub(crate) fn take(&mut self, part: Part, now: Instant) -> Taken {
        if part.total > STATE_BYTES_MAX {
            return Taken::Bad(format!("a state of {} bytes is too large", part.total));
        }
        let same = self.current.as_ref().is_some_and(|transfer| {
            transfer.vote == part.vote
                && transfer.hash == part.hash
                && transfer.total == part.total
                && transfer.meta == part.meta
        });
        if !same {
            let Part { vote, meta, hash, total, .. } = part.clone();
            self.current =
                Some(Transfer { vote, meta, hash, total, bytes: Vec::new(), touched: now });
        }
        let transfer = self.current.as_mut().expect("it was set above if it was not there");
        transfer.touched = now;
        let held = transfer.bytes.len() as u64;
        if part.offset == held {
            if held + part.bytes.len() as u64 > part.total {
                return Taken::Bad("more bytes than it was said to have".to_owned());
            }
            transfer.bytes.extend_from_slice(&part.bytes);
        }
        let held = transfer.bytes.len() as u64;
        // An empty part only asks, unless there is nothing to send.
        if held < part.total || (part.bytes.is_empty() && part.total > 0) {
            return Taken::Held(held);
        }
        let transfer = self.current.take().expect("it was there a line before");
        let found = hash_text(&transfer.bytes);
        if found != transfer.hash {
            return Taken::Bad(format!("the state hashes to {found}, not to {}", transfer.hash));
        }
        Taken::Whole(Snapshot { meta: transfer.meta, state: transfer.bytes })
    }

    /// Forgets what came from a leader that leads no more.
    pub(crate) fn forget_older_than(&mut self, vote: Vote) {
        if self.current.as_ref().is_some_and(|transfer| transfer.vote != vote) {
            self.current = None;
        }
    }
}
