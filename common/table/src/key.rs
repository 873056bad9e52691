//! Keys and their pages.

use sha2::{Digest as _, Sha256};

use crate::header::KeyKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    Int64(i64),
    Bytes(&'a [u8]),
}

/// A key as stored in a page.
///
/// Numbers are encoded so that their bytes sort like the numbers. A string is represented by the
/// first half of its SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredKey([u8; 16]);

impl StoredKey {
    pub(crate) fn of(key: Key<'_>) -> Self {
        let mut stored = [0; 16];
        match key {
            Key::Int64(number) => {
                let sorted = number.cast_unsigned() ^ 1 << 63;
                stored[..8].copy_from_slice(&sorted.to_be_bytes());
            }
            Key::Bytes(bytes) => stored.copy_from_slice(&Sha256::digest(bytes)[..16]),
        }
        Self(stored)
    }

    pub(crate) fn bytes(&self, kind: KeyKind) -> &[u8] {
        &self.0[..kind.bytes()]
    }

    /// Returns the page of the key, of `pages` pages.
    pub(crate) fn page(&self, seed: u64, pages: u64) -> u64 {
        let first = self.0.first_chunk().expect("a key has 16 bytes");
        let hash = mixed(u64::from_be_bytes(*first).wrapping_add(mixed(seed)));
        // Less than `pages`, which is a u64.
        ((u128::from(hash) * u128::from(pages)) >> 64) as u64
    }
}

/// Mixes every input bit into every output bit: the last steps of splitmix64.
fn mixed(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_their_bytes() {
        let numbers = [i64::MIN, -7, -1, 0, 1, 255, 256, i64::MAX];
        let stored: Vec<_> =
            numbers.iter().map(|&number| StoredKey::of(Key::Int64(number))).collect();
        assert!(stored.is_sorted());
    }

    #[test]
    fn a_key_is_in_the_page_that_files_have_it_in() {
        // Later versions read these files: the numbers never change.
        let page = |key, seed| StoredKey::of(key).page(seed, 1_000_003);
        assert_eq!(page(Key::Int64(0), 0), PAGES[0]);
        assert_eq!(page(Key::Int64(-5), 3), PAGES[1]);
        assert_eq!(page(Key::Bytes(b"n01440764_18.JPEG"), 0), PAGES[2]);
    }

    /// Expected values, computed in Python.
    const PAGES: [u64; 3] = [326261, 835569, 969544];
}
