//! The pass over a stream: every byte is read.

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::Arc;

use super::{Break, Builder, IndexOptions, ShardIndex};
use crate::chunk::{ChunkOptions, ChunkReader};
use crate::compression::Decoder;
use crate::error::{ReadError, ReadErrorKind};
use crate::frame::stored_crc;

/// Indexes the records of `source`, the bytes of `file` as stored: compressed if the file is.
///
/// - `on_progress`: gets the bytes of the source read so far, after each chunk.
///
/// # Errors
/// The first damage found; with `keep_going` only those of the source itself.
pub fn index_records<R: Read>(
    source: R,
    file: impl Into<Arc<str>>,
    options: &IndexOptions,
    on_progress: &mut dyn FnMut(u64),
) -> Result<ShardIndex, ReadError> {
    let file = file.into();
    let consumed = Cell::new(0);
    let source = Decoder::new(Counted { source, consumed: &consumed }, options.compression)
        .map_err(|error| ReadError::at_record(&file, 0, 0, ReadErrorKind::from(error)))?;
    let mut builder = Builder::new(source.compression(), options);
    let chunk_options = ChunkOptions {
        record_bytes_max: options.record_bytes_max,
        verify_data: options.verify_data,
        ..ChunkOptions::default()
    };
    let mut chunks = ChunkReader::new(source, file, chunk_options);
    loop {
        match chunks.next_chunk() {
            Ok(None) => return Ok(builder.finish()),
            Ok(Some(chunk)) => {
                for span in &chunk.records {
                    let stored = stored_crc(&chunk.bytes[span.start + span.len..])
                        .expect("a chunk holds its records with their footers");
                    builder.push(span.len as u64, stored);
                }
                on_progress(consumed.get());
                chunks.recycle(chunk.bytes);
            }
            Err(error) => match error.kind {
                ReadErrorKind::DataCrc { length, stored, .. } if options.keep_going => {
                    builder.push(length, stored);
                    builder.index.corrupt_records += 1;
                    builder.index.first_corrupt.get_or_insert_with(|| Break::of(&error));
                    chunks.resume_after_error();
                }
                _ => return builder.end_at(error, options),
            },
        }
    }
}

/// Counts the bytes read.
struct Counted<'a, R> {
    source: R,
    consumed: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(out)?;
        self.consumed.set(self.consumed.get() + read as u64);
        Ok(read)
    }
}
