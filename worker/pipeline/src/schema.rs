//! Record specs: parsing, operators and outputs of a job, checked and prepared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_image::PIXEL_CONTRACT;
use shardfeed_plan::DECODER_NONE;
use shardfeed_tfrecord::example::{Feature, Partition};

use crate::column::{ColumnKind, Origin, Plan, items};
use crate::dtype::Dtype;
use crate::operator::{Operation, Operator, TableFault, TableRef};
use crate::program::{Made, Program};
use crate::record::{Row, RowError};
use crate::rows::{Cells, LocatedRecords};
use crate::samples::SampleProgram;
use crate::samples::balance::BalanceSpec;
use crate::samples::combine::Combined;
use crate::samples::pack::PackSpec;
use crate::samples::unbatch::UnbatchSpec;
use crate::samples::window::WindowSpec;

mod error;
mod of_shards;
mod outline;
pub(crate) mod parse;

pub use error::SchemaError;
pub use of_shards::ShardSchemas;
pub use outline::{CheckedExpression, Outline, OutlineColumn};
pub use parse::ParseSpec;
use parse::{Parser, RecordParser, parser};

/// Parsing, operators and outputs of a job's records.
///
/// The serde form is for options and tests; processes exchange `shardfeed.common.v1.RecordSpec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordSpec {
    /// Parsing; `None` keeps the record unchanged, in a column `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse: Option<ParseSpec>,
    /// Operators on the columns, applied in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Operator>,
    /// Names of the columns of a batch; `None`: all columns after the last operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<String>>,
    /// Expression over parsed and measured columns: only records for which it holds are samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Operators that make columns for expressions, on the features or the columns of `unbatch`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Operator>,
    /// Columns with rows, of which each is a sample. `None`: each record is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbatch: Option<UnbatchSpec>,
    /// Expression over the columns after `unbatch`: only rows for which it holds are samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_rows: Option<String>,
    /// Packing of tokens: the packs are the samples, and `parse` has the features of records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<PackSpec>,
    /// Windows over records or rows are the samples, and `parse` has the features of records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowSpec>,
    /// Balanced steps: samples of similar cost share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceSpec>,
}

impl From<ParseSpec> for RecordSpec {
    fn from(parse: ParseSpec) -> Self {
        Self { parse: Some(parse), ..Self::default() }
    }
}

/// A record spec, checked and ready for use.
#[derive(Debug)]
pub struct Schema {
    spec: RecordSpec,
    parser: RecordParser,
    program: Program,
    columns: Vec<(Arc<str>, ColumnKind)>,
    plans: Vec<Plan>,
    decoder: &'static str,
    samples: Option<Arc<SampleProgram>>,
}

impl Schema {
    /// Schema for unchanged records: one column `record` of byte strings.
    pub fn raw() -> Self {
        Self::new(RecordSpec::default()).expect("nothing is asked of the records")
    }

    /// Checks a spec and prepares it.
    ///
    /// Parsed columns are sorted by name, lists last; the operators' columns follow in order.
    ///
    /// # Errors  No record could satisfy the spec.
    pub fn new(mut spec: RecordSpec) -> Result<Self, SchemaError> {
        let mut parser = parser(&mut spec.parse)?;
        if let Some(window) = &mut spec.window {
            window.columns.sort();
        }
        if let Some(combined) = Self::of_combined(&spec)? {
            parser = combined;
        }
        if let Some(unbatch) = &mut spec.unbatch {
            unbatch.columns.sort();
        }
        let samples = SampleProgram::new(&spec)?.map(Arc::new);
        let measured = samples.as_ref().map(|samples| samples.measured(&spec.measured));
        spec.measured = measured.unwrap_or_default();
        let expressions = samples.as_ref().map(|samples| samples.expressions());
        let (cost, by);
        [spec.filter, spec.filter_rows, cost, by] = expressions.unwrap_or_default();
        if let Some(window) = &mut spec.window {
            window.by = by;
        }
        if let (Some(balance), Some(cost)) = (&mut spec.balance, cost) {
            balance.by = cost;
        }
        // Packs and windows of rows are written as records, which have none.
        let is_combined = spec.pack.is_some() || spec.window.is_some();
        let unbatch = spec.unbatch.as_ref().filter(|_| !is_combined);
        let (parser, parsed) = RecordParser::of(parser, unbatch).map_err(SchemaError::Unbatch)?;
        let (mut program, Made { columns: all, images }) = Program::new(&parsed, &spec.operators)?;
        if let Some(spec) = unbatch {
            program.share_images(&spec.names());
        }
        let chosen = match &spec.outputs {
            None => all,
            Some(names) => {
                let chosen = choose(&all, &images, names)?;
                // Named or not, these are all columns.
                spec.outputs = spec.outputs.filter(|_| chosen != all);
                chosen
            }
        };
        let columns = chosen.iter().map(|(name, plan)| (name.as_str().into(), plan.kind.clone()));
        let columns = columns.collect();
        let plans = chosen.into_iter().map(|(_, plan)| plan).collect();
        let decodes = |operator: &Operator| matches!(operator.operation, Operation::DecodeImage(_));
        let decoder =
            if spec.operators.iter().any(decodes) { PIXEL_CONTRACT } else { DECODER_NONE };
        Ok(Self { spec, parser, program, columns, plans, decoder, samples })
    }

    /// Returns the parser of packs or windows; `None`: samples have one record.
    fn of_combined(spec: &RecordSpec) -> Result<Option<Parser>, SchemaError> {
        let combined = Combined { parse: spec.parse.as_ref(), unbatch: spec.unbatch.as_ref() };
        let features = match (&spec.pack, &spec.window) {
            (Some(pack), _) => pack.features(combined).map_err(SchemaError::Pack)?,
            (None, Some(window)) => window.features(combined).map_err(SchemaError::Window)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(parser(&mut Some(ParseSpec::Example(features)))?))
    }

    /// Opens the lookup tables of operators, so that errors are found before any record is read.
    ///
    /// A table that was not opened is opened by the first row that needs it.
    ///
    /// # Errors  A table does not exist, or is not the one that was declared.
    pub fn open_tables(&self) -> Result<(), TableFault> {
        self.program.open_tables()
    }

    /// Names and kinds of the columns, in the order of a batch.
    pub fn columns(&self) -> &[(Arc<str>, ColumnKind)] {
        &self.columns
    }

    /// Row length of each split of each column, `None` where rows differ; empty if not ragged.
    pub fn row_lengths(&self) -> Vec<Vec<Option<usize>>> {
        self.plans.iter().map(row_lengths).collect()
    }

    /// Rejects a schema with other columns, or costs of another type.
    fn check_columns(&self, other: &Self) -> Result<(), SchemaError> {
        let (ours, theirs) = (self.row_lengths(), other.row_lengths());
        for at in 0..ours.len().max(theirs.len()) {
            let (left, right) = (self.columns.get(at), other.columns.get(at));
            if left != right || ours.get(at) != theirs.get(at) {
                let shown = |of: &Self| match of.columns.get(at) {
                    Some((name, kind)) => {
                        format!("`{name}` {}", described(kind, &row_lengths(&of.plans[at])))
                    }
                    None => "no further column".to_owned(),
                };
                return Err(SchemaError::OtherColumns { left: shown(self), right: shown(other) });
            }
        }
        let is_float = |of: &Self| of.samples.as_ref().map(|samples| samples.has_float_costs());
        match &self.spec.balance {
            Some(balance) if is_float(self) != is_float(other) => {
                Err(SchemaError::OtherCosts { cost: balance.by.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The record spec, with sorted features and unbatched columns, and filters in canonical text.
    pub fn spec(&self) -> &RecordSpec {
        &self.spec
    }

    /// The program that makes samples of records; `None`: each record is a sample.
    pub fn samples(&self) -> Option<&Arc<SampleProgram>> {
        self.samples.as_ref()
    }

    /// The part of the spec that decides which samples there are; `None`: each record is one.
    pub fn sample_spec(&self) -> Option<RecordSpec> {
        self.samples.as_ref().map(|samples| samples.spec(&self.spec))
    }

    /// Samples of a lane that are sorted together for balanced steps.
    pub fn balance_window(&self) -> Option<u64> {
        self.spec.balance.as_ref().map(|balance| balance.window)
    }

    pub fn tables(&self) -> impl Iterator<Item = &TableRef> {
        let operators = self.spec.operators.iter().chain(&self.spec.measured);
        operators.filter_map(|operator| operator.operation.table())
    }

    /// The pixel contract that the job pins, or [`DECODER_NONE`].
    pub fn decoder(&self) -> &'static str {
        self.decoder
    }

    /// Checks the data of `rows` and locates their features.
    /// - `known`: some of their records.
    pub(crate) fn locate<'a>(
        &'a self,
        rows: &'a [Row<'a>],
        known: &LocatedRecords<'a>,
    ) -> Result<Cells<'a>, RowError> {
        Cells::locate(&self.parser, &self.plans, self.program.tables(), rows, known)
    }

    pub(crate) fn parser(&self) -> &RecordParser {
        &self.parser
    }

    /// True if rows of records are samples.
    pub(crate) fn has_rows(&self) -> bool {
        self.parser.unbatch().is_some()
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Known bytes of a row, including operators' intermediate columns; variable parts count as 0.
    pub fn fixed_row_bytes(&self) -> usize {
        let bytes = |kind: &ColumnKind| match kind {
            ColumnKind::Dense { dtype: Dtype::Bytes, shape } => 8 * items(shape),
            ColumnKind::Dense { dtype, shape } => dtype.bytes() * items(shape),
            ColumnKind::Padded { .. } | ColumnKind::Sparse { .. } => 8,
            ColumnKind::Ragged { .. } => 8,
        };
        let columns: usize = self.columns.iter().map(|(_, kind)| bytes(kind)).sum();
        columns + self.program.row_bytes(0)
    }

    /// True if batches consist of the unchanged records only.
    pub(crate) fn is_raw(&self) -> bool {
        self.parser.is_raw()
            && self.program.is_empty()
            && self.plans.len() == 1
            && self.plans[0].origin == Origin::Record
    }

    /// Part of `budget_bytes` that operators may use for intermediate columns.
    pub fn made_bytes(&self, budget_bytes: u64) -> u64 {
        /// Divisor of the budget.
        const MADE_PART: u64 = 8;
        if self.program.is_empty() { 0 } else { budget_bytes / MADE_PART }
    }

    /// Limits the operators' memory from now on, except for a single row or image that needs more.
    pub fn bound_made(&self, bytes: u64) {
        self.program.memory().bound(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

/// Returns the output columns in the order of `names`.
fn choose(
    all: &[(String, Plan)],
    images: &[String],
    names: &[String],
) -> Result<Vec<(String, Plan)>, SchemaError> {
    let mut chosen: Vec<(String, Plan)> = vec![];
    let mut seen = BTreeSet::new();
    let by_name: BTreeMap<&str, &Plan> = all.iter().map(|(name, plan)| (&**name, plan)).collect();
    for name in names {
        let wrong = |what: String| SchemaError::Output { name: name.clone(), what };
        if !seen.insert(name) {
            return Err(wrong("which they name before; once is enough".to_owned()));
        }
        if images.contains(name) {
            return Err(wrong(
                "whose images differ in size from row to row; name a column made of them"
                    .to_owned(),
            ));
        }
        let Some(found) = by_name.get(&**name) else {
            let known: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            return Err(wrong(format!("but there are `{}`", known.join("`, `"))));
        };
        chosen.push((name.clone(), (*found).clone()));
    }
    if chosen.is_empty() {
        return Err(SchemaError::Output {
            name: String::new(),
            what: "which is nothing; name a column, or leave outputs out".to_owned(),
        });
    }
    Ok(chosen)
}

/// Returns dtype, shape and kind of a column as text; numbers that differ from row to row as `None`.
/// - `lengths`: as in [`Schema::row_lengths`].
fn described(kind: &ColumnKind, lengths: &[Option<usize>]) -> String {
    let fixed = |shape: &[usize]| shape.iter().copied().map(Some).collect::<Vec<_>>();
    let (shape, what) = match kind {
        ColumnKind::Dense { shape, .. } => (fixed(shape), ""),
        ColumnKind::Padded { shape, .. } => ([vec![None], fixed(shape)].concat(), " padded"),
        ColumnKind::Ragged { shape, .. } => ([lengths.to_vec(), fixed(shape)].concat(), " ragged"),
        ColumnKind::Sparse { size, .. } => (fixed(size), " sparse"),
    };
    let shape: Vec<_> = shape
        .into_iter()
        .map(|length| length.map_or_else(|| "None".to_owned(), |length| length.to_string()))
        .collect();
    format!("{} [{}]{what}", kind.dtype(), shape.join(", "))
}

fn row_lengths(plan: &Plan) -> Vec<Option<usize>> {
    let parsed = plan.parsed();
    let ColumnKind::Ragged { levels, .. } = parsed.kind else { return vec![] };
    let feature = parsed.spec.as_ref().map(|spec| &spec.feature);
    let partitions = match feature {
        Some(Feature::Ragged { partitions, .. }) => &partitions[..],
        _ => &[],
    };
    let lengths = partitions.iter().map(|partition| match partition {
        Partition::UniformRowLength(length) => Some(*length),
        _ => None,
    });
    // The last uniform partitions are the shape of a value, and no splits.
    let outer = if matches!(parsed.origin, Origin::List(_)) { 2 } else { 1 };
    std::iter::repeat_n(None, outer).chain(lengths).take(levels).collect()
}
