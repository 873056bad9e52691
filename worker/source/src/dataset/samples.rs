//! Sample maps: which records of each shard, or which of their rows, are samples.

use serde::{Deserialize, Serialize};
use shardfeed_pipeline::{CountedRecords, MeasuredColumns, SampleProgram};
use shardfeed_plan::{Digest, Lengths, PackError};

use super::bits::Bits;
use super::costs::{Costs, read_numbers};
use super::grouping::Grouping;
use crate::cache::object_kind::ObjectKind;

mod held;
mod maps;
mod tally;

pub use held::{HeldMap, MapRef};
pub use maps::{DamagedRecord, SampleMaps};
pub use tally::{PackTally, RowTally, SampleTally, WindowTally};

/// Stored maps; the number is the version of the format.
pub(super) const KIND: ObjectKind = ObjectKind("shardfeed samples 2\n");

/// Samples of one shard: its records, those that pass a filter, or their rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleMap {
    records: u64,
    /// Rows of each record: as many ones, and a zero. `None`: each record is one row.
    rows: Option<Box<Bits>>,
    /// One for each row that is a sample or in one. `None`: all are.
    passes: Option<Box<Bits>>,
    /// Tokens of each packed row, where packs are samples.
    tokens: Option<Box<Lengths>>,
    /// One for each row in windows with which a group begins, where windows are samples.
    starts: Option<Box<Bits>>,
    /// Key of the last such row, while the shard is counted.
    last_key: Option<Vec<u8>>,
    /// The packs or windows of these rows, once all are counted.
    grouping: Option<Box<Grouping>>,
    /// Cost of each sample, if steps are balanced by it; costs of packs follow from their tokens.
    costs: Option<Box<Costs>>,
    /// Bytes of data of the samples' records; a record counts once for each of its samples.
    data_bytes: u64,
}

/// A record or a row of it in a sample, or consecutive tokens of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePart {
    pub record: u64,
    /// Index of the row in the record; 0 if the record has no rows.
    pub row: u32,
    /// First token; 0 without tokens.
    pub first: u64,
    /// Number of tokens, with the appended one; 1 without tokens.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct CountedFile {
    pub records: u64,
    /// Bytes of data of all records, or more.
    pub data_bytes: u64,
    pub digest: Digest,
}

/// Place of a sample in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePlace {
    pub record: u64,
    /// Index of the row in the record; 0 if the record is the sample.
    pub part: u32,
}

impl SampleMap {
    /// Creates the map of a shard without records.
    pub(super) fn new(program: &SampleProgram) -> Self {
        let rows = program.has_rows().then(Box::default);
        let passes = program.leaves_out().then(Box::default);
        let tokens = program.packer().map(|_| Box::default());
        let costs = program.has_costs().then(Box::default);
        let starts = program.windower().map(|_| Box::default());
        Self { rows, passes, tokens, starts, costs, ..Self::default() }
    }

    /// Returns a shard's map of measured values, without its packs; `None`: some are not known.
    /// - `path`: of the shard, relative to the dataset.
    pub fn of_measured(
        program: &SampleProgram,
        columns: &MeasuredColumns,
        path: &str,
    ) -> Option<Self> {
        let mut map = Self::new(program);
        map.push(&program.count_kept(columns, path)?);
        Some(map)
    }

    /// True if it has the form of a program's maps.
    fn is_of(&self, program: &SampleProgram) -> bool {
        let forms = [self.rows.is_some(), self.passes.is_some(), self.tokens.is_some()];
        forms == [program.has_rows(), program.leaves_out(), program.packer().is_some()]
            && self.costs.is_some() == program.has_costs()
            && self.starts.is_some() == program.windower().is_some()
    }

    /// True if rows of records are samples, or are combined.
    pub fn is_of_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Adds records of the program.
    pub(super) fn push(&mut self, counted: &CountedRecords) {
        let CountedRecords { bytes, rows, passes, tokens, keys, costs } = counted;
        self.records += bytes.len() as u64;
        self.data_bytes = self.data_bytes.saturating_add(counted.data_bytes());
        if let (Some(bits), Some(rows)) = (&mut self.rows, rows) {
            for count in rows {
                (0..*count).for_each(|_| bits.push(true));
                bits.push(false);
            }
        }
        if let (Some(bits), Some(passes)) = (&mut self.passes, passes) {
            passes.iter().for_each(|passes| bits.push(*passes));
        }
        if let (Some(lengths), Some(tokens)) = (&mut self.tokens, tokens) {
            tokens.iter().for_each(|length| lengths.push(*length));
        }
        if let (Some(starts), Some(keys)) = (&mut self.starts, keys) {
            for key in keys {
                starts.push(self.last_key.as_ref() != Some(key));
                self.last_key = Some(key.clone());
            }
        }
        if let (Some(all), Some(costs)) = (&mut self.costs, costs) {
            costs.iter().for_each(|cost| all.push(*cost));
        }
    }

    /// Makes packs or windows of the records, if the program does.
    /// - `shard`: digest of the shard. `counts`: as in [`Grouping::packs`].
    ///
    /// # Errors  A sequence is too long, or there are too many.
    pub(super) fn group(
        &mut self,
        program: &SampleProgram,
        shard: Digest,
        counts: &[u64],
    ) -> Result<(), PackError> {
        self.last_key = None;
        let grouping = if let Some(packer) = program.packer()
            && let Some(tokens) = self.tokens.take()
        {
            Grouping::packs(packer.spec().settings(), shard, *tokens, counts)?
        } else if let Some(windower) = program.windower() {
            let none = Bits::default();
            let starts = self.starts.as_deref().unwrap_or(&none);
            let record_bytes = self.data_bytes.div_ceil(starts.len.max(1));
            let starts = (0..starts.len).map(|at| starts.has(at));
            Grouping::windows(windower.spec().settings(), starts, record_bytes)?
        } else {
            return Ok(());
        };
        self.grouping = Some(Box::new(grouping));
        Ok(())
    }

    /// Returns the packs or windows of the shard, if they are samples.
    pub fn grouping(&self) -> Option<&Grouping> {
        self.grouping.as_deref()
    }

    /// Returns the cost of a sample that is no pack; 0 if costs were not measured.
    pub fn cost_of(&self, sample: u64) -> u64 {
        self.costs.as_ref().map_or(0, |costs| costs.of(sample))
    }

    pub fn record_of_sequence(&self, sequence: u64) -> u64 {
        self.place_of_row(sequence).expect("sequences are counted in the map").record
    }

    /// Names the record of a sequence, or its row.
    pub(super) fn part_of_sequence(&self, sequence: u64) -> String {
        let SamplePlace { record, part } =
            self.place_of_row(sequence).expect("sequences are counted in the map");
        match &self.rows {
            None => format!("record {record}"),
            Some(_) => format!("row {part} of record {record}"),
        }
    }

    /// Returns the tokens of a packed record or row, without the appended one; of one in windows 1.
    pub fn tokens_of(&self, record: u64, row: u32) -> u64 {
        let row = self.rows_before(record) + u64::from(row);
        let sequence = self.passes.as_ref().map_or(row, |passes| passes.rank(row));
        self.grouping.as_ref().map_or(0, |grouping| grouping.tokens_of(sequence))
    }

    /// Returns the bytes of a block's records and samples, on average.
    pub fn block_bytes(&self) -> u64 {
        let grouping = self.grouping.as_ref();
        grouping.map_or(0, |grouping| self.data_bytes().div_ceil(grouping.blocks().max(1)))
    }

    /// Adds the next record, which has no samples.
    pub(super) fn push_none(&mut self) {
        let rows = self.rows.as_ref().map(|_| vec![0]);
        let none = || if rows.is_some() { vec![] } else { vec![false] };
        let passes = self.passes.as_ref().map(|_| none());
        // A sequence without tokens is in no pack.
        let is_sequence = rows.is_none() && passes.is_none();
        let tokens = is_sequence.then(|| vec![0]);
        self.push(&CountedRecords {
            bytes: vec![0],
            rows,
            passes,
            tokens,
            keys: None,
            costs: None,
        });
    }

    /// Returns the map of a shard whose records are all samples.
    pub fn of_all(records: u64, data_bytes: u64) -> Self {
        Self { records, data_bytes, ..Self::default() }
    }

    pub fn samples(&self) -> u64 {
        if let Some(grouping) = &self.grouping {
            return grouping.samples();
        }
        match (&self.passes, &self.rows) {
            (Some(passes), _) => passes.ones,
            (None, Some(rows)) => rows.ones,
            (None, None) => self.records,
        }
    }

    /// Returns the bytes of data of the samples' records; a record counts once for each of its
    /// samples. Of packs and windows: the bytes of the records that they are read as, about.
    pub fn data_bytes(&self) -> u64 {
        match &self.grouping {
            Some(grouping) => grouping.data_bytes(self.data_bytes),
            None => self.data_bytes,
        }
    }

    /// Iterates over the rows of a record that are samples; of a whole record: row 0.
    pub fn parts(&self, record: u64) -> impl Iterator<Item = u32> + '_ {
        let rows = match record < self.records {
            true => self.rows_before(record)..self.rows_before(record + 1),
            false => 0..0,
        };
        let start = rows.start;
        let is_sample = |row: &u64| self.passes.as_ref().is_none_or(|passes| passes.has(*row));
        rows.filter(is_sample).map(move |row| (row - start) as u32)
    }

    /// True if a record is a sample, or has rows that are, or passes the filter of packs and windows.
    pub fn takes(&self, record: u64) -> bool {
        match (&self.rows, &self.passes) {
            (None, passes) => passes.as_ref().is_none_or(|passes| passes.has(record)),
            (Some(_), _) => self.samples_before(record) < self.samples_before(record + 1),
        }
    }

    pub fn samples_before(&self, record: u64) -> u64 {
        let rows = self.rows_before(record.min(self.records));
        self.passes.as_ref().map_or(rows, |passes| passes.rank(rows))
    }

    fn rows_before(&self, record: u64) -> u64 {
        match &self.rows {
            None => record,
            // Each earlier record has one zero.
            Some(_) if record == 0 => 0,
            Some(rows) => rows.select(false, record - 1).map_or(rows.ones, |at| at + 1 - record),
        }
    }

    /// Returns the place of a sample; `None` if there are fewer samples. Packs and windows have none.
    pub fn place_of(&self, sample: u64) -> Option<SamplePlace> {
        if self.grouping.is_some() { None } else { self.place_of_row(sample) }
    }

    /// Returns the place of a row that is a sample or in one: of the one with this number among them.
    fn place_of_row(&self, number: u64) -> Option<SamplePlace> {
        let row = match &self.passes {
            Some(passes) => passes.select(true, number)?,
            None => number,
        };
        let Some(rows) = &self.rows else {
            return (row < self.records).then_some(SamplePlace { record: row, part: 0 });
        };
        let record = rows.select(true, row)? - row;
        Some(SamplePlace { record, part: (row - self.rows_before(record)) as u32 })
    }

    /// Tokens of each packed record, if packs are samples.
    fn lengths(&self) -> Option<&Lengths> {
        let grouping = self.grouping();
        grouping.and_then(Grouping::lengths).or(self.tokens.as_deref())
    }

    /// Numbers that determine which records and rows are samples or in one.
    fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let bits = [&self.rows, &self.passes, &self.starts].into_iter().flatten();
        let with_length = self.rows.is_some();
        let words = bits.flat_map(move |bits| {
            let length = with_length.then_some(bits.len);
            length.into_iter().chain(bits.words.iter().copied())
        });
        std::iter::once(self.records).chain(words)
    }

    /// Returns the map in the form in which processes exchange it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode("")
    }

    /// Returns a map that another process made; `None`: damaged, or of another program or shard.
    /// - `counts`: those of [`SampleMap::pack_counts`], if they are known; otherwise empty.
    pub fn from_bytes(
        bytes: &[u8],
        shard: CountedFile,
        program: &SampleProgram,
        counts: &[u64],
    ) -> Option<Self> {
        let mut map = Self::decode(bytes, "", shard.records, program)?;
        // A token has at least one byte. More of them would take memory to pack.
        let tokens = map.tokens.iter().flat_map(|tokens| tokens.iter()).map(u64::from);
        if tokens.fold(0, u64::saturating_add) > shard.data_bytes {
            return None;
        }
        if map.rows.is_none() && map.data_bytes > shard.data_bytes {
            return None;
        }
        map.group(program, shard.digest, counts).ok()?;
        Some(map)
    }

    /// Returns the number of packs of each block, if packs are samples.
    pub fn pack_counts(&self) -> Option<Vec<u64>> {
        Some(self.grouping()?.packing()?.counts())
    }

    /// Returns the digest of the samples. Source: docs/ORDER.md, "Input".
    /// - `shard`: digest of the shard.
    pub fn digest(&self, shard: Digest) -> Digest {
        let lengths = self.lengths().into_iter().flat_map(Lengths::iter).map(u64::from);
        let words: Vec<u8> = self.numbers().chain(lengths).flat_map(u64::to_le_bytes).collect();
        let name: &[u8] = match (&self.rows, self.lengths(), &self.starts) {
            (None, _, Some(_)) => b"shardfeed windows 2\0",
            (None, Some(_), None) => b"shardfeed packs 2\0",
            (None, None, None) => b"shardfeed samples 2\0",
            (Some(_), None, None) => b"shardfeed rows 2\0",
            (Some(_), Some(_), None) => b"shardfeed packs of rows 2\0",
            (Some(_), _, Some(_)) => b"shardfeed windows of rows 2\0",
        };
        Digest::of_parts([name, shard.as_bytes(), &words])
    }

    /// Returns the map as it is stored under an address.
    pub(super) fn encode(&self, address: &str) -> Vec<u8> {
        let lengths = self.lengths();
        let forms = [
            self.rows.is_some(),
            self.passes.is_some(),
            lengths.is_some(),
            self.costs.is_some(),
            self.starts.is_some(),
            matches!(lengths, Some(Lengths::Short(_))),
        ];
        let forms = (0..).zip(forms).map(|(bit, is_some)| u64::from(is_some) << bit).sum();
        let numbers = [forms, self.data_bytes].into_iter().chain(self.numbers());
        let words = lengths.into_iter().flat_map(words_of);
        let numbers = numbers.chain(words).chain(self.costs.iter().flat_map(|costs| costs.words()));
        let body: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        KIND.encode(address, &body)
    }

    /// Returns a stored map without its packs; `None` if it is damaged, was stored under another
    /// address, or is not of this program and a shard of this many records.
    pub(super) fn decode(
        bytes: &[u8],
        address: &str,
        records: u64,
        program: &SampleProgram,
    ) -> Option<Self> {
        let map = Self::read(bytes, address, records)?;
        (map.is_of(program) && map.data_bytes <= i64::MAX as u64).then_some(map)
    }

    /// Returns the bytes that the map takes in memory, about.
    fn memory_bytes(&self) -> usize {
        let bits = [&self.rows, &self.passes, &self.starts].into_iter().flatten();
        let tokens = self.tokens.iter().map(|tokens| tokens.memory_bytes());
        let costs = self.costs.iter().map(|costs| costs.memory_bytes());
        let grouping = self.grouping().map(Grouping::memory_bytes);
        let parts = bits.map(|bits| bits.memory_bytes()).chain(tokens).chain(costs).chain(grouping);
        size_of::<Self>() + parts.sum::<usize>()
    }

    fn read(bytes: &[u8], address: &str, records: u64) -> Option<Self> {
        let (numbers, rest) = KIND.decode(address, bytes)?.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let (forms, data_bytes) = (numbers.next()?, numbers.next()?);
        // Only lengths are short.
        if !rest.is_empty() || numbers.next()? != records || forms > 63 || forms & 36 == 32 {
            return None;
        }
        let (has_rows, has_passes, has_tokens) = (forms & 1 == 1, forms & 2 == 2, forms & 4 == 4);
        let mut bits = |exists: bool| match exists {
            false => Some(None),
            true => {
                let len = if has_rows { numbers.next()? } else { records };
                Some(Some(Box::new(Bits::read(len, &mut numbers)?)))
            }
        };
        let (rows, passes) = (bits(has_rows)?, bits(has_passes)?);
        let taken = match (&passes, &rows) {
            (Some(passes), _) => passes.ones,
            (None, Some(rows)) => rows.ones,
            (None, None) => records,
        };
        let starts = match (forms & 16 == 16, &passes) {
            (false, _) => None,
            (true, None) => return None,
            (true, Some(_)) => {
                let len = if has_rows { numbers.next()? } else { taken };
                Some(Box::new(Bits::read(len, &mut numbers).filter(|bits| bits.len == taken)?))
            }
        };
        let tokens = match has_tokens {
            false => None,
            true => {
                let mut lengths = Box::<Lengths>::default();
                let width = if forms & 32 == 32 { 2 } else { 4 };
                read_numbers(taken, width, &mut numbers, |length| lengths.push(length as u32))?;
                Some(lengths)
            }
        };
        let map = Self { records, rows, passes, tokens, starts, data_bytes, ..Self::default() };
        let mut map = map;
        if forms & 8 == 8 {
            map.costs = Some(Box::new(Costs::read(map.samples(), &mut numbers)?));
        }
        let rows = map.rows.as_ref().map_or(records, |rows| rows.ones);
        let ends = |bits: &Bits| bits.len == 0 || !bits.has(bits.len - 1);
        let is_whole =
            map.rows.as_ref().is_none_or(|bits| bits.len - bits.ones == records && ends(bits))
                && map.passes.as_ref().is_none_or(|bits| bits.len == rows)
                && map.starts.as_ref().is_none_or(|bits| bits.len == 0 || bits.has(0));
        (is_whole && numbers.next().is_none()).then_some(map)
    }
}

/// Iterates over the words of the stored form of lengths: two or four in each.
fn words_of(lengths: &Lengths) -> impl Iterator<Item = u64> + '_ {
    let in_word = match lengths {
        Lengths::Short(_) => 4,
        Lengths::Long(_) => 2,
    };
    let length = move |at: u64| lengths.get(at).map_or(0, u64::from);
    (0..lengths.sequences()).step_by(in_word).map(move |first| {
        let places = (0..in_word as u64).rev();
        places.fold(0, |word, place| word << (64 / in_word) | length(first + place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a map in which `counted` decides about the form.
    fn map(counted: &CountedRecords) -> SampleMap {
        let bits = |is_some: bool| is_some.then(Box::default);
        let (rows, passes) = (bits(counted.rows.is_some()), bits(counted.passes.is_some()));
        let (starts, tokens) = (bits(counted.keys.is_some()), counted.tokens.as_ref());
        let tokens = tokens.map(|_| Box::default());
        let mut map = SampleMap { rows, passes, tokens, starts, ..SampleMap::default() };
        map.push(counted);
        map
    }

    /// Returns the samples of records of three bytes.
    /// - `taken`: for each of its rows whether it is a sample.
    fn counted(taken: &[Vec<bool>], has_rows: bool, leaves_out: bool) -> CountedRecords {
        CountedRecords {
            bytes: vec![3; taken.len()],
            rows: has_rows.then(|| taken.iter().map(|rows| rows.len() as u32).collect()),
            passes: leaves_out.then(|| taken.concat()),
            ..CountedRecords::default()
        }
    }

    #[test]
    fn samples_and_records_are_found_from_each_other() {
        let some = |rows: u64, of: u64| (0..rows).map(move |row| row % of == 1).collect();
        let all = |rows: u64| vec![true; rows as usize];
        // Whether there are rows, and whether some are left out.
        type Pattern<'a> = (bool, bool, &'a dyn Fn(u64) -> Vec<bool>);
        let patterns: [Pattern<'_>; 9] = [
            (false, true, &|_| vec![true]),
            (false, true, &|_| vec![false]),
            (false, true, &|record| vec![record % 7 == 3]),
            (false, true, &|record| vec![record > 600 && record % 64 != 0]),
            (false, true, &|record| vec![record == 63 || record == 64 || record == 1000]),
            (true, false, &|_| vec![]),
            (true, false, &|record| all(record % 5)),
            (true, false, &|record| all(if record == 511 { 2_000 } else { 1 })),
            (true, true, &|record| some(record % 9, 2 + record % 3)),
        ];
        for records in [0, 1, 63, 64, 65, 511, 512, 513, 1500] {
            for (has_rows, leaves_out, pattern) in patterns {
                let samples: Vec<_> = (0..records).map(pattern).collect();
                let map = map(&counted(&samples, has_rows, leaves_out));
                let parts: Vec<Vec<u32>> = samples
                    .iter()
                    .map(|rows| (0..).zip(rows).filter(|row| *row.1).map(|row| row.0).collect())
                    .collect();
                let of_record = |(record, parts): (u64, &Vec<u32>)| {
                    let place = move |part: &u32| SamplePlace { record, part: *part };
                    parts.iter().map(place).collect::<Vec<_>>()
                };
                let expected: Vec<_> = (0..).zip(&parts).flat_map(of_record).collect();
                let found: Vec<_> = (0..map.samples()).map(|at| map.place_of(at)).collect();
                let same: Vec<_> = expected.iter().copied().map(Some).collect();
                assert_eq!(found, same, "{records} records");
                assert_eq!(map.place_of(map.samples()), None);
                for record in 0..records + 2 {
                    let before = expected.partition_point(|one| one.record < record) as u64;
                    assert_eq!(map.samples_before(record), before, "{record} of {records}");
                    let of_record = parts.get(record as usize).cloned().unwrap_or_default();
                    assert_eq!(map.parts(record).collect::<Vec<_>>(), of_record);
                }
                assert_eq!(map.data_bytes(), 3 * expected.len() as u64);
                let none = parts.iter().filter(|parts| parts.is_empty()).count();
                assert_eq!(map.tally().records_left_out, none as u64);
                let stored = map.encode("one");
                assert_eq!(SampleMap::read(&stored, "one", records).as_ref(), Some(&map));
                assert_eq!(SampleMap::read(&stored, "one", records + 1), None);
                assert_eq!(SampleMap::read(&stored, "other", records), None);
            }
        }
    }

    /// Returns packed records with these numbers of tokens.
    fn packed(tokens: Vec<u32>) -> CountedRecords {
        let bytes = vec![3; tokens.len()];
        CountedRecords { bytes, tokens: Some(tokens), ..CountedRecords::default() }
    }

    #[test]
    fn short_lengths_of_four_bytes_each_are_read() {
        let stored = |numbers: &[u64]| {
            KIND.encode(
                "one",
                &numbers.iter().copied().flat_map(u64::to_le_bytes).collect::<Vec<_>>(),
            )
        };
        let expected = map(&packed(vec![3, 65_535, 0]));
        let before = stored(&[4, 9, 3, 3 | 65_535 << 32, 0]);
        assert_eq!(SampleMap::read(&before, "one", 3).as_ref(), Some(&expected));
        assert!(expected.encode("one").len() < before.len(), "it is stored with two bytes each");
        assert_eq!(SampleMap::read(&stored(&[32, 9, 3]), "one", 3), None, "no lengths are short");
    }

    #[test]
    fn a_damaged_map_is_none() {
        let records: Vec<_> = (0..100).map(|record| vec![record % 3 == 0]).collect();
        let rows: Vec<_> = (0..100).map(|record| vec![true; record % 3]).collect();
        let some: Vec<Vec<_>> = (0..100_usize)
            .map(|record| (0..record % 4).map(|row| !(record + row).is_multiple_of(3)).collect())
            .collect();
        let some_taken = some.iter().flatten().filter(|taken| **taken).count() as u32;
        let (whole, rows) = (counted(&records, false, true), counted(&rows, true, false));
        let some = counted(&some, true, true);
        let with_tokens = |counted: &CountedRecords, samples: u32, factor: u32| {
            let tokens = Some((0..samples).map(|sample| sample * factor).collect());
            CountedRecords { tokens, ..counted.clone() }
        };
        let with_keys = |counted: &CountedRecords, samples: u32| {
            let keys = Some((0..samples).map(|sample| vec![sample as u8 / 9]).collect());
            CountedRecords { keys, ..counted.clone() }
        };
        let mut maps: Vec<_> = [
            with_tokens(&whole, 34, 7),
            with_keys(&whole, 34),
            with_tokens(&some, some_taken, 7),
            with_tokens(&rows, 99, 900),
            with_keys(&some, some_taken),
            packed((0..100).map(|record| 65_500 + record).collect()),
            whole,
            rows.clone(),
        ]
        .iter()
        .map(map)
        .collect();
        maps.iter_mut().for_each(|map| map.last_key = None);
        let of_rows = map(&rows);
        let mut costs = Costs::default();
        (0..of_rows.samples()).for_each(|sample| costs.push(sample * 100));
        maps.push(SampleMap { costs: Some(Box::new(costs)), ..of_rows });
        // A trainer does not know the bytes of files.
        maps.push(SampleMap::of_all(100, u64::MAX));
        for map in maps {
            let in_file = postcard::to_stdvec(&map).unwrap();
            assert_eq!(postcard::from_bytes::<SampleMap>(&in_file).unwrap(), map);
            let bytes = map.encode("one");
            assert_eq!(SampleMap::read(&bytes, "one", 100), Some(map));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                assert_eq!(SampleMap::read(&damaged, "one", 100), None, "byte {at}");
                assert_eq!(SampleMap::read(&bytes[..at], "one", 100), None, "cut at {at}");
            }
        }
    }
}
