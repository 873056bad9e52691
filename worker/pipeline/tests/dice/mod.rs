//! Mutates bytes with a seeded random generator.

/// Seeded random generator: the same changes on every machine.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % below.max(1)
    }
}

/// Changes, truncates, duplicates or splices some bytes.
pub(crate) fn disturb(record: &mut Vec<u8>, others: &[Vec<u8>], dice: &mut Dice) {
    for _ in 0..=dice.roll(3) {
        let at = dice.roll(record.len() + 1);
        match dice.roll(6) {
            0 if at < record.len() => record[at] = dice.roll(256) as u8,
            1 if at < record.len() => record[at] ^= 1 << dice.roll(8),
            2 => record.truncate(at),
            3 => record.insert(at, [0, 0x0a, 0x12, 0x7f, 0x80, 0xff][dice.roll(6)]),
            4 => {
                let end = (at + dice.roll(16)).min(record.len());
                let piece = record[at..end].to_vec();
                record.splice(at..at, piece);
            }
            _ => {
                let other = &others[dice.roll(others.len())];
                let end = dice.roll(other.len() + 1);
                record.splice(at.., other[..end].iter().copied());
            }
        }
    }
}

/// Returns `SHARDFEED_FUZZ_ROUNDS`, else `few`.
pub(crate) fn rounds(few: u64) -> u64 {
    let rounds = std::env::var("SHARDFEED_FUZZ_ROUNDS").ok();
    rounds.map_or(few, |rounds| rounds.parse().unwrap())
}
