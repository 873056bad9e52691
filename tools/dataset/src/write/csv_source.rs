//! A CSV file as a source: one record per row.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::Context;
use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use indicatif::ProgressBar;
use shardfeed_tfrecord::example::{DType, Value, encode_example};

use super::source::{Encoder, Source};
use super::whole;
use crate::problem::Problem;
use crate::progress;

/// Size of one read, bytes. Rows are read in any order, so most of a larger one would be discarded.
const BUFFER_BYTES: usize = 16 << 10;

/// The rows of a CSV file; only their offsets are kept.
#[derive(Debug)]
pub(crate) struct CsvSource {
    path: PathBuf,
    stamp: Stamp,
    columns: Vec<CsvColumn>,
    offsets: Vec<u64>,
    record_bytes: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

#[derive(Debug)]
struct CsvColumn {
    name: String,
    dtype: DType,
}

/// Types of columns; each can hold the values of those before.
const TYPES: [DType; 3] = [DType::Int64, DType::Float32, DType::Bytes];

/// A value, in the form that features need.
enum Cell<'a> {
    Int64([i64; 1]),
    Float32([f32; 1]),
    Bytes([&'a [u8]; 1]),
}

impl CsvSource {
    /// Reads the file twice: for the columns' types, then for the records' sizes.
    ///
    /// # Errors
    /// No rows; rows of different lengths; columns without a name or with the same name.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let mut source = Self {
            path: path.to_path_buf(),
            stamp: stamp(path)?,
            columns: Vec::new(),
            offsets: Vec::new(),
            record_bytes: Vec::new(),
        };
        let bar = progress::bytes_bar("reading", source.stamp.bytes.saturating_mul(2));
        source.find_columns(&bar)?;
        source.measure(&bar)?;
        bar.finish_and_clear();
        Ok(source)
    }

    fn reader(&self) -> anyhow::Result<Reader<File>> {
        let file = File::open(&self.path)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(ReaderBuilder::new().buffer_capacity(BUFFER_BYTES).from_reader(file))
    }

    fn find_columns(&mut self, bar: &ProgressBar) -> anyhow::Result<()> {
        let mut reader = self.reader()?;
        let header = reader.byte_headers().map_err(|error| self.failed(error))?;
        let names = self.names(header)?;
        // Index of the first type that can hold all values; `None` without values.
        let mut types = vec![None; names.len()];
        let mut row = ByteRecord::new();
        while reader.read_byte_record(&mut row).map_err(|error| self.failed(error))? {
            self.offsets.push(row.position().map_or(0, Position::byte));
            for (found, cell) in types.iter_mut().zip(&row).filter(|(_, cell)| !cell.is_empty()) {
                let first = found.unwrap_or(0);
                *found = (first..TYPES.len()).find(|&at| Cell::read(cell, TYPES[at]).is_some());
            }
            bar.set_position(reader.position().byte());
        }
        if self.offsets.is_empty() {
            let what = format!("{}: has no rows", self.path.display());
            let hint = "the first row names the columns; records are the rows after it";
            return Err(Problem::failed(what).hint(hint).into());
        }
        let columns = names.into_iter().zip(types);
        let dtype = |found: Option<usize>| found.map_or(DType::Bytes, |at| TYPES[at]);
        self.columns =
            columns.map(|(name, found)| CsvColumn { name, dtype: dtype(found) }).collect();
        Ok(())
    }

    fn names(&self, header: &ByteRecord) -> Result<Vec<String>, Problem> {
        let mut seen = BTreeSet::new();
        let mut names = Vec::new();
        for (index, name) in header.iter().enumerate() {
            let fault = match std::str::from_utf8(name) {
                Ok("") => "has no name".to_owned(),
                Err(_) => "has a name that is not UTF-8".to_owned(),
                Ok(name) if !seen.insert(name) => format!("is named `{name}`, as one before it"),
                Ok(name) => {
                    names.push(name.to_owned());
                    continue;
                }
            };
            let what = format!("{}: column {} {fault}", self.path.display(), index + 1);
            let hint = "the first row must give each column a unique name";
            return Err(Problem::failed(what).hint(hint));
        }
        Ok(names)
    }

    fn measure(&mut self, bar: &ProgressBar) -> anyhow::Result<()> {
        let mut reader = self.reader()?;
        let (mut row, mut record) = (ByteRecord::new(), Vec::new());
        let mut sizes = Vec::with_capacity(self.offsets.len());
        while reader.read_byte_record(&mut row).map_err(|error| self.failed(error))? {
            record.clear();
            self.encode_row(&row, &mut record)?;
            sizes.push(record.len() as u64);
            bar.set_position(self.stamp.bytes + reader.position().byte());
        }
        if sizes.len() != self.offsets.len() {
            return Err(self.changed().into());
        }
        self.record_bytes = sizes;
        Ok(())
    }

    fn encode_row(&self, row: &ByteRecord, out: &mut Vec<u8>) -> Result<(), Problem> {
        let cells = self.columns.iter().zip(row);
        let cells: Option<Vec<_>> = cells
            .filter(|(_, cell)| !cell.is_empty())
            .map(|(column, cell)| Some((column.name.as_str(), Cell::read(cell, column.dtype)?)))
            .collect();
        // The column's type fitted all cells: a cell that it does not fit is new.
        let cells = cells.ok_or_else(|| self.changed())?;
        let features: Vec<_> = cells.iter().map(|(name, cell)| (*name, cell.value())).collect();
        encode_example(&features, out);
        Ok(())
    }

    fn failed(&self, error: csv::Error) -> anyhow::Error {
        let what = match error.kind() {
            csv::ErrorKind::UnequalLengths { pos, expected_len, len } => format!(
                "{}: line {}: has {len} cells, the first row has {expected_len}",
                self.path.display(),
                pos.as_ref().map_or(0, Position::line)
            ),
            _ => {
                let context = format!("cannot read {}", self.path.display());
                return anyhow::Error::new(error).context(context);
            }
        };
        let hint =
            "give every row a cell for each column; a comma in a cell needs quotes around it";
        Problem::failed(what).hint(hint).into()
    }

    fn changed(&self) -> Problem {
        whole::changed(&self.path)
    }
}

impl Source for CsvSource {
    fn record_bytes(&self) -> &[u64] {
        &self.record_bytes
    }

    fn encoder(&self) -> anyhow::Result<Box<dyn Encoder + '_>> {
        Ok(Box::new(RowEncoder { source: self, reader: self.reader()?, row: ByteRecord::new() }))
    }

    fn check_unchanged(&self) -> anyhow::Result<()> {
        if stamp(&self.path)? == self.stamp { Ok(()) } else { Err(self.changed().into()) }
    }
}

struct RowEncoder<'a> {
    source: &'a CsvSource,
    reader: Reader<File>,
    row: ByteRecord,
}

impl Encoder for RowEncoder<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut place = Position::new();
        place.set_byte(self.source.offsets[index]);
        let read =
            self.reader.seek(place).and_then(|()| self.reader.read_byte_record(&mut self.row));
        if !read.map_err(|error| self.source.failed(error))? {
            return Err(self.source.changed().into());
        }
        Ok(self.source.encode_row(&self.row, out)?)
    }
}

impl<'a> Cell<'a> {
    fn read(cell: &'a [u8], dtype: DType) -> Option<Self> {
        match dtype {
            DType::Int64 => parsed(cell).map(|value| Self::Int64([value])),
            DType::Float32 => parsed(cell).map(|value| Self::Float32([value])),
            DType::Bytes => Some(Self::Bytes([cell])),
        }
    }

    fn value(&'a self) -> Value<'a> {
        match self {
            Self::Int64(values) => Value::Int64(values),
            Self::Float32(values) => Value::Float32(values),
            Self::Bytes(values) => Value::Bytes(values),
        }
    }
}

fn parsed<T: FromStr>(cell: &[u8]) -> Option<T> {
    std::str::from_utf8(cell).ok()?.trim().parse().ok()
}

fn stamp(path: &Path) -> anyhow::Result<Stamp> {
    let found: Metadata =
        fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Stamp { bytes: found.len(), modified: found.modified().ok() })
}
