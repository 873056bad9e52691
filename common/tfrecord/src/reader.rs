//! One record after another, for those who do not want chunks.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::chunk::{Chunk, ChunkOptions, ChunkReader};
use crate::compression::{CompressionChoice, Decoder};
use crate::error::{ReadError, ReadErrorKind};

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The record's data.
    pub data: &'a [u8],
    /// Where its header is in the uncompressed stream.
    pub offset: u64,
    /// Its number in the file, from 0.
    pub ordinal: u64,
}

/// Reads records one at a time, in chunks underneath.
#[derive(Debug)]
pub struct RecordReader<R> {
    chunks: ChunkReader<R>,
    chunk: Option<Chunk>,
    /// The next record of `chunk`.
    index: usize,
}

impl<R: Read> RecordReader<R> {
    /// Reads `source`, uncompressed bytes of `file` from a record's start on.
    pub fn new(source: R, file: impl Into<Arc<str>>, options: ChunkOptions) -> Self {
        Self { chunks: ChunkReader::new(source, file, options), chunk: None, index: 0 }
    }

    /// Reads the next record; `None` at the end of the file.
    ///
    /// # Errors
    /// What is wrong with the next record. Later calls return `None`, unless
    /// [`resume_after_error`](Self::resume_after_error) is called first.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if self.chunk.as_ref().is_none_or(|chunk| self.index == chunk.records.len()) {
            self.drop_chunk();
            self.chunk = self.chunks.next_chunk()?;
        }
        let Some(chunk) = &self.chunk else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        Ok(Some(Record {
            data: chunk.data(index),
            offset: chunk.records[index].offset,
            ordinal: chunk.first_ordinal + index as u64,
        }))
    }

    /// Passes over records up to the one numbered `ordinal`; checks their lengths, not their data.
    ///
    /// - Returns the number of the record that comes next: `ordinal`, or less at the end of the file,
    ///   or more if it was behind already.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    pub fn skip_to(&mut self, ordinal: u64) -> Result<u64, ReadError> {
        if let Some(chunk) = &self.chunk {
            let left = (chunk.records.len() - self.index) as u64;
            let next = chunk.first_ordinal + self.index as u64;
            let skipped = ordinal.saturating_sub(next);
            if skipped < left {
                self.index += skipped as usize; // Below `left`, a usize.
                return Ok(next + skipped);
            }
        }
        self.drop_chunk();
        self.chunks.skip_to(ordinal)
    }

    /// After an error: passes over the bad record, if the next one can be found.
    ///
    /// - Returns whether reading goes on; see [`ChunkReader::resume_after_error`].
    pub fn resume_after_error(&mut self) -> bool {
        self.chunks.resume_after_error()
    }

    fn drop_chunk(&mut self) {
        self.index = 0;
        if let Some(chunk) = self.chunk.take() {
            self.chunks.recycle(chunk.bytes);
        }
    }
}

/// Opens a file for reading its uncompressed bytes.
///
/// # Errors
/// A missing or unreadable file, by its path.
pub fn open_source(path: &Path, choice: CompressionChoice) -> Result<Decoder<File>, ReadError> {
    let source = File::open(path).map_err(|error| ReadError::open(path, error))?;
    Decoder::new(source, choice).map_err(|error| {
        ReadError::at_record(&path.to_string_lossy(), 0, 0, ReadErrorKind::from(error))
    })
}

/// Opens a file of records.
///
/// # Errors
/// A missing or unreadable file, by its path.
pub fn open_records(
    path: impl AsRef<Path>,
    choice: CompressionChoice,
) -> Result<RecordReader<Box<dyn Read + Send>>, ReadError> {
    let path = path.as_ref();
    let source: Box<dyn Read + Send> = Box::new(open_source(path, choice)?);
    Ok(RecordReader::new(source, path.to_string_lossy(), ChunkOptions::default()))
}
