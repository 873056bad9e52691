//! Windows: samples of consecutive records, written as records of their own. Source: docs/ORDER.md,
//! section 16.

use serde::{Deserialize, Serialize};
use shardfeed_plan::{PartialWindows, WindowSettings};
use shardfeed_tfrecord::example::{
    DType, DefaultValue, Feature, FeatureSpec, ListRef, Partition, Value, pack_i64,
};

use crate::record::{Row, RowError};
use crate::samples::combine::{Combined, Members, Sequence, of_records, put_record};
use crate::samples::measure::Measure;
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns};
use crate::samples::scope::Scope;

/// Name of the column with the number of records of a window.
const LENGTH: &str = "window_length";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// Features of a fixed shape.
    pub columns: Vec<String>,
    /// Records of a window.
    pub size: u64,
    /// Records from the start of a window to that of the next one.
    pub stride: u64,
    /// Expression in canonical text: a window has records with equal values. `None`: a shard's.
    pub by: Option<String>,
    pub partial: PartialWindows,
}

/// Writes windows as records, each with the values of its records.
#[derive(Debug)]
pub struct Windower {
    spec: WindowSpec,
    members: Members,
    by: Option<Measure>,
}

impl WindowSpec {
    /// Settings that determine the windows of a shard.
    pub fn settings(&self) -> WindowSettings {
        let Self { size, stride, partial, .. } = *self;
        WindowSettings { size, stride, partial }
    }

    /// Features of the records that a [`Windower`] writes.
    pub(crate) fn features(&self, combined: Combined<'_>) -> Result<Vec<FeatureSpec>, String> {
        let size = usize::try_from(self.size).map_err(|error| error.to_string())?;
        let mut features = vec![];
        for spec in self.members(combined)?.features() {
            let Feature::FixedLen { shape, dtype, .. } = &spec.feature else {
                unreachable!("features of windows have a fixed shape");
            };
            let feature = match self.partial {
                PartialWindows::Keep => {
                    let partitions =
                        shape.iter().map(|rows| Partition::UniformRowLength(*rows)).collect();
                    Feature::Ragged { dtype: *dtype, value_key: None, partitions }
                }
                PartialWindows::Drop | PartialWindows::Pad => {
                    let shape = [&[size], &shape[..]].concat();
                    Feature::FixedLen { shape, dtype: *dtype, default: None }
                }
            };
            features.push(FeatureSpec { name: spec.name.clone(), feature });
        }
        if self.partial == PartialWindows::Pad {
            if self.columns.iter().any(|name| name == LENGTH) {
                return Err(format!("column `{LENGTH}` is made by window; rename the feature"));
            }
            let feature = Feature::FixedLen { shape: vec![], dtype: DType::Int64, default: None };
            features.push(FeatureSpec { name: LENGTH.to_owned(), feature });
        }
        Ok(features)
    }

    fn members(&self, combined: Combined<'_>) -> Result<Members, String> {
        if combined.parse.is_none() {
            return Err("raw records have no columns; declare features first".to_owned());
        }
        if self.columns.is_empty() {
            return Err("it takes the names of columns".to_owned());
        }
        Members::new(&self.columns, combined, |spec| match &spec.feature {
            Feature::FixedLen { .. } => None,
            _ => Some(
                "has any number of values a record; a window takes FixedLenFeatures: name those",
            ),
        })
    }
}

impl Windower {
    /// Checks columns and settings.
    ///
    /// # Errors  A description of what does not fit.
    pub(crate) fn new(
        spec: &WindowSpec,
        combined: Combined<'_>,
        scope: Scope<'_>,
    ) -> Result<Self, String> {
        spec.settings().validate().map_err(|error| error.to_string())?;
        let members = spec.members(combined)?;
        spec.features(combined)?;
        let by = spec.by.as_ref().map(|by| Measure::of_key(by, scope)).transpose()?;
        Ok(Self { spec: spec.clone(), members, by })
    }

    pub fn spec(&self) -> &WindowSpec {
        &self.spec
    }

    pub(crate) fn features(&self) -> &[FeatureSpec] {
        self.members.features()
    }

    /// The value that is equal in the records of a window.
    pub(crate) fn by(&self) -> Option<&Measure> {
        self.by.as_ref()
    }

    /// Checks the data of records, and returns the key of each: records with equal keys that follow
    /// each other are in the same windows.
    /// - `shard_path`: relative to the dataset.
    ///
    /// # Errors  The first record whose data or features are damaged.
    pub(crate) fn keys(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        mut kept: Kept<'_>,
    ) -> Result<Vec<Vec<u8>>, RowError> {
        of_records(rows, |record, parts| self.members.find(record, parts))?;
        if let Some(kept) = &mut kept {
            kept.push(&self.checked_key(), MeasuredColumn::Integers(vec![0; rows.len()]));
        }
        match &self.by {
            Some(by) => by.keys(rows, shard_path, kept),
            None => Ok(vec![vec![]; rows.len()]),
        }
    }

    /// As [`Windower::keys`], of values that were measured before; `None`: some are not known.
    pub(crate) fn kept_keys(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
    ) -> Option<Vec<Vec<u8>>> {
        columns.get(&self.checked_key())?;
        match &self.by {
            Some(by) => by.kept_keys(columns, shard_path),
            None => Some(vec![vec![]; columns.records()]),
        }
    }

    /// Returns the keys of the columns that the windows need.
    pub(crate) fn columns(&self) -> Vec<String> {
        let by = self.by.as_ref().map(Measure::columns).unwrap_or_default();
        [vec![self.checked_key()], by].concat()
    }

    /// Returns the key of a column of zeros: the features of all records were found.
    fn checked_key(&self) -> String {
        self.members.key_of("checked")
    }

    /// Checks the data of a record, and finds its values, or those of some of its rows.
    ///
    /// # Errors  The data or a feature is damaged.
    pub(crate) fn sequences<'a>(
        &self,
        record: &Row<'a>,
        rows: &[u32],
    ) -> Result<Vec<Sequence<'a>>, RowError> {
        let found = self.members.find(record, rows)?.into_iter();
        Ok(found.map(|columns| Sequence::new(columns, 1)).collect())
    }

    /// Appends a window to `out` as a record with its checksum. Returns the bytes of its data.
    pub(crate) fn write(&self, records: &[&Sequence<'_>], out: &mut Vec<u8>) -> usize {
        let last = records.last().expect("a window has records");
        let missing = match self.spec.partial {
            PartialWindows::Keep => 0,
            PartialWindows::Drop | PartialWindows::Pad => {
                (self.spec.size as usize).saturating_sub(records.len())
            }
        };
        let all = || records.iter().chain(std::iter::repeat_n(last, missing));
        let (mut strings, mut numbers) = (vec![], vec![]);
        for (column, spec) in self.members.features().iter().enumerate() {
            let (mut texts, mut packed): (Vec<&[u8]>, Vec<u8>) = (vec![], vec![]);
            for record in all() {
                put(spec, record.column(column), &mut texts, &mut packed);
            }
            strings.push(texts);
            numbers.push(packed);
        }
        let mut length = vec![];
        pack_i64(records.len() as i64, &mut length);
        let values = self.members.features().iter().zip(strings.iter().zip(&numbers));
        let mut features: Vec<(&str, Value<'_>)> = values
            .map(|(spec, (texts, packed))| match spec.dtype() {
                DType::Bytes => (spec.name.as_str(), Value::Bytes(texts)),
                dtype => (spec.name.as_str(), Value::Packed(dtype, packed)),
            })
            .collect();
        if self.spec.partial == PartialWindows::Pad {
            features.push((LENGTH, Value::Packed(DType::Int64, &length)));
        }
        put_record(&features, out)
    }
}

/// Appends the values of a feature: its strings, or its numbers as they are packed in a list.
fn put<'a>(
    spec: &'a FeatureSpec,
    list: Option<&ListRef<'a>>,
    strings: &mut Vec<&'a [u8]>,
    packed: &mut Vec<u8>,
) {
    if let Some(list) = list {
        match spec.dtype() {
            DType::Bytes => list.for_each_bytes(|value| strings.push(value)),
            DType::Int64 | DType::Float32 => list.pack(packed),
        }
        return;
    }
    match spec.default().expect("the parser refuses records without a value") {
        DefaultValue::Int64(values) => values.iter().for_each(|value| pack_i64(*value, packed)),
        DefaultValue::Float32(values) => {
            values.iter().for_each(|value| packed.extend(value.to_le_bytes()));
        }
        DefaultValue::Bytes(values) => strings.extend(values.iter().map(Vec::as_slice)),
    }
}
