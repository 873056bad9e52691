//! Samples that are made of several records: packs of their tokens, and windows over them.

use shardfeed_tfrecord::example::{FeatureSpec, ListRef};

use crate::record::{Row, RowError};
use crate::samples::pack::Packer;
use crate::samples::window::Windower;

/// Writes samples of several records as records of their own.
#[derive(Debug)]
pub enum Combiner {
    Packs(Packer),
    Windows(Windower),
}

/// Returns the features of the columns that are combined.
/// - `misfit`: what a feature is that cannot be combined; `None` for any other.
///
/// # Errors  A column is named twice, does not exist, or cannot be combined.
pub(crate) fn features_of<'p>(
    columns: &[String],
    features: &'p [FeatureSpec],
    misfit: impl Fn(&FeatureSpec) -> Option<&'static str>,
) -> Result<Vec<&'p FeatureSpec>, String> {
    let find = |(place, name): (usize, &String)| {
        if columns[..place].contains(name) {
            return Err(format!("column `{name}` is named twice"));
        }
        let found = features.iter().find(|spec| spec.name == *name).ok_or_else(|| {
            let known: Vec<_> = features.iter().map(|spec| spec.name.as_str()).collect();
            format!("there is no feature `{name}`; there are `{}`", known.join("`, `"))
        })?;
        misfit(found).map_or(Ok(found), |is| Err(format!("column `{name}` {is}")))
    };
    columns.iter().enumerate().map(find).collect()
}

/// Part of a record in a sample.
#[derive(Clone, Copy, Debug)]
pub struct RecordPart<'a> {
    /// The record, whose data was checked.
    pub sequence: &'a Sequence<'a>,
    /// First token; 0 in a window.
    pub first: u64,
    /// Number of tokens, which may end with the appended one; 1 in a window.
    pub tokens: u64,
}

/// Values of a record.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    /// Values of each column; `None`: the record does not have it.
    columns: Vec<Option<ListRef<'a>>>,
    tokens: u64,
}

impl<'a> Sequence<'a> {
    pub(crate) fn new(columns: Vec<Option<ListRef<'a>>>, tokens: u64) -> Self {
        Self { columns, tokens }
    }

    /// Number of tokens, without the appended one; of a record in a window 1.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(crate) fn columns(&self) -> &[Option<ListRef<'a>>] {
        &self.columns
    }

    pub(crate) fn column(&self, column: usize) -> Option<&ListRef<'a>> {
        self.columns[column].as_ref()
    }
}

impl Combiner {
    /// Checks the data of a record, and finds its values.
    ///
    /// # Errors  The data or a feature is damaged.
    pub fn sequence<'a>(&self, row: &Row<'a>) -> Result<Sequence<'a>, RowError> {
        match self {
            Self::Packs(packer) => packer.sequence(row),
            Self::Windows(windower) => windower.sequence(row),
        }
    }

    /// Appends a sample to `out` as a record, followed by its checksum. Returns the bytes of its
    /// data.
    pub fn write(&self, parts: &[RecordPart<'_>], out: &mut Vec<u8>) -> usize {
        match self {
            Self::Packs(packer) => packer.write(parts, out),
            Self::Windows(windower) => {
                let records: Vec<_> = parts.iter().map(|part| part.sequence).collect();
                windower.write(&records, out)
            }
        }
    }
}
