//! Memory permits for slots of prefetched batches, so that all of them stay within their part of
//! the memory budget. Source: docs/PERFORMANCE.md, Memory.

use std::collections::BTreeSet;

/// Error: a batch that does not fit into the memory budget even alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a batch of {batch_bytes} bytes does not fit into memory_budget, which has {budget_bytes} \
     bytes, of which reading needs {reading_bytes}; raise it to {} or lower batch_size, \
     shuffle_window or the length of padded columns",
    .batch_bytes + .reading_bytes
)]
pub struct BatchTooLarge {
    pub batch_bytes: u64,
    pub budget_bytes: u64,
    /// Minimum bytes needed for reading.
    pub reading_bytes: u64,
}

/// Permits for the part of the memory budget that is for prefetched batches.
///
/// Positions in the sequence begin, are granted the bytes of a slot once these are known, finish,
/// and are taken, in any order. Later positions never get memory that earlier ones will need.
#[derive(Clone, Debug, Default)]
pub struct Room {
    budget_bytes: u64,
    /// Minimum bytes needed for reading.
    reading_bytes: u64,
    /// Bytes for slots of prefetched batches.
    slots_bytes: usize,
    /// Positions that began and were not granted memory yet.
    unknown: BTreeSet<u64>,
    /// Positions that write into their slots, and the bytes of these.
    writing: Vec<(u64, usize)>,
    /// Bytes of slots that are finished and not taken.
    ready_bytes: usize,
    /// Bytes of the largest slot so far.
    largest_bytes: usize,
    /// Bytes that others than reading and slots use.
    apart_bytes: u64,
}

impl Room {
    /// Sets the limits from now on.
    /// - `budget_bytes`: of everything. `reading_bytes`: part of it that reading needs at least.
    ///   `slots_bytes`: part of it for slots of prefetched batches.
    pub fn bound(&mut self, budget_bytes: u64, reading_bytes: u64, slots_bytes: u64) {
        (self.budget_bytes, self.reading_bytes) = (budget_bytes, reading_bytes);
        self.slots_bytes = usize::try_from(slots_bytes).unwrap_or(usize::MAX);
    }

    /// Sets the bytes of the budget that others than reading and slots use, as long as each batch fits.
    pub fn set_apart(&mut self, bytes: u64) {
        self.apart_bytes = bytes;
    }

    /// Maximum bytes of all slots together: a trainer holds one batch and waits for the next one.
    pub fn pool_bytes(&self) -> usize {
        self.slots_bytes.saturating_add(self.largest_bytes.saturating_mul(2))
    }

    fn used_bytes(&self) -> usize {
        self.ready_bytes + self.writing.iter().map(|(_, bytes)| bytes).sum::<usize>()
    }

    /// Returns true if one more position may begin.
    /// - `chunk_bytes`: of the chunks held now.
    pub fn may_begin(&self, chunk_bytes: usize) -> bool {
        let more = (self.unknown.len() + 1).saturating_mul(self.largest_bytes);
        let slots = self.used_bytes().saturating_add(more);
        let all = (slots as u64).saturating_add(chunk_bytes as u64);
        slots <= self.slots_bytes && all.saturating_add(self.apart_bytes) <= self.budget_bytes
    }

    pub fn begin(&mut self, place: u64) {
        self.unknown.insert(place);
    }

    /// Checks whether a batch can fit at all.
    ///
    /// # Errors  The batch does not fit.
    pub fn check(&self, batch_bytes: usize) -> Result<(), BatchTooLarge> {
        let Self { budget_bytes, reading_bytes, .. } = *self;
        let batch_bytes = batch_bytes as u64;
        if batch_bytes.saturating_add(reading_bytes) <= budget_bytes {
            return Ok(());
        }
        Err(BatchTooLarge { batch_bytes, budget_bytes, reading_bytes })
    }

    /// Returns true if a slot of `bytes` may be taken for a position.
    /// - `taken`: first position not taken, which always gets memory: the consumer waits for it.
    pub fn fits(&self, place: u64, bytes: usize, taken: u64) -> bool {
        let earlier = self.unknown.range(..place).count();
        let earlier_bytes = earlier.saturating_mul(self.largest_bytes.max(bytes));
        let all = self.used_bytes().saturating_add(bytes).saturating_add(earlier_bytes);
        place <= taken || all <= self.slots_bytes
    }

    /// Grants a slot of `bytes` to a position.
    pub fn grant(&mut self, place: u64, bytes: usize) {
        self.unknown.remove(&place);
        self.writing.retain(|(writing, _)| *writing != place);
        self.writing.push((place, bytes));
        self.largest_bytes = self.largest_bytes.max(bytes);
    }

    /// Finishes a position; its slot has `bytes`, 0 if it has none.
    pub fn finish(&mut self, place: u64, bytes: usize) {
        self.unknown.remove(&place);
        self.writing.retain(|(writing, _)| *writing != place);
        self.ready_bytes += bytes;
        self.largest_bytes = self.largest_bytes.max(bytes);
    }

    /// Records that finished slots of `bytes` in total were taken.
    pub fn take(&mut self, bytes: usize) {
        self.ready_bytes = self.ready_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_never_fits_says_what_would() {
        let mut room = Room::default();
        room.bound(100, 30, 50);
        assert_eq!(room.check(70), Ok(()));
        let error = room.check(71).unwrap_err().to_string();
        assert_eq!(
            error,
            "a batch of 71 bytes does not fit into memory_budget, which has 100 bytes, of which \
             reading needs 30; raise it to 101 or lower batch_size, shuffle_window or the length \
             of padded columns"
        );
    }

    #[test]
    fn the_first_place_waits_for_nobody_and_later_ones_leave_it_room() {
        let mut room = Room::default();
        room.bound(1_000, 0, 100);
        (0..3).for_each(|place| room.begin(place));
        assert!(!room.fits(1, 51, 0), "place 0 may need as much");
        assert!(room.fits(1, 50, 0));
        room.grant(1, 50);
        assert!(room.fits(0, 90, 0), "the consumer waits for it");
        assert!(!room.may_begin(0));
        room.grant(0, 90);
        room.finish(0, 90);
        room.finish(1, 50);
        assert!(!room.fits(2, 10, 0));
        room.take(90);
        assert!(room.fits(2, 50, 1));
    }

    proptest! {
        /// Any batches in any order are all completed, and those prefetched stay within their part,
        /// except the one that the consumer waits for.
        #[test]
        fn everything_comes_through_and_stays_within(
            sizes in prop::collection::vec(1_usize..60, 1..40),
            order in prop::collection::vec(0_usize..8, 400),
        ) {
            let mut room = Room::default();
            room.bound(1_000, 0, 100);
            let (mut begun, mut taken) = (0_u64, 0_u64);
            let (mut working, mut ready) = (BTreeSet::new(), BTreeMap::new());
            let mut turns = order.into_iter().cycle();
            let mut steps = 0;
            while taken < sizes.len() as u64 {
                steps += 1;
                prop_assert!(steps < 10_000, "no progress is made");
                if begun < sizes.len() as u64 && begun - taken < 6 && (begun == taken || room.may_begin(0)) {
                    room.begin(begun);
                    working.insert(begun);
                    begun += 1;
                }
                let turn = turns.next().unwrap();
                if let Some(&place) = working.iter().nth(turn % working.len().max(1)) {
                    let bytes = sizes[place as usize];
                    if room.fits(place, bytes, taken) {
                        room.grant(place, bytes);
                        let others: usize = ready.values().sum();
                        prop_assert!(place == taken || others + bytes <= 100);
                        room.finish(place, bytes);
                        working.remove(&place);
                        ready.insert(place, bytes);
                    }
                }
                if turn % 3 == 0 && let Some(bytes) = ready.remove(&taken) {
                    room.take(bytes);
                    taken += 1;
                }
            }
            prop_assert_eq!(room.used_bytes(), 0);
        }
    }
}
