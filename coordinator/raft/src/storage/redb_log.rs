//! The log in a redb database: one table of entries, one of votes and marks, one writer.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};
use uuid::Uuid;

use crate::storage::framing::{self, FrameError, FrameKind};
use crate::storage::log::{LogChange, LogError, LogState, LogStore, Result};
use crate::storage::record::{Position, Record, Vote};
use crate::storage::witness::Witness;
use shardfeed_host::{DiskFile, Host};

const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
const MARKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("marks");
const HEADER: &str = "header";
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const COMMITS: &str = "commits";

/// The log is read once at the start and then appended to: the cache only has to hold its tail.
const CACHE_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(crate) struct RedbLog {
    database: Database,
    cluster: Uuid,
    state: LogState,
    /// Number of successful calls of `write` since the log was created.
    commits: u64,
    witness: Witness,
    meter: Arc<LogMeter>,
}

/// Receiver of the times that the disk takes to make log entries durable.
pub trait SyncMeter: Debug + Send + Sync {
    fn synced(&self, took: Duration);
}

/// Measurements of the log's file.
#[derive(Debug, Default)]
pub(crate) struct LogMeter {
    bytes: AtomicU64,
    syncs: OnceLock<(Arc<dyn Host>, Arc<dyn SyncMeter>)>,
}

impl LogMeter {
    /// Returns the size of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Measures each sync from now on.
    pub(crate) fn measure(&self, host: Arc<dyn Host>, syncs: Arc<dyn SyncMeter>) {
        let _ = self.syncs.set((host, syncs));
    }
}

impl RedbLog {
    /// Creates a new log in an empty file. Its header is `header`, framed by the caller.
    pub(crate) fn create(file: Box<dyn DiskFile>, cluster: Uuid, header: &[u8]) -> Result<()> {
        guarded(|| {
            let database = open_database(file, Arc::default())?;
            let write = begin(&database)?;
            write.open_table(ENTRIES).map_err(log_error)?;
            let mut marks = write.open_table(MARKS).map_err(log_error)?;
            marks.insert(HEADER, header).map_err(log_error)?;
            drop(marks);
            write.commit().map_err(log_error)?;
            tracing::debug!(%cluster, "log made");
            Ok(())
        })
    }

    /// Opens a log that `create` made. Checks every page and entry: reads return what was written.
    /// - Returns the log, its cluster, and the body of its header.
    pub(crate) fn open(
        file: Box<dyn DiskFile>,
        witness: Box<dyn DiskFile>,
    ) -> Result<(Self, Uuid, Vec<u8>)> {
        let meter = Arc::<LogMeter>::default();
        let database = guarded(|| open_database(file, Arc::clone(&meter)))?;
        let foreign = |reason: String| LogError::Foreign { reason };
        let header = mark(&database, HEADER)?
            .ok_or_else(|| foreign("it is a redb database without our header".to_owned()))?;
        let opened = framing::open(FrameKind::Header, None, &header);
        let (cluster, body) = opened.map_err(|error| match error {
            FrameError::Foreign => foreign(error.to_string()),
            other => frame_error("its header", &other),
        })?;
        let state = guarded(|| read_state(&database, cluster))?;
        let commits = read_commits(&database)?;
        let witness = Witness::open(witness, cluster, commits)?;
        Ok((Self { database, cluster, state, commits, witness, meter }, cluster, body.to_vec()))
    }

    pub(crate) fn meter(&self) -> Arc<LogMeter> {
        Arc::clone(&self.meter)
    }
}

impl LogStore for RedbLog {
    fn state(&self) -> LogState {
        self.state
    }

    fn write(&mut self, changes: &[LogChange]) -> Result<()> {
        guarded(|| {
            let (mut state, commits) = (self.state, self.commits + 1);
            let write = begin(&self.database)?;
            for change in changes {
                apply(&write, self.cluster, &mut state, change)?;
            }
            put_mark(&write, COMMITS, &commits.to_le_bytes())?;
            write.commit().map_err(log_error)?;
            self.witness.note(commits)?;
            (self.state, self.commits) = (state, commits);
            Ok(())
        })
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<Record>> {
        guarded(|| {
            let read = self.database.begin_read().map_err(log_error)?;
            let entries = read.open_table(ENTRIES).map_err(log_error)?;
            let mut records = Vec::new();
            for entry in entries.range(range).map_err(log_error)? {
                let (index, bytes) = entry.map_err(log_error)?;
                records.push(decode(self.cluster, index.value(), bytes.value())?);
            }
            Ok(records)
        })
    }
}

/// Begins a transaction whose commit returns only after a sync.
fn begin(database: &Database) -> Result<WriteTransaction> {
    let mut write = database.begin_write().map_err(log_error)?;
    write.set_durability(Durability::Immediate).map_err(|e| LogError::Io(io::Error::other(e)))?;
    Ok(write)
}

fn open_database(file: Box<dyn DiskFile>, meter: Arc<LogMeter>) -> Result<Database> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder.create_with_backend(Backend { file, meter }).map_err(log_error)
}

fn apply(
    write: &WriteTransaction,
    cluster: Uuid,
    state: &mut LogState,
    change: &LogChange,
) -> Result<()> {
    match change {
        LogChange::Append(records) => append(write, cluster, state, records),
        LogChange::TruncateAfter(kept) => truncate(write, cluster, state, *kept),
        LogChange::Purge(position) => purge(write, cluster, state, *position),
        LogChange::Vote(vote) => {
            state.vote = Some(*vote);
            put_mark(write, VOTE, &vote.encode(cluster))
        }
        LogChange::Committed(position) => {
            state.committed = Some(*position);
            put_mark(write, COMMITTED, &position.encode(cluster))
        }
    }
}

fn append(
    write: &WriteTransaction,
    cluster: Uuid,
    state: &mut LogState,
    records: &[Record],
) -> Result<()> {
    let mut entries = write.open_table(ENTRIES).map_err(log_error)?;
    for record in records {
        let (expected, found) = (state.next_index(), record.position.index);
        if expected != found {
            return Err(LogError::Gap { expected, found });
        }
        entries.insert(found, record.encode(cluster).as_slice()).map_err(log_error)?;
        state.last = Some(record.position);
    }
    Ok(())
}

fn truncate(
    write: &WriteTransaction,
    cluster: Uuid,
    state: &mut LogState,
    kept: Option<u64>,
) -> Result<()> {
    let from = kept.map_or(0, |index| index + 1);
    if from >= state.next_index() {
        return Ok(());
    }
    let mut entries = write.open_table(ENTRIES).map_err(log_error)?;
    entries.retain_in(from.., |_, _| false).map_err(log_error)?;
    state.last = match entries.last().map_err(log_error)? {
        Some((index, bytes)) => Some(decode(cluster, index.value(), bytes.value())?.position),
        None => state.purged,
    };
    Ok(())
}

fn purge(
    write: &WriteTransaction,
    cluster: Uuid,
    state: &mut LogState,
    upto: Position,
) -> Result<()> {
    if state.purged.is_some_and(|purged| purged.index >= upto.index) {
        return Ok(());
    }
    let mut entries = write.open_table(ENTRIES).map_err(log_error)?;
    entries.retain_in(..=upto.index, |_, _| false).map_err(log_error)?;
    state.purged = Some(upto);
    if state.last.is_none_or(|last| last.index <= upto.index) {
        state.last = Some(upto);
    }
    put_mark(write, PURGED, &upto.encode(cluster))
}

fn put_mark(write: &WriteTransaction, name: &str, bytes: &[u8]) -> Result<()> {
    let mut marks = write.open_table(MARKS).map_err(log_error)?;
    marks.insert(name, bytes).map_err(log_error)?;
    Ok(())
}

fn mark(database: &Database, name: &str) -> Result<Option<Vec<u8>>> {
    guarded(|| {
        let read = database.begin_read().map_err(log_error)?;
        let marks = match read.open_table(MARKS) {
            Ok(marks) => marks,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(other) => return Err(log_error(other)),
        };
        let bytes = marks.get(name).map_err(log_error)?;
        Ok(bytes.map(|bytes| bytes.value().to_vec()))
    })
}

/// Reads the marks and every entry; a hole, a falling term or a wrong checksum is damage.
fn read_state(database: &Database, cluster: Uuid) -> Result<LogState> {
    let framed = |name: &'static str| move |e: FrameError| frame_error(&format!("`{name}`"), &e);
    let position = |name| match mark(database, name)? {
        Some(bytes) => Position::decode(cluster, &bytes).map(Some).map_err(framed(name)),
        None => Ok(None),
    };
    let vote = mark(database, VOTE)?;
    let vote = vote.map(|bytes| Vote::decode(cluster, &bytes)).transpose().map_err(framed(VOTE))?;
    let (purged, committed) = (position(PURGED)?, position(COMMITTED)?);
    let mut state = LogState { purged, last: purged, vote, committed };
    let read = database.begin_read().map_err(log_error)?;
    let entries = read.open_table(ENTRIES).map_err(log_error)?;
    for entry in entries.iter().map_err(log_error)? {
        let (index, bytes) = entry.map_err(log_error)?;
        let found = decode(cluster, index.value(), bytes.value())?.position;
        let expected = state.next_index();
        let falls = state.last.is_some_and(|last| last.term > found.term);
        if found.index != expected || falls {
            let reason = format!("{found:?} follows {:?}", state.last);
            return Err(LogError::Corrupt { place: format!("entry {expected}"), reason });
        }
        state.last = Some(found);
    }
    Ok(state)
}

fn read_commits(database: &Database) -> Result<u64> {
    let Some(bytes) = mark(database, COMMITS)? else { return Ok(0) };
    let bytes = bytes.try_into().map_err(|_| LogError::Corrupt {
        place: format!("`{COMMITS}`"),
        reason: "it is not a number".to_owned(),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

fn decode(cluster: Uuid, index: u64, bytes: &[u8]) -> Result<Record> {
    let place = format!("entry {index}");
    let record = Record::decode(cluster, bytes).map_err(|error| frame_error(&place, &error))?;
    if record.position.index != index {
        let reason = format!("it is entry {} by its own bytes", record.position.index);
        return Err(LogError::Corrupt { place, reason });
    }
    Ok(record)
}

fn frame_error(place: &str, error: &FrameError) -> LogError {
    match *error {
        FrameError::NewerVersion { found } => LogError::NewerFormat { found },
        _ => LogError::Corrupt { place: place.to_owned(), reason: error.to_string() },
    }
}

/// Returns redb's panics as damage: redb asserts its own structure, and panics on a damaged file.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
        Err(LogError::Corrupt { place: "its pages".to_owned(), reason: said.to_owned() })
    })
}

fn log_error(error: impl Into<redb::Error>) -> LogError {
    match error.into() {
        redb::Error::Io(source) => LogError::Io(source),
        redb::Error::Corrupted(reason) => {
            LogError::Corrupt { place: "its pages".to_owned(), reason }
        }
        other => LogError::Io(io::Error::other(other.to_string())),
    }
}

/// Our file as redb's storage. The node's own lock excludes other processes.
#[derive(Debug)]
struct Backend {
    file: Box<dyn DiskFile>,
    meter: Arc<LogMeter>,
}

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        let bytes = self.file.len()?;
        self.meter.bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read_at(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.file.set_len(len)?;
        self.meter.bytes.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let Some((host, syncs)) = self.meter.syncs.get() else { return self.file.sync() };
        let began = host.now();
        self.file.sync()?;
        syncs.synced(host.now().saturating_duration_since(began));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.file.write_at(offset, data)
    }
}
