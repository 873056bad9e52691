//! Looking at an Example that nobody has described.

use super::feature::{ListRef, map_entry};
use super::spec::DType;
use super::wire::{Field, FieldValue, Fields, WireError, next_message};

/// What one feature of a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureSummary {
    /// Its key; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// The type of its values; `None` if the feature has no kind, which reads as missing.
    pub dtype: Option<DType>,
    /// How many values it has.
    pub count: usize,
    /// Bytes of all values, decoded.
    pub data_bytes: usize,
}

/// Says what features a record has, in its own order; `None` if it is no Example.
///
/// An empty record is an Example without features. A SequenceExample is none, and neither is anything
/// else with fields that an Example has not: other messages and text often look like protobuf.
#[must_use]
pub fn describe(record: &[u8]) -> Option<Vec<FeatureSummary>> {
    read(record).ok().flatten()
}

fn read(record: &[u8]) -> Result<Option<Vec<FeatureSummary>>, WireError<'_>> {
    let mut summaries = Vec::new();
    let mut example = Fields::new(record);
    while let Some(field) = example.next()? {
        let Field { number: 1, value: FieldValue::Bytes(mut features) } = field else {
            return Ok(None);
        };
        while let Some(entry) = next_message(&mut features, 1)? {
            let (key, value) = map_entry(entry)?;
            let list = ListRef::read(value)?;
            summaries.push(FeatureSummary {
                name: String::from_utf8_lossy(key).into_owned(),
                dtype: list.map(|list| list.dtype()),
                count: list.map_or(0, |list| list.count()),
                data_bytes: list.map_or(0, |list| list.data_bytes()),
            });
        }
    }
    Ok(Some(summaries))
}
