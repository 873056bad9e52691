//! Random changes of bytes, from a seed.

/// Values at the limits of integer types, which often break length checks.
const EDGES: [u64; 12] =
    [0, 1, 2, 7, 8, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 62, u64::MAX];

/// Random number generator whose state is a counter: the same changes on every machine.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Returns a random number below `below`.
    pub fn roll(&mut self, below: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % below.max(1)
    }
}

/// Changes, removes, duplicates or splices some of the bytes, one to eight times.
/// - `others`: sources of spliced bytes.
/// - `bytes_max`: maximum length of the result, which is truncated.
pub fn disturb(bytes: &mut Vec<u8>, others: &[Vec<u8>], dice: &mut Dice, bytes_max: usize) {
    for _ in 0..1 << dice.roll(4) {
        change(bytes, others, dice);
    }
    bytes.truncate(bytes_max);
}

fn change(bytes: &mut Vec<u8>, others: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.roll(bytes.len() + 1);
    match dice.roll(11) {
        0 if at < bytes.len() => bytes[at] = dice.roll(256) as u8,
        1 if at < bytes.len() => bytes[at] ^= 1 << dice.roll(8),
        2 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1 + 254 * dice.roll(2) as u8),
        3 => bytes.truncate(at),
        4 => bytes.insert(at, [0, 0x0a, 0x12, 0x7f, 0x80, 0xff][dice.roll(6)]),
        5 => {
            let end = (at + dice.roll(16)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => {
            let end = (at + dice.roll(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        // An integer near a limit, of 1, 2, 4 or 8 bytes.
        7 => {
            let wide = 1 << dice.roll(4);
            let edge = EDGES[dice.roll(EDGES.len())].wrapping_add(dice.roll(3) as u64);
            let mut number = edge.to_le_bytes();
            if dice.roll(2) == 0 {
                number[..wide].reverse();
            }
            let end = (at + wide).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        // Decimal digits, for text formats.
        8 => {
            let number = EDGES[dice.roll(EDGES.len())].to_string();
            let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits > 0 {
                bytes.splice(at..at + digits, number.into_bytes());
            }
        }
        // The bytes at the same offset of another input.
        9 => {
            let other = &others[dice.roll(others.len())];
            let end = (at + dice.roll(64)).min(bytes.len()).min(other.len());
            if at < end {
                bytes[at..end].copy_from_slice(&other[at..end]);
            }
        }
        _ => {
            let other = &others[dice.roll(others.len())];
            let (from, end) = (dice.roll(other.len() + 1), dice.roll(other.len() + 1));
            bytes.splice(at.., other[from.min(end)..end].iter().copied());
        }
    }
}
