//! Sequential reads of a stored file, local or remote: for tools that examine files on their own.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use shardfeed_plan::ChangeStamp;

use crate::error::LoadError;
use crate::looks::file_state::stamp;
use crate::remote::{Reach, RemoteFile, is_remote};

/// Bytes of one request of a remote file, and requests in flight.
const REMOTE_BLOCK: (usize, usize) = (4 << 20, 4);

/// An open stored file; reads return its bytes as stored.
#[derive(Debug)]
pub struct StoredFile {
    pub size_bytes: u64,
    source: StoredSource,
}

#[derive(Debug)]
enum StoredSource {
    Local(File),
    Remote { file: RemoteFile, offset: u64 },
}

impl StoredFile {
    /// Opens a file by its path or URL.
    /// - `known`: its change stamp, if it is remote and was already examined.
    ///
    /// # Errors  The file does not exist, or cannot be reached.
    pub fn open(path: &Path, known: Option<&ChangeStamp>) -> Result<Self, LoadError> {
        if !is_remote(path) {
            let failed = |source| LoadError::Io { file: path.display().to_string(), source };
            let file = File::open(path).map_err(failed)?;
            let size_bytes = file.metadata().map_err(failed)?.len();
            return Ok(Self { size_bytes, source: StoredSource::Local(file) });
        }
        let url = path.display().to_string();
        let stamp = known.cloned().map_or_else(|| stamp(path), Ok)?;
        let size_bytes = stamp.size_bytes;
        let object = Reach::open(&url, Arc::default(), None)?.object(&url, stamp)?;
        let (block_bytes, ahead) = REMOTE_BLOCK;
        let stop = Arc::new(AtomicBool::new(false));
        let file = RemoteFile::new(object, block_bytes, ahead, stop);
        Ok(Self { size_bytes, source: StoredSource::Remote { file, offset: 0 } })
    }
}

impl Read for StoredFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.source {
            StoredSource::Local(file) => file.read(out),
            StoredSource::Remote { file, offset } => {
                let read = file.read(out, *offset).map_err(io::Error::other)?;
                *offset += read as u64;
                Ok(read)
            }
        }
    }
}
