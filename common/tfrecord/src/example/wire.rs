//! The part of the protobuf wire format that Examples need.

pub(super) const VARINT_BYTES_MAX: usize = 10;

/// Continuation bit of each of eight bytes.
pub(super) const MORE: u64 = 0x8080_8080_8080_8080;

/// Error: the bytes are not a protobuf message. Used only on the slow path, which determines reason
/// and location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireError<'a> {
    /// Description of the error, following "the record".
    pub(super) what: &'static str,
    /// Bytes from the location of the error on.
    pub(super) at: &'a [u8],
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) value: FieldValue<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FieldValue<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1: eight bytes that are not used here.
    Fixed64,
    /// Wire type 2.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32([u8; 4]),
}

/// Iterates over the fields of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    /// Bytes that are not read yet.
    pub(super) rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Reads the next field; `None` at the end of the message.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Field<'a>>, WireError<'a>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let start = self.rest;
        let fail = |what| Err(WireError { what, at: start });
        let tag = take_varint(&mut self.rest)?;
        let Ok(tag) = u32::try_from(tag) else {
            return fail("has a field number that is too large");
        };
        let number = tag >> 3;
        if number == 0 {
            return fail("has a field numbered 0");
        }
        let value = match tag & 7 {
            0 => FieldValue::Varint(take_varint(&mut self.rest)?),
            1 => match self.rest.split_first_chunk::<8>() {
                Some((_, rest)) => {
                    self.rest = rest;
                    FieldValue::Fixed64
                }
                None => return fail("ends inside a field"),
            },
            2 => FieldValue::Bytes(take_bytes(&mut self.rest)?),
            5 => match self.rest.split_first_chunk::<4>() {
                Some((bytes, rest)) => {
                    self.rest = rest;
                    FieldValue::Fixed32(*bytes)
                }
                None => return fail("ends inside a field"),
            },
            3 | 4 => return fail("has a group, which Examples never have"),
            _ => return fail("has a field of an unknown wire type"),
        };
        Ok(Some(Field { number, value }))
    }
}

/// Takes the next length-delimited field with this number (up to 15), skipping all others.
#[inline]
pub(super) fn next_message<'a>(
    rest: &mut &'a [u8],
    number: u32,
) -> Result<Option<&'a [u8]>, WireError<'a>> {
    // Almost always the next field is the requested one, or there is none.
    match take_tagged(rest, tag(number)) {
        Some(message) => Ok(Some(message)),
        None if rest.is_empty() => Ok(None),
        None => next_message_behind(rest, number),
    }
}

/// As [`next_message`], behind a field that is another one, or not of the usual form.
#[inline(never)]
fn next_message_behind<'a>(
    rest: &mut &'a [u8],
    number: u32,
) -> Result<Option<&'a [u8]>, WireError<'a>> {
    loop {
        let mut fields = Fields::new(rest);
        let field = fields.next()?;
        *rest = fields.rest;
        match field {
            None => return Ok(None),
            Some(Field { number: found, value: FieldValue::Bytes(message) }) if found == number => {
                return Ok(Some(message));
            }
            Some(_) => {}
        }
    }
}

/// Returns the tag of a length-delimited field with this number, which is at most 15.
pub(super) const fn tag(number: u32) -> u8 {
    (number << 3 | 2) as u8
}

/// Takes the value if the message starts with the one-byte `tag` of a length-delimited field.
#[inline]
pub(super) fn take_tagged<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&first, mut behind) = rest.split_first()?;
    if first != tag {
        return None;
    }
    let value = take_bytes(&mut behind).ok()?;
    *rest = behind;
    Some(value)
}

/// Takes a length and as many bytes.
#[inline]
pub(super) fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WireError<'a>> {
    let start = *rest;
    let length = take_varint(rest)?;
    match usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length)) {
        Some((bytes, behind)) => {
            *rest = behind;
            Ok(bytes)
        }
        None => Err(WireError { what: "ends before a field's value does", at: start }),
    }
}

/// Takes a varint. Bits above the 64th are dropped, as in protobuf.
#[inline]
pub(super) fn take_varint<'a>(rest: &mut &'a [u8]) -> Result<u64, WireError<'a>> {
    match **rest {
        [first, ref behind @ ..] if first < 0x80 => {
            *rest = behind;
            Ok(u64::from(first))
        }
        _ => take_long_varint(rest),
    }
}

/// Takes a varint of more than one byte.
#[inline]
fn take_long_varint<'a>(rest: &mut &'a [u8]) -> Result<u64, WireError<'a>> {
    let Some(word) = rest.first_chunk().map(|word| u64::from_le_bytes(*word)) else {
        return take_any_varint(rest);
    };
    let ends = !word & MORE;
    if ends == 0 {
        return take_any_varint(rest);
    }
    // Up to and including the first byte without a continuation bit.
    *rest = &rest[ends.trailing_zeros() as usize / 8 + 1..];
    Ok(push_together(word & (ends ^ (ends - 1))))
}

/// Removes the highest bit of each byte and joins the others.
#[inline]
pub(super) fn push_together(word: u64) -> u64 {
    let word = (word & 0x7f00_7f00_7f00_7f00) >> 1 | word & 0x007f_007f_007f_007f;
    let word = (word & 0xffff_0000_ffff_0000) >> 2 | word & 0x0000_ffff_0000_ffff;
    (word & 0xffff_ffff_0000_0000) >> 4 | word & 0x0000_0000_ffff_ffff
}

/// Takes a varint byte by byte: one of nine or ten bytes, one near the end of its message, or an
/// invalid one.
#[inline(never)]
pub(super) fn take_any_varint<'a>(rest: &mut &'a [u8]) -> Result<u64, WireError<'a>> {
    let mut value = 0;
    for (index, &byte) in rest.iter().take(VARINT_BYTES_MAX).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *rest = &rest[index + 1..];
            return Ok(value);
        }
    }
    let what = if rest.len() < VARINT_BYTES_MAX {
        "ends inside a number"
    } else {
        "has a number of more than 10 bytes"
    };
    Err(WireError { what, at: rest })
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80); // The low seven bits and the continuation bit.
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn varints_round_trip(values: Vec<u64>) {
            let mut wire = Vec::new();
            for &value in &values {
                let before = wire.len();
                put_varint(&mut wire, value);
                prop_assert_eq!(wire.len() - before, varint_bytes(value));
            }
            let mut rest = &wire[..];
            for &value in &values {
                prop_assert_eq!(take_varint(&mut rest), Ok(value));
            }
            prop_assert!(rest.is_empty());
        }
    }
}
