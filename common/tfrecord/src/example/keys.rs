//! Names to find in records.

/// Set of names, found by their bytes.
#[derive(Clone, Debug)]
pub(super) struct CellKeys {
    names: Vec<String>,
    /// Open-addressing table: indices into `names` plus one, at most half of them used; 0 is free.
    table: Vec<u32>,
    /// The bit of each name's length: most keys of a record that are not requested have other lengths.
    lengths: u64,
}

impl CellKeys {
    /// Builds the table of `names`, which must be distinct.
    pub(super) fn new(names: Vec<String>) -> Self {
        let table = vec![0; (names.len() * 2 + 1).next_power_of_two()];
        let lengths = names.iter().fold(0, |lengths, name| lengths | length_bit(name.as_bytes()));
        let mut keys = Self { names, table, lengths };
        for index in 0..keys.names.len() {
            let slot = keys.slot(keys.names[index].as_bytes());
            keys.table[slot] = index as u32 + 1; // More than 2^32 names do not fit in memory.
        }
        keys
    }

    pub(super) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// Returns the index of `key`. Writers usually keep an order, so `expected` is tried first.
    #[inline]
    pub(super) fn find(&self, key: &[u8], expected: usize) -> Option<usize> {
        if self.names.get(expected).is_some_and(|name| name.as_bytes() == key) {
            return Some(expected);
        }
        if self.lengths & length_bit(key) == 0 {
            return None;
        }
        (self.table[self.slot(key)] as usize).checked_sub(1)
    }

    /// Returns the slot of `name` in the table, or the free slot where it would be.
    fn slot(&self, name: &[u8]) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = hash(name) as usize & mask;
        // Half of the table is free, so the loop ends.
        while let Some(index) = (self.table[slot] as usize).checked_sub(1)
            && self.names[index].as_bytes() != name
        {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// Returns the bit of a key's length; the last one is that of all long keys.
fn length_bit(key: &[u8]) -> u64 {
    1 << key.len().min(63)
}

/// Mixes all bytes of a key. The table contains only the requested names, so no record can make it
/// slow.
fn hash(key: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, tail) = key.as_chunks::<8>();
    let mut hash = key.len() as u64;
    for word in words {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
    }
    for &byte in tail {
        hash = (hash ^ u64::from(byte)).wrapping_mul(ODD);
    }
    hash ^ hash >> 32
}
