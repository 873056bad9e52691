//! Looking at an Example that nobody has described.

use super::feature::{ListRef, map_entry};
use super::spec::DType;
use super::wire::{Field, FieldValue, Fields, WireError, next_message};

/// One feature of a record that nobody has described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFeature<'a> {
    /// Its key; UTF-8, if whoever wrote it kept to the format.
    pub name: &'a [u8],
    /// Its values; `None` if the feature has no kind, which reads as missing.
    pub values: Option<ListRef<'a>>,
}

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

/// Finds all features of a record, in its own order; `None` if it is no Example.
///
/// An empty record is an Example without features. A SequenceExample is none, and neither is anything
/// else with fields that an Example has not: other messages and text often look like protobuf. Of a
/// key that comes twice, the last feature with a kind is the one that readers take.
#[must_use]
pub fn features_of(record: &[u8]) -> Option<Vec<FoundFeature<'_>>> {
    read(record).ok().flatten()
}

/// Says what features a record has, in its own order; `None` if it is no Example, as [`features_of`] says.
#[must_use]
pub fn describe(record: &[u8]) -> Option<Vec<FeatureSummary>> {
    let summary = |FoundFeature { name, values }| FeatureSummary {
        name: String::from_utf8_lossy(name).into_owned(),
        dtype: values.map(|list: ListRef<'_>| list.dtype()),
        count: values.map_or(0, |list| list.count()),
        data_bytes: values.map_or(0, |list| list.data_bytes()),
    };
    Some(features_of(record)?.into_iter().map(summary).collect())
}

fn read(record: &[u8]) -> Result<Option<Vec<FoundFeature<'_>>>, WireError<'_>> {
    let mut found = Vec::new();
    let mut example = Fields::new(record);
    while let Some(field) = example.next()? {
        let Field { number: 1, value: FieldValue::Bytes(mut features) } = field else {
            return Ok(None);
        };
        while let Some(entry) = next_message(&mut features, 1)? {
            let (name, value) = map_entry(entry)?;
            found.push(FoundFeature { name, values: ListRef::read(value)? });
        }
    }
    Ok(Some(found))
}
