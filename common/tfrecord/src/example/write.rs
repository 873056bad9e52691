//! Writes Examples.

use super::spec::DType;
use super::wire::{put_varint, tag, varint_bytes};

/// Values of one feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `int64_list`.
    Int64(&'a [i64]),
    /// `float_list`.
    Float32(&'a [f32]),
    /// `bytes_list`.
    Bytes(&'a [&'a [u8]]),
    /// Numbers of a type as they are packed in their list.
    Packed(DType, &'a [u8]),
}

/// Appends an int64 as it is packed in an `int64_list`.
pub fn pack_i64(value: i64, out: &mut Vec<u8>) {
    put_varint(out, value.cast_unsigned());
}

/// Appends an Example with `features` to `out`.
///
/// The same features give the same bytes: they are written in the bytewise order of their names,
/// with packed numbers. Each name should occur once; readers use the last one.
pub fn encode_example(features: &[(&str, Value<'_>)], out: &mut Vec<u8>) {
    let mut features: Vec<_> =
        features.iter().map(|(name, value)| Entry::new(name, *value)).collect();
    features.sort_by_key(|entry| entry.name);
    let features_bytes = features.iter().map(|entry| field_bytes(entry.entry_bytes)).sum();
    out.reserve(field_bytes(features_bytes));
    put_head(out, 1, features_bytes);
    for entry in &features {
        entry.put(out);
    }
}

/// Appends a SequenceExample to `out`: features of the record, and lists with the values of each
/// step.
///
/// As with [`encode_example`], the same input gives the same bytes. A step may have no values, and
/// then no type.
pub fn encode_sequence_example(
    context: &[(&str, Value<'_>)],
    lists: &[(&str, &[Option<Value<'_>>])],
    out: &mut Vec<u8>,
) {
    if !context.is_empty() {
        encode_example(context, out);
    }
    let mut lists = lists.to_vec();
    lists.sort_by_key(|(name, _)| *name);
    let (mut all, mut entry, mut steps) = (vec![], vec![], vec![]);
    for (name, values) in lists {
        steps.clear();
        for value in values {
            let Some(value) = value else {
                put_head(&mut steps, 1, 0);
                continue;
            };
            let step = Entry::new("", *value);
            put_head(&mut steps, 1, field_bytes(step.list_bytes));
            step.put_list(&mut steps);
        }
        entry.clear();
        put_field(&mut entry, 1, name.as_bytes());
        put_field(&mut entry, 2, &steps);
        put_field(&mut all, 1, &entry);
    }
    if !all.is_empty() {
        put_field(out, 2, &all);
    }
}

fn put_field(out: &mut Vec<u8>, number: u32, body: &[u8]) {
    put_head(out, number, body.len());
    out.extend_from_slice(body);
}

/// A feature with the lengths of its nested messages, which are written before them.
struct Entry<'a> {
    name: &'a str,
    value: Value<'a>,
    /// Size of the packed values; 0 for bytes, which are not packed.
    packed_bytes: usize,
    list_bytes: usize,
    entry_bytes: usize,
}

impl<'a> Entry<'a> {
    fn new(name: &'a str, value: Value<'a>) -> Self {
        let packed_bytes = match value {
            Value::Int64(values) => {
                values.iter().map(|value| varint_bytes(value.cast_unsigned())).sum()
            }
            Value::Float32(values) => 4 * values.len(),
            Value::Packed(_, packed) => packed.len(),
            Value::Bytes(_) => 0,
        };
        let list_bytes = match value {
            Value::Bytes(values) => values.iter().map(|value| field_bytes(value.len())).sum(),
            _ if packed_bytes == 0 => 0,
            _ => field_bytes(packed_bytes),
        };
        let entry_bytes = field_bytes(name.len()) + field_bytes(field_bytes(list_bytes));
        Self { name, value, packed_bytes, list_bytes, entry_bytes }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_head(out, 1, self.entry_bytes);
        put_head(out, 1, self.name.len());
        out.extend_from_slice(self.name.as_bytes());
        put_head(out, 2, field_bytes(self.list_bytes));
        self.put_list(out);
    }

    fn put_list(&self, out: &mut Vec<u8>) {
        put_head(out, self.value.dtype().number(), self.list_bytes);
        if self.packed_bytes > 0 {
            put_head(out, 1, self.packed_bytes);
        }
        match self.value {
            Value::Int64(values) => {
                for value in values {
                    put_varint(out, value.cast_unsigned());
                }
            }
            Value::Float32(values) => {
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Value::Packed(_, packed) => out.extend_from_slice(packed),
            Value::Bytes(values) => {
                for value in values {
                    put_head(out, 1, value.len());
                    out.extend_from_slice(value);
                }
            }
        }
    }
}

impl Value<'_> {
    pub fn dtype(&self) -> DType {
        match self {
            Self::Int64(_) => DType::Int64,
            Self::Float32(_) => DType::Float32,
            Self::Bytes(_) => DType::Bytes,
            Self::Packed(dtype, _) => *dtype,
        }
    }
}

/// Writes the start of a length-delimited field.
fn put_head(out: &mut Vec<u8>, number: u32, length: usize) {
    out.push(tag(number));
    put_varint(out, length as u64);
}

/// Returns the size of a length-delimited field with a value of `length` bytes.
fn field_bytes(length: usize) -> usize {
    1 + varint_bytes(length as u64) + length
}
