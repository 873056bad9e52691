//! The single owner of the log store: a thread that collects changes, writes them as one
//! transaction and answers when they are durable. While one is synced, the next is collected.
//!
//! On a host without threads each request is served by its caller: the same writes in the same
//! order, one transaction each.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::storage::log::{LogChange, LogError, LogState, LogStore};
use crate::storage::record::{Position, Record, Vote};
use shardfeed_host::DiskLock;

/// Maximum queued requests; each holds an openraft batch, and openraft bounds its own queues.
const QUEUE_REQUESTS_MAX: usize = 1024;
/// Maximum requests per transaction, so that no request waits for a sync of megabytes.
const BATCH_REQUESTS_MAX: usize = 256;
/// Maximum bytes of entries kept in memory: enough for those being applied or sent to peers.
const TAIL_BYTES_MAX: usize = 8 << 20;

/// Callback that runs once, when the change is durable or has failed for good.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

enum Request {
    Write { change: LogChange, done: Done },
    Read { range: Range<u64>, done: oneshot::Sender<io::Result<Vec<Record>>> },
    State { done: oneshot::Sender<LogState> },
    Stop { done: oneshot::Sender<()> },
}

/// Reason why the node stopped: the first failure, kept for every caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopReason(Arc<OnceLock<String>>);

impl StopReason {
    pub(crate) fn note(&self, message: String) {
        tracing::error!(reason = message, "the node stops");
        // Only the first failure is the cause; later ones are consequences.
        let _ = self.0.set(message);
    }

    /// Notes a failure, and returns it as an error.
    pub(crate) fn fail(&self, message: String) -> io::Error {
        self.note(message.clone());
        io::Error::other(message)
    }

    pub(crate) fn message(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Committer {
    link: OwnerLink,
    shared: Arc<SharedLog>,
}

#[derive(Clone)]
enum OwnerLink {
    Thread(mpsc::Sender<Request>),
    /// `None` after it has stopped.
    Inline(Arc<Mutex<Option<Owner>>>),
}

impl fmt::Debug for OwnerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread(_) => "Thread",
            Self::Inline(_) => "Inline",
        })
    }
}

#[derive(Debug)]
struct SharedLog {
    tail: Mutex<Tail>,
    /// Newest committed position; written to disk with the next change.
    committed: Mutex<Option<Position>>,
    vote: Mutex<Option<Vote>>,
}

impl Committer {
    /// Takes over the store, in a thread if the host has any; `lock` is released with the store.
    pub(crate) fn start(
        store: impl LogStore,
        lock: DiskLock,
        failure: StopReason,
        has_threads: bool,
    ) -> io::Result<Self> {
        let state = store.state();
        let shared = Arc::new(SharedLog {
            tail: Mutex::new(Tail::new(state.next_index())),
            committed: Mutex::new(state.committed),
            vote: Mutex::new(state.vote),
        });
        let store = Box::new(store);
        let owner = Owner { store, shared: shared.clone(), failure, _lock: lock };
        if !has_threads {
            return Ok(Self { link: OwnerLink::Inline(Arc::new(Mutex::new(Some(owner)))), shared });
        }
        let (requests, inbox) = mpsc::channel(QUEUE_REQUESTS_MAX);
        thread::Builder::new().name("raft-log".to_owned()).spawn(move || owner.run(inbox))?;
        Ok(Self { link: OwnerLink::Thread(requests), shared })
    }

    /// Appends entries: they are readable when this returns, and durable when `done` is called.
    pub(crate) async fn append(&self, records: Vec<Record>, done: Done) -> io::Result<()> {
        lock(&self.shared.tail).push(&records)?;
        self.send(Request::Write { change: LogChange::Append(records), done }).await
    }

    /// Makes a change that is not an append, and waits until it is durable.
    pub(crate) async fn write(&self, change: LogChange) -> io::Result<()> {
        if let LogChange::TruncateAfter(kept) = &change {
            lock(&self.shared.tail).truncate(kept.map_or(0, |index| index + 1));
        }
        let (done, answer) = oneshot::channel();
        let done: Done = Box::new(move |result| drop(done.send(result)));
        self.send(Request::Write { change: change.clone(), done }).await?;
        answer.await.map_err(|_| stopped())??;
        match change {
            LogChange::Purge(upto) => lock(&self.shared.tail).purge(upto.index + 1),
            LogChange::Vote(vote) => *lock(&self.shared.vote) = Some(vote),
            LogChange::Append(_) | LogChange::TruncateAfter(_) | LogChange::Committed(_) => {}
        }
        Ok(())
    }

    /// Records the committed position, without waiting.
    pub(crate) fn note_committed(&self, position: Position) {
        *lock(&self.shared.committed) = Some(position);
    }

    pub(crate) fn committed(&self) -> Option<Position> {
        *lock(&self.shared.committed)
    }

    pub(crate) fn vote(&self) -> Option<Vote> {
        *lock(&self.shared.vote)
    }

    /// Returns the log's state after all earlier requests are written.
    pub(crate) async fn state(&self) -> io::Result<LogState> {
        let (done, answer) = oneshot::channel();
        self.send(Request::State { done }).await?;
        answer.await.map_err(|_| stopped())
    }

    /// Reads entries, including those that are not yet durable.
    pub(crate) async fn read(&self, range: Range<u64>) -> io::Result<Vec<Record>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        // The tail is read first: entries missing from it are already on disk, and stay there.
        let (first, recent) = lock(&self.shared.tail).read(range.clone());
        if first <= range.start {
            return Ok(recent);
        }
        let (done, answer) = oneshot::channel();
        self.send(Request::Read { range: range.start..first.min(range.end), done }).await?;
        let mut records = answer.await.map_err(|_| stopped())??;
        records.extend(recent);
        Ok(records)
    }

    /// Writes the collected changes, closes the store and releases the directory.
    pub(crate) async fn stop(&self) {
        let (done, answer) = oneshot::channel();
        if self.send(Request::Stop { done }).await.is_ok() {
            // An error means that the thread has already ended, as requested.
            let _ = answer.await;
        }
    }

    async fn send(&self, request: Request) -> io::Result<()> {
        match &self.link {
            OwnerLink::Thread(requests) => requests.send(request).await.map_err(|_| stopped()),
            OwnerLink::Inline(owner) => {
                let mut place = lock(owner);
                let mut owner = place.take().ok_or_else(stopped)?;
                match owner.handle(vec![request]) {
                    Some(done) => owner.end(Some(done)),
                    None => *place = Some(owner),
                }
                Ok(())
            }
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the log was closed")
}

/// No code that can panic runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the owner, in its thread if there is one.
struct Owner {
    store: Box<dyn LogStore>,
    shared: Arc<SharedLog>,
    failure: StopReason,
    _lock: DiskLock,
}

impl Owner {
    fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        let mut stop = None;
        while stop.is_none() {
            let Some(first) = inbox.blocking_recv() else { break };
            let mut batch = vec![first];
            while batch.len() < BATCH_REQUESTS_MAX {
                let Ok(next) = inbox.try_recv() else { break };
                batch.push(next);
            }
            stop = self.handle(batch);
        }
        self.end(stop);
    }

    fn end(mut self, stop: Option<oneshot::Sender<()>>) {
        if self.failure.message().is_none() {
            self.write(Vec::new(), Vec::new());
        }
        // Both are released before the caller is notified: the directory can be reopened at once.
        drop(self);
        if let Some(done) = stop {
            let _ = done.send(());
        }
    }

    /// Writes the batch's changes as one, then serves its reads, even of entries just written.
    fn handle(&mut self, batch: Vec<Request>) -> Option<oneshot::Sender<()>> {
        let (mut changes, mut waiting, mut stop) = (Vec::new(), Vec::new(), None);
        let (mut reads, mut states) = (Vec::new(), Vec::new());
        for request in batch {
            match request {
                Request::Write { change, done } => {
                    changes.push(change);
                    waiting.push(done);
                }
                Request::Read { range, done } => reads.push((range, done)),
                Request::State { done } => states.push(done),
                Request::Stop { done } => stop = Some(done),
            }
        }
        if !changes.is_empty() {
            self.write(changes, waiting);
        }
        for (range, done) in reads {
            // A reader may have been dropped.
            let _ = done.send(self.store.read(range).map_err(io::Error::from));
        }
        for done in states {
            let _ = done.send(self.store.state());
        }
        stop
    }

    fn write(&mut self, mut changes: Vec<LogChange>, waiting: Vec<Done>) {
        if let Some(message) = self.failure.message() {
            let message = message.to_owned();
            waiting.into_iter().for_each(|done| done(Err(io::Error::other(message.clone()))));
            return;
        }
        let committed = *lock(&self.shared.committed);
        if committed != self.store.state().committed {
            changes.extend(committed.map(LogChange::Committed));
        }
        if changes.is_empty() {
            return;
        }
        match self.store.write(&changes) {
            Ok(()) => {
                lock(&self.shared.tail).flushed(self.store.state().next_index());
                waiting.into_iter().for_each(|done| done(Ok(())));
            }
            Err(error) => {
                // It is unknown which bytes reached the disk, and a repeated sync proves nothing
                // after one has failed: nothing is written before a restart has read the disk.
                let error = io::Error::from(error);
                self.failure.note(format!("the log could not be written: {error}"));
                let again = || io::Error::new(error.kind(), error.to_string());
                waiting.into_iter().for_each(|done| done(Err(again())));
            }
        }
    }
}

/// The newest entries in memory: all that are not yet durable, and some that are.
#[derive(Debug)]
struct Tail {
    records: VecDeque<Record>,
    /// Index of the first entry, or of the next entry if there is none.
    first: u64,
    /// First index that is not durable.
    unflushed: u64,
    bytes: usize,
}

impl Tail {
    fn new(next: u64) -> Self {
        Self { records: VecDeque::new(), first: next, unflushed: next, bytes: 0 }
    }

    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn push(&mut self, records: &[Record]) -> io::Result<()> {
        for record in records {
            if record.position.index != self.next() {
                let (expected, found) = (self.next(), record.position.index);
                return Err(LogError::Gap { expected, found }.into());
            }
            self.bytes += record.size_bytes();
            self.records.push_back(record.clone());
        }
        Ok(())
    }

    /// Removes the entries at `from` and above.
    fn truncate(&mut self, from: u64) {
        while self.next() > from
            && let Some(record) = self.records.pop_back()
        {
            self.bytes -= record.size_bytes();
        }
        self.first = self.first.min(from);
        self.unflushed = self.unflushed.min(from);
    }

    /// Removes the entries before `upto`; if it lies beyond the end, the log continues there.
    fn purge(&mut self, upto: u64) {
        while self.first < upto {
            match self.records.pop_front() {
                Some(record) => self.bytes -= record.size_bytes(),
                None => self.first = upto - 1,
            }
            self.first += 1;
        }
        self.unflushed = self.unflushed.max(self.first);
    }

    fn flushed(&mut self, next: u64) {
        self.unflushed = self.unflushed.max(next.min(self.next()));
        while self.bytes > TAIL_BYTES_MAX
            && self.first < self.unflushed
            && let Some(record) = self.records.pop_front()
        {
            self.bytes -= record.size_bytes();
            self.first += 1;
        }
    }

    /// Returns the first index in memory, and the entries of `range` from there on.
    fn read(&self, range: Range<u64>) -> (u64, Vec<Record>) {
        let from = range.start.max(self.first).min(self.next());
        let to = range.end.clamp(from, self.next());
        let (from, to) = ((from - self.first) as usize, (to - self.first) as usize);
        (self.first, self.records.range(from..to).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;

    use super::*;
    use crate::storage::log::memory::MemoryLog;
    use crate::storage::record::Payload;

    /// Store whose writes wait until its gate is opened.
    struct Gated(MemoryLog, Arc<(Mutex<bool>, Condvar)>);

    impl LogStore for Gated {
        fn state(&self) -> LogState {
            self.0.state()
        }

        fn write(&mut self, changes: &[LogChange]) -> Result<(), LogError> {
            let (open, opened) = &*self.1;
            drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            self.0.write(changes)
        }

        fn read(&self, range: Range<u64>) -> Result<Vec<Record>, LogError> {
            self.0.read(range)
        }
    }

    fn record(index: u64) -> Record {
        let position = Position { term: 1, node: 1, index };
        Record { position, payload: Payload::Command(vec![index as u8; 8].into()) }
    }

    fn start(store: impl LogStore, failure: &StopReason) -> Committer {
        Committer::start(store, DiskLock::new(()), failure.clone(), true).unwrap()
    }

    #[tokio::test]
    async fn without_threads_every_request_is_served_where_it_is_made() {
        let (store, failure) = (MemoryLog::default(), StopReason::default());
        let committer = Committer::start(store.clone(), DiskLock::new(()), failure, false).unwrap();
        for index in 0..3 {
            let mut answer = append(&committer, index).await;
            answer.try_recv().unwrap().unwrap();
        }
        committer.write(LogChange::TruncateAfter(Some(1))).await.unwrap();
        assert_eq!(committer.read(0..9).await.unwrap(), [record(0), record(1)]);
        committer.stop().await;
        committer.write(LogChange::TruncateAfter(None)).await.unwrap_err();
        assert_eq!(store.read(0..9).unwrap().len(), 2);
    }

    async fn append(committer: &Committer, index: u64) -> oneshot::Receiver<io::Result<()>> {
        let (done, answer) = oneshot::channel();
        let done: Done = Box::new(move |result| drop(done.send(result)));
        committer.append(vec![record(index)], done).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn what_gathers_during_a_write_is_written_as_one() {
        let (store, gate) = (MemoryLog::default(), Arc::new((Mutex::new(false), Condvar::new())));
        let committer = start(Gated(store.clone(), gate.clone()), &StopReason::default());
        let mut answers = Vec::new();
        for index in 0..100 {
            answers.push(append(&committer, index).await);
        }
        // Nothing is durable, and everything is readable.
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()));
        assert_eq!(committer.read(0..200).await.unwrap().len(), 100);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
        assert!(store.writes() <= 3, "{} transactions", store.writes());
        assert_eq!(store.read(0..200).unwrap().len(), 100);
    }

    #[tokio::test]
    async fn one_failure_is_the_last_write() {
        let (store, failure) = (MemoryLog::default(), StopReason::default());
        store.fail_after(1);
        let committer = start(store.clone(), &failure);
        append(&committer, 0).await.await.unwrap().unwrap();
        append(&committer, 1).await.await.unwrap().unwrap_err();
        assert!(failure.message().unwrap().contains("os error 28"));
        store.fail_after(100);
        append(&committer, 2).await.await.unwrap().unwrap_err();
        let vote = Vote { term: 5, node: 1, committed: true };
        committer.write(LogChange::Vote(vote)).await.unwrap_err();
        assert_eq!(committer.vote(), None);
        committer.stop().await;
        assert_eq!(store.read(0..9).unwrap(), [record(0)]);
    }

    #[tokio::test]
    async fn a_hole_is_refused_before_it_is_queued() {
        let store = MemoryLog::default();
        let committer = start(store.clone(), &StopReason::default());
        append(&committer, 0).await.await.unwrap().unwrap();
        let done: Done = Box::new(|_| panic!("it was refused"));
        committer.append(vec![record(2)], done).await.unwrap_err();
        append(&committer, 1).await.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_committed_mark_rides_along_and_is_flushed_at_the_end() {
        let store = MemoryLog::default();
        let committer = start(store.clone(), &StopReason::default());
        append(&committer, 0).await.await.unwrap().unwrap();
        committer.note_committed(record(0).position);
        assert_eq!(committer.committed(), Some(record(0).position));
        assert_eq!(store.state().committed, None);
        append(&committer, 1).await.await.unwrap().unwrap();
        assert_eq!(store.state().committed, Some(record(0).position));
        committer.note_committed(record(1).position);
        committer.stop().await;
        assert_eq!(store.state().committed, Some(record(1).position));
        assert_eq!(store.writes(), 3);
    }

    #[tokio::test]
    async fn reads_join_disk_and_memory() {
        let mut store = MemoryLog::default();
        store.write(&[LogChange::Append((0..10).map(record).collect())]).unwrap();
        let committer = start(store, &StopReason::default());
        for index in 10..20 {
            append(&committer, index).await.await.unwrap().unwrap();
        }
        for (from, to) in [(0, 20), (5, 15), (0, 5), (12, 14), (9, 11), (15, 99), (7, 7), (30, 40)]
        {
            let found = committer.read(from..to).await.unwrap();
            let indexes: Vec<_> = found.iter().map(|record| record.position.index).collect();
            assert_eq!(indexes, (from..to.min(20)).collect::<Vec<_>>(), "{from}..{to}");
        }
        committer.write(LogChange::TruncateAfter(Some(7))).await.unwrap();
        assert_eq!(committer.read(0..99).await.unwrap().len(), 8);
        append(&committer, 8).await.await.unwrap().unwrap();
        committer.write(LogChange::Purge(record(50).position)).await.unwrap();
        assert_eq!(committer.read(0..99).await.unwrap(), []);
        append(&committer, 51).await.await.unwrap().unwrap();
        assert_eq!(committer.read(0..99).await.unwrap(), [record(51)]);
    }

    #[test]
    fn the_tail_lets_go_of_durable_entries_only() {
        let mut tail = Tail::new(0);
        let big = |index| {
            let position = Position { term: 1, node: 1, index };
            Record { position, payload: Payload::Command(vec![0; TAIL_BYTES_MAX / 4].into()) }
        };
        tail.push(&(0..8).map(big).collect::<Vec<_>>()).unwrap();
        tail.flushed(2);
        assert_eq!((tail.first, tail.records.len()), (2, 6));
        tail.flushed(8);
        assert_eq!(tail.next(), 8);
        assert!(tail.bytes <= TAIL_BYTES_MAX && tail.first == 5, "{}", tail.first);
    }
}
