//! Deterministic randomness derived from a seed.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Stream of random numbers, shared by its clones.
#[derive(Clone, Debug)]
pub struct Dice(Arc<Mutex<u64>>);

impl Dice {
    /// Returns the stream for `seed`; `part` separates the streams of one run.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ part.rotate_left(40);
        step(&mut state);
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns 64 random bits.
    pub fn bits(&self) -> u64 {
        // The state is a single number, so a panic elsewhere cannot leave it half updated.
        step(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a random number in `range`, which must not be empty.
    pub fn pick(&self, range: Range<u64>) -> u64 {
        range.start + self.bits() % (range.end - range.start)
    }

    /// Returns a random element; `None` if the slice is empty.
    pub fn one<'a, T>(&self, of: &'a [T]) -> Option<&'a T> {
        (!of.is_empty()).then(|| &of[self.pick(0..of.len() as u64) as usize])
    }

    /// Returns true with a probability of `percent` in 100.
    pub fn chance(&self, percent: u64) -> bool {
        self.pick(0..100) < percent
    }

    /// Returns a random version 4 UUID as text.
    pub fn id(&self) -> String {
        let bits = u128::from(self.bits()) << 64 | u128::from(self.bits());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid().to_string()
    }
}

/// SplitMix64 (Steele, Lea and Flood): every seed is a good one.
fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mixed(*state)
}

/// Increment of the generator state per number.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Output of the generator for a given state.
pub(crate) fn mixed(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_and_parts_differ() {
        let draw = |seed, part| {
            let dice = Dice::new(seed, part);
            (0..9).map(|_| dice.pick(5..50)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert!(draw(3, 3).iter().all(|drawn| (5..50).contains(drawn)));
        let dice = Dice::new(1, 1);
        let happened = (0..1000).filter(|_| dice.chance(30)).count();
        assert!((200..400).contains(&happened), "{happened}");
    }
}
