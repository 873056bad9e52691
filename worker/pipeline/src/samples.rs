//! Sample programs: the samples that the records of a source are made into.

pub(crate) mod balance;
pub(crate) mod combine;
pub(crate) mod measure;
pub(crate) mod measured;
pub(crate) mod pack;
pub(crate) mod unbatch;
pub(crate) mod window;

use std::fmt;
use std::sync::Arc;

use crate::record::{Row, RowError, RowFault};
use crate::rows::{Cells, Parser};
use crate::samples::combine::Combiner;
use crate::samples::measure::{Measure, features_named};
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns, RECORD_BYTES};
use crate::samples::pack::Packer;
use crate::samples::unbatch::{ROWS_MAX, Unbatch, UnbatchSpec};
use crate::samples::window::Windower;
use crate::schema::parse::{ParseSpec, parsed_plans, parser};
use crate::schema::{RecordSpec, SchemaError};

/// Maximum number of columns that an error lists.
const LISTED_MAX: usize = 20;

/// Error of a spec with several of `unbatch`, `pack` and `window`.
pub(crate) const ONE_OF: &str = "a source has one of unbatch, pack and window";

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
            Self::Tokens(_) | Self::Member(_) => Box::new(0..0),
        }
    }
}

#[derive(Debug)]
struct RowCounter {
    spec: UnbatchSpec,
    parse: ParseSpec,
    parser: Parser,
    unbatch: Unbatch,
}

impl SampleProgram {
    /// Checks the program of a record spec; `None` if every record is a sample.
    ///
    /// # Errors  An expression or a column does not fit the features of a record.
    pub(crate) fn new(spec: &RecordSpec) -> Result<Option<Self>, SchemaError> {
        let parse = spec.parse.as_ref();
        let measure = |text: &String, columns: &[String]| {
            Measure::new(text, parse, columns).map_err(SchemaError::Filter)
        };
        let filter = spec.filter.as_ref().map(|text| measure(text, &[])).transpose()?;
        let rows = spec.unbatch.as_ref().map(|spec| RowCounter::new(spec, parse));
        let rows = rows.transpose().map_err(SchemaError::Unbatch)?;
        let names = spec.unbatch.as_ref().map(UnbatchSpec::names).unwrap_or_default();
        let filter_rows = spec.filter_rows.as_ref();
        let filter_rows = filter_rows.map(|text| measure(text, &names)).transpose()?;
        if filter_rows.is_some() && rows.is_none() {
            let what = "a filter of rows needs unbatch".to_owned();
            return Err(SchemaError::Filter(what));
        }
        let methods = [rows.is_some(), spec.pack.is_some(), spec.window.is_some()];
        if methods.into_iter().filter(|is_some| *is_some).count() > 1 {
            return Err(SchemaError::Pack(ONE_OF.to_owned()));
        }
        let pack = spec.pack.as_ref().map(|pack| Packer::new(pack, parse).map(Combiner::Packs));
        let pack = pack.transpose().map_err(SchemaError::Pack)?;
        let window = spec.window.as_ref();
        let window = window.map(|window| Windower::new(window, parse).map(Combiner::Windows));
        let window = window.transpose().map_err(SchemaError::Window)?;
        let combiner = pack.or(window).map(Arc::new);
        let balance = spec.balance.as_ref();
        let cost = balance.map(|balance| balance.measure(parse, &names, combiner.as_deref()));
        let cost = cost.transpose().map_err(SchemaError::Balance)?.flatten();
        let is_some = filter.is_some() || rows.is_some() || combiner.is_some() || cost.is_some();
        Ok(is_some.then_some(Self { filter, rows, filter_rows, combiner, cost }))
    }

    /// Canonical texts of the filters of records and of rows, of the cost, and of the key of
    /// windows.
    pub(crate) fn expressions(&self) -> [Option<String>; 4] {
        let by = self.windower().and_then(Windower::by);
        let [filter, filter_rows, cost] = [&self.filter, &self.filter_rows, &self.cost];
        let measures = [filter.as_ref(), filter_rows.as_ref(), cost.as_ref(), by];
        measures.map(|one| one.map(ToString::to_string))
    }

    /// True if each sample has a measured cost.
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

    /// True if not every record, or not every row, is a sample or in one. A record whose cost cannot
    /// be measured is none.
    pub fn leaves_out(&self) -> bool {
        match &self.rows {
            None => self.filter.is_some() || self.cost.is_some() || self.windower().is_some(),
            Some(rows) => self.filter_rows.is_some() || rows.spec.leaves_out(),
        }
    }

    /// Returns bytes that identify the program and the features that it uses.
    ///
    /// Shards with equal digests have the same samples under equal keys, unless the program
    /// depends on paths.
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
        if let Some(windower) = self.windower() {
            // Sizes and strides have no influence on the groups.
            let by = windower.by().map(key);
            return serde_json::to_vec(&(filter, by, windower.features()))
                .expect("features are plain data");
        }
        match (&self.rows, self.packer()) {
            // Columns and settings of the packs have no influence on the lengths.
            (None, Some(pack)) => {
                serde_json::to_vec(&(filter, pack.key())).expect("features are plain data")
            }
            (None, None) => filter.unwrap_or_default().into_bytes(),
            (Some(rows), _) => {
                let filter_rows = self.filter_rows.as_ref().map(key);
                let spec = &rows.spec;
                // Other edges and offsets have the same samples if none is left out for them.
                let taken = spec.leaves_out().then(|| (spec.reach(), spec.stride, spec.edge));
                let parts = (filter, spec.names(), &rows.parse, filter_rows, taken);
                serde_json::to_vec(&parts).expect("features are plain data")
            }
        }
    }

    /// Returns the part of the program's spec that decides which samples there are. Specs with the
    /// same part make the same samples of the same records.
    /// - `spec`: that the program was made of.
    pub(crate) fn spec(&self, spec: &RecordSpec) -> RecordSpec {
        let mut part = RecordSpec { operators: vec![], outputs: None, ..spec.clone() };
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
        let measures = [&self.filter, &self.filter_rows, &self.cost].map(Option::as_ref);
        let by = self.windower().and_then(Windower::by);
        measures.into_iter().chain([by]).flatten().any(Measure::depends_on_path)
    }

    /// Returns the keys of the values of records that determine the samples; `None`: rows of records
    /// are samples, which need the records.
    pub fn columns(&self) -> Option<Vec<String>> {
        if self.rows.is_some() {
            return None;
        }
        let measures = [&self.filter, &self.cost].into_iter().flatten().flat_map(Measure::columns);
        let windows = self.windower().map(Windower::columns).unwrap_or_default();
        let packs = self.packer().map(Packer::column);
        let keys = measures.chain(windows).chain(packs).chain([RECORD_BYTES.to_owned()]);
        let mut keys: Vec<_> = keys.collect();
        keys.sort();
        keys.dedup();
        Some(keys)
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
        let taken = |passes: bool, some: RecordSamples, none| if passes { some } else { none };
        let samples: Vec<_> = if let Some(windower) = self.windower() {
            let keys = windower.kept_keys(columns, shard_path)?.into_iter();
            let member = |(key, passes): (_, &bool)| {
                taken(*passes, RecordSamples::Member(Some(key)), RecordSamples::Member(None))
            };
            keys.zip(&passes).map(member).collect()
        } else if let Some(packer) = self.packer() {
            let lengths = packer.kept_lengths(columns)?.into_iter();
            let tokens = |(length, passes): (_, &bool)| {
                taken(*passes, RecordSamples::Tokens(Some(length)), RecordSamples::Tokens(None))
            };
            lengths.zip(&passes).map(tokens).collect()
        } else {
            passes.iter().copied().map(RecordSamples::Whole).collect()
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
        let mut kept = kept.filter(|_| self.rows.is_none());
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
        if let Some(windower) = self.windower() {
            let keys = |rows: &[Row<'_>], kept: Kept<'_>| windower.keys(rows, shard_path, kept);
            let keys = of_passing(rows, &passes, kept, keys)?;
            return Ok(keys.into_iter().map(RecordSamples::Member).collect());
        }
        if let Some(pack) = self.packer() {
            let lengths = |rows: &[Row<'_>], kept: Kept<'_>| pack.lengths(rows, kept);
            let lengths = of_passing(rows, &passes, kept, lengths)?;
            return Ok(lengths.into_iter().map(RecordSamples::Tokens).collect());
        }
        let Some(counter) = &self.rows else {
            return Ok(passes.into_iter().map(RecordSamples::Whole).collect());
        };
        let taken = rows.iter().zip(&passes).filter(|(_, passes)| **passes).map(|(row, _)| *row);
        let mut counts = counter.count(&taken.collect::<Vec<_>>())?.into_iter();
        let mut samples = Vec::with_capacity(rows.len());
        for (row, passes) in rows.iter().zip(passes) {
            let count = counts.by_ref().take(usize::from(passes)).next().unwrap_or(0);
            let mut taken = match &self.filter_rows {
                None if !counter.spec.leaves_out() => {
                    samples.push(RecordSamples::Rows(count));
                    continue;
                }
                None => vec![true; count as usize],
                Some(filter) => {
                    let rows: Vec<_> = (0..count).map(|part| Row { part, ..*row }).collect();
                    filter.passes(&rows, shard_path, None)?
                }
            };
            for (at, is_taken) in taken.iter_mut().enumerate() {
                *is_taken &= counter.spec.takes(at, count as usize);
            }
            samples.push(RecordSamples::Some(taken));
        }
        Ok(samples)
    }
}

/// Returns what `measure` makes of the records that pass. To keep its values it measures all records;
/// an error then counts only if a record that passes has it.
fn of_passing<T>(
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
        let mut parse = Some(features_named(parse.expect("it has these features"), &columns));
        let parser = parser(&mut parse).map_err(|error| error.to_string())?;
        let rows = UnbatchSpec::rows(&columns);
        let unbatch = Unbatch::new(&rows, &parser, &mut parsed_plans(&parser))?;
        let unbatch = unbatch.expect("columns that exist are named");
        let parse = parse.expect("just given");
        Ok(Self { spec: spec.clone(), parse, parser, unbatch })
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
