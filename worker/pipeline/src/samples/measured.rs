//! Values that sample programs measured in the records of a shard. Another program over the same
//! values, such as a filter with another threshold, needs them only, and no records.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum mean bytes of the texts of a column beyond its first ones; a column with longer texts is
/// not kept.
const TEXT_BYTES_MAX: (usize, usize) = (16, 4096);

/// Takes values of the records that follow; `None`: they are not kept.
pub(crate) type Kept<'a> = Option<&'a mut MeasuredColumns>;

/// Key of the bytes of each record.
pub(crate) const RECORD_BYTES: &str = "record bytes";

/// A value of each record of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MeasuredColumn {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<Vec<u8>>),
}

impl MeasuredColumn {
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn extend(&mut self, more: Self) {
        match (self, more) {
            (Self::Integers(values), Self::Integers(more)) => values.extend(more),
            (Self::Floats(values), Self::Floats(more)) => values.extend(more),
            (Self::Texts(values), Self::Texts(more)) => values.extend(more),
            _ => unreachable!("a feature has values of one kind"),
        }
    }
}

/// Columns of a shard by their keys, which name the features and what was measured of them.
#[derive(Clone, Debug, Default)]
pub struct MeasuredColumns {
    columns: BTreeMap<String, MeasuredColumn>,
    /// Bytes of texts of each column that has some.
    text_bytes: BTreeMap<String, usize>,
    /// Number of records, whether all their values are known or not.
    records: usize,
}

impl MeasuredColumns {
    /// Returns columns that were measured before.
    pub fn new(columns: BTreeMap<String, MeasuredColumn>) -> Self {
        let records = columns.values().next().map_or(0, MeasuredColumn::len);
        Self { columns, records, ..Self::default() }
    }

    /// True if values of the records that follow are added.
    pub(crate) fn takes(&self, key: &str) -> bool {
        self.columns.get(key).map_or(0, MeasuredColumn::len) == self.records
    }

    /// Adds the values of the records that follow. Values that are known already, and those after
    /// records whose values are not known, are not added.
    pub(crate) fn push(&mut self, key: &str, values: MeasuredColumn) {
        if !self.takes(key) {
            return;
        }
        if let MeasuredColumn::Texts(texts) = &values {
            let bytes = self.text_bytes.entry(key.to_owned()).or_default();
            *bytes += texts.iter().map(Vec::len).sum::<usize>();
            let (mean, first) = TEXT_BYTES_MAX;
            if *bytes > first + mean * (self.records + texts.len()) {
                self.columns.remove(key);
                return;
            }
        }
        match self.columns.get_mut(key) {
            None => drop(self.columns.insert(key.to_owned(), values)),
            Some(column) => column.extend(values),
        }
    }

    /// Ends the values of some records.
    pub(crate) fn advance(&mut self, records: usize) {
        self.records += records;
    }

    pub(crate) fn get(&self, key: &str) -> Option<&MeasuredColumn> {
        self.columns.get(key)
    }

    pub fn records(&self) -> usize {
        self.records
    }

    /// Iterates over the columns with a value of each record.
    pub fn whole(&self) -> impl Iterator<Item = (&str, &MeasuredColumn)> {
        let whole = self.columns.iter().filter(|(_, column)| column.len() == self.records);
        whole.map(|(key, column)| (key.as_str(), column))
    }
}
