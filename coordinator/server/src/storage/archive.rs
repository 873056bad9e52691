//! Backup of a cluster as one file: the state and the chunks that it refers to, in our own frames.
//!
//! `magic [8] | frame*`, a frame is `kind u8 | length u32 LE | content | SHA-256 [32]` of all
//! before it. The first frame is the [`BackupHeader`] as JSON. The state follows in parts, then
//! each chunk in one frame, then an empty frame, which a truncated file lacks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use shardfeed_host::{Disk, Host, RealHost};
use shardfeed_plan::Digest;
use shardfeed_proto::CHUNK_BYTES_MAX;
use shardfeed_raft::{OpenError, Start};
use shardfeed_scheduler::State;

use crate::config::{CoordinatorOptions, InvalidOption};
use crate::error::{self, Result};
use crate::leader::core::{Core, referenced};
use crate::storage::chunks::{ChunkStore, ChunkStoreError};
use crate::storage::copies;
use crate::storage::folders::{CHUNK_FOLDER, LOG_FOLDER, node_options};

const MAGIC: [u8; 8] = *b"SFBACKUP";

const VERSION: u32 = 1;

const FRAME_BYTES_MAX: usize = CHUNK_BYTES_MAX;

/// Maximum bytes of a state; a larger one is rejected before memory is allocated for it.
const STATE_BYTES_MAX: u64 = 4 << 30;

const DIGEST_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackupFrame {
    Header = 1,
    State = 2,
    Chunk = 3,
    End = 4,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct BackupHeader {
    version: u32,
    cluster: String,
    /// Log index of the state.
    applied: u64,
    /// SHA-256 of the state, hexadecimal.
    hash: String,
    state_bytes: u64,
    chunks: u64,
}

/// A state and its chunks, to be sent.
#[derive(Debug)]
pub(crate) struct Archive {
    header: BackupHeader,
    state: Vec<u8>,
    chunks: Vec<Digest>,
}

impl Archive {
    /// - `state`: as exported by the node.
    pub(crate) fn new(cluster: &str, applied: u64, state: Vec<u8>) -> Result<Self> {
        let known = State::from_snapshot(&state).map_err(|_| error::lost("reading the state"))?;
        let chunks: BTreeSet<Digest> = referenced(&known).into_iter().collect();
        let header = BackupHeader {
            version: VERSION,
            cluster: cluster.to_owned(),
            applied,
            hash: Digest::of_parts([state.as_slice()]).to_string(),
            state_bytes: state.len() as u64,
            chunks: chunks.len() as u64,
        };
        Ok(Self { header, state, chunks: chunks.into_iter().collect() })
    }

    pub(crate) fn applied(&self) -> u64 {
        self.header.applied
    }

    pub(crate) fn chunks(&self) -> &[Digest] {
        &self.chunks
    }

    /// Returns the archive's bytes: the magic, and then frame by frame.
    pub(crate) fn parts(self, core: Arc<Core>) -> impl Stream<Item = Result<Vec<u8>>> + Send {
        let Self { header, state, chunks } = self;
        let header = serde_json::to_vec(&header).map_err(|_| error::lost("a header"));
        let header = header.map(|header| frame(BackupFrame::Header, &header));
        let state = (0..state.len()).step_by(FRAME_BYTES_MAX).map(move |at| {
            let end = state.len().min(at + FRAME_BYTES_MAX);
            Ok(frame(BackupFrame::State, &state[at..end]))
        });
        let chunks = stream::iter(chunks).then(move |chunk| {
            let core = Arc::clone(&core);
            async move { Ok(frame(BackupFrame::Chunk, &copies::get(&core, chunk).await?)) }
        });
        let end = Ok(frame(BackupFrame::End, &[]));
        let begin = [Ok(MAGIC.to_vec()), header].into_iter().chain(state);
        stream::iter(begin).chain(chunks).chain(stream::iter([end]))
    }
}

fn frame(kind: BackupFrame, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("a frame has at most 1 MiB");
    let (kind, length) = ([kind as u8], length.to_le_bytes());
    let digest = Digest::of_parts([kind.as_slice(), &length, content]);
    [kind.as_slice(), &length, content, digest.as_bytes()].concat()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub cluster: String,
    /// Id of the cluster that was backed up.
    pub from_cluster: String,
    pub applied: u64,
    pub chunks: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Option(#[from] InvalidOption),
    #[error("{}: cannot read the backup: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{}: is not empty; a backup is restored into a new folder", .path.display())]
    NotEmpty { path: PathBuf },
    /// The data folder cannot be written. Its content is now incomplete.
    #[error("{}: {reason}; name an empty folder for the next try", .path.display())]
    Folder { path: PathBuf, reason: String },
    #[error(transparent)]
    Log(#[from] OpenError),
}

/// Restores a backup into a data folder: a new cluster of one node with its state and chunks.
///
/// Blocks; no process may use the folder. The file is read twice, and checked before any write.
/// - `options`: name, number and address of the new cluster's node.
///
/// # Errors  [`RestoreError`]; a folder that is not empty is rejected.
pub fn restore_snapshot(
    file: &Path,
    data_dir: &Path,
    options: &CoordinatorOptions,
) -> Result<Restored, RestoreError> {
    let options = CoordinatorOptions { data_dir: data_dir.to_owned(), ..options.clone() };
    options.validate()?;
    refuse_unless_empty(data_dir)?;
    let mut state = Vec::new();
    let header = read(file, |kind, content| {
        if kind == BackupFrame::State {
            state.extend_from_slice(&content);
        }
        Ok(())
    })?;
    if let Err(error) = State::from_snapshot(&state) {
        let reason = format!(
            "this release cannot read its state: {error}; use the release that saved it, or a newer one"
        );
        return Err(RestoreError::Damaged { path: file.to_owned(), reason });
    }
    let host = RealHost;
    let store = open_store(&host, data_dir, &options)?;
    read(file, |kind, content| match kind {
        BackupFrame::Chunk => {
            store.fill(&content).map(|_| ()).map_err(|error| folder(data_dir, &error))
        }
        _ => Ok(()),
    })?;
    let disk = open_disk(&host, &data_dir.join(LOG_FOLDER))?;
    let founders = options.founders()?;
    let address = options.advertise.clone().or_else(|| founders.get(&options.node_id).cloned());
    let address = address.unwrap_or_else(|| options.listen.to_string());
    let node = node_options(&options, &address, Start::Alone);
    let cluster = shardfeed_raft::restore(&host, &disk, &node, header.applied, &state)?;
    let BackupHeader { cluster: from_cluster, applied, chunks, .. } = header;
    Ok(Restored { cluster: cluster.to_string(), from_cluster, applied, chunks })
}

fn refuse_unless_empty(path: &Path) -> Result<(), RestoreError> {
    let path = path.to_owned();
    match std::fs::read_dir(&path) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(RestoreError::NotEmpty { path }),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(RestoreError::Folder { path, reason: source.to_string() }),
    }
}

fn open_disk(host: &dyn Host, path: &Path) -> Result<Arc<dyn Disk>, RestoreError> {
    let failed = |reason| RestoreError::Folder { path: path.to_owned(), reason };
    host.disk(path).map_err(|error| failed(error.to_string()))
}

fn open_store(
    host: &dyn Host,
    data_dir: &Path,
    options: &CoordinatorOptions,
) -> Result<ChunkStore, RestoreError> {
    let disk = open_disk(host, &data_dir.join(CHUNK_FOLDER))?;
    let most = options.unreferenced_bytes_max;
    let store = ChunkStore::open(disk, most, &BTreeSet::new(), host.now());
    store.map_err(|error| folder(data_dir, &error))
}

fn folder(path: &Path, error: &ChunkStoreError) -> RestoreError {
    RestoreError::Folder { path: path.to_owned(), reason: error.to_string() }
}

/// Reads and checks a whole file; passes each frame of the state and each chunk to `take`.
fn read(
    path: &Path,
    mut take: impl FnMut(BackupFrame, Vec<u8>) -> Result<(), RestoreError>,
) -> Result<BackupHeader, RestoreError> {
    let failed = |source| RestoreError::File { path: path.to_owned(), source };
    let mut file = Frames { path, file: BufReader::new(File::open(path).map_err(failed)?), at: 0 };
    let header = file.header()?;
    let (mut hash, mut state_bytes, mut chunks) = (Vec::new(), 0_u64, 0_u64);
    loop {
        let (kind, content) = file.next()?;
        match kind {
            BackupFrame::State if chunks == 0 => {
                state_bytes += content.len() as u64;
                hash.push(content.clone());
                take(kind, content)?;
            }
            BackupFrame::Chunk => {
                chunks += 1;
                take(kind, content)?;
            }
            BackupFrame::End => break,
            _ => return Err(file.damaged("its frames are not in order")),
        }
        if state_bytes > header.state_bytes || chunks > header.chunks {
            return Err(file.damaged("it holds more than its header says"));
        }
    }
    let found = Digest::of_parts(hash.iter().map(Vec::as_slice)).to_string();
    if (state_bytes, chunks, &found) != (header.state_bytes, header.chunks, &header.hash) {
        return Err(file.damaged("it does not hold what its header says"));
    }
    file.end()?;
    Ok(header)
}

struct Frames<'a> {
    path: &'a Path,
    file: BufReader<File>,
    at: u64,
}

impl Frames<'_> {
    fn header(&mut self) -> Result<BackupHeader, RestoreError> {
        let mut magic = [0; MAGIC.len()];
        self.fill(&mut magic)?;
        if magic != MAGIC {
            return Err(self.damaged("it is no backup of a coordinator"));
        }
        let (kind, content) = self.next()?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let version = serde_json::from_slice::<Version>(&content).map(|known| known.version);
        if let Ok(version) = version
            && version > VERSION
        {
            let reason = format!(
                "it has format version {version}, this release knows up to {VERSION}; use the release \
                 that saved it, or a newer one"
            );
            return Err(RestoreError::Damaged { path: self.path.to_owned(), reason });
        }
        let header = serde_json::from_slice::<BackupHeader>(&content).ok();
        let header = header.filter(|known| kind == BackupFrame::Header && known.version == VERSION);
        let header = header.filter(|known| known.state_bytes <= STATE_BYTES_MAX);
        header.ok_or_else(|| self.damaged("its header makes no sense"))
    }

    fn next(&mut self) -> Result<(BackupFrame, Vec<u8>), RestoreError> {
        let mut head = [0; 5];
        self.fill(&mut head)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let kinds = [BackupFrame::Header, BackupFrame::State, BackupFrame::Chunk, BackupFrame::End];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == head[0]);
        let Some(kind) = kind.filter(|_| length <= FRAME_BYTES_MAX) else {
            return Err(self.damaged("these bytes are not a frame"));
        };
        let mut content = vec![0; length];
        self.fill(&mut content)?;
        let mut digest = [0; DIGEST_BYTES];
        self.fill(&mut digest)?;
        match Digest::of_parts([head.as_slice(), &content]) == Digest::from_bytes(digest) {
            true => Ok((kind, content)),
            false => Err(self.damaged("the bytes are not those that were saved")),
        }
    }

    fn end(&mut self) -> Result<(), RestoreError> {
        let mut byte = [0];
        match self.file.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("something follows its end")),
            Err(source) => Err(RestoreError::File { path: self.path.to_owned(), source }),
        }
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), RestoreError> {
        match self.file.read_exact(out) {
            Ok(()) => {
                self.at += out.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("it ends too early"))
            }
            Err(source) => Err(RestoreError::File { path: self.path.to_owned(), source }),
        }
    }

    fn damaged(&self, what: &str) -> RestoreError {
        let reason =
            format!("{what}, at offset {}; save the backup again, or use another", self.at);
        RestoreError::Damaged { path: self.path.to_owned(), reason }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn backup(chunks: &[&[u8]]) -> Vec<u8> {
        let state = State::new().snapshot();
        let header = BackupHeader {
            version: VERSION,
            cluster: "c".into(),
            applied: 7,
            hash: Digest::of_parts([state.as_slice()]).to_string(),
            state_bytes: state.len() as u64,
            chunks: chunks.len() as u64,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(frame(BackupFrame::Header, &serde_json::to_vec(&header).unwrap()));
        bytes.extend(frame(BackupFrame::State, &state));
        bytes.extend(chunks.iter().flat_map(|chunk| frame(BackupFrame::Chunk, chunk)));
        bytes.extend(frame(BackupFrame::End, &[]));
        bytes
    }

    fn restore(bytes: &[u8]) -> Result<Restored, String> {
        let folder = tempfile::tempdir().unwrap();
        let (file, data) = (folder.path().join("backup"), folder.path().join("data"));
        std::fs::write(&file, bytes).unwrap();
        let options = CoordinatorOptions::new(&data);
        let restored = restore_snapshot(&file, &data, &options);
        assert_eq!(restored.is_ok(), data.exists(), "{restored:?}");
        if restored.is_ok() {
            let again = restore_snapshot(&file, &data, &options).unwrap_err();
            assert!(matches!(again, RestoreError::NotEmpty { .. }), "{again}");
        }
        restored.map_err(|error| error.to_string())
    }

    #[test]
    fn a_backup_becomes_a_folder() {
        let restored = restore(&backup(&[b"a", b"b"])).unwrap();
        assert_eq!((restored.applied, restored.chunks), (7, 2));
        assert_ne!(restored.cluster, restored.from_cluster);
    }

    #[test]
    fn no_damage_goes_unseen_and_nothing_is_written_then() {
        let whole = backup(&[b"chunk"]);
        for cut in 0..whole.len() {
            let error = restore(&whole[..cut]).unwrap_err();
            assert!(error.contains("ends too early"), "{cut}: {error}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            restore(&bytes).unwrap_err();
        }
        let more = [whole.as_slice(), b"x"].concat();
        assert!(restore(&more).unwrap_err().contains("follows its end"));
        assert!(restore(b"not a backup").unwrap_err().contains("no backup"));
    }

    #[test]
    fn every_refusal_of_a_backup_says_what_is_wrong_with_it_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let (file, data) = (folder.path().join("backup"), folder.path().join("data"));
        let options = CoordinatorOptions::new(&data);
        let mut said = String::new();
        let mut refused = |what: &str, bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            let error = restore_snapshot(&file, &data, &options).expect_err(what).to_string();
            let error = error.replace(folder.path().to_str().unwrap(), "FOLDER");
            // The offset depends on the length of the state.
            let (begins, ends) = error.split_once("at offset ").unwrap_or((&error, ""));
            let at = if ends.is_empty() { "" } else { "at offset N" };
            let ends = ends.trim_start_matches(|digit: char| digit.is_ascii_digit());
            said.push_str(&format!("{what}\n    {begins}{at}{ends}\n"));
        };
        let state = State::new().snapshot();
        let header = |version: u32, state: &[u8], chunks: u64| {
            let known = BackupHeader {
                version,
                cluster: "c".into(),
                applied: 7,
                hash: Digest::of_parts([state]).to_string(),
                state_bytes: state.len() as u64,
                chunks,
            };
            serde_json::to_vec(&known).unwrap()
        };
        let framed = |frames: &[(BackupFrame, &[u8])]| {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(frames.iter().flat_map(|(kind, content)| frame(*kind, content)));
            bytes
        };
        let whole = backup(&[b"chunk"]);
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let mut odd = whole.clone();
        odd[MAGIC.len()] = 99;
        let (end, one) = ((BackupFrame::End, &b""[..]), header(VERSION, &state, 1));
        let late = [
            (BackupFrame::Header, &one[..]),
            (BackupFrame::Chunk, b"chunk"),
            (BackupFrame::State, &state),
            end,
        ];
        let more = [
            (BackupFrame::Header, &one[..]),
            (BackupFrame::State, &state),
            (BackupFrame::State, &state),
            end,
        ];
        let less = [(BackupFrame::Header, &one[..]), (BackupFrame::State, &state), end];
        let later = header(VERSION + 1, &state, 0);
        let nonsense = header(VERSION, b"{}", 0);
        refused("something else", b"not a backup, but long enough");
        refused("a half of it", &whole[..whole.len() / 2]);
        refused("more than it", &[whole.as_slice(), b"x"].concat());
        refused("one that a bit was flipped in", &flipped);
        refused("one that holds no frame", &odd);
        refused("one without a header", &framed(&[(BackupFrame::State, &state), end]));
        refused("one whose chunks come first", &framed(&late));
        refused("one that holds too much", &framed(&more));
        refused("one that holds too little", &framed(&less));
        refused("one of a later release", &framed(&[(BackupFrame::Header, &later), end]));
        let of_others = [(BackupFrame::Header, &nonsense[..]), (BackupFrame::State, b"{}"), end];
        refused("one of another state", &framed(&of_others));
        std::fs::write(&data, b"").unwrap();
        refused("one for a file", &whole);
        std::fs::remove_file(&data).unwrap();
        std::fs::create_dir_all(data.join("old")).unwrap();
        refused("one for a folder that is not empty", &whole);
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let error = restore_snapshot(&file, &data, &options).unwrap_err().to_string();
        let error = error.replace(folder.path().to_str().unwrap(), "FOLDER");
        said.push_str(&format!("a folder in its place\n    {error}\n"));
        expect![[r#"
            something else
                FOLDER/backup: it is no backup of a coordinator, at offset N; save the backup again, or use another
            a half of it
                FOLDER/backup: it ends too early, at offset N; save the backup again, or use another
            more than it
                FOLDER/backup: something follows its end, at offset N; save the backup again, or use another
            one that a bit was flipped in
                FOLDER/backup: the bytes are not those that were saved, at offset N; save the backup again, or use another
            one that holds no frame
                FOLDER/backup: these bytes are not a frame, at offset N; save the backup again, or use another
            one without a header
                FOLDER/backup: its header makes no sense, at offset N; save the backup again, or use another
            one whose chunks come first
                FOLDER/backup: its frames are not in order, at offset N; save the backup again, or use another
            one that holds too much
                FOLDER/backup: it holds more than its header says, at offset N; save the backup again, or use another
            one that holds too little
                FOLDER/backup: it does not hold what its header says, at offset N; save the backup again, or use another
            one of a later release
                FOLDER/backup: it has format version 2, this release knows up to 1; use the release that saved it, or a newer one
            one of another state
                FOLDER/backup: this release cannot read its state: this is not a whole snapshot: missing field `shardfeed_state` at line 1 column 2; use the release that saved it, or a newer one
            one for a file
                FOLDER/data: Not a directory (os error 20); name an empty folder for the next try
            one for a folder that is not empty
                FOLDER/data: is not empty; a backup is restored into a new folder
            a folder in its place
                FOLDER/backup: cannot read the backup: Is a directory (os error 21)
        "#]].assert_eq(&said);
    }
}
