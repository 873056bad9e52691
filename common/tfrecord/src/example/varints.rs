//! Packed varints: counted and decoded several at a time.

use super::wire::{MORE, WireError, push_together, take_any_varint, take_varint};

#[cfg(target_arch = "x86_64")]
mod shuffle;

/// Decodes the varints of `packed`, which was checked before, up to the number of `places`. Returns
/// the number of decoded values.
pub(super) fn decode_varints(packed: &[u8], places: &mut [i64]) -> usize {
    let (mut read, mut written) = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if shuffle::is_possible() {
        // SAFETY: the function only uses processor features that the previous line tested for.
        #[allow(unsafe_code)]
        let done = unsafe { shuffle::decode(packed, places) };
        (read, written) = done;
    }
    let mut places = places[written..].iter_mut();
    for_each_varint(&packed[read..], |value| {
        if let Some(place) = places.next() {
            *place = value.cast_signed();
            written += 1;
        }
    });
    written
}

/// Calls `visit` with the varints of `packed`, which was checked before.
///
/// The start of a varint is known only after the end of the previous one, and this dependency
/// limits the speed. Therefore two varints are decoded from each eight bytes that contain two, and
/// all eight if each has one byte.
#[inline]
fn for_each_varint(packed: &[u8], mut visit: impl FnMut(u64)) {
    let mut rest = packed;
    while let Some(bytes) = rest.first_chunk::<8>() {
        let word = u64::from_le_bytes(*bytes);
        let ends = !word & MORE;
        if ends == MORE {
            bytes.iter().for_each(|&byte| visit(u64::from(byte)));
            rest = &rest[8..];
            continue;
        }
        if ends == 0 {
            let Ok(value) = take_any_varint(&mut rest) else { return };
            visit(value);
            continue;
        }
        visit(push_together(word & (ends ^ (ends - 1))));
        let later = ends & (ends - 1);
        let last = if later == 0 { ends } else { later };
        if later != 0 {
            let word = word & (later ^ (later - 1));
            visit(push_together(word >> (ends.trailing_zeros() + 1)));
        }
        rest = &rest[last.trailing_zeros() as usize / 8 + 1..];
    }
    while !rest.is_empty() {
        let Ok(value) = take_varint(&mut rest) else { return };
        visit(value);
    }
}

/// Splits `packed`, which was checked before, after `count` varints, or at its end. Subtracts those
/// before the split from `count`.
pub(super) fn split_varints<'a>(packed: &'a [u8], count: &mut usize) -> (&'a [u8], &'a [u8]) {
    let mut at = 0;
    while let Some(bytes) = packed[at..].first_chunk::<8>() {
        let ends = (!u64::from_le_bytes(*bytes) & MORE).count_ones() as usize;
        if ends > *count {
            break;
        }
        *count -= ends;
        at += 8;
    }
    // The last byte of a varint may follow its first ones in the next eight.
    while *count > 0 && at < packed.len() {
        *count -= usize::from(packed[at] < 0x80);
        at += 1;
    }
    if *count == 0 {
        // All eight bytes that were passed may belong to the varint after the last one.
        at -= packed[..at].iter().rev().take_while(|byte| **byte >= 0x80).count();
    }
    packed.split_at(at)
}

pub(super) fn count_varints(packed: &[u8]) -> Result<usize, WireError<'_>> {
    // Ten consecutive continuation bytes cover four aligned ones; without four aligned ones no
    // varint is too long.
    let (more, maybe_long) = count_more(packed);
    if maybe_long || packed.last().is_some_and(|&byte| byte >= 0x80) {
        let (mut rest, mut count) = (packed, 0);
        while !rest.is_empty() {
            take_varint(&mut rest)?;
            count += 1;
        }
        return Ok(count);
    }
    Ok(packed.len() - more)
}

/// Returns the number of continuation bytes, and true if four aligned bytes are all continuation
/// bytes.
fn count_more(packed: &[u8]) -> (usize, bool) {
    let (mut more, mut fours, mut rest) = (0, false, packed);
    #[cfg(target_arch = "x86_64")]
    if shuffle::is_possible() {
        let (parts, behind) = packed.as_chunks();
        // SAFETY: the function only uses processor features that the previous line tested for.
        #[allow(unsafe_code)]
        let done = unsafe { shuffle::count_more(parts) };
        ((more, fours), rest) = (done, behind);
    }
    let (words, last) = rest.as_chunks();
    for word in words {
        let bits = u32::from_le_bytes(*word) & 0x8080_8080;
        fours |= bits == 0x8080_8080;
        more += bits.count_ones() as usize;
    }
    more += last.iter().filter(|&&byte| byte >= 0x80).count();
    (more, fours)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::put_varint;
    use super::*;

    /// Generates numbers whose encoded lengths are equal, equal in runs, or mixed.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let run = (any::<u64>(), 0_u32..64, 0_u32..16, 1_usize..40).prop_map(
            |(seed, shift, spread, count)| {
                let number = |index: u64| {
                    let mixed = (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    mixed >> shift >> (mixed as u32 % (spread + 1)).min(63 - shift)
                };
                (0..count as u64).map(number).collect::<Vec<_>>()
            },
        );
        prop::collection::vec(run, 0..12).prop_map(|runs| runs.concat())
    }

    fn wire(values: &[u64]) -> Vec<u8> {
        let mut wire = Vec::new();
        values.iter().for_each(|&value| put_varint(&mut wire, value));
        wire
    }

    proptest! {
        #[test]
        fn varints_split_after_any_number(values in numbers(), at: prop::sample::Index) {
            let at = at.index(values.len() + 3);
            let packed = wire(&values);
            let mut count = at;
            let (before, after) = split_varints(&packed, &mut count);
            let middle = at.min(values.len());
            prop_assert_eq!(count, at - middle);
            prop_assert_eq!((before, after), (&wire(&values[..middle])[..], &wire(&values[middle..])[..]));
        }

        /// Decoding several varints at a time gives the same values as decoding them one by one.
        #[test]
        fn many_varints_are_those_one_by_one(values in numbers(), less in 0_usize..9) {
            let packed = wire(&values);
            prop_assert_eq!(count_varints(&packed), Ok(values.len()));
            let mut found = vec![];
            for_each_varint(&packed, |value| found.push(value));
            prop_assert_eq!(&found, &values);
            // No more values than there are places are written.
            for places in [values.len(), values.len().saturating_sub(less), values.len() + less] {
                let mut decoded = vec![-7; places];
                let count = decode_varints(&packed, &mut decoded);
                prop_assert_eq!(count, places.min(values.len()));
                let expected = values.iter().map(|value| value.cast_signed());
                let expected = expected.chain([-7; 9]).take(places).collect::<Vec<_>>();
                prop_assert_eq!(decoded, expected);
            }
        }

        /// Unchecked bytes also end without a panic.
        #[test]
        fn any_bytes_come_to_an_end(
            bytes in prop::collection::vec(prop_oneof![Just(0xff_u8), Just(0x80), any::<u8>()], 0..300),
        ) {
            let mut decoded = vec![0; bytes.len()];
            prop_assert!(decode_varints(&bytes, &mut decoded) <= bytes.len());
        }

        #[test]
        fn counting_agrees_with_reading(
            bytes in prop::collection::vec(prop_oneof![Just(0xff_u8), Just(0x80), any::<u8>()], 0..100),
        ) {
            let (mut rest, mut read) = (&bytes[..], Ok(0));
            while !rest.is_empty() {
                if let Err(error) = take_varint(&mut rest) {
                    read = Err(error);
                    break;
                }
                read = read.map(|count| count + 1);
            }
            prop_assert_eq!(count_varints(&bytes), read);
        }
    }
}
