//! One memory budget for all ranks that a worker serves.

use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_proto::{ErrorKind, WireError};

/// Ranks of a host whose launcher does not say how many there are.
const RANKS_UNKNOWN: u64 = 2;

/// Jobs that a rank runs side by side: training and validation.
const JOBS_PER_RANK: u64 = 2;

/// Of what a rank may use, this part is for batches that its trainer holds: 1 in `HELD_PART`.
const HELD_PART: u64 = 3;

/// Without a wish a rank gets at most this part of what is left, so that there is some for others,
const LEFT_PART: u64 = 4;
/// and no less than this.
const SHARE_LEAST_BYTES: u64 = 256 << 10;

/// The budget and what is left of it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    total: u64,
    left: Arc<Mutex<u64>>,
}

/// A rank's part, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    /// Bytes for records in reading and batches ahead.
    pub(crate) reading_bytes: u64,
    charged: u64,
    left: Arc<Mutex<u64>>,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self { total, left: Arc::new(Mutex::new(total)) }
    }

    /// All of it.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// What no rank has.
    pub(crate) fn left(&self) -> u64 {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of the budget for one rank.
    /// - `asked`: bytes for reading and batches ahead that its user wants.
    /// - `ranks_on_host`: 0 if nobody knows.
    ///
    /// # Errors  There is not enough left.
    pub(crate) fn share(&self, asked: Option<u64>, ranks_on_host: u64) -> Result<Share, WireError> {
        let ranks = if ranks_on_host == 0 { RANKS_UNKNOWN } else { ranks_on_host };
        let by_default = self.total / (ranks * JOBS_PER_RANK);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let charged = match asked {
            Some(bytes) => bytes.saturating_add(bytes / (HELD_PART - 1)),
            None => by_default.min(*left / LEFT_PART).max(SHARE_LEAST_BYTES),
        };
        if charged > *left {
            let message = format!(
                "the worker has {} of the {} bytes of its memory budget left, and this rank needs \
                 {charged}; close loaders that are not used, lower memory_budget=, or start the worker \
                 with a larger --memory-budget",
                *left, self.total
            );
            return Err(WireError::new(ErrorKind::Memory, message));
        }
        *left -= charged;
        let reading_bytes = asked.unwrap_or(charged - charged / HELD_PART);
        Ok(Share { reading_bytes, charged, left: Arc::clone(&self.left) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += self.charged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_are_within_the_budget() {
        const MIB: u64 = 1 << 20;
        let budget = Budget::new(48 * MIB);
        let first = budget.share(None, 2).unwrap();
        assert_eq!((first.charged, first.reading_bytes), (12 * MIB, 8 * MIB));
        let second = budget.share(Some(16 * MIB), 2).unwrap();
        assert_eq!((second.charged, second.reading_bytes), (24 * MIB, 16 * MIB));
        let (mut shares, mut refused) = (vec![], None);
        while refused.is_none() {
            match budget.share(None, 1) {
                Ok(share) => shares.push(share),
                Err(error) => refused = Some(error),
            }
        }
        let charged: u64 = shares.iter().map(|share| share.charged).sum();
        assert!((10..100).contains(&shares.len()) && charged <= 12 * MIB, "{charged}");
        let error = refused.unwrap();
        assert_eq!(error.kind, ErrorKind::Memory);
        drop(second);
        assert_eq!(budget.share(Some(16 * MIB), 1).unwrap().charged, 24 * MIB);
        drop((first, shares));
        assert_eq!(*budget.left.lock().unwrap(), 48 * MIB);
    }

    #[test]
    fn a_share_that_is_not_left_is_refused_with_what_is() {
        let budget = Budget::new(48 << 20);
        let _first = budget.share(Some(16 << 20), 1).unwrap();
        let refused = budget.share(Some(24 << 20), 1).unwrap_err().message;
        assert_eq!(
            refused,
            "the worker has 25165824 of the 50331648 bytes of its memory budget left, and this \
             rank needs 37748736; close loaders that are not used, lower memory_budget=, or start \
             the worker with a larger --memory-budget"
        );
    }
}
