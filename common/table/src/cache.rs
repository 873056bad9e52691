//! Pages and blocks that were read and checked, so that a small table is read once.

use std::sync::{Mutex, PoisonError};

/// Bytes that are kept of a table's pages, and as many of its blocks.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Larger ones are not kept: a few of them would be all.
const PART_BYTES_MAX: usize = 64 << 10;

/// Parts of one size by number. One place for many numbers; the last that was read has it.
#[derive(Debug)]
pub(crate) struct Cache {
    slots: Vec<Mutex<Option<Kept>>>,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    bytes: Vec<u8>,
}

impl Cache {
    /// - `parts`: how many there are, of `bytes` bytes each.
    pub(crate) fn new(parts: u64, bytes: usize) -> Self {
        let room = if bytes <= PART_BYTES_MAX { KEPT_BYTES_MAX / bytes } else { 0 };
        let slots = usize::try_from(parts).map_or(room, |parts| parts.min(room));
        Self { slots: (0..slots).map(|_| Mutex::default()).collect() }
    }

    /// Calls `use_it` with part `number`, which `read` reads and checks if it is not there.
    pub(crate) fn with<T, E>(
        &self,
        number: u64,
        read: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, E>,
        use_it: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, E> {
        if self.slots.is_empty() {
            return Ok(use_it(&read(vec![])?));
        }
        let slot = &self.slots[(number % self.slots.len() as u64) as usize];
        let before = {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            match &*slot {
                Some(kept) if kept.number == number => return Ok(use_it(&kept.bytes)),
                _ => slot.take(),
            }
        };
        // Nobody waits for a read of another part.
        let memory = before.map_or_else(Vec::new, |kept| kept.bytes);
        let bytes = read(memory)?;
        let used = use_it(&bytes);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Kept { number, bytes });
        Ok(used)
    }
}
