//! Values that sample programs measured in the records of a shard. Another program over the same
//! values, such as a filter with another threshold, needs them only, and no records.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::{Row, RowError};

/// Maximum mean bytes of the texts of a kept column, beyond its first ones.
const TEXT_BYTES_MAX: (usize, usize) = (16, 4096);

/// Maximum number of rows of a shard whose values are kept.
const ROWS_KEPT_MAX: usize = 1 << 22;

/// Takes values of the records that follow; `None`: they are not kept.
pub(crate) type Kept<'a> = Option<&'a mut MeasuredColumns>;

/// Key of the bytes of each record.
pub(crate) const RECORD_BYTES: &str = "record bytes";

/// A value of each record of a shard.
/// - `T`: a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MeasuredColumn<T = Vec<u8>> {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<T>),
    Doubles(Vec<f64>),
}

impl MeasuredColumn {
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Texts(values) => values.len(),
            Self::Doubles(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn borrowed(&self) -> MeasuredColumn<&[u8]> {
        match self {
            Self::Integers(values) => MeasuredColumn::Integers(values.clone()),
            Self::Floats(values) => MeasuredColumn::Floats(values.clone()),
            Self::Texts(texts) => MeasuredColumn::Texts(texts.iter().map(Vec::as_slice).collect()),
            Self::Doubles(values) => MeasuredColumn::Doubles(values.clone()),
        }
    }

    fn extend(&mut self, more: Self) {
        match (self, more) {
            (Self::Integers(values), Self::Integers(more)) => values.extend(more),
            (Self::Floats(values), Self::Floats(more)) => values.extend(more),
            (Self::Texts(values), Self::Texts(more)) => values.extend(more),
            (Self::Doubles(values), Self::Doubles(more)) => values.extend(more),
            _ => unreachable!("a feature has values of one kind"),
        }
    }
}

impl MeasuredColumn<&[u8]> {
    pub(crate) fn owned(&self) -> MeasuredColumn {
        match self {
            Self::Integers(values) => MeasuredColumn::Integers(values.clone()),
            Self::Floats(values) => MeasuredColumn::Floats(values.clone()),
            Self::Texts(texts) => {
                MeasuredColumn::Texts(texts.iter().map(|text| text.to_vec()).collect())
            }
            Self::Doubles(values) => MeasuredColumn::Doubles(values.clone()),
        }
    }
}

/// Columns of a shard by their keys, which name the features and what was measured of them.
#[derive(Clone, Debug, Default)]
pub struct MeasuredColumns {
    columns: BTreeMap<String, MeasuredColumn>,
    /// Bytes of texts of each column that has some.
    text_bytes: BTreeMap<String, usize>,
    /// Number of records, or of rows, whether all their values are known or not.
    records: usize,
    /// Columns of the records' rows.
    rows: Option<Box<MeasuredColumns>>,
    is_of_rows: bool,
    /// Of rows: index of the record of each, if they were measured before.
    ordinals: Option<Vec<i64>>,
}

impl MeasuredColumns {
    /// Returns columns that were measured before.
    pub fn new(columns: BTreeMap<String, MeasuredColumn>) -> Self {
        let records = columns.values().next().map_or(0, MeasuredColumn::len);
        Self { columns, records, ..Self::default() }
    }

    pub(crate) fn rows_mut(&mut self) -> &mut Self {
        self.rows.get_or_insert_with(|| Box::new(Self { is_of_rows: true, ..Self::default() }))
    }

    /// Columns of the records' rows.
    pub(crate) fn rows(&self) -> Option<&Self> {
        self.rows.as_deref()
    }

    /// Adds columns of rows that were measured before; false if they are not of these numbers of rows.
    /// - `counts`: key of the column with the number of rows of each record.
    pub fn add_rows(&mut self, counts: &str, columns: BTreeMap<String, MeasuredColumn>) -> bool {
        let Some(MeasuredColumn::Integers(counts)) = self.columns.get(counts) else { return false };
        let of_record = |(record, rows): (i64, &i64)| {
            std::iter::repeat_n(record, usize::try_from(*rows).unwrap_or(0))
        };
        let rows: i64 = counts.iter().fold(0, |sum, rows| sum.saturating_add((*rows).max(0)));
        if rows > ROWS_KEPT_MAX as i64 {
            return false;
        }
        if columns.values().any(|column| column.len() as i64 != rows) {
            return false;
        }
        let ordinals = (0..).zip(counts).flat_map(of_record).collect();
        let records = rows as usize;
        self.rows =
            Some(Box::new(Self { columns, records, ordinals: Some(ordinals), ..Self::default() }));
        true
    }

    /// Returns the index of the record of each row, or of each record.
    pub(crate) fn ordinals(&self) -> Vec<i64> {
        self.ordinals.clone().unwrap_or_else(|| (0..self.records as i64).collect())
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
        if self.is_of_rows && self.records + values.len() > ROWS_KEPT_MAX {
            self.columns.remove(key);
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

    /// Iterates over the columns with a value of each record, and over those with one of each row.
    pub fn whole(&self) -> impl Iterator<Item = (&str, &MeasuredColumn)> {
        let all = std::iter::once(self).chain(self.rows());
        let whole =
            all.flat_map(|of| of.columns.iter().filter(|(_, column)| column.len() == of.records));
        whole.map(|(key, column)| (key.as_str(), column))
    }
}

/// Returns what `measure` makes of the records that pass. To keep its values it measures all records;
/// an error then counts only if a record that passes has it.
pub(crate) fn of_passing<T>(
    rows: &[Row<'_>],
    passes: &[bool],
    kept: Kept<'_>,
    measure: impl Fn(&[Row<'_>], Kept<'_>) -> Result<Vec<T>, RowError>,
) -> Result<Vec<Option<T>>, RowError> {
    if kept.is_some() || passes.iter().all(|passes| *passes) {
        match measure(rows, kept) {
            Ok(all) => {
                let all = all.into_iter().zip(passes);
                return Ok(all.map(|(value, passes)| passes.then_some(value)).collect());
            }
            Err(error) if passes.iter().all(|passes| *passes) => return Err(error),
            Err(_) => {}
        }
    }
    let taken = rows.iter().zip(passes).filter(|(_, passes)| **passes).map(|(row, _)| *row);
    let mut values = measure(&taken.collect::<Vec<_>>(), None)?.into_iter();
    Ok(passes.iter().map(|passes| if *passes { values.next() } else { None }).collect())
}
