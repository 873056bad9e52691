//! Samples that are made of several records: packs of their tokens, and windows over them.

use shardfeed_tfrecord::encode_footer;
use shardfeed_tfrecord::example::{FeatureSpec, ListRef, Parts, Value, encode_example};

use crate::column::{Origin, Plan};
use crate::record::{Row, RowError, RowFault};
use crate::samples::pack::Packer;
use crate::samples::scope::Scope;
use crate::samples::unbatch::UnbatchSpec;
use crate::samples::window::Windower;
use crate::schema::SchemaError;
use crate::schema::parse::{ParseSpec, RecordParser};

/// Writes samples of several records as records of their own.
#[derive(Debug)]
pub enum Combiner {
    Packs(Packer),
    Windows(Windower),
}

/// Records that are combined, or rows of records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Combined<'a> {
    /// Parsing of the records; `None`: they are not parsed.
    pub(crate) parse: Option<&'a ParseSpec>,
    /// Rows of the records; `None`: the records are combined.
    pub(crate) unbatch: Option<&'a UnbatchSpec>,
}

/// Finds the values of the columns that are combined, in records or in their rows.
#[derive(Debug)]
pub(crate) struct Members {
    parser: RecordParser,
    features: Vec<FeatureSpec>,
    /// Cell of each column in a record.
    cells: Vec<usize>,
    /// Start of the keys of measured values, if they are of rows.
    of_rows: String,
    /// Features of the records, as text.
    key: String,
}

impl Members {
    /// - `misfit`: what a feature is that cannot be combined; `None` for any other.
    ///
    /// # Errors  A column is named twice, does not exist, or cannot be combined.
    pub(crate) fn new(
        columns: &[String],
        Combined { parse, unbatch }: Combined<'_>,
        misfit: impl Fn(&FeatureSpec) -> Option<&'static str>,
    ) -> Result<Self, String> {
        let unbatched = unbatch.map(UnbatchSpec::names).unwrap_or_default();
        let named = |mut parse: Option<ParseSpec>| {
            RecordParser::new(&mut parse, unbatch).map_err(SchemaError::what)
        };
        let (_, all) = named(parse.cloned())?;
        let known = all.iter().filter_map(|plan| Some((plan.spec.as_ref()?, &plan.origin)));
        let known: Vec<_> = known.collect();
        for (place, name) in columns.iter().enumerate() {
            if columns[..place].contains(name) {
                return Err(format!("column `{name}` is named twice"));
            }
            let Some((found, origin)) = known.iter().find(|(spec, _)| spec.name == *name) else {
                let known: Vec<_> = known.iter().map(|(spec, _)| spec.name.as_str()).collect();
                return Err(format!(
                    "there is no feature `{name}`; there are `{}`",
                    known.join("`, `")
                ));
            };
            let is_misfit = match origin {
                Origin::Around(_) | Origin::IsPad(_) => {
                    Some("has several rows a sample, by offsets; name columns of one row")
                }
                Origin::List(_) => Some(
                    "is a feature list; call unbatch() of it first, which makes rows of its steps",
                ),
                _ => misfit(found),
            };
            if let Some(is) = is_misfit {
                return Err(format!("column `{name}` {is}"));
            }
        }
        let needed = [columns, &unbatched[..]].concat();
        let (parser, plans) = named(parse.map(|parse| parse.named(&needed)))?;
        let find = |name: &String| {
            let is_named = |plan: &&Plan| plan.spec.as_ref().is_some_and(|spec| spec.name == *name);
            let plan = plans.iter().find(is_named).expect("it was found among all columns");
            match (&plan.spec, &plan.origin) {
                (
                    Some(spec),
                    Origin::Feature(Parts::One { values } | Parts::Ragged { values, .. }),
                ) => (spec.clone(), *values),
                other => unreachable!("{other:?} is not combined"),
            }
        };
        let (features, cells): (Vec<_>, _) = columns.iter().map(find).unzip();
        let scope = Scope { parse, unbatched: &unbatched, ..Scope::default() };
        let (of_rows, key) = match parser.unbatch() {
            None => (String::new(), serde_json::to_string(&features)),
            Some(_) => {
                (scope.of_rows(), serde_json::to_string(&parse.map(|parse| parse.named(columns))))
            }
        };
        let key = key.expect("features are plain data");
        Ok(Self { parser, features, cells, of_rows, key })
    }

    /// Features of the columns in a record, as text.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the key of a measured value of each record or row.
    pub(crate) fn key_of(&self, value: &str) -> String {
        format!("{}{value} {}", self.of_rows, self.key)
    }

    /// True if rows of records are combined.
    pub(crate) fn has_rows(&self) -> bool {
        self.parser.unbatch().is_some()
    }

    /// Features of the columns, as they are in a record or a row.
    pub(crate) fn features(&self) -> &[FeatureSpec] {
        &self.features
    }

    /// Checks the data of a record, and returns the values of each column in some of its rows; in the
    /// record, if records are combined. `None`: it does not have them.
    ///
    /// # Errors  The data or a feature is damaged; a row does not exist.
    pub(crate) fn find<'a>(
        &self,
        record: &Row<'a>,
        rows: &[u32],
    ) -> Result<Vec<Vec<Option<ListRef<'a>>>>, RowError> {
        let (mut cells, mut lists) = (vec![], vec![]);
        self.parser.read(record, &mut cells, &mut lists)?;
        let Some(unbatch) = self.parser.unbatch() else {
            return Ok(vec![self.cells.iter().map(|cell| cells[*cell]).collect()]);
        };
        let at = |error| RowError::at(record, error);
        let count = unbatch.rows(&cells, &lists).map_err(at)?;
        let each = |feature: &FeatureSpec| unbatch.each(&feature.name, &cells, &lists).map_err(at);
        let each = self.features.iter().map(each).collect::<Result<Vec<_>, _>>()?;
        let values = |row: &u32| {
            let row = *row as usize;
            if row >= count {
                return Err(at(RowFault::no_row(&self.features[0].name, row, count)));
            }
            let columns = each.iter().zip(&self.cells);
            let of_row = columns.map(|(each, cell)| match each {
                Some(each) => each[row],
                None => cells[*cell],
            });
            Ok(of_row.collect())
        };
        rows.iter().map(values).collect()
    }
}

/// Returns what `find` makes of rows: of consecutive rows of one record together.
pub(crate) fn of_records<'a, T>(
    rows: &[Row<'a>],
    find: impl Fn(&Row<'a>, &[u32]) -> Result<Vec<T>, RowError>,
) -> Result<Vec<T>, RowError> {
    let mut found = Vec::with_capacity(rows.len());
    for of_record in rows.chunk_by(|one, other| one.stored.as_ptr() == other.stored.as_ptr()) {
        let parts: Vec<u32> = of_record.iter().map(|row| row.part).collect();
        found.extend(find(&of_record[0], &parts)?);
    }
    Ok(found)
}

/// Appends an Example and its checksum to `out`. Returns the bytes of the Example.
pub(crate) fn put_record(features: &[(&str, Value<'_>)], out: &mut Vec<u8>) -> usize {
    let start = out.len();
    encode_example(features, out);
    let footer = encode_footer(&out[start..]);
    out.extend_from_slice(&footer);
    out.len() - start - footer.len()
}

/// Part of a record, or of its row, in a sample.
#[derive(Clone, Copy, Debug)]
pub struct RecordPart<'a> {
    /// The values, of checked data.
    pub sequence: &'a Sequence<'a>,
    /// First token; 0 in a window.
    pub first: u64,
    /// Number of tokens, which may end with the appended one; 1 in a window.
    pub tokens: u64,
}

/// Values of a record, or of its row.
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
    /// Names of the columns that are combined.
    pub(crate) fn columns(&self) -> &[String] {
        match self {
            Self::Packs(packer) => &packer.spec().columns,
            Self::Windows(windower) => &windower.spec().columns,
        }
    }

    /// Checks a record's data, and finds the values of some of its rows, or its own.
    ///
    /// # Errors  The data or a feature is damaged; a row does not exist.
    pub fn sequences<'a>(
        &self,
        record: &Row<'a>,
        rows: &[u32],
    ) -> Result<Vec<Sequence<'a>>, RowError> {
        match self {
            Self::Packs(packer) => packer.sequences(record, rows),
            Self::Windows(windower) => windower.sequences(record, rows),
        }
    }

    /// Appends a sample to `out` as a record with its checksum. Returns the bytes of its data.
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
