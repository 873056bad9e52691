//! Inspects an Example without a description of its features.

use super::feature::{ListRef, map_entry};
use super::wire::{Field, FieldValue, Fields, WireError, next_message};

/// One feature of an undescribed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFeature<'a> {
    /// Key; UTF-8 if the writer followed the format.
    pub name: &'a [u8],
    /// Values; `None` if the feature has no list, which counts as missing.
    pub values: Option<ListRef<'a>>,
}

/// Finds all features of a record, in the order of the record; `None` if it is not an Example.
///
/// An empty record is an Example without features. A SequenceExample is not an Example, and neither
/// are other bytes with fields that an Example does not have: other messages and text often look
/// like protobuf. If a key occurs twice, readers use the last feature that has a list.
pub fn features_of(record: &[u8]) -> Option<Vec<FoundFeature<'_>>> {
    read(record).ok().flatten()
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
