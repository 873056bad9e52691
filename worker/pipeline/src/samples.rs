//! Sample programs: the samples that the records of a source are made into.

pub(crate) mod balance;
pub(crate) mod combine;
pub(crate) mod measure;
pub(crate) mod measured;
pub(crate) mod pack;
pub(crate) mod scope;
pub(crate) mod unbatch;
pub(crate) mod window;

use std::fmt;
use std::sync::Arc;

use crate::operator::Operator;
use crate::record::{Row, RowError, RowFault};
use crate::rows::{Cells, Parser};
use crate::samples::combine::{Combined, Combiner};
use crate::samples::measure::Measure;
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns, RECORD_BYTES, of_passing};
use crate::samples::pack::Packer;
use crate::samples::scope::{Needed, Scope};
use crate::samples::unbatch::{ROWS_MAX, Unbatch, UnbatchSpec};
use crate::samples::window::Windower;
use crate::schema::parse::{ParseSpec, parsed_plans, parser};
use crate::schema::{RecordSpec, SchemaError};

/// Maximum number of columns that an error lists.
const LISTED_MAX: usize = 20;

/// Maximum number of rows that are parsed together, unless a record has more.
const PARTS: usize = 4096;

/// Decides which samples a record has: itself or none, or one for each of its rows.
///
/// Its results are the same on every processor.
#[derive(Debug)]
pub struct SampleProgram {
    filter: Option<Measure>,
    rows: Option<RowCounter>,
    filter_rows: Option<Measure>,
    combiner: Option<Arc<Combiner>>,
    /// Cost of a sample, if steps are balanced by the values of its record.
    cost: Option<Measure>,
}

/// Samples of a record, and the cost of each if costs are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedRecord {
    pub samples: RecordSamples,
    pub costs: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordSamples {
    /// The record itself, or none.
    Whole(bool),
    /// Each of its rows, of this number.
    Rows(u32),
    /// Those of its rows for which the entry is true.
    Some(Vec<bool>),
    /// Its tokens, of this number, are in packs; `None`: it is left out.
    Tokens(Option<u32>),
    /// It is in windows, with records that follow it and have the same key; `None`: it is left out.
    Member(Option<Vec<u8>>),
    /// As [`RecordSamples::Tokens`], of each of its rows.
    RowTokens(Vec<Option<u32>>),
    /// As [`RecordSamples::Member`], of each of its rows.
    RowMembers(Vec<Option<Vec<u8>>>),
}

impl RecordSamples {
    /// Iterates over the rows that are samples; of a whole record: row 0. Packs and windows have none.
    pub fn parts(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Self::Whole(is_sample) => Box::new(0..u32::from(*is_sample)),
            Self::Rows(rows) => Box::new(0..*rows),
            Self::Some(rows) => {
                let taken = (0..).zip(rows).filter(|(_, is_sample)| **is_sample);
                Box::new(taken.map(|(row, _)| row))
            }
            Self::Tokens(_) | Self::Member(_) | Self::RowTokens(_) | Self::RowMembers(_) => {
                Box::new(0..0)
            }
        }
    }
}

#[derive(Debug)]
struct RowCounter {
    spec: UnbatchSpec,
    parse: ParseSpec,
    /// Key of the numbers of rows.
    key: String,
    parser: Parser,
    unbatch: Unbatch,
}

impl SampleProgram {
    /// Checks the program of a record spec; `None` if every record is a sample.
    ///
    /// # Errors  An expression or a column does not fit the features of a record.
    pub(crate) fn new(spec: &RecordSpec) -> Result<Option<Self>, SchemaError> {
        let parse = spec.parse.as_ref();
        let scope = Scope { parse, operators: &spec.measured, unbatched: &[] };
        let measure = |text: &String, unbatched: &[String]| {
            Measure::new(text, Scope { unbatched, ..scope }).map_err(SchemaError::Filter)
        };
        let filter = spec.filter.as_ref().map(|text| measure(text, &[])).transpose()?;
        let row_counter = spec.unbatch.as_ref().map(|spec| RowCounter::new(spec, parse));
        let row_counter = row_counter.transpose().map_err(SchemaError::Unbatch)?;
        let names = spec.unbatch.as_ref().map(UnbatchSpec::names).unwrap_or_default();
        let filter_rows = spec.filter_rows.as_ref();
        let filter_rows = filter_rows.map(|text| measure(text, &names)).transpose()?;
        if filter_rows.is_some() && row_counter.is_none() {
            let what = "a filter of rows needs unbatch".to_owned();
            return Err(SchemaError::Filter(what));
        }
        if spec.pack.is_some() && spec.window.is_some() {
            return Err(SchemaError::Pack("a source has one of pack and window".to_owned()));
        }
        let combined = Combined { parse, unbatch: spec.unbatch.as_ref() };
        let rows = Scope { unbatched: &names, ..scope };
        let pack = spec.pack.as_ref().map(|pack| Packer::new(pack, combined).map(Combiner::Packs));
        let pack = pack.transpose().map_err(SchemaError::Pack)?;
        let window = spec.window.as_ref();
        let window =
            window.map(|window| Windower::new(window, combined, rows).map(Combiner::Windows));
        let window = window.transpose().map_err(SchemaError::Window)?;
        let combiner = pack.or(window).map(Arc::new);
        let balance = spec.balance.as_ref();
        let cost = balance.map(|balance| balance.measure(rows, combiner.as_deref()));
        let cost = cost.transpose().map_err(SchemaError::Balance)?.flatten();
        let is_some =
            filter.is_some() || row_counter.is_some() || combiner.is_some() || cost.is_some();
        Ok(is_some.then_some(Self { filter, rows: row_counter, filter_rows, combiner, cost }))
    }

    /// Returns the operators that the expressions need.
    /// - `operators`: those that make columns for them.
    pub(crate) fn measured(&self, operators: &[Operator]) -> Vec<Operator> {
        let measures = self.measures().into_iter().flatten();
        let names: Vec<_> = measures.flat_map(Measure::names).cloned().collect();
        let needed = Needed::by(operators, &names).expect("the expressions were checked");
        needed.chosen(operators)
    }

    /// The filters of records and of rows, the cost, and the key of windows.
    fn measures(&self) -> [Option<&Measure>; 4] {
        let by = self.windower().and_then(Windower::by);
        [self.filter.as_ref(), self.filter_rows.as_ref(), self.cost.as_ref(), by]
    }

    /// Canonical texts of the filters of records and rows, of the cost, and of the windows' key.
    pub(crate) fn expressions(&self) -> [Option<String>; 4] {
        self.measures().map(|one| one.map(ToString::to_string))
    }

    pub fn has_costs(&self) -> bool {
        self.cost.is_some()
    }

    /// True if measured costs are float64, as bits.
    pub fn has_float_costs(&self) -> bool {
        self.cost.as_ref().is_some_and(|cost| !cost.is_integer())
    }

    /// True if rows of records are samples.
    pub fn has_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Writer of the samples, if they have several records: packs or windows.
    pub fn combiner(&self) -> Option<&Arc<Combiner>> {
        self.combiner.as_ref()
    }

    /// Packer of the records' tokens, if packs are samples.
    pub fn packer(&self) -> Option<&Packer> {
        match self.combiner.as_deref()? {
            Combiner::Packs(packer) => Some(packer),
            Combiner::Windows(_) => None,
        }
    }

    /// Writer of windows, if they are samples.
    pub fn windower(&self) -> Option<&Windower> {
        match self.combiner.as_deref()? {
            Combiner::Packs(_) => None,
            Combiner::Windows(windower) => Some(windower),
        }
    }

    /// True if some records or rows are in no sample; one of unmeasurable cost is in none.
    pub fn leaves_out(&self) -> bool {
        match &self.rows {
            None => self.filter.is_some() || self.cost.is_some() || self.windower().is_some(),
            Some(rows) => {
                self.filter_rows.is_some() || rows.spec.leaves_out() || self.windower().is_some()
            }
        }
    }

    /// Returns bytes that identify the program and the features that it uses.
    ///
    /// Equal digests and keys mean equal samples, unless the program depends on paths.
    pub fn key(&self) -> Vec<u8> {
        let samples = self.samples_key();
        match &self.cost {
            None => samples,
            Some(cost) => [&samples[..], b"\ncost ", &cost.key()].concat(),
        }
    }

    /// Returns the key without the cost.
    fn samples_key(&self) -> Vec<u8> {
        let key = |one: &Measure| String::from_utf8_lossy(&one.key()).into_owned();
        let filter = self.filter.as_ref().map(key);
        let (rows, combiner) = (self.rows.as_ref(), self.combiner.as_deref());
        if rows.is_none() && combiner.is_none() {
            return filter.unwrap_or_default().into_bytes();
        }
        let of_rows = rows.map(|rows| {
            let filter_rows = self.filter_rows.as_ref().map(key);
            let spec = &rows.spec;
            // Other edges and offsets have the same samples if none is left out for them.
            let taken = spec.leaves_out().then(|| (spec.reach(), spec.stride, spec.edge));
            serde_json::to_vec(&(&filter, spec.names(), &rows.parse, filter_rows, taken))
        });
        let combined = combiner.map(|combiner| match combiner {
            // Sizes and strides have no influence on the groups.
            Combiner::Windows(windower) => {
                serde_json::to_vec(&(&filter, windower.by().map(key), windower.features()))
            }
            // Columns and settings of the packs have no influence on the lengths.
            Combiner::Packs(packer) => serde_json::to_vec(&(&filter, packer.key())),
        });
        let parts = of_rows.into_iter().chain(combined);
        let parts: Vec<_> = parts.map(|part| part.expect("features are plain data")).collect();
        parts.join(&b"\nof rows "[..])
    }

    /// Returns the part of the program's spec that decides which samples there are. Specs with the
    /// same part make the same samples of the same records.
    /// - `spec`: that the program was made of.
    pub(crate) fn spec(&self, spec: &RecordSpec) -> RecordSpec {
        let measured = spec.measured.iter().map(Operator::for_identity).collect();
        let mut part = RecordSpec { operators: vec![], outputs: None, measured, ..spec.clone() };
        let names = spec.parse.as_ref().map(ParseSpec::names).unwrap_or_default();
        for name in names {
            let mut less = part.clone();
            less.parse.iter_mut().for_each(|parse| parse.remove(name));
            if matches!(Self::new(&less), Ok(Some(same)) if same.key() == self.key()) {
                part = less;
            }
        }
        part
    }

    pub fn depends_on_path(&self) -> bool {
        self.measures().into_iter().flatten().any(Measure::depends_on_path)
    }

    /// Returns the keys of the values of records that determine the samples; `None`: costs of rows
    /// are among them, which need the records.
    pub fn columns(&self) -> Option<Vec<String>> {
        if self.has_costs_of_rows() {
            return None;
        }
        let measures = [&self.filter, &self.cost].into_iter().flatten().flat_map(Measure::columns);
        let of_records = match &self.rows {
            Some(rows) => vec![rows.key.clone()],
            None => self.combined_columns(),
        };
        let mut keys: Vec<_> =
            measures.chain(of_records).chain([RECORD_BYTES.to_owned()]).collect();
        keys.sort();
        keys.dedup();
        Some(keys)
    }

    fn has_costs_of_rows(&self) -> bool {
        self.rows.is_some() && self.cost.is_some()
    }

    /// Returns the key of the numbers of rows of records, and those of the values of rows that determine
    /// the samples, if rows are samples.
    pub fn row_columns(&self) -> Option<(&str, Vec<String>)> {
        let rows = self.rows.as_ref()?;
        let filter = self.filter_rows.as_ref().map(Measure::columns).unwrap_or_default();
        Some((&rows.key, [filter, self.combined_columns()].concat()))
    }

    /// Returns the keys of the values that determine packs or windows.
    fn combined_columns(&self) -> Vec<String> {
        match self.combiner.as_deref() {
            Some(Combiner::Packs(packer)) => vec![packer.column()],
            Some(Combiner::Windows(windower)) => windower.columns(),
            None => vec![],
        }
    }

    /// Returns the samples and the data bytes of all records of a shard, of values that were measured
    /// before; `None`: some are not known, or a cost is none, which reading the shard reports.
    /// - `shard_path`: relative to the dataset.
    pub fn count_kept(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
    ) -> Option<Vec<(CountedRecord, u64)>> {
        let MeasuredColumn::Integers(bytes) = columns.get(RECORD_BYTES)? else { return None };
        let bytes: Vec<_> =
            bytes.iter().map(|bytes| u64::try_from(*bytes).ok()).collect::<Option<_>>()?;
        // Otherwise the values are not those of a file.
        let total = bytes.iter().try_fold(0_i64, |sum, bytes| sum.checked_add_unsigned(*bytes));
        total?;
        let passes = match &self.filter {
            Some(filter) => filter.kept_passes(columns, shard_path)?,
            None => vec![true; columns.records()],
        };
        let samples: Vec<_> = match &self.rows {
            Some(counter) => self.kept_rows(counter, columns, shard_path, &passes)?,
            None => match self.combiner.as_deref() {
                Some(combiner) => {
                    Sequences::kept(combiner, columns, shard_path, &passes)?.of_records()
                }
                None => passes.iter().copied().map(RecordSamples::Whole).collect(),
            },
        };
        let costs = self.cost.as_ref().map(|cost| cost.kept_costs(columns, shard_path, &passes));
        let costs = costs.map_or(Some(vec![]), |costs| costs)?;
        let counted = |(record, (samples, bytes)): (usize, (RecordSamples, u64))| {
            let costs = costs.get(record).copied().into_iter().take(samples.parts().count());
            (CountedRecord { costs: costs.collect(), samples }, bytes)
        };
        Some(samples.into_iter().zip(bytes).enumerate().map(counted).collect())
    }

    /// Checks the data of records, and returns the samples of each and their costs.
    /// - `rows`: records of one shard, whose ordinals are those of the records.
    /// - `shard_path`: relative to the dataset.
    /// - `kept`: takes the values that determine them, if the rows are all records that follow.
    ///
    /// # Errors  The first record whose data or features are damaged.
    pub fn count(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Option<&mut MeasuredColumns>,
    ) -> Result<Vec<CountedRecord>, RowError> {
        let mut kept = kept.filter(|_| !self.has_costs_of_rows());
        let samples = self.samples(rows, shard_path, kept.as_deref_mut())?;
        if let Some(kept) = &mut kept {
            let bytes = rows.iter().map(|row| row.len() as i64).collect();
            kept.push(RECORD_BYTES, MeasuredColumn::Integers(bytes));
        }
        let counted = self.with_costs(samples, rows, shard_path, kept.as_deref_mut())?;
        if let Some(kept) = kept {
            kept.advance(rows.len());
        }
        Ok(counted)
    }

    fn with_costs(
        &self,
        samples: Vec<RecordSamples>,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Kept<'_>,
    ) -> Result<Vec<CountedRecord>, RowError> {
        let Some(cost) = &self.cost else {
            let counted = |samples| CountedRecord { samples, costs: vec![] };
            return Ok(samples.into_iter().map(counted).collect());
        };
        if self.rows.is_none() {
            let passes: Vec<_> = samples.iter().map(|one| one.parts().count() > 0).collect();
            let measure = |rows: &[Row<'_>], kept: Kept<'_>| cost.costs(rows, shard_path, kept);
            let costs = of_passing(rows, &passes, kept, measure)?.into_iter();
            let costs = costs.map(|cost| cost.into_iter().collect());
            let counted = |(samples, costs)| CountedRecord { samples, costs };
            return Ok(samples.into_iter().zip(costs).map(counted).collect());
        }
        let taken = rows.iter().zip(&samples);
        let taken = taken.flat_map(|(row, of)| of.parts().map(|part| Row { part, ..*row }));
        let taken: Vec<Row<'_>> = taken.collect();
        let mut costs = cost.costs(&taken, shard_path, None)?.into_iter();
        let counted = |samples: RecordSamples| {
            let costs = costs.by_ref().take(samples.parts().count()).collect();
            CountedRecord { samples, costs }
        };
        Ok(samples.into_iter().map(counted).collect())
    }

    /// Checks the data of records, and returns the samples of each.
    fn samples(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        mut kept: Kept<'_>,
    ) -> Result<Vec<RecordSamples>, RowError> {
        let passes = match &self.filter {
            Some(filter) => filter.passes(rows, shard_path, kept.as_deref_mut())?,
            None => vec![true; rows.len()],
        };
        match (&self.rows, self.combiner.as_deref()) {
            (Some(counter), _) => self.rows_of(counter, rows, shard_path, &passes, kept),
            (None, Some(combiner)) => {
                Ok(Sequences::new(combiner, rows, shard_path, &passes, kept)?.of_records())
            }
            (None, None) => Ok(passes.into_iter().map(RecordSamples::Whole).collect()),
        }
    }

    /// Returns the rows of each record that are samples.
    fn rows_of(
        &self,
        counter: &RowCounter,
        rows: &[Row<'_>],
        shard_path: &str,
        passes: &[bool],
        kept: Kept<'_>,
    ) -> Result<Vec<RecordSamples>, RowError> {
        // To keep the values of rows, all records are measured.
        let all = kept.is_some().then(|| counter.count(rows).ok()).flatten();
        let (counts, mut kept) = match (all, kept) {
            (Some(counts), Some(kept)) => {
                let rows = counts.iter().map(|count| i64::from(*count)).collect();
                kept.push(&counter.key, MeasuredColumn::Integers(rows));
                (counts, Some(kept.rows_mut()))
            }
            _ => {
                let counts = of_passing(rows, passes, None, |rows, _| counter.count(rows))?;
                (counts.into_iter().map(Option::unwrap_or_default).collect(), None)
            }
        };
        let (mut samples, mut from) = (Vec::with_capacity(rows.len()), 0);
        while from < rows.len() {
            let (mut to, mut parts) = (from, 0);
            while to < rows.len() && (to == from || parts + counts[to] as usize <= PARTS) {
                parts += counts[to] as usize;
                to += 1;
            }
            let group = (&rows[from..to], &passes[from..to], &counts[from..to]);
            let holds = match &self.filter_rows {
                None => vec![true; parts],
                Some(filter) => holds(filter, group, shard_path, kept.as_deref_mut())?,
            };
            let taken = self.taken(counter, (group.1, group.2), &holds);
            let sequences = match self.combiner.as_deref() {
                Some(combiner) => {
                    let parts: Vec<Row<'_>> =
                        (0..to - from).flat_map(|at| parts_of(group.0, group.2, at)).collect();
                    Some(Sequences::new(combiner, &parts, shard_path, &taken, kept.as_deref_mut())?)
                }
                None => None,
            };
            if let Some(kept) = &mut kept {
                kept.advance(parts);
            }
            self.add_rows((group.1, group.2), &taken, sequences, &mut samples);
            from = to;
        }
        Ok(samples)
    }

    /// As [`SampleProgram::rows_of`], of values that were measured before.
    fn kept_rows(
        &self,
        counter: &RowCounter,
        columns: &MeasuredColumns,
        shard_path: &str,
        passes: &[bool],
    ) -> Option<Vec<RecordSamples>> {
        let MeasuredColumn::Integers(counts) = columns.get(&counter.key)? else { return None };
        let counts: Vec<u32> =
            counts.iter().map(|count| u32::try_from(*count).ok()).collect::<Option<_>>()?;
        let rows = columns.rows()?;
        let holds = match &self.filter_rows {
            None => vec![true; rows.records()],
            Some(filter) => filter.kept_passes(rows, shard_path)?,
        };
        let taken = self.taken(counter, (passes, &counts), &holds);
        let combiner = self.combiner.as_deref();
        let sequences = combiner.map(|one| Sequences::kept(one, rows, shard_path, &taken));
        let sequences = sequences.map_or(Some(None), |sequences| sequences.map(Some))?;
        let mut samples = Vec::with_capacity(counts.len());
        self.add_rows((passes, &counts), &taken, sequences, &mut samples);
        Some(samples)
    }

    /// Returns for each row of records whether it is a sample or in one.
    /// - `holds`: for each of them whether the filter of rows holds.
    fn taken(
        &self,
        counter: &RowCounter,
        (passes, counts): (&[bool], &[u32]),
        holds: &[bool],
    ) -> Vec<bool> {
        let (mut taken, mut rest) = (Vec::with_capacity(holds.len()), holds);
        for (passes, count) in passes.iter().zip(counts) {
            let count = *count as usize;
            let (of_record, after) = rest.split_at(count);
            rest = after;
            let rows = of_record.iter().enumerate();
            let takes =
                |(at, holds): (usize, &bool)| *passes && *holds && counter.spec.takes(at, count);
            taken.extend(rows.map(takes));
        }
        taken
    }

    /// Adds the samples of records.
    /// - `taken`: as of [`SampleProgram::taken`]. `sequences`: of their rows, if they are combined.
    fn add_rows(
        &self,
        (passes, counts): (&[bool], &[u32]),
        taken: &[bool],
        mut sequences: Option<Sequences>,
        samples: &mut Vec<RecordSamples>,
    ) {
        let (mut rest, leaves_out) = (taken, self.leaves_out());
        for (passes, count) in passes.iter().zip(counts) {
            let (of_record, after) = rest.split_at(*count as usize);
            rest = after;
            // A record that does not pass has no rows.
            let rows = if *passes { of_record } else { &[] };
            samples.push(match &mut sequences {
                Some(sequences) => sequences.of_rows(of_record.len(), rows.len()),
                None if leaves_out => RecordSamples::Some(rows.to_vec()),
                None => RecordSamples::Rows(rows.len() as u32),
            });
        }
    }
}

/// Values that determine packs or windows, of each record or row; `None`: it is left out.
enum Sequences {
    Lengths(std::vec::IntoIter<Option<u32>>),
    Keys(std::vec::IntoIter<Option<Vec<u8>>>),
}

impl Sequences {
    /// Checks the data of records, and measures those that are `taken`.
    /// - `rows`: records, or rows of them. `kept`: as in [`SampleProgram::count`].
    fn new(
        combiner: &Combiner,
        rows: &[Row<'_>],
        shard_path: &str,
        taken: &[bool],
        kept: Kept<'_>,
    ) -> Result<Self, RowError> {
        Ok(match combiner {
            Combiner::Packs(packer) => {
                let lengths = |rows: &[Row<'_>], kept: Kept<'_>| packer.lengths(rows, kept);
                Self::Lengths(of_passing(rows, taken, kept, lengths)?.into_iter())
            }
            Combiner::Windows(windower) => {
                let keys = |rows: &[Row<'_>], kept: Kept<'_>| windower.keys(rows, shard_path, kept);
                Self::Keys(of_passing(rows, taken, kept, keys)?.into_iter())
            }
        })
    }

    /// As [`Sequences::new`], of values that were measured before; `None`: some are not known.
    fn kept(
        combiner: &Combiner,
        columns: &MeasuredColumns,
        shard_path: &str,
        taken: &[bool],
    ) -> Option<Self> {
        fn of_taken<T>(values: Vec<T>, taken: &[bool]) -> std::vec::IntoIter<Option<T>> {
            let values = values.into_iter().zip(taken);
            values.map(|(value, taken)| taken.then_some(value)).collect::<Vec<_>>().into_iter()
        }
        Some(match combiner {
            Combiner::Packs(packer) => {
                Self::Lengths(of_taken(packer.kept_lengths(columns)?, taken))
            }
            Combiner::Windows(windower) => {
                Self::Keys(of_taken(windower.kept_keys(columns, shard_path)?, taken))
            }
        })
    }

    fn of_records(self) -> Vec<RecordSamples> {
        match self {
            Self::Lengths(lengths) => lengths.map(RecordSamples::Tokens).collect(),
            Self::Keys(keys) => keys.map(RecordSamples::Member).collect(),
        }
    }

    /// Removes the values of the rows of the next record.
    /// - `count`: number of them. `taken`: number of those that are kept.
    fn of_rows(&mut self, count: usize, taken: usize) -> RecordSamples {
        match self {
            Self::Lengths(lengths) => {
                let mut rows: Vec<_> = lengths.by_ref().take(count).collect();
                rows.truncate(taken);
                RecordSamples::RowTokens(rows)
            }
            Self::Keys(keys) => {
                let mut rows: Vec<_> = keys.by_ref().take(count).collect();
                rows.truncate(taken);
                RecordSamples::RowMembers(rows)
            }
        }
    }
}

/// Iterates over the rows of a record.
fn parts_of<'a>(
    rows: &[Row<'a>],
    counts: &[u32],
    at: usize,
) -> impl Iterator<Item = Row<'a>> + use<'a> {
    let row = rows[at];
    (0..counts[at]).map(move |part| Row { part, ..row })
}

/// Returns for each row of records whether a filter holds; for those of records that do not pass, any
/// value. To keep the values, all rows are measured.
fn holds(
    filter: &Measure,
    (rows, passes, counts): (&[Row<'_>], &[bool], &[u32]),
    shard_path: &str,
    kept: Kept<'_>,
) -> Result<Vec<bool>, RowError> {
    let parts_of = |at: usize| parts_of(rows, counts, at);
    let all_pass = passes.iter().all(|passes| *passes);
    if all_pass || kept.is_some() {
        let parts: Vec<Row<'_>> = (0..rows.len()).flat_map(parts_of).collect();
        match filter.passes(&parts, shard_path, kept) {
            Err(_) if !all_pass => {}
            done => return done,
        }
    }
    let passing = (0..rows.len()).filter(|at| passes[*at]);
    let parts: Vec<Row<'_>> = passing.flat_map(parts_of).collect();
    let mut found = filter.passes(&parts, shard_path, None)?.into_iter();
    let of_record = |at: usize| {
        let found: Vec<_> =
            found.by_ref().take(if passes[at] { counts[at] as usize } else { 0 }).collect();
        let missing = counts[at] as usize - found.len();
        found.into_iter().chain(std::iter::repeat_n(false, missing)).collect::<Vec<_>>()
    };
    Ok((0..rows.len()).flat_map(of_record).collect())
}

/// The methods that make the program.
impl fmt::Display for SampleProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filter = |one: &Option<Measure>| {
            one.as_ref().map(|one| format!("filter({:?})", one.to_string()))
        };
        let unbatch = self.rows.as_ref().map(|rows| {
            let columns = rows.spec.names();
            let columns: Vec<_> = columns.iter().map(|name| format!("{name:?}")).collect();
            format!("unbatch({})", columns.join(", "))
        });
        let quoted = |names: &[String]| {
            names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        };
        let pack = self.combiner.as_deref().map(|combiner| match combiner {
            Combiner::Packs(packer) => {
                format!("pack({}, length={})", quoted(&packer.spec().columns), packer.spec().length)
            }
            Combiner::Windows(windower) => {
                let spec = windower.spec();
                format!("window({}, size={})", quoted(&spec.columns), spec.size)
            }
        });
        let cost = self.cost.as_ref().map(|cost| format!("balance({:?})", cost.to_string()));
        let parts = [filter(&self.filter), unbatch, filter(&self.filter_rows), pack, cost];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("."))
    }
}

impl RowCounter {
    fn new(spec: &UnbatchSpec, parse: Option<&ParseSpec>) -> Result<Self, String> {
        spec.check()?;
        let columns = spec.names();
        let known = parse.map_or(vec![], ParseSpec::names);
        if let Some(missing) = columns.iter().find(|name| !known.contains(&name.as_str())) {
            let more = known.len().saturating_sub(LISTED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let known = known[..known.len().min(LISTED_MAX)].join("`, `");
            let exist = if known.is_empty() { "none".to_owned() } else { format!("`{known}`") };
            return Err(format!("there is no feature `{missing}`; there are {exist}{more}"));
        }
        let mut parse = Some(parse.expect("it has these features").named(&columns));
        let parser = parser(&mut parse).map_err(|error| error.to_string())?;
        let rows = UnbatchSpec::rows(&columns);
        let unbatch = Unbatch::new(&rows, &parser, &mut parsed_plans(&parser))?;
        let unbatch = unbatch.expect("columns that exist are named");
        let parse = parse.expect("just given");
        let scope = Scope { parse: Some(&parse), unbatched: &columns, ..Scope::default() };
        let key = scope.rows_key();
        Ok(Self { spec: spec.clone(), key, parse, parser, unbatch })
    }

    /// Returns the number of rows of each record.
    fn count(&self, rows: &[Row<'_>]) -> Result<Vec<u32>, RowError> {
        let count = |(row, rows): (&Row<'_>, usize)| match u32::try_from(rows) {
            Ok(count) if rows <= ROWS_MAX => Ok(count),
            _ => Err(RowError::at(row, RowFault::TooManyRows { rows, most: ROWS_MAX })),
        };
        let counts = Cells::count_rows(&self.parser, &self.unbatch, rows)?;
        rows.iter().zip(counts).map(count).collect()
    }
}
