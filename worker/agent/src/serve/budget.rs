//! One memory budget for all ranks that a worker serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_socket::Peer;
use shardfeed_source::{Lock, is_own};

/// Assumed ranks of a host whose launcher does not report their number.
const RANKS_UNKNOWN: u64 = 2;

/// Divisor that gives the maximum part of a rank's memory for batches that its trainer holds.
const HELD_PART: u64 = 3;

/// Divisor that gives the part of the budget for later loaders, such as validation, which is
/// divided in the same way. The host's ranks that request no size share the rest.
const LATER_PART: u64 = 4;
/// Allowed size of batches, as a multiple of their mean.
const HELD_MARGIN: u64 = 2;

/// Minimum share of a rank, in bytes.
const SHARE_LEAST_BYTES: u64 = 256 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) total: u64,
    state: Arc<Lock<BudgetState>>,
}

/// Trainer's user that a share is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareOf {
    pub(crate) uid: u32,
    /// True if the user has the worker's rights, and may use the whole budget. Other users leave 1
    /// in [`LATER_PART`] of the available part for users that come later.
    pub(crate) is_own: bool,
}

impl From<&Peer> for ShareOf {
    fn from(peer: &Peer) -> Self {
        Self { uid: peer.uid, is_own: is_own(peer) }
    }
}

/// Assigned parts of the budget.
#[derive(Debug)]
struct BudgetState {
    left: u64,
    users: BTreeMap<u32, UserShares>,
}

#[derive(Clone, Copy, Debug, Default)]
struct UserShares {
    charged: u64,
    /// Number of shares without a requested size.
    equal: u64,
    /// Bytes of the shares with a requested size.
    wished: u64,
}

/// A rank's part, returned when dropped.
#[derive(Debug)]
pub(crate) struct BudgetGuard {
    /// Bytes for records being read and batches ahead.
    pub(crate) reading_bytes: u64,
    charged: u64,
    is_equal: bool,
    uid: u32,
    state: Arc<Lock<BudgetState>>,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            state: Arc::new(Lock::new(BudgetState { left: total, users: BTreeMap::new() })),
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.state.lock().left
    }

    /// Assigns a part of the budget to one rank.
    /// - `of`: the trainer's user.
    /// - `asked`: requested bytes for reading and batches ahead.
    /// - `ranks_on_host`: 0 if unknown.
    /// - `held_bytes`: approximate bytes of the batches that its trainer may hold.
    ///
    /// # Errors  Not enough memory is left.
    pub(crate) fn share(
        &self,
        of: impl Into<ShareOf>,
        asked: Option<u64>,
        ranks_on_host: u64,
        held_bytes: u64,
    ) -> Result<BudgetGuard, WireError> {
        let of = of.into();
        let mut state = self.state.lock();
        let user = state.users.get(&of.uid).copied().unwrap_or_default();
        // This user may use what other users left, except for a part.
        let found = state.left + user.charged;
        let most = if of.is_own { found } else { found - found / LATER_PART };
        let left = state.left.min(most.saturating_sub(user.charged));
        let charged = match asked {
            Some(bytes) => bytes.saturating_add(bytes / (HELD_PART - 1)),
            None => equal_bytes(user, found, ranks_on_host).min(left).max(SHARE_LEAST_BYTES),
        };
        if charged > state.left {
            let message = format!(
                "the worker has {} of the {} bytes of its memory budget left, and this rank needs \
                 {charged}; close loaders that are not used, lower memory_budget=, or start the worker \
                 with a larger --memory-budget",
                state.left, self.total
            );
            return Err(WireError::new(ErrorKind::Memory, message));
        }
        if charged > left {
            let message = format!(
                "the ranks of user {} have {} bytes of the worker's memory budget and may have {most} together, which \
                 leaves a part for other users, and this rank needs {charged}; close loaders that are not used, lower \
                 memory_budget=, or start the worker with a larger --memory-budget",
                of.uid, user.charged
            );
            return Err(WireError::new(ErrorKind::Memory, message));
        }
        let is_equal = asked.is_none();
        state.left -= charged;
        let user = state.users.entry(of.uid).or_default();
        user.charged += charged;
        match is_equal {
            true => user.equal += 1,
            false => user.wished += charged,
        }
        let held_bytes = held_bytes.saturating_mul(HELD_MARGIN).min(charged / HELD_PART);
        let reading_bytes = asked.unwrap_or(charged - held_bytes);
        Ok(BudgetGuard {
            reading_bytes,
            charged,
            is_equal,
            uid: of.uid,
            state: Arc::clone(&self.state),
        })
    }
}

/// Returns the bytes of a share for a user's rank without a requested size.
/// - `found`: bytes that no other user has.
fn equal_bytes(user: UserShares, found: u64, ranks_on_host: u64) -> u64 {
    let ranks = if ranks_on_host == 0 { RANKS_UNKNOWN } else { ranks_on_host };
    // The later part is divided again for each share that every rank already has.
    let rounds = u32::try_from(user.equal / ranks).unwrap_or(u32::MAX);
    let later = LATER_PART.checked_pow(rounds).unwrap_or(u64::MAX);
    let round = (found - user.wished) / later;
    let bytes = (round - round / LATER_PART) / ranks;
    bytes.min((found - user.charged) / LATER_PART * (LATER_PART - 1))
}

impl Drop for BudgetGuard {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.left += self.charged;
        let user = state.users.entry(self.uid).or_default();
        user.charged -= self.charged;
        match self.is_equal {
            true => user.equal -= 1,
            false => user.wished -= self.charged,
        }
        if user.charged == 0 {
            state.users.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const OWN: ShareOf = ShareOf { uid: 0, is_own: true };

    #[test]
    fn one_user_leaves_memory_for_others() {
        let budget = Budget::new(64 * MIB);
        let user = |uid| ShareOf { uid, is_own: false };
        // With a request for the whole budget, and with one for each of many ranks.
        let refused = budget.share(user(1), Some(40 * MIB), 1, 0).unwrap_err().message;
        assert!(refused.contains("the ranks of user 1 have 0 bytes"), "{refused}");
        assert!(refused.contains("may have 50331648 together"), "{refused}");
        let mut first = vec![];
        while let Ok(share) = budget.share(user(1), Some(2 * MIB), 1, 0) {
            first.push(share);
        }
        assert_eq!(budget.left(), 16 * MIB);
        // Ranks without a requested size are bounded too, and take nothing from others' shares.
        assert!(budget.share(user(1), None, 1, 0).is_err());
        let second = budget.share(user(2), None, 1, 0).unwrap();
        assert_eq!(second.charged, 12 * MIB);
        let own = budget.share(OWN, Some(2 * MIB), 1, 0).unwrap();
        assert_eq!(own.charged, 3 * MIB);
        // Memory returned by the first user is available to all.
        drop(first);
        assert_eq!(budget.share(user(3), Some(16 * MIB), 1, 0).unwrap().charged, 24 * MIB);
        drop((second, own));
        assert_eq!(budget.left(), 64 * MIB);
        assert!(budget.state.lock().users.is_empty());
    }

    #[test]
    fn all_shares_together_are_within_the_budget() {
        let budget = Budget::new(48 * MIB);
        let first = budget.share(OWN, None, 2, u64::MAX).unwrap();
        assert_eq!((first.charged, first.reading_bytes), (18 * MIB, 12 * MIB));
        let second = budget.share(OWN, Some(16 * MIB), 2, 0).unwrap();
        assert_eq!((second.charged, second.reading_bytes), (24 * MIB, 16 * MIB));
        let (mut shares, mut refused) = (vec![], None);
        while refused.is_none() {
            match budget.share(OWN, None, 1, 0) {
                Ok(share) => shares.push(share),
                Err(error) => refused = Some(error),
            }
        }
        let charged: u64 = shares.iter().map(|share| share.charged).sum();
        assert!((2..100).contains(&shares.len()) && charged <= 6 * MIB, "{charged}");
        let error = refused.unwrap();
        assert_eq!(error.kind, ErrorKind::Memory);
        drop(second);
        assert_eq!(budget.share(OWN, Some(16 * MIB), 1, 0).unwrap().charged, 24 * MIB);
        drop((first, shares));
        assert_eq!(budget.left(), 48 * MIB);
    }

    #[test]
    fn ranks_divide_what_is_there_and_leave_some_for_validation() {
        let budget = Budget::new(1024 * MIB);
        let held = 4 * MIB;
        let share = || budget.share(OWN, None, 4, held).unwrap();
        let training: Vec<_> = (0..4).map(|_| share()).collect();
        // Each rank has a quarter of three quarters, less the part that its trainer holds.
        assert!(training.iter().all(|share| share.reading_bytes == (192 - 8) * MIB));
        let validation: Vec<_> = (0..4).map(|_| share()).collect();
        assert!(validation.iter().all(|share| share.reading_bytes == (48 - 8) * MIB));
        // Another validation gets the share of the previous one, not less each time.
        drop(validation);
        assert_eq!(share().reading_bytes, (48 - 8) * MIB);
    }

    #[test]
    fn a_share_that_is_not_left_is_refused_with_what_is() {
        let budget = Budget::new(48 << 20);
        let _first = budget.share(OWN, Some(16 << 20), 1, 0).unwrap();
        let refused = budget.share(OWN, Some(24 << 20), 1, 0).unwrap_err().message;
        assert_eq!(
            refused,
            "the worker has 25165824 of the 50331648 bytes of its memory budget left, and this \
             rank needs 37748736; close loaders that are not used, lower memory_budget=, or start \
             the worker with a larger --memory-budget"
        );
    }
}
