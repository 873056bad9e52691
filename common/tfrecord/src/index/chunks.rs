//! Pass over a stored file that its caller takes part in.

use std::cell::Cell;

use super::plain::{FromStart, ReadAt};
use super::stream::Counted;
use super::{Builder, IndexOptions, ShardIndex};
use crate::chunk::{Chunk, ChunkOptions, ChunkReader};
use crate::compression::Decoder;
use crate::error::{ReadError, ReadErrorKind};
use crate::frame::{FOOTER_BYTES, stored_crc};

/// Indexes a stored file and gives its records to the caller, so that each byte is read once for
/// both. The data of the records is not checked.
///
/// - `on_progress`: called with the bytes of the file read so far (compressed bytes of a compressed
///   file).
/// - `on_chunk`: called with the records, in the file's order; `false` ends the pass.
/// - Returns `None` if the caller ended the pass.
///
/// # Errors
/// The file is unreadable; otherwise the first damage found.
pub fn index_chunks(
    source: &mut dyn ReadAt,
    name: &str,
    options: &IndexOptions,
    on_progress: &mut dyn FnMut(u64),
    on_chunk: &mut dyn FnMut(&Chunk) -> bool,
) -> Result<Option<ShardIndex>, ReadError> {
    let consumed = Cell::new(0);
    let source = Counted { source: FromStart { source, offset: 0 }, consumed: &consumed };
    let source = Decoder::new(source, options.compression)
        .map_err(|error| ReadError::at_record(name, 0, 0, ReadErrorKind::from(error)))?;
    let mut builder = Builder::new(source.compression(), options);
    let record_bytes_max = options.record_bytes_max;
    let chunks = ChunkOptions { verify_data: false, record_bytes_max, ..ChunkOptions::default() };
    let mut reader = ChunkReader::new(source, name, chunks);
    while let Some(chunk) = reader.next_chunk()? {
        for span in &chunk.records {
            let footer = &chunk.bytes[span.start + span.len..][..FOOTER_BYTES];
            builder.push(span.len as u64, stored_crc(footer).expect("a record has a checksum"));
        }
        if !on_chunk(&chunk) {
            return Ok(None);
        }
        on_progress(consumed.get());
        reader.recycle(chunk.bytes);
    }
    Ok(Some(builder.finish()))
}
