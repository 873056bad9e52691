//! Cache of checked pages and blocks, so that a small table is read once.

use std::sync::{Mutex, PoisonError};

/// Maximum bytes cached of a table's pages, and again of its blocks.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Larger parts are not cached: a few of them would fill the cache.
const PART_BYTES_MAX: usize = 64 << 10;

/// Direct-mapped cache of parts of equal size, by number: each place keeps the last part read of
/// the numbers that map to it.
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
    /// Returns an empty cache for `parts` parts of `bytes` bytes each.
    pub(crate) fn new(parts: u64, bytes: usize) -> Self {
        let room = if bytes <= PART_BYTES_MAX { KEPT_BYTES_MAX / bytes } else { 0 };
        let slots = usize::try_from(parts).map_or(room, |parts| parts.min(room));
        Self { slots: (0..slots).map(|_| Mutex::default()).collect() }
    }

    /// Calls `use_it` with part `number`; `read` reads and checks it if it is not cached.
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
        // The lock is not held during the read, so other parts can be read at the same time.
        let memory = before.map_or_else(Vec::new, |kept| kept.bytes);
        let bytes = read(memory)?;
        let used = use_it(&bytes);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Kept { number, bytes });
        Ok(used)
    }
}
