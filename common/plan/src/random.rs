//! Random numbers of the order: a counter-based generator, so that any part of an epoch is computed
//! without the parts before it. Source: docs/ORDER.md, section 1; Salmon et al. 2011.

use crate::PlanError;
use crate::digest::Digest;

const ROUNDS: usize = 10;
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Returns one output of Philox4x32-10: four 32-bit words for a 128-bit counter and a 64-bit key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let left = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let right = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (right >> 32) as u32 ^ counter[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ counter[3] ^ key[1],
            left as u32,
        ];
    }
    counter
}

/// Returns the key of an independent family of streams, from its purpose and its parameters.
pub fn stream_key(label: &str, digest: &Digest, numbers: &[u64]) -> u64 {
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let hash = Digest::of_parts([
        b"shardfeed order 1\0".as_slice(),
        label.as_bytes(),
        b"\0",
        digest.as_bytes(),
        &numbers,
    ]);
    let first = hash.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes");
    u64::from_le_bytes(*first)
}

/// Draws of one stream, in sequence.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    stream: [u32; 2],
    invocation: u64,
    second: Option<u64>,
}

impl Draws {
    /// Returns the stream under `key`, at draw 0.
    pub fn new(key: u64, stream: u64) -> Self {
        Self { key: halves(key), stream: halves(stream), invocation: 0, second: None }
    }

    pub fn next_u64(&mut self) -> u64 {
        if let Some(second) = self.second.take() {
            return second;
        }
        let [c0, c1] = halves(self.invocation);
        let out = philox([c0, c1, self.stream[0], self.stream[1]], self.key);
        self.invocation += 1;
        self.second = Some(u64::from(out[2]) | u64::from(out[3]) << 32);
        u64::from(out[0]) | u64::from(out[1]) << 32
    }

    /// Returns a uniform number below `bound`, which is at least 1. Source: Lemire 2019.
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            // The division is rarely evaluated: only a `low` below the bound can be biased.
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// Returns a uniform permutation of `0..length`.
    pub fn permutation(mut self, length: u64) -> Result<Vec<u32>, PlanError> {
        let bound =
            u32::try_from(length).map_err(|_| PlanError::WindowTooLarge { samples: length })?;
        let mut order: Vec<u32> = (0..bound).collect();
        for index in (1..order.len()).rev() {
            let other = self.below(index as u64 + 1) as usize;
            order.swap(index, other);
        }
        Ok(order)
    }
}

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn bounded_numbers_stay_below_and_reach_every_value() {
        let mut draws = Draws::new(7, 9);
        let mut seen = [0u32; 5];
        for _ in 0..5_000 {
            seen[draws.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "{seen:?}");
        let huge = u64::MAX / 2 + 2;
        assert!((0..100).all(|_| draws.below(huge) < huge));
    }

    #[test]
    fn a_rejected_draw_is_followed_by_the_next_one() {
        let key = stream_key("line", &Digest::from_bytes([0; 32]), &[1, 2]);
        let mut draws = Draws::new(key, 5);
        let bound = (1 << 63) + 1;
        assert_eq!(
            [draws.below(bound), draws.below(bound), draws.below(bound)],
            [6_062_758_674_428_070_142, 2_695_872_768_646_764_860, 955_156_200_320_888_297]
        );
        // Draws 0, 2, 3, 5 and 6 were rejected, so this is the ninth draw.
        let all = std::iter::repeat_with({
            let mut all = Draws::new(key, 5);
            move || all.next_u64()
        });
        assert_eq!(Some(draws.next_u64()), all.take(9).last());
    }

    #[test]
    fn a_permutation_too_long_is_refused_before_it_allocates() {
        let error = Draws::new(0, 0).permutation(1 << 40).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a shuffle block of 1099511627776 samples is too large; use shuffle_window <= 4294967295"
        );
    }
}
