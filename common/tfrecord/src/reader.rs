//! Reads one record at a time, as a simpler alternative to chunks.

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
    /// Offset of its header in the uncompressed stream.
    pub offset: u64,
    /// Ordinal in the file, from 0.
    pub ordinal: u64,
}

/// Reads records one at a time, using chunks internally.
#[derive(Debug)]
pub struct RecordReader<R> {
    chunks: ChunkReader<R>,
    chunk: Option<Chunk>,
    /// Index of the next record in `chunk`.
    index: usize,
}

impl<R: Read> RecordReader<R> {
    /// Reads `source`: uncompressed bytes of `file` that begin at the start of a record.
    pub fn new(source: R, file: impl Into<Arc<str>>, options: ChunkOptions) -> Self {
        Self { chunks: ChunkReader::new(source, file, options), chunk: None, index: 0 }
    }

    /// Reads the next record; `None` at the end of the file.
    ///
    /// # Errors
    /// The error of the next record. Later calls return `None`, unless
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

    /// Skips to record `ordinal`; checks the lengths of the skipped records, not their data.
    ///
    /// - Returns the ordinal of the next record: `ordinal`, or less at the end of the file, or more
    ///   if that record has been passed already.
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

    /// Skips the damaged record after an error, if the next one can be found.
    ///
    /// - Returns true if reading continues; see [`ChunkReader::resume_after_error`].
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

/// Opens a file to read its uncompressed bytes.
///
/// # Errors
/// The file is missing or unreadable; the error contains its path.
pub fn open_source(path: &Path, choice: CompressionChoice) -> Result<Decoder<File>, ReadError> {
    let source = File::open(path).map_err(|error| ReadError::open(path, error))?;
    Decoder::new(source, choice).map_err(|error| {
        ReadError::at_record(&path.to_string_lossy(), 0, 0, ReadErrorKind::from(error))
    })
}

/// Opens a file of records.
///
/// # Errors
/// The file is missing or unreadable; the error contains its path.
pub fn open_records(
    path: impl AsRef<Path>,
    choice: CompressionChoice,
) -> Result<RecordReader<Box<dyn Read + Send>>, ReadError> {
    let path = path.as_ref();
    let source: Box<dyn Read + Send> = Box::new(open_source(path, choice)?);
    Ok(RecordReader::new(source, path.to_string_lossy(), ChunkOptions::default()))
}
