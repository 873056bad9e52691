//! One feature of a record in its wire format.

use std::{mem, slice};

use super::spec::DType;
use super::varints::{count_varints, decode_varints, split_varints};
use super::wire::{
    Field, FieldValue, Fields, WireError, next_message, put_varint, tag, take_tagged, take_varint,
};

/// Values of a feature, checked but not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRef<'a> {
    dtype: DType,
    count: usize,
    data_bytes: usize,
    /// Body of the list message; if `in_pieces`, Feature fields with several bodies. Of a range the
    /// same as of all values.
    wire: &'a [u8],
    in_pieces: bool,
    /// True for a range of the values in `wire`.
    is_range: bool,
    /// Number of values in `wire` before the range.
    skipped: u32,
}

impl DType {
    const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Bytes),
            2 => Some(Self::Float32),
            3 => Some(Self::Int64),
            _ => None,
        }
    }

    /// Returns the decoded size of values in bytes.
    fn data_bytes(self, count: usize, bytes_sum: usize) -> usize {
        match self {
            Self::Bytes => bytes_sum,
            Self::Float32 => 4 * count,
            Self::Int64 => 8 * count,
        }
    }

    /// Returns the field number of the list in a Feature message.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Bytes => 1,
            Self::Float32 => 2,
            Self::Int64 => 3,
        }
    }
}

impl<'a> ListRef<'a> {
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the size of all values, decoded: 4 or 8 bytes per number, the sum of the lengths for
    /// bytes.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Decodes the values.
    ///
    /// # Panics
    /// If they are not int64, or if their number differs from the length of `values`.
    pub fn write_i64(&self, values: &mut [i64]) {
        self.expect_room(DType::Int64, values.len());
        // By far the most common list: one packed number.
        if let ([place], [first, bytes, packed @ ..]) = (&mut *values, self.wire)
            && *first == tag(1)
            && *bytes < 0x80
            && usize::from(*bytes) == packed.len()
            && !self.in_pieces
            && !self.is_range
            && let Ok(value) = take_varint(&mut { packed })
        {
            *place = value.cast_signed();
            return;
        }
        let mut places = values;
        self.for_each_field(|value| {
            let count = match value {
                FieldValue::Varint(value) => places.first_mut().map_or(0, |place| {
                    *place = value.cast_signed();
                    1
                }),
                FieldValue::Bytes(packed) => decode_varints(packed, places),
                FieldValue::Fixed32(_) | FieldValue::Fixed64 => 0,
            };
            places = &mut mem::take(&mut places)[count..];
        });
    }

    /// Decodes the values.
    ///
    /// # Panics
    /// If they are not float32, or if their number differs from the length of `values`.
    pub fn write_f32(&self, values: &mut [f32]) {
        self.expect_room(DType::Float32, values.len());
        let mut places = values;
        self.for_each_field(|value| {
            // A single value is handled as a packed piece with one value.
            let packed = match &value {
                FieldValue::Fixed32(value) => slice::from_ref(value),
                FieldValue::Bytes(packed) => packed.as_chunks().0,
                FieldValue::Varint(_) | FieldValue::Fixed64 => &[],
            };
            let count = packed.len().min(places.len());
            let (here, behind) = mem::take(&mut places).split_at_mut(count);
            if cfg!(target_endian = "little") {
                bytemuck::cast_slice_mut::<f32, [u8; 4]>(here).copy_from_slice(&packed[..count]);
            } else {
                let both = here.iter_mut().zip(packed);
                both.for_each(|(place, value)| *place = f32::from_le_bytes(*value));
            }
            places = behind;
        });
    }

    /// Appends the numbers to `out` as they are packed in a list, without decoding them.
    ///
    /// # Panics
    /// If the values are bytes.
    pub fn pack(&self, out: &mut Vec<u8>) {
        assert!(self.dtype != DType::Bytes, "byte strings are not packed");
        self.for_each_field(|value| match value {
            FieldValue::Varint(value) => put_varint(out, value),
            FieldValue::Fixed32(value) => out.extend_from_slice(&value),
            FieldValue::Bytes(packed) => out.extend_from_slice(packed),
            FieldValue::Fixed64 => {}
        });
    }

    /// Calls `visit` with each value in order.
    ///
    /// # Panics
    /// If the values are not bytes.
    pub fn for_each_bytes(&self, mut visit: impl FnMut(&'a [u8])) {
        self.expect_room(DType::Bytes, self.count);
        self.for_each_field(|value| {
            if let FieldValue::Bytes(bytes) = value {
                visit(bytes);
            }
        });
    }

    /// Returns `count` values from `first` on; `None` if there are not as many, or their position
    /// exceeds 2^32.
    pub fn range(&self, first: usize, count: usize) -> Option<Self> {
        if first.checked_add(count)? > self.count {
            return None;
        }
        let skipped = u32::try_from(self.skipped as usize + first).ok()?;
        let mut range = Self { count, is_range: true, skipped, ..*self };
        let mut bytes_sum = 0;
        if self.dtype == DType::Bytes {
            range.for_each_bytes(|value| bytes_sum += value.len());
        }
        range.data_bytes = self.dtype.data_bytes(count, bytes_sum);
        Some(range)
    }

    fn expect_room(&self, dtype: DType, places: usize) {
        assert!(
            self.dtype == dtype && self.count == places,
            "{} {} values written as {places} of {dtype}",
            self.count,
            self.dtype,
        );
    }

    /// Calls `visit` with each field that holds values, of all pieces.
    #[inline]
    fn for_each_field(&self, visit: impl FnMut(FieldValue<'a>)) {
        match self.is_range {
            false => self.for_each_whole_field(visit),
            true => self.for_each_in_range(visit),
        }
    }

    /// As [`Self::for_each_field`], for a range of the values.
    fn for_each_in_range(&self, mut visit: impl FnMut(FieldValue<'a>)) {
        let (mut skipped, mut left) = (self.skipped as usize, self.count);
        self.for_each_whole_field(|value| match (self.dtype, value) {
            (DType::Float32, FieldValue::Bytes(packed)) => {
                let from = skipped.min(packed.len() / 4);
                let count = left.min(packed.len() / 4 - from);
                (skipped, left) = (skipped - from, left - count);
                if count > 0 {
                    visit(FieldValue::Bytes(&packed[4 * from..4 * (from + count)]));
                }
            }
            (DType::Int64, FieldValue::Bytes(packed)) => {
                let (_, packed) = split_varints(packed, &mut skipped);
                let (packed, _) = split_varints(packed, &mut left);
                if !packed.is_empty() {
                    visit(FieldValue::Bytes(packed));
                }
            }
            _ if skipped > 0 => skipped -= 1,
            (_, value) if left > 0 => {
                left -= 1;
                visit(value);
            }
            _ => {}
        });
    }

    #[inline]
    fn for_each_whole_field(&self, mut visit: impl FnMut(FieldValue<'a>)) {
        if !self.in_pieces {
            return visit_values(self.wire, &mut visit);
        }
        let mut rest = self.wire;
        // The wire was checked when the list was found, so no error can occur here.
        while let Ok(Some(piece)) = next_message(&mut rest, self.dtype.number()) {
            visit_values(piece, &mut visit);
        }
    }

    /// Returns a feature whose value has been found but not been examined.
    pub(super) fn unread(dtype: DType, feature: &'a [u8]) -> Self {
        let (is_range, skipped) = (false, 0);
        Self { dtype, count: 0, data_bytes: 0, wire: feature, in_pieces: true, is_range, skipped }
    }

    /// Returns the encoded values; for an [`unread`](Self::unread) one its Feature message.
    pub(super) fn wire(&self) -> &'a [u8] {
        self.wire
    }

    /// Examines a Feature message; `None` if it has no list.
    ///
    /// Of several kinds of list the last one counts, with all its pieces after the last one of
    /// another kind.
    #[inline]
    pub(super) fn read(feature: &'a [u8]) -> Result<Option<Self>, WireError<'a>> {
        for dtype in [DType::Bytes, DType::Int64, DType::Float32] {
            let mut rest = feature;
            if let Some(wire) = take_tagged(&mut rest, tag(dtype.number()))
                && rest.is_empty()
            {
                let (count, data_bytes) = measure(dtype, wire)?;
                let list = Self::unread(dtype, wire);
                return Ok(Some(Self { count, data_bytes, in_pieces: false, ..list }));
            }
        }
        Self::read_pieces(feature)
    }

    fn read_pieces(feature: &'a [u8]) -> Result<Option<Self>, WireError<'a>> {
        let mut fields = Fields::new(feature);
        let mut list: Option<Self> = None;
        loop {
            let from_here = fields.rest;
            let Some(Field { number, value }) = fields.next()? else {
                return Ok(list);
            };
            let Some(dtype) = DType::from_number(number) else {
                continue;
            };
            let FieldValue::Bytes(body) = value else {
                let what = "has a feature whose kind is no list";
                return Err(WireError { what, at: from_here });
            };
            let (count, data_bytes) = measure(dtype, body)?;
            list = match list {
                Some(list) if list.dtype == dtype => Some(Self {
                    count: list.count + count,
                    data_bytes: list.data_bytes + data_bytes,
                    ..list
                }),
                _ => Some(Self { count, data_bytes, ..Self::unread(dtype, from_here) }),
            };
        }
    }
}

/// Calls `visit` with the `value` fields of a list message that was checked before.
#[inline]
fn visit_values<'a>(list: &'a [u8], visit: &mut impl FnMut(FieldValue<'a>)) {
    let mut rest = list;
    while let Some(bytes) = take_tagged(&mut rest, tag(1)) {
        visit(FieldValue::Bytes(bytes));
    }
    let mut fields = Fields::new(rest);
    while let Ok(Some(field)) = fields.next() {
        if field.number == 1 {
            visit(field.value);
        }
    }
}

/// Checks the body of a list message; returns the number of values and their decoded size in bytes.
#[inline]
fn measure(dtype: DType, list: &[u8]) -> Result<(usize, usize), WireError<'_>> {
    let (mut count, mut bytes_sum) = (0, 0);
    let mut rest = list;
    while !rest.is_empty() {
        let at = rest;
        let value = match take_tagged(&mut rest, tag(1)) {
            Some(bytes) => FieldValue::Bytes(bytes),
            None => {
                let mut fields = Fields::new(rest);
                let field = fields.next()?;
                rest = fields.rest;
                match field {
                    Some(Field { number: 1, value }) => value,
                    _ => continue,
                }
            }
        };
        count += match (dtype, value) {
            (DType::Bytes, FieldValue::Bytes(bytes)) => {
                bytes_sum += bytes.len();
                1
            }
            (DType::Float32, FieldValue::Bytes(packed)) => {
                if !packed.len().is_multiple_of(4) {
                    let what = "has packed floats whose length is no multiple of 4";
                    return Err(WireError { what, at });
                }
                packed.len() / 4
            }
            (DType::Int64, FieldValue::Bytes(packed)) => count_varints(packed)?,
            (DType::Float32, FieldValue::Fixed32(_)) | (DType::Int64, FieldValue::Varint(_)) => 1,
            // Protobuf would skip it as an unknown field, and a value would be lost silently.
            _ => {
                let what = "has a value whose wire type does not suit its list";
                return Err(WireError { what, at });
            }
        };
    }
    Ok((count, dtype.data_bytes(count, bytes_sum)))
}

/// Reads one entry of the feature map: its key and its Feature message, empty if it is missing.
#[inline]
pub(super) fn map_entry<'a>(entry: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), WireError<'a>> {
    let mut rest = entry;
    if let Some(key) = take_tagged(&mut rest, tag(1))
        && let Some(value) = take_tagged(&mut rest, tag(2))
        && rest.is_empty()
    {
        return Ok((key, value));
    }
    let (mut key, mut value) = (None, None);
    let mut fields = Fields::new(entry);
    loop {
        let at = fields.rest;
        let Some(field) = fields.next()? else { break };
        let place = match field {
            Field { number: 1, value: FieldValue::Bytes(bytes) } => key.replace(bytes),
            Field { number: 2, value: FieldValue::Bytes(bytes) } => value.replace(bytes),
            _ => None,
        };
        if place.is_some() {
            return Err(WireError { what: "has a feature with two keys or two values", at });
        }
    }
    Ok((key.unwrap_or_default(), value.unwrap_or_default()))
}
