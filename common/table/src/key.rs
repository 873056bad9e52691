//! Keys, and where they are.

use sha2::{Digest as _, Sha256};

use crate::header::KeyKind;

/// What a row is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// A number.
    Int64(i64),
    /// A byte string of any length.
    Bytes(&'a [u8]),
}

/// A key as it stands in a page: numbers so that their bytes sort as they do; of strings the first half of
/// their SHA-256, which stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored([u8; 16]);

impl Stored {
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

    /// In which of `pages` pages it is.
    pub(crate) fn page(&self, seed: u64, pages: u64) -> u64 {
        let first = self.0.first_chunk().expect("a key has 16 bytes");
        let hash = mixed(u64::from_be_bytes(*first).wrapping_add(mixed(seed)));
        // Below `pages`, which is a u64.
        ((u128::from(hash) * u128::from(pages)) >> 64) as u64
    }
}

/// Every bit of `bits` in every bit of it: the last steps of splitmix64.
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
        let stored: Vec<_> = numbers.iter().map(|&number| Stored::of(Key::Int64(number))).collect();
        assert!(stored.is_sorted());
    }

    #[test]
    fn a_key_is_in_the_page_that_files_have_it_in() {
        // Files are read by later versions: these numbers never change.
        let page = |key, seed| Stored::of(key).page(seed, 1_000_003);
        assert_eq!(page(Key::Int64(0), 0), PAGES[0]);
        assert_eq!(page(Key::Int64(-5), 3), PAGES[1]);
        assert_eq!(page(Key::Bytes(b"n01440764_18.JPEG"), 0), PAGES[2]);
    }

    /// As Python computes them from the words above.
    const PAGES: [u64; 3] = [326261, 835569, 969544];
}
