//! Decodes up to four varints in one step, on x86-64 processors with a byte shuffle (SSSE3).
//!
//! The ends of varints are determined for 64 bytes at once. The next twelve of these bits are an
//! index into tables that assign bytes to the next values. Each value gets four bytes of a
//! register, and two multiplications join their groups of seven bits.

use std::arch::x86_64::{
    __m128i, _mm_add_epi64, _mm_and_si128, _mm_cmpeq_epi32, _mm_cvtepu32_epi64, _mm_madd_epi16,
    _mm_maddubs_epi16, _mm_movemask_epi8, _mm_or_si128, _mm_sad_epu8, _mm_set1_epi8,
    _mm_set1_epi16, _mm_set1_epi32, _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_epi16,
    _mm_srli_si128,
};

use super::push_together;
use crate::example::wire::{VARINT_BYTES_MAX, take_any_varint};

/// Index bits: enough for the ends of three values of four bytes, or of four of three.
const BITS: usize = 12;

/// Bytes whose ends are determined at a time.
const BLOCK_BYTES: usize = 64;

/// Bytes that may be loaded, including a margin after the block.
const WITH_MARGIN: usize = BLOCK_BYTES + 16;

/// Number of values in a step and of their bytes. The next step waits for it, so it is kept small.
#[derive(Clone, Copy)]
struct Step {
    values: u8,
    bytes: u8,
}

/// Steps, indexed by the ends of values.
static STEPS: [Step; 1 << BITS] = {
    let mut steps = [Step { values: 0, bytes: 0 }; 1 << BITS];
    let mut ends = 0;
    while ends < steps.len() {
        steps[ends] = pattern(ends).0;
        ends += 1;
    }
    steps
};

/// Source byte of each byte of a register, indexed by the ends of values; `0x80`: none.
static SHUFFLES: [[u8; 16]; 1 << BITS] = {
    let mut shuffles = [[0; 16]; 1 << BITS];
    let mut ends = 0;
    while ends < shuffles.len() {
        shuffles[ends] = pattern(ends).1;
        ends += 1;
    }
    shuffles
};

/// Returns the step for the next values: at most four, of up to four bytes each.
const fn pattern(ends: usize) -> (Step, [u8; 16]) {
    let (mut step, mut shuffle) = (Step { values: 0, bytes: 0 }, [0x80; 16]);
    let mut at = 0;
    while step.values < 4 {
        let mut end = at;
        while end < BITS && ends >> end & 1 == 0 {
            end += 1;
        }
        if end == BITS || end - at >= 4 {
            break;
        }
        let mut byte = at;
        while byte <= end {
            shuffle[4 * step.values as usize + byte - at] = byte as u8;
            byte += 1;
        }
        at = end + 1;
        step.values += 1;
        step.bytes = at as u8;
    }
    (step, shuffle)
}

/// Returns true if this processor supports [`decode`] and [`count_more`].
pub(super) fn is_possible() -> bool {
    is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
        && is_x86_feature_detected!("bmi1")
}

/// Decodes the part of `packed` that is far enough from its end; returns the bytes read and the
/// values written.
#[target_feature(enable = "ssse3,sse4.1,bmi1")]
pub(super) fn decode(packed: &[u8], places: &mut [i64]) -> (usize, usize) {
    let (mut read, mut written) = (0, 0);
    while let Some(block) = packed[read..].first_chunk::<WITH_MARGIN>() {
        let ends = ends_of(block);
        let mut used = 0;
        while used <= BLOCK_BYTES - BITS {
            let room = &mut places[written..];
            let (bytes, ends) = (&block[used..], ends >> used);
            if ends & 0xffff == 0xffff
                && let (Some(room), Some(bytes)) =
                    (room.first_chunk_mut::<16>(), bytes.first_chunk())
            {
                *room = bytes.map(i64::from);
                (used, written) = (used + 16, written + 16);
                continue;
            }
            let pattern = ends as usize % STEPS.len();
            let step = STEPS[pattern];
            if step.values > 0
                && let (Some(room), Some(bytes)) = (room.first_chunk_mut(), bytes.first_chunk())
            {
                // A lane without a value is overwritten by the next step.
                *room = four_values(bytes, &SHUFFLES[pattern]);
                used += usize::from(step.bytes);
                written += usize::from(step.values);
                continue;
            }
            let (mut rest, more) = (bytes, ends.trailing_zeros());
            let value = match bytes.first_chunk() {
                Some(word) if more < 8 => {
                    push_together(u64::from_le_bytes(*word) & u64::MAX >> (56 - 8 * more))
                }
                _ => take_any_varint(&mut rest).unwrap_or_default(),
            };
            let Some(place) = room.first_mut().filter(|_| more < VARINT_BYTES_MAX as u32) else {
                return (read + used, written);
            };
            *place = value.cast_signed();
            (used, written) = (used + more as usize + 1, written + 1);
        }
        read += used;
    }
    (read, written)
}

/// Returns the number of continuation bytes of `parts`, and true if four aligned bytes are all
/// continuation bytes.
#[target_feature(enable = "sse4.1")]
pub(super) fn count_more(parts: &[[u8; 16]]) -> (usize, bool) {
    let (ones, four) = (_mm_set1_epi8(1), _mm_set1_epi32(0x8080_8080_u32.cast_signed()));
    let (mut sums, mut fours) = (_mm_setzero_si128(), _mm_setzero_si128());
    for part in parts {
        let bytes = register(part);
        let more = _mm_and_si128(_mm_srli_epi16::<7>(bytes), ones);
        sums = _mm_add_epi64(sums, _mm_sad_epu8(more, _mm_setzero_si128()));
        fours = _mm_or_si128(fours, _mm_cmpeq_epi32(_mm_and_si128(bytes, four), four));
    }
    let [low, high]: [u64; 2] = bytemuck::cast(sums);
    ((low + high) as usize, _mm_movemask_epi8(fours) != 0)
}

/// Returns a bit mask of the bytes of the block that end a varint.
#[target_feature(enable = "ssse3")]
fn ends_of(block: &[u8; WITH_MARGIN]) -> u64 {
    let mut ends = 0;
    for (index, part) in block[..BLOCK_BYTES].as_chunks().0.iter().enumerate() {
        let more = _mm_movemask_epi8(register(part)) as u16; // One bit per byte of 16.
        ends |= u64::from(!more) << (16 * index);
    }
    ends
}

/// Returns the values whose bytes `shuffle` moves into four lanes.
#[target_feature(enable = "ssse3,sse4.1")]
fn four_values(bytes: &[u8; 16], shuffle: &[u8; 16]) -> [i64; 4] {
    let lanes = _mm_shuffle_epi8(register(bytes), register(shuffle));
    let groups = _mm_and_si128(lanes, _mm_set1_epi8(0x7f));
    // Joins two groups of seven bits into one of 14: low + high * 2^7; then two of these into one
    // of 28.
    let pairs = _mm_maddubs_epi16(_mm_set1_epi16(0x8001_u16.cast_signed()), groups);
    let values = _mm_madd_epi16(pairs, _mm_set1_epi32(0x4000_0001));
    let halves = [_mm_cvtepu32_epi64(values), _mm_cvtepu32_epi64(_mm_srli_si128::<8>(values))];
    bytemuck::cast(halves)
}

fn register(bytes: &[u8; 16]) -> __m128i {
    bytemuck::cast(*bytes)
}
