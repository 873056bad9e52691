//! States of device slots, and the decisions about them, without a driver.

/// Id of a batch on its way through a device; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Unused.
    Empty,
    Copying(BatchId),
    /// It contains a batch that the trainer has not requested yet.
    Available(BatchId),
    /// The trainer holds it. Its copy may still be in progress: the trainer's stream waits for it.
    Lent(BatchId),
    /// The trainer returned it, and work that was queued on the device may still read it.
    Draining,
}

/// Target of a copy, and the steps required before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    pub slot: SlotIndex,
    /// Bytes of memory to allocate for it first, replacing its current memory.
    pub allocate: Option<usize>,
    /// True if the copy must wait, on the device, for the previous readers of the slot.
    pub after_readers: bool,
}

/// Slots of a device: a few that are used in turn, and extra ones for a trainer that holds all of
/// them.
///
/// A slot is `Empty -> Copying -> Available -> Lent -> Draining -> Empty`. It may be lent while it
/// is being copied into, returned without ever being lent, and copied into while it drains: that
/// copy waits on the device, not here.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Number of slots that are used in turn.
    turns: usize,
    slots: Vec<RingSlot>,
    /// Counts returned slots, so that the slot that drains longest is reused first.
    given_back: u64,
    /// Number of extra slots made.
    extra_total: u64,
}

#[derive(Clone, Copy, Debug)]
struct RingSlot {
    state: SlotState,
    /// Bytes of its memory; 0 for an extra slot that was freed.
    bytes: usize,
    is_extra: bool,
    /// True if its last copy may still be in progress.
    is_copying: bool,
    given_back: u64,
}

impl RingSlot {
    fn new(is_extra: bool) -> Self {
        Self { state: SlotState::Empty, bytes: 0, is_extra, is_copying: false, given_back: 0 }
    }
}

impl Ring {
    /// Creates a ring of `turns` slots without memory.
    pub fn new(turns: usize) -> Self {
        Self { turns, slots: vec![RingSlot::new(false); turns], given_back: 0, extra_total: 0 }
    }

    /// Maximum batches that may now be ahead of the trainer: slots that it does not hold.
    pub fn ahead_max(&self) -> usize {
        let own = &self.slots[..self.turns];
        own.iter().filter(|slot| !matches!(slot.state, SlotState::Lent(_))).count()
    }

    /// Number of slots into which a batch could be copied.
    pub fn room(&self) -> usize {
        let own = &self.slots[..self.turns];
        own.iter().filter(|s| matches!(s.state, SlotState::Empty | SlotState::Draining)).count()
    }

    /// Chooses a slot for a batch of `bytes`, and marks it as being copied into.
    /// - `allocation`: bytes to allocate for a slot that has too few.
    /// - `is_asked_for`: the trainer waits for this batch. An extra slot is made if no slot will
    ///   become free without an action of the trainer.
    /// - Returns `None` if the batch has to wait.
    pub fn begin(
        &mut self,
        batch: BatchId,
        bytes: usize,
        allocation: usize,
        is_asked_for: bool,
    ) -> Option<Begin> {
        let begin = self.find(bytes, allocation).or_else(|| {
            // A draining slot becomes free without the trainer: one that is ahead of its device
            // waits for that.
            let drains = |slot: &RingSlot| slot.state == SlotState::Draining;
            let is_held = is_asked_for && !self.slots[..self.turns].iter().any(drains);
            is_held.then(|| Begin {
                slot: self.extra(),
                allocate: Some(allocation),
                after_readers: false,
            })
        })?;
        let slot = &mut self.slots[begin.slot.0];
        slot.state = SlotState::Copying(batch);
        slot.bytes = begin.allocate.unwrap_or(slot.bytes);
        slot.is_copying = true;
        Some(begin)
    }

    fn find(&self, bytes: usize, allocation: usize) -> Option<Begin> {
        let own = || (0..self.turns).map(SlotIndex);
        let with = |wanted: SlotState| own().filter(move |slot| self.at(*slot).state == wanted);
        let fitting = with(SlotState::Empty).find(|slot| self.at(*slot).bytes >= bytes);
        if let Some(slot) = fitting {
            return Some(Begin { slot, allocate: None, after_readers: false });
        }
        // The memory of the smallest is replaced, because it has no readers.
        if let Some(slot) = with(SlotState::Empty).min_by_key(|slot| self.at(*slot).bytes) {
            return Some(Begin { slot, allocate: Some(allocation), after_readers: false });
        }
        // Only one copy at a time: a copy in progress holds a slot of the host.
        let is_fit = |slot: &SlotIndex| self.at(*slot).bytes >= bytes && !self.is_copying(*slot);
        let slot = with(SlotState::Draining)
            .filter(is_fit)
            .min_by_key(|slot| self.at(*slot).given_back)?;
        Some(Begin { slot, allocate: None, after_readers: true })
    }

    fn extra(&mut self) -> SlotIndex {
        self.extra_total += 1;
        let is_gone = |slot: &RingSlot| slot.is_extra && slot.bytes == 0;
        if let Some(index) = self.slots.iter().position(is_gone) {
            return SlotIndex(index);
        }
        self.slots.push(RingSlot::new(true));
        SlotIndex(self.slots.len() - 1)
    }

    /// Records that the copy into a slot is complete.
    pub fn copied(&mut self, slot: SlotIndex) {
        let slot = &mut self.slots[slot.0];
        slot.is_copying = false;
        if let SlotState::Copying(batch) = slot.state {
            slot.state = SlotState::Available(batch);
        }
    }

    pub fn is_draining(&self, slot: SlotIndex) -> bool {
        self.at(slot).state == SlotState::Draining
    }

    /// True if the last copy into a slot may still be in progress.
    pub fn is_copying(&self, slot: SlotIndex) -> bool {
        self.at(slot).is_copying
    }

    /// Lends a batch to the trainer.
    /// - Returns its slot; `None` for a batch without one.
    pub fn lend(&mut self, batch: BatchId) -> Option<SlotIndex> {
        let slot = self.slot_of(batch)?;
        self.slots[slot.0].state = SlotState::Lent(batch);
        Some(slot)
    }

    /// Takes back a batch's slot, whether it was lent or not.
    /// - Returns the slot, which now drains; `None` for a batch without one.
    pub fn give_back(&mut self, batch: BatchId) -> Option<SlotIndex> {
        let slot = self.slot_of(batch)?;
        self.given_back += 1;
        let found = &mut self.slots[slot.0];
        (found.state, found.given_back) = (SlotState::Draining, self.given_back);
        Some(slot)
    }

    /// Records that all work on a draining slot is complete.
    /// - Returns true if its memory has to be freed, because it was an extra slot.
    ///
    /// # Panics  If the slot is not draining, or its copy is in progress.
    pub fn drained(&mut self, slot: SlotIndex) -> bool {
        let slot = &mut self.slots[slot.0];
        assert!(slot.state == SlotState::Draining && !slot.is_copying, "{slot:?} drains");
        slot.state = SlotState::Empty;
        if slot.is_extra {
            slot.bytes = 0;
        }
        slot.is_extra
    }

    fn at(&self, slot: SlotIndex) -> &RingSlot {
        &self.slots[slot.0]
    }

    pub fn slot_of(&self, batch: BatchId) -> Option<SlotIndex> {
        let is_of = |slot: &RingSlot| match slot.state {
            SlotState::Copying(of) | SlotState::Available(of) | SlotState::Lent(of) => of == batch,
            SlotState::Empty | SlotState::Draining => false,
        };
        self.slots.iter().position(is_of).map(SlotIndex)
    }

    /// Closes the ring: no slot is reused.
    /// - Returns the slots whose memory has to be freed now; that of the others after they have
    ///   drained.
    pub fn close(&mut self) -> Vec<SlotIndex> {
        self.slots.iter_mut().for_each(|slot| slot.is_extra = true);
        self.turns = 0;
        let with_memory = |slot: &RingSlot| slot.state == SlotState::Empty && slot.bytes > 0;
        let empty: Vec<_> =
            (0..self.slots.len()).filter(|&i| with_memory(&self.slots[i])).collect();
        for index in &empty {
            self.slots[*index].bytes = 0;
        }
        empty.into_iter().map(SlotIndex).collect()
    }

    /// Slots whose copy may be in progress, or that drain.
    pub fn unsettled(&self) -> Vec<SlotIndex> {
        let is_unsettled = |slot: &RingSlot| slot.is_copying || slot.state == SlotState::Draining;
        let all = self.slots.iter().enumerate().filter(|(_, slot)| is_unsettled(slot));
        all.map(|(index, _)| SlotIndex(index)).collect()
    }

    /// Number of batches that the trainer has not requested.
    pub fn ahead(&self) -> usize {
        let is_ahead = |slot: &&RingSlot| {
            matches!(slot.state, SlotState::Copying(_) | SlotState::Available(_))
        };
        self.slots.iter().filter(is_ahead).count()
    }

    pub fn extra_total(&self) -> u64 {
        self.extra_total
    }

    /// Number of slots with memory, and their total bytes.
    pub fn memory(&self) -> (usize, usize) {
        let with = self.slots.iter().filter(|slot| slot.bytes > 0);
        with.fold((0, 0), |(slots, bytes), slot| (slots + 1, bytes + slot.bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any sequence of actions of trainer and device: no slot has two batches, none is
        /// written while the trainer holds it, only requested batches get memory beyond the ring's,
        /// and everything ends.
        #[test]
        fn a_slot_has_one_batch_at_a_time(
            turns in 2usize..5,
            steps in prop::collection::vec((0u8..5, 0usize..8, 1usize..2000), 0..120),
        ) {
            let mut ring = Ring::new(turns);
            // Model without the ring: the slot of each batch, and whether the trainer holds it.
            let mut placed: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
            let mut next = 0;
            for (what, which, bytes) in steps {
                let chosen = placed.keys().copied().nth(which);
                match (what, chosen) {
                    (0 | 1, _) => {
                        next += 1;
                        let is_asked_for = what == 1;
                        let before = ring.clone();
                        let Some(begin) = ring.begin(BatchId(next), bytes, 2 * bytes, is_asked_for) else {
                            let drains = |slot: &RingSlot| slot.state == SlotState::Draining;
                            prop_assert!(!is_asked_for || before.slots[..turns].iter().any(drains));
                            continue;
                        };
                        let slot = begin.slot;
                        prop_assert!(placed.values().all(|(taken, _)| *taken != slot.0));
                        let is_new = slot.0 >= before.slots.len();
                        let was = if is_new { SlotState::Empty } else { before.at(slot).state };
                        let fits = begin.allocate.unwrap_or_else(|| before.at(slot).bytes) >= bytes;
                        prop_assert!(fits, "{begin:?}");
                        prop_assert_eq!(begin.after_readers, was == SlotState::Draining);
                        prop_assert!(!(begin.after_readers && begin.allocate.is_some()));
                        prop_assert!(slot.0 < turns || is_asked_for);
                        placed.insert(next, (slot.0, false));
                    }
                    (2, Some(batch)) => {
                        let found = placed.get_mut(&batch).unwrap();
                        prop_assert_eq!(ring.lend(BatchId(batch)), Some(SlotIndex(found.0)));
                        found.1 = true;
                    }
                    (3, Some(batch)) => {
                        let (slot, _) = placed.remove(&batch).unwrap();
                        prop_assert_eq!(ring.give_back(BatchId(batch)), Some(SlotIndex(slot)));
                        prop_assert_eq!(ring.slot_of(BatchId(batch)), None);
                    }
                    _ => settle(&mut ring),
                }
                let lent = placed.values().filter(|(slot, is_lent)| *is_lent && *slot < turns).count();
                prop_assert_eq!(ring.ahead_max(), turns - lent);
            }
            for batch in placed.into_keys() {
                ring.give_back(BatchId(batch));
            }
            settle(&mut ring);
            prop_assert!(ring.unsettled().is_empty() && ring.memory().0 <= turns);
            ring.close();
            prop_assert_eq!(ring.memory(), (0, 0));
        }
    }

    /// The device completes all work.
    fn settle(ring: &mut Ring) {
        for slot in ring.unsettled() {
            ring.copied(slot);
            if ring.is_draining(slot) {
                ring.drained(slot);
            }
        }
    }

    fn begin(ring: &mut Ring, batch: u64, is_asked_for: bool) -> Option<(usize, bool)> {
        let begin = ring.begin(BatchId(batch), 100, 128, is_asked_for)?;
        Some((begin.slot.0, begin.after_readers))
    }

    #[test]
    fn a_batch_goes_through_all_states() {
        let mut ring = Ring::new(2);
        let first = ring.begin(BatchId(1), 100, 128, false).unwrap();
        let slot = first.slot;
        assert_eq!(first, Begin { slot, allocate: Some(128), after_readers: false });
        assert_eq!(ring.at(slot).state, SlotState::Copying(BatchId(1)));
        ring.copied(slot);
        assert_eq!(ring.at(slot).state, SlotState::Available(BatchId(1)));
        assert_eq!(ring.lend(BatchId(1)), Some(slot));
        assert_eq!(ring.at(slot).state, SlotState::Lent(BatchId(1)));
        assert_eq!(ring.give_back(BatchId(1)), Some(slot));
        assert_eq!(ring.at(slot).state, SlotState::Draining);
        assert!(!ring.drained(slot));
        assert_eq!(ring.at(slot).state, SlotState::Empty);
        assert_eq!((ring.give_back(BatchId(1)), ring.lend(BatchId(1))), (None, None));
        let again = ring.begin(BatchId(2), 120, 256, false).unwrap();
        assert_eq!(again, Begin { slot, allocate: None, after_readers: false }, "its memory stays");
    }

    #[test]
    fn two_slots_are_enough_to_copy_while_the_trainer_works() {
        let mut ring = Ring::new(2);
        assert_eq!(begin(&mut ring, 1, false), Some((0, false)));
        ring.lend(BatchId(1));
        assert_eq!(ring.ahead_max(), 1);
        assert_eq!(begin(&mut ring, 2, false), Some((1, false)), "while 1 is in work");
        assert_eq!(begin(&mut ring, 3, false), None);
        ring.lend(BatchId(2));
        ring.copied(SlotIndex(0));
        ring.give_back(BatchId(1));
        assert_eq!(
            begin(&mut ring, 3, false),
            Some((0, true)),
            "after the readers of 1, while 2 is in work"
        );
    }

    #[test]
    fn a_trainer_that_holds_all_slots_gets_extra_ones_that_go_again() {
        let mut ring = Ring::new(2);
        for batch in 1..=4 {
            assert_eq!(begin(&mut ring, batch, true), Some((batch as usize - 1, false)));
            ring.copied(SlotIndex(batch as usize - 1));
            ring.lend(BatchId(batch));
        }
        assert_eq!((ring.memory(), ring.extra_total(), ring.ahead_max()), ((4, 512), 2, 0));
        for batch in 1..=4 {
            let slot = ring.give_back(BatchId(batch)).unwrap();
            assert_eq!(ring.drained(slot), batch > 2);
        }
        assert_eq!(ring.memory(), (2, 256));
        assert_eq!(begin(&mut ring, 5, true), Some((0, false)));
    }

    #[test]
    fn a_trainer_that_is_ahead_of_its_device_waits_and_gets_no_extra_slots() {
        let mut ring = Ring::new(2);
        for batch in [1, 2] {
            begin(&mut ring, batch, true);
            ring.lend(BatchId(batch));
            ring.give_back(BatchId(batch));
        }
        assert_eq!(begin(&mut ring, 3, true), None, "both are being copied still");
        ring.copied(SlotIndex(1));
        assert_eq!(begin(&mut ring, 3, true), Some((1, true)));
        assert_eq!((ring.extra_total(), begin(&mut ring, 4, true)), (0, None));
    }

    #[test]
    fn what_is_given_back_while_it_is_copied_drains_when_it_is_complete() {
        let mut ring = Ring::new(2);
        begin(&mut ring, 1, false);
        ring.give_back(BatchId(1));
        assert_eq!((ring.unsettled(), ring.is_copying(SlotIndex(0))), (vec![SlotIndex(0)], true));
        ring.copied(SlotIndex(0));
        assert!(ring.is_draining(SlotIndex(0)) && !ring.drained(SlotIndex(0)));
        assert_eq!(ring.unsettled(), []);
    }

    #[test]
    fn a_larger_batch_takes_no_memory_that_is_read() {
        let mut ring = Ring::new(2);
        for batch in [1, 2] {
            begin(&mut ring, batch, false);
            ring.lend(BatchId(batch));
            ring.copied(SlotIndex(batch as usize - 1));
        }
        ring.give_back(BatchId(1));
        assert_eq!(ring.begin(BatchId(3), 1000, 1024, false), None, "it waits for 1 to drain");
        ring.drained(SlotIndex(0));
        let larger = ring.begin(BatchId(3), 1000, 1024, false).unwrap();
        assert_eq!((larger.slot, larger.allocate), (SlotIndex(0), Some(1024)));
        assert_eq!(ring.memory(), (2, 1024 + 128));
    }

    #[test]
    fn a_closed_ring_frees_what_is_empty_and_the_rest_when_it_has_drained() {
        let mut ring = Ring::new(3);
        for batch in [1, 2] {
            begin(&mut ring, batch, false);
            ring.copied(SlotIndex(batch as usize - 1));
        }
        ring.lend(BatchId(1));
        ring.give_back(BatchId(2));
        ring.drained(SlotIndex(1));
        assert_eq!(ring.close(), [SlotIndex(1)]);
        assert_eq!((ring.room(), ring.ahead_max(), ring.memory()), (0, 0, (1, 128)));
        ring.give_back(BatchId(1));
        assert!(ring.drained(SlotIndex(0)), "its memory goes, too");
        assert_eq!(ring.memory(), (0, 0));
    }
}
