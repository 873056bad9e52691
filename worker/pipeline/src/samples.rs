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
use crate::samples::combine::{Combined, Combiner};
use crate::samples::measure::Measure;
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns, RECORD_BYTES, of_passing};
use crate::samples::pack::Packer;
use crate::samples::scope::{Needed, Scope};
use crate::samples::unbatch::{ROWS_MAX, UnbatchSpec};
use crate::samples::window::Windower;
use crate::schema::parse::{ParseSpec, RecordParser};
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

/// Samples of records that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedRecords {
    /// Bytes of data of each record.
    pub bytes: Vec<u64>,
    /// Number of rows of each record, if rows are samples or in one; 0 of a record that is left out.
    pub rows: Option<Vec<u32>>,
    /// For each record, or each of these rows, whether it is a sample or in one. `None`: all are.
    pub passes: Option<Vec<bool>>,
    /// Tokens of each that passes, if packs are samples.
    pub tokens: Option<Vec<u32>>,
    /// Key of each that passes, if windows are samples: those that follow each other and have equal keys
    /// are in the same windows.
    pub keys: Option<Vec<Vec<u8>>>,
    /// Cost of each that passes, if costs are measured.
    pub costs: Option<Vec<u64>>,
}

impl CountedRecords {
    /// Returns the bytes of the samples' records: those of a record once for each of its samples, but
    /// only once if they are in packs or windows.
    pub fn data_bytes(&self) -> u64 {
        let is_combined = self.tokens.is_some() || self.keys.is_some();
        let (mut sum, mut from) = (0_u64, 0);
        for (record, bytes) in self.bytes.iter().enumerate() {
            let to = from + self.rows.as_ref().map_or(1, |rows| rows[record] as usize);
            let taken = match &self.passes {
                Some(passes) => passes[from..to].iter().filter(|passes| **passes).count(),
                None => to - from,
            };
            from = to;
            let times = if is_combined { taken.min(1) } else { taken };
            sum = sum.saturating_add(bytes.saturating_mul(times as u64));
        }
        sum
    }
}

#[derive(Debug)]
struct RowCounter {
    spec: UnbatchSpec,
    parse: ParseSpec,
    /// Key of the numbers of rows.
    key: String,
    parser: RecordParser,
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
        let names: Vec<_> = measures.flat_map(Measure::names).collect();
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
        let parse = spec.parse.as_ref().map(|parse| parse.named(&self.features()));
        RecordSpec { parse, operators: vec![], outputs: None, measured, ..spec.clone() }
    }

    /// Names of the features that the program uses.
    fn features(&self) -> Vec<String> {
        let of_measures = self.measures().into_iter().flatten().filter_map(Measure::parse);
        let of_rows = self.rows.as_ref().map(|rows| &rows.parse);
        let combined = self.combiner.as_deref().map(Combiner::columns).unwrap_or_default();
        let parsed = of_measures.chain(of_rows).flat_map(ParseSpec::names).map(str::to_owned);
        parsed.chain(combined.iter().cloned()).collect()
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

    /// Returns the samples of all records of a shard, of values that were measured before; `None`: some
    /// are not known, or a cost is none, which reading the shard reports.
    /// - `shard_path`: relative to the dataset.
    pub fn count_kept(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
    ) -> Option<CountedRecords> {
        if self.has_costs_of_rows() {
            return None;
        }
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
        let mut counted = CountedRecords { bytes, ..CountedRecords::default() };
        if let Some(counter) = &self.rows {
            let MeasuredColumn::Integers(counts) = columns.get(&counter.key)? else { return None };
            let counts: Vec<u32> =
                counts.iter().map(|count| u32::try_from(*count).ok()).collect::<Option<_>>()?;
            let rows = columns.rows()?;
            let holds = match &self.filter_rows {
                None => vec![true; rows.records()],
                Some(filter) => filter.kept_passes(rows, shard_path)?,
            };
            let taken = self.taken(counter, (&passes, &counts), &holds);
            self.add_rows((&passes, &counts), &taken, &mut counted);
            self.add_kept_sequences(rows, shard_path, &taken, &mut counted)?;
            return Some(counted);
        }
        self.add_kept_sequences(columns, shard_path, &passes, &mut counted)?;
        if let Some(cost) = &self.cost {
            let costs = cost.kept_costs(columns, shard_path, &passes)?;
            counted.costs = Some(of_taken(costs, &passes));
        }
        counted.passes = self.leaves_out().then_some(passes);
        Some(counted)
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
    ) -> Result<CountedRecords, RowError> {
        let mut kept = kept.filter(|_| !self.has_costs_of_rows());
        let bytes = rows.iter().map(|row| row.len() as u64).collect();
        let mut counted = CountedRecords { bytes, ..CountedRecords::default() };
        let passes = match &self.filter {
            Some(filter) => filter.passes(rows, shard_path, kept.as_deref_mut())?,
            None => vec![true; rows.len()],
        };
        match &self.rows {
            Some(counter) => {
                let kept = kept.as_deref_mut();
                self.count_rows((counter, rows, &passes), shard_path, kept, &mut counted)?;
            }
            None => {
                let kept = kept.as_deref_mut();
                self.add_sequences(rows, shard_path, &passes, kept, &mut counted)?;
                counted.passes = self.leaves_out().then_some(passes);
            }
        }
        if let Some(cost) = &self.cost {
            counted.costs =
                Some(self.costs(cost, rows, shard_path, kept.as_deref_mut(), &counted)?);
        }
        if let Some(kept) = kept {
            let bytes = rows.iter().map(|row| row.len() as i64).collect();
            kept.push(RECORD_BYTES, MeasuredColumn::Integers(bytes));
            kept.advance(rows.len());
        }
        Ok(counted)
    }

    /// Returns the costs of the records or rows that are samples.
    fn costs(
        &self,
        cost: &Measure,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Kept<'_>,
        counted: &CountedRecords,
    ) -> Result<Vec<u64>, RowError> {
        let all = vec![true; rows.len()];
        let passes = counted.passes.as_deref();
        let Some(counts) = &counted.rows else {
            let measure = |rows: &[Row<'_>], kept: Kept<'_>| cost.costs(rows, shard_path, kept);
            let costs = of_passing(rows, passes.unwrap_or(&all), kept, measure)?;
            return Ok(costs.into_iter().flatten().collect());
        };
        let parts = (0..rows.len()).flat_map(|at| parts_of(rows, counts, at));
        let taken: Vec<Row<'_>> = match passes {
            Some(passes) => {
                parts.zip(passes).filter_map(|(row, taken)| taken.then_some(row)).collect()
            }
            None => parts.collect(),
        };
        cost.costs(&taken, shard_path, None)
    }

    /// Adds the rows of each record that are samples or in one.
    fn count_rows(
        &self,
        (counter, rows, passes): (&RowCounter, &[Row<'_>], &[bool]),
        shard_path: &str,
        kept: Kept<'_>,
        counted: &mut CountedRecords,
    ) -> Result<(), RowError> {
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
        let mut from = 0;
        while from < rows.len() {
            let (mut to, mut parts) = (from, 0);
            while to < rows.len() && (to == from || parts + counts[to] as usize <= PARTS) {
                parts += counts[to] as usize;
                to += 1;
            }
            let group = (&rows[from..to], &passes[from..to], &counts[from..to]);
            let has_parts = self.filter_rows.is_some() || self.combiner.is_some();
            let parts_of = |at: usize| parts_of(group.0, group.2, at);
            let each: Vec<Row<'_>> =
                (0..to - from).filter(|_| has_parts).flat_map(parts_of).collect();
            let holds = match &self.filter_rows {
                None => vec![true; parts],
                Some(filter) => {
                    let times = group.1.iter().zip(group.2);
                    let passes = times
                        .flat_map(|(passes, count)| std::iter::repeat_n(*passes, *count as usize));
                    let passes: Vec<bool> = passes.collect();
                    filter.passes_of(&each, &passes, shard_path, kept.as_deref_mut())?
                }
            };
            let taken = self.taken(counter, (group.1, group.2), &holds);
            self.add_rows((group.1, group.2), &taken, counted);
            self.add_sequences(&each, shard_path, &taken, kept.as_deref_mut(), counted)?;
            if let Some(kept) = &mut kept {
                kept.advance(parts);
            }
            from = to;
        }
        Ok(())
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

    /// Adds the rows of records.
    /// - `taken`: as of [`SampleProgram::taken`].
    fn add_rows(
        &self,
        (passes, counts): (&[bool], &[u32]),
        taken: &[bool],
        counted: &mut CountedRecords,
    ) {
        let rows = counted.rows.get_or_insert_default();
        let mut taken_rows = self.leaves_out().then(|| counted.passes.get_or_insert_default());
        let mut rest = taken;
        for (passes, count) in passes.iter().zip(counts) {
            let (of_record, after) = rest.split_at(*count as usize);
            rest = after;
            // A record that does not pass has no rows.
            rows.push(if *passes { *count } else { 0 });
            if let Some(taken_rows) = taken_rows.as_mut().filter(|_| *passes) {
                taken_rows.extend_from_slice(of_record);
            }
        }
    }

    /// Checks the data of records or rows, and adds what determines the packs or windows that those
    /// that are `taken` are in.
    fn add_sequences(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        taken: &[bool],
        kept: Kept<'_>,
        counted: &mut CountedRecords,
    ) -> Result<(), RowError> {
        match self.combiner.as_deref() {
            Some(Combiner::Packs(packer)) => {
                let lengths = |rows: &[Row<'_>], kept: Kept<'_>| packer.lengths(rows, kept);
                let lengths = of_passing(rows, taken, kept, lengths)?.into_iter().flatten();
                counted.tokens.get_or_insert_default().extend(lengths);
            }
            Some(Combiner::Windows(windower)) => {
                let keys = |rows: &[Row<'_>], kept: Kept<'_>| windower.keys(rows, shard_path, kept);
                let keys = of_passing(rows, taken, kept, keys)?.into_iter().flatten();
                counted.keys.get_or_insert_default().extend(keys);
            }
            None => {}
        }
        Ok(())
    }

    /// As [`SampleProgram::add_sequences`], of values that were measured before; `None`: some are not
    /// known.
    fn add_kept_sequences(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
        taken: &[bool],
        counted: &mut CountedRecords,
    ) -> Option<()> {
        match self.combiner.as_deref() {
            Some(Combiner::Packs(packer)) => {
                counted.tokens = Some(of_taken(packer.kept_lengths(columns)?, taken));
            }
            Some(Combiner::Windows(windower)) => {
                counted.keys = Some(of_taken(windower.kept_keys(columns, shard_path)?, taken));
            }
            None => {}
        }
        Some(())
    }
}

/// Returns the values of the records or rows that are taken.
fn of_taken<T>(values: Vec<T>, taken: &[bool]) -> Vec<T> {
    values.into_iter().zip(taken).filter_map(|(value, taken)| taken.then_some(value)).collect()
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
        let rows = UnbatchSpec::rows(&columns);
        let (parser, _) = RecordParser::new(&mut parse, Some(&rows)).map_err(SchemaError::what)?;
        let parse = parse.expect("just given");
        let scope = Scope { parse: Some(&parse), unbatched: &columns, ..Scope::default() };
        let key = scope.rows_key();
        Ok(Self { spec: spec.clone(), key, parse, parser })
    }

    /// Returns the number of rows of each record.
    fn count<'a>(&self, rows: &[Row<'a>]) -> Result<Vec<u32>, RowError> {
        let unbatch = self.parser.unbatch().expect("columns that exist are named");
        let (mut cells, mut lists) = (vec![], vec![]);
        let mut count = |row: &Row<'a>| {
            self.parser.read(row, &mut cells, &mut lists)?;
            let rows = unbatch.rows(&cells, &lists);
            match rows.map_err(|error| RowError::at(row, error))? {
                rows if rows <= ROWS_MAX => Ok(rows as u32),
                rows => Err(RowError::at(row, RowFault::too_many_rows(rows, ROWS_MAX))),
            }
        };
        rows.iter().map(&mut count).collect()
    }
}
