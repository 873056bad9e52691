//! Incoming snapshot: its parts stay in memory, and nothing is on disk before all is verified.

use crate::network::message::{PeerAnswer, SnapshotPart};
use crate::storage::record::Vote;
use crate::storage::snapshot::{Snapshot, SnapshotMeta, hash_text};

/// Maximum bytes of a state; a larger one is rejected before memory is allocated for it.
const STATE_BYTES_MAX: u64 = 4 << 30;

/// The incoming snapshot; at most one at a time, from the leader.
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
}

/// All bytes of a state, not verified, because verification is slow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unverified {
    snapshot: Snapshot,
    hash: String,
}

impl Unverified {
    /// Hashes the state. # Errors  The hash differs from that of the sender.
    pub(crate) fn verify(self) -> Result<Snapshot, String> {
        let found = hash_text(&self.snapshot.state);
        if found == self.hash {
            return Ok(self.snapshot);
        }
        Err(format!("the state hashes to {found}, not to {}", self.hash))
    }
}

impl Incoming {
    /// Accepts a part. A part of another snapshot or another leader starts a new transfer. A part
    /// that does not follow the received bytes changes nothing.
    ///
    /// # Errors  `Held` with the place to continue, until all bytes are received; `Failed`.
    pub(crate) fn take(&mut self, part: SnapshotPart) -> Result<Unverified, PeerAnswer> {
        let failed = |reason| Err(PeerAnswer::Failed { reason });
        if part.total > STATE_BYTES_MAX {
            return failed(format!("a state of {} bytes is too large", part.total));
        }
        let same = self.current.as_ref().is_some_and(|transfer| {
            transfer.vote == part.vote
                && transfer.hash == part.hash
                && transfer.total == part.total
                && transfer.meta == part.meta
        });
        let transfer = match self.current.take().filter(|_| same) {
            Some(transfer) => self.current.insert(transfer),
            None => self.current.insert(Transfer {
                vote: part.vote,
                meta: part.meta,
                hash: part.hash,
                total: part.total,
                bytes: Vec::new(),
            }),
        };
        let held = transfer.bytes.len() as u64;
        if part.offset == held {
            if held + part.bytes.len() as u64 > part.total {
                return failed("more bytes than it was said to have".to_owned());
            }
            transfer.bytes.extend_from_slice(&part.bytes);
        }
        let held = transfer.bytes.len() as u64;
        // An empty part is only a query, unless the state is empty.
        if held < part.total || (part.bytes.is_empty() && part.total > 0) {
            return Err(PeerAnswer::Held { bytes: held });
        }
        let transfer = self.current.take().expect("it was there a line before");
        let snapshot = Snapshot { meta: transfer.meta, state: transfer.bytes };
        Ok(Unverified { snapshot, hash: transfer.hash })
    }

    /// Discards a transfer from a leader whose term is over.
    pub(crate) fn forget_older_than(&mut self, vote: Vote) {
        if self.current.as_ref().is_some_and(|transfer| transfer.vote < vote) {
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &[u8] = b"a state of some bytes";

    fn part(term: u64, offset: usize, length: usize) -> SnapshotPart {
        SnapshotPart {
            vote: Vote { term, node: 1, committed: true },
            meta: SnapshotMeta::default(),
            hash: hash_text(STATE),
            total: STATE.len() as u64,
            offset: offset as u64,
            bytes: STATE[offset..offset + length].to_vec(),
        }
    }

    fn verified(taken: Result<Unverified, PeerAnswer>) -> Result<Snapshot, String> {
        taken.map_err(|answer| format!("{answer:?}"))?.verify()
    }

    fn held(bytes: u64) -> Result<Unverified, PeerAnswer> {
        Err(PeerAnswer::Held { bytes })
    }

    fn failed(reason: &str) -> Result<Unverified, PeerAnswer> {
        Err(PeerAnswer::Failed { reason: reason.to_owned() })
    }

    fn whole() -> Result<Snapshot, String> {
        Ok(Snapshot { meta: SnapshotMeta::default(), state: STATE.to_vec() })
    }

    #[test]
    fn parts_make_a_whole_in_order_and_repeats_change_nothing() {
        let mut incoming = Incoming::default();
        assert_eq!(incoming.take(part(1, 0, 0)), held(0));
        assert_eq!(incoming.take(part(1, 0, 5)), held(5));
        assert_eq!(incoming.take(part(1, 0, 5)), held(5));
        assert_eq!(incoming.take(part(1, 9, 3)), held(5));
        // A sender that lost its position asks for it.
        assert_eq!(incoming.take(part(1, 0, 0)), held(5));
        assert_eq!(verified(incoming.take(part(1, 5, STATE.len() - 5))), whole());
        assert_eq!(verified(incoming.take(part(1, 0, STATE.len()))), whole());
    }

    #[test]
    fn another_leader_begins_anew() {
        let mut incoming = Incoming::default();
        assert_eq!(incoming.take(part(1, 0, 5)), held(5));
        assert_eq!(incoming.take(part(2, 0, 0)), held(0));
        assert_eq!(incoming.take(part(2, 0, 7)), held(7));
        incoming.forget_older_than(Vote { term: 3, node: 1, committed: true });
        assert_eq!(incoming.take(part(2, 0, 0)), held(0));
    }

    #[test]
    fn what_is_not_what_was_sent_is_never_whole() {
        let mut incoming = Incoming::default();
        let mut bad = part(1, 0, STATE.len());
        bad.bytes[3] ^= 1;
        let (was, is) = (hash_text(STATE), hash_text(&bad.bytes));
        let says = format!("the state hashes to {is}, not to {was}");
        assert_eq!(verified(incoming.take(bad)), Err(says));
        let mut long = part(1, 0, STATE.len());
        long.bytes.push(0);
        let says = "more bytes than it was said to have";
        assert_eq!(incoming.take(long), failed(says));
        let huge = SnapshotPart { total: u64::MAX, ..part(1, 0, 0) };
        let says = "a state of 18446744073709551615 bytes is too large";
        assert_eq!(incoming.take(huge), failed(says));
        assert_eq!(verified(incoming.take(part(1, 0, STATE.len()))), whole());
    }

    #[test]
    fn a_state_without_bytes_is_whole_at_once() {
        let nothing =
            SnapshotPart { total: 0, hash: hash_text(b""), bytes: Vec::new(), ..part(1, 0, 0) };
        assert_eq!(verified(Incoming::default().take(nothing)).unwrap().state, b"");
    }
}
