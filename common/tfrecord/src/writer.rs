//! Writes records.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

use flate2::write::{GzEncoder, ZlibEncoder};

use crate::compression::Compression;
use crate::frame::{FOOTER_BYTES, HEADER_BYTES, encode_footer, encode_header};

/// Framed bytes are written in units of this size.
const OUTPUT_BYTES: usize = 256 << 10;

/// Maximum number of temporary names to try: more than there are concurrent writers of one file.
const TEMPORARY_NAMES_MAX: u32 = 100;

/// Writes records into `W`.
///
/// The same records give the same bytes: compressed files contain no time and no name. The file is
/// incomplete without [`finish`](Self::finish).
#[derive(Debug)]
pub struct RecordWriter<W: Write> {
    sink: Sink<W>,
    /// Framed bytes that are not written yet.
    framed: Vec<u8>,
    records: u64,
    bytes: u64,
}

#[derive(Debug)]
enum Sink<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Zlib(ZlibEncoder<W>),
}

impl<W: Write> RecordWriter<W> {
    /// Returns a writer into `writer`, which needs no buffer.
    pub fn new(writer: W, compression: Compression) -> Self {
        let level = flate2::Compression::default();
        let sink = match compression {
            Compression::None => Sink::Plain(writer),
            Compression::Gzip => Sink::Gzip(GzEncoder::new(writer, level)),
            Compression::Zlib => Sink::Zlib(ZlibEncoder::new(writer, level)),
        };
        Self { sink, framed: Vec::new(), records: 0, bytes: 0 }
    }

    /// Writes one record.
    ///
    /// # Errors
    /// Errors of the underlying writer; the file is then unusable.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.framed.extend_from_slice(&encode_header(data.len() as u64));
        if data.len() < OUTPUT_BYTES {
            self.framed.extend_from_slice(data);
        } else {
            self.hand_on()?;
            self.sink.write_all(data)?;
        }
        self.framed.extend_from_slice(&encode_footer(data));
        if self.framed.len() >= OUTPUT_BYTES {
            self.hand_on()?;
        }
        self.records += 1;
        self.bytes += (HEADER_BYTES + data.len() + FOOTER_BYTES) as u64;
        Ok(())
    }

    /// Writes the remaining bytes, ends the compressed stream, and returns the writer, flushed.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.hand_on()?;
        let mut writer = match self.sink {
            Sink::Plain(writer) => writer,
            Sink::Gzip(encoder) => encoder.finish()?,
            Sink::Zlib(encoder) => encoder.finish()?,
        };
        writer.flush()?;
        Ok(writer)
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the bytes of the uncompressed stream written so far, framing included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn hand_on(&mut self) -> io::Result<()> {
        self.sink.write_all(&self.framed)?;
        self.framed.clear();
        Ok(())
    }
}

impl<W: Write> Sink<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(writer) => writer.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zlib(encoder) => encoder.write_all(bytes),
        }
    }
}

/// Writes records into a file that appears under its name only when it is complete.
///
/// Until [`finish`](Self::finish) the bytes are in a temporary file beside it, see [`NewFile`].
#[derive(Debug)]
pub struct FileRecordWriter {
    writer: RecordWriter<File>,
    file: NewFile,
}

/// Creates a file of records at `path`; an existing one is replaced when the new one is finished.
///
/// # Errors
/// If no file can be created beside `path`.
pub fn create(path: impl AsRef<Path>, compression: Compression) -> io::Result<FileRecordWriter> {
    let file = NewFile::beside(path.as_ref())?;
    let writer = RecordWriter::new(file.file.try_clone()?, compression);
    Ok(FileRecordWriter { writer, file })
}

impl FileRecordWriter {
    /// Writes one record.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.writer.write(data)
    }

    /// Makes the file durable and renames it to its final name.
    ///
    /// # Errors
    /// Errors of the file system; the file under the final name is then unchanged.
    pub fn finish(self) -> io::Result<()> {
        let Self { writer, file } = self;
        drop(writer.finish()?);
        file.finish()
    }

    pub fn records(&self) -> u64 {
        self.writer.records()
    }

    /// Returns the bytes of the uncompressed stream written so far, framing included.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }
}

/// A file that appears under its name only when it is complete.
///
/// Until [`finish`](Self::finish) the bytes are in a temporary file beside it, which is deleted
/// when this value is dropped. A crash can leave it behind, under a name that starts with a dot and
/// ends in `.tmp`.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    renamed: bool,
}

impl NewFile {
    /// Creates a temporary file for `path`.
    ///
    /// # Errors
    /// If no file can be created beside `path`.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path ends in no file name")
        })?;
        let mut attempt = 0;
        loop {
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}-{attempt}.tmp", process::id()));
            let temporary = directory(path).join(temporary);
            match File::create_new(&temporary) {
                Ok(file) => {
                    return Ok(Self { file, temporary, path: path.to_path_buf(), renamed: false });
                }
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && attempt < TEMPORARY_NAMES_MAX =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the file to write into.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Makes the file durable and renames it to its final name.
    ///
    /// # Errors
    /// Errors of the file system; the file under the final name is then unchanged.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.renamed = true;
        // The name is durable once the directory is synced.
        File::open(directory(&self.path))?.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.renamed {
            // Ignore errors: there is no way to report them, and the name identifies the leftover.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
