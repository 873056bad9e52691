//! Fills a buffer and splits it into records.

use std::io::{self, Read};
use std::mem;
use std::sync::Arc;

use super::{Chunk, ChunkOptions, RecordSpan};
use crate::error::{ReadError, ReadErrorKind};
use crate::frame::{Cut, DataCrcMismatch, FOOTER_BYTES, HEADER_BYTES, check_data, cut, stored_crc};

/// Reads records in chunks from uncompressed bytes.
///
/// Each chunk is one allocation (see [`recycle`](Self::recycle)) filled by few large reads; an
/// incomplete frame at its end moves to the front of the next. No record before an error is lost:
/// the records before a damaged one are returned first, then the error. If the next record can
/// still be found, [`resume_after_error`](Self::resume_after_error) continues after the damaged
/// one.
#[derive(Debug)]
pub struct ChunkReader<R> {
    source: R,
    file: Arc<str>,
    options: ChunkOptions,
    /// `buffer[head..end]` is read and not yet returned; the whole buffer is initialized.
    buffer: Vec<u8>,
    head: usize,
    end: usize,
    spare: Vec<u8>,
    /// Stream offset and ordinal of the record at `head`.
    offset: u64,
    ordinal: u64,
    source_ended: bool,
    /// Error that ended the source; returned once the bytes before it are used.
    source_error: Option<io::Error>,
    failed: Failed,
    /// Length of the record at `head` if it must be skipped first.
    skip_length: Option<u64>,
    /// Number of records of the last chunk, as the capacity of the next list.
    records_guess: usize,
}

/// State after a returned error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    No,
    /// Reading can continue after a record with this many bytes of data.
    Resumable {
        length: u64,
    },
    Final,
}

/// Reason why scanning stopped after the last valid frame in the buffer.
enum Stop {
    /// A frame that needs `frame_bytes`; `kind` is the error if the source has no more bytes.
    Incomplete {
        frame_bytes: usize,
        kind: ReadErrorKind,
    },
    Bad(ReadErrorKind),
}

impl<R: Read> ChunkReader<R> {
    /// Reads `source`: uncompressed bytes of `file` that begin at the start of a record.
    ///
    /// Nothing is read or allocated yet. `file` is used only in error messages.
    pub fn new(source: R, file: impl Into<Arc<str>>, mut options: ChunkOptions) -> Self {
        options.chunk_bytes = options.chunk_bytes.max(HEADER_BYTES + FOOTER_BYTES);
        Self {
            source,
            file: file.into(),
            buffer: Vec::new(),
            head: 0,
            end: 0,
            spare: Vec::new(),
            offset: options.first_offset,
            ordinal: options.first_ordinal,
            source_ended: false,
            source_error: None,
            failed: Failed::No,
            skip_length: None,
            records_guess: 0,
            options,
        }
    }

    /// Reads until at least one record is complete; returns `None` at the end of the file.
    ///
    /// # Errors
    /// The error of the record after those returned so far. Later calls return `None`, unless
    /// [`resume_after_error`](Self::resume_after_error) is called first.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, ReadError> {
        if self.failed != Failed::No {
            return Ok(None);
        }
        if let Some(length) = self.skip_length.take() {
            self.skip_record(length)?;
        }
        let mut records = Vec::with_capacity(self.records_guess);
        loop {
            let (to, stop) = self.scan(&mut records);
            if !records.is_empty() {
                return Ok(Some(self.cut_off(records, to)));
            }
            match stop {
                Stop::Bad(kind) => return Err(self.fail(kind)),
                Stop::Incomplete { frame_bytes, kind } => {
                    if !self.fill(frame_bytes) {
                        return self.at_end(kind).map(|()| None);
                    }
                }
            }
        }
    }

    /// Skips to record `ordinal`; checks the lengths of the skipped records, not their data.
    ///
    /// Skipping starts after the last chunk returned: returned records cannot be skipped.
    /// - Returns the ordinal of the next record: `ordinal`, or less at the end of the file, or more
    ///   if that record has been passed already.
    ///
    /// # Errors
    /// As [`next_chunk`](Self::next_chunk).
    pub fn skip_to(&mut self, ordinal: u64) -> Result<u64, ReadError> {
        if let Some(length) = self.skip_length.take() {
            self.skip_record(length)?;
        }
        while self.ordinal < ordinal && self.failed == Failed::No {
            match cut(&self.buffer[self.head..self.end], u64::MAX) {
                Cut::Frame(data_bytes) => self.skip_record(data_bytes as u64)?,
                Cut::PartOfData { length } => self.skip_record(length)?,
                Cut::Bad(kind) => return Err(self.fail(kind)),
                Cut::PartOfHeader => {
                    let missing = (HEADER_BYTES - (self.end - self.head)) as u64;
                    if !self.fill(HEADER_BYTES) {
                        self.at_end(ReadErrorKind::TruncatedHeader { missing })?;
                        break;
                    }
                }
            }
        }
        Ok(self.ordinal)
    }

    /// Skips the damaged record after an error, if the next one can be found.
    ///
    /// The damaged record keeps its ordinal: the next one has the ordinal after it.
    /// - Returns true if reading continues: only the record's data was damaged, or it was too large.
    pub fn resume_after_error(&mut self) -> bool {
        let Failed::Resumable { length } = self.failed else {
            return false;
        };
        self.failed = Failed::No;
        self.skip_length = Some(length);
        true
    }

    /// Returns a chunk's buffer for reuse instead of a new allocation.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        // A buffer that grew for a huge record would keep all later chunks huge.
        let usual = self.options.chunk_bytes..=self.options.chunk_bytes.saturating_mul(4);
        if usual.contains(&bytes.len()) {
            self.spare = bytes;
        }
    }

    /// Returns the ordinal of the record after those returned so far.
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Returns the offset of that record's header in the uncompressed stream.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Finds the valid frames from the head on; returns the end of the last one and the reason to
    /// stop.
    fn scan(&self, records: &mut Vec<RecordSpan>) -> (usize, Stop) {
        let mut at = self.head;
        loop {
            let rest = &self.buffer[at..self.end];
            let data_bytes = match cut(rest, self.options.record_bytes_max) {
                Cut::Frame(data_bytes) => data_bytes,
                Cut::Bad(kind) => return (at, Stop::Bad(kind)),
                Cut::PartOfHeader => {
                    let missing = (HEADER_BYTES - rest.len()) as u64;
                    let kind = ReadErrorKind::TruncatedHeader { missing };
                    return (at, Stop::Incomplete { frame_bytes: HEADER_BYTES, kind });
                }
                Cut::PartOfData { length } => {
                    let frame_bytes = usize::try_from(frame_bytes(length)).unwrap_or(usize::MAX);
                    let available = (rest.len() - HEADER_BYTES) as u64;
                    let kind = ReadErrorKind::TruncatedData { length, available };
                    return (at, Stop::Incomplete { frame_bytes, kind });
                }
            };
            let span = RecordSpan {
                start: at + HEADER_BYTES,
                len: data_bytes,
                offset: self.offset + (at - self.head) as u64,
            };
            let behind = span.start + data_bytes;
            if self.options.verify_data
                && let Some(kind) = self.bad_data(span.start, behind)
            {
                return (at, Stop::Bad(kind));
            }
            records.push(span);
            at = behind + FOOTER_BYTES;
        }
    }

    /// Checks the data at `start..behind` of the buffer against the checksum that follows it.
    fn bad_data(&self, start: usize, behind: usize) -> Option<ReadErrorKind> {
        let data = &self.buffer[start..behind];
        let stored = stored_crc(&self.buffer[behind..]).expect("cut() saw a whole frame");
        let DataCrcMismatch { stored, computed } = check_data(data, stored).err()?;
        Some(ReadErrorKind::DataCrc { length: data.len() as u64, stored, computed })
    }

    /// Returns a chunk of `records`, which end at `to`, and keeps the bytes after them.
    fn cut_off(&mut self, mut records: Vec<RecordSpan>, to: usize) -> Chunk {
        let first_ordinal = self.ordinal;
        self.ordinal += records.len() as u64;
        self.offset += (to - self.head) as u64;
        self.records_guess = records.len();
        let (before, behind) = (to - self.head, self.end - to);
        let bytes = if behind <= before {
            let mut next = mem::take(&mut self.spare);
            if next.len() < behind {
                next = vec![0; behind.max(self.options.chunk_bytes)];
            }
            next[..behind].copy_from_slice(&self.buffer[to..self.end]);
            (self.head, self.end) = (0, behind);
            mem::replace(&mut self.buffer, next)
        } else {
            // Copying the shorter side keeps the work linear when every second record is bad.
            for span in &mut records {
                span.start -= self.head;
            }
            let bytes = self.buffer[self.head..to].to_vec();
            self.head = to;
            bytes
        };
        Chunk { bytes, records, first_ordinal }
    }

    /// Appends bytes from the source, growing the buffer for a frame of `frame_bytes` at the head
    /// as its bytes arrive; returns false if no bytes were read.
    fn fill(&mut self, frame_bytes: usize) -> bool {
        if self.source_ended {
            return false;
        }
        if self.head > 0 {
            self.buffer.copy_within(self.head..self.end, 0);
            (self.head, self.end) = (0, self.end - self.head);
        }
        if let Err(error) = self.make_room(frame_bytes) {
            self.source_error = Some(error);
            self.source_ended = true;
            return false;
        }
        let before = self.end;
        while self.end < self.buffer.len() {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.source_ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.source_error = Some(error);
                    self.source_ended = true;
                }
            }
            if self.source_ended {
                break;
            }
        }
        self.end > before
    }

    /// Doubles a full buffer, up to the size of the frame that does not fit.
    fn make_room(&mut self, frame_bytes: usize) -> io::Result<()> {
        if self.buffer.is_empty() {
            self.buffer = mem::take(&mut self.spare);
        }
        if self.buffer.is_empty() {
            // The system provides zeroed pages without writing them; growing an empty buffer would
            // write them.
            self.buffer = vec![0; self.options.chunk_bytes];
        } else if self.end == self.buffer.len() {
            let room = frame_bytes.clamp(self.end + 1, self.end.saturating_mul(2));
            self.buffer
                .try_reserve_exact(room - self.end)
                .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
            self.buffer.resize(room, 0);
        }
        Ok(())
    }

    /// Skips the record at the head, which has `length` bytes of data, even if they are not in the
    /// buffer.
    fn skip_record(&mut self, length: u64) -> Result<(), ReadError> {
        let frame = frame_bytes(length);
        let mut left = frame;
        loop {
            let here = left.min((self.end - self.head) as u64);
            left -= here;
            self.head += here as usize; // At most `end - head`, a usize.
            if left == 0 {
                break;
            }
            if !self.fill(0) {
                let available = frame - left - HEADER_BYTES as u64;
                return self.at_end(ReadErrorKind::TruncatedData { length, available });
            }
        }
        self.offset += frame;
        self.ordinal += 1;
        Ok(())
    }

    /// Handles the end of the source: valid between records, else `kind` is the error.
    fn at_end(&mut self, kind: ReadErrorKind) -> Result<(), ReadError> {
        if let Some(error) = self.source_error.take() {
            return Err(self.fail(ReadErrorKind::from(error)));
        }
        match kind {
            ReadErrorKind::TruncatedHeader { missing } if missing == HEADER_BYTES as u64 => Ok(()),
            kind => Err(self.fail(kind)),
        }
    }

    fn fail(&mut self, kind: ReadErrorKind) -> ReadError {
        self.failed = match kind {
            ReadErrorKind::DataCrc { length, .. } | ReadErrorKind::TooLarge { length, .. } => {
                Failed::Resumable { length }
            }
            _ => Failed::Final,
        };
        ReadError::at_record(&self.file, self.offset, self.ordinal, kind)
    }
}

/// Returns the size of a frame with `length` bytes of data.
fn frame_bytes(length: u64) -> u64 {
    length.saturating_add((HEADER_BYTES + FOOTER_BYTES) as u64)
}

#[cfg(test)]
mod tests;
