//! The audit: calls that change something, and rejected calls, with their callers, as lines of JSON
//! in files of this node, apart from the log.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardfeed_host::{Disk, DiskFile, Host};
use shardfeed_proto::coordinator::v1::{AuditEntry, ListAuditRequest, ListAuditResponse};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub(crate) const AUDIT_FOLDER: &str = "audit";

/// Approximate bytes of one file; then the next one begins.
const FILE_BYTES: u64 = 16 << 20;

/// Maximum files of completed calls that are kept.
const FILES_KEPT: usize = 8;

/// Maximum files of denied calls that are kept.
const DENIED_FILES_KEPT: usize = 2;

/// Maximum entries that wait to be written.
const WAITING_MAX: usize = 4_096;

/// Maximum denied calls written in one second; of further ones only the number is written.
const REFUSED_PER_SECOND: u64 = 20;

pub(crate) const ENTRIES_MAX: u64 = 5_000;

/// One line of the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    pub(crate) at_ms: u64,
    pub(crate) principal: String,
    /// Principal that the caller claims to be, if it differs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) claimed: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) role: String,
    pub(crate) remote: String,
    pub(crate) method: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) object: String,
    pub(crate) outcome: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<u64>,
    /// The action's parameters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
}

pub(crate) const DONE: &str = "DONE";

#[derive(Debug)]
pub(crate) struct Audit {
    disk: Arc<dyn Disk>,
    done: mpsc::Sender<Entry>,
    denied: mpsc::Sender<Entry>,
    refused: Mutex<Refused>,
}

/// Denied calls of the current second.
#[derive(Debug)]
struct Refused {
    since: Instant,
    written: u64,
    /// Denied calls that were not written: only their number will be.
    passed_over: u64,
    /// Outcome of the last one of these.
    outcome: String,
}

/// Kind of a file. Denied calls must not displace completed ones.
#[derive(Clone, Copy, Debug)]
enum AuditFile {
    Done,
    Denied,
}

impl AuditFile {
    fn file(self, number: u64) -> String {
        format!("{}{number:06}.jsonl", self.begins())
    }

    fn begins(self) -> &'static str {
        match self {
            Self::Done => "audit-",
            Self::Denied => "denied-",
        }
    }

    fn files_kept(self) -> usize {
        match self {
            Self::Done => FILES_KEPT,
            Self::Denied => DENIED_FILES_KEPT,
        }
    }
}

/// Writer of the files of one kind.
#[derive(Debug)]
pub(crate) struct Scribe {
    kind: AuditFile,
    disk: Arc<dyn Disk>,
    receiver: mpsc::Receiver<Entry>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    file: Box<dyn DiskFile>,
    bytes: u64,
}

/// Creates the audit and its writers, for completed and for denied calls.
pub(crate) fn channel(disk: Arc<dyn Disk>, now: Instant) -> (Audit, [Scribe; 2]) {
    let scribe = |kind| {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (sender, Scribe { kind, disk: Arc::clone(&disk), receiver, open: None })
    };
    let ((done, of_done), (denied, of_denied)) =
        (scribe(AuditFile::Done), scribe(AuditFile::Denied));
    let refused =
        Mutex::new(Refused { since: now, written: 0, passed_over: 0, outcome: String::new() });
    (Audit { disk, done, denied, refused }, [of_done, of_denied])
}

impl Audit {
    /// Writes a completed call; waits while the disk is slow.
    pub(crate) async fn done(&self, entry: Entry) {
        // The writer ends only with the process.
        let _ = self.done.send(entry).await;
    }

    /// Writes a call that has begun and whose caller has gone.
    pub(crate) fn left(&self, entry: Entry) {
        if self.done.try_send(entry).is_err() {
            tracing::error!("the audit is behind; an entry is lost");
        }
    }

    /// Writes a denied call, unless there are too many.
    pub(crate) fn refused(&self, entry: Entry, now: Instant) {
        let mut refused = self.lock();
        self.end_second(&mut refused, now, entry.at_ms);
        let outcome = entry.outcome.clone();
        if refused.written < REFUSED_PER_SECOND && self.denied.try_send(entry).is_ok() {
            refused.written += 1;
        } else {
            refused.passed_over += 1;
            refused.outcome = outcome;
        }
    }

    /// Writes the number of denied calls that were not written, once their second is over: after a
    /// flood there may be no further denial for a long time. Call it periodically.
    pub(crate) fn tick(&self, now: Instant, at_ms: u64) {
        self.end_second(&mut self.lock(), now, at_ms);
    }

    fn lock(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_second(&self, refused: &mut Refused, now: Instant, at_ms: u64) {
        if now.saturating_duration_since(refused.since) < Duration::from_secs(1) {
            return;
        }
        (refused.since, refused.written) = (now, 0);
        if refused.passed_over > 0 {
            let message = format!("{} more calls were refused", refused.passed_over);
            let outcome = refused.outcome.clone();
            let entry = Entry { at_ms, outcome, message, ..Entry::default() };
            // If the queue is full, they are counted with the next ones.
            if self.denied.try_send(entry).is_ok() {
                refused.passed_over = 0;
            }
        }
    }

    /// Returns the last matching entries. Blocks.
    pub(crate) fn list(&self, ask: &ListAuditRequest, node: u64) -> io::Result<ListAuditResponse> {
        let most = ask.most.clamp(1, ENTRIES_MAX) as usize;
        let is_meant = |entry: &Entry| {
            entry.at_ms >= ask.since_ms
                && (ask.principal.is_empty()
                    || [&entry.principal, &entry.claimed].contains(&&ask.principal))
                && (!ask.refused || entry.outcome != DONE)
        };
        let (mut entries, mut more) = (Vec::new(), false);
        for kind in [AuditFile::Done, AuditFile::Denied] {
            let (found, earlier) = last(self.disk.as_ref(), kind, most, is_meant)?;
            entries.extend(found.into_iter().rev());
            more |= earlier;
        }
        // Stable: entries of one millisecond keep the order in which they were written.
        entries.sort_by_key(|entry: &Entry| entry.at_ms);
        let too_many = entries.len().saturating_sub(most);
        more |= too_many > 0;
        let entries = entries.drain(too_many..).map(|entry| told(entry, node)).collect();
        Ok(ListAuditResponse { node, entries, more })
    }
}

/// Returns the last matching entries of a kind, newest first, and whether there are earlier ones.
fn last(
    disk: &dyn Disk,
    kind: AuditFile,
    most: usize,
    is_meant: impl Fn(&Entry) -> bool,
) -> io::Result<(Vec<Entry>, bool)> {
    let mut found = Vec::new();
    for number in numbers(disk, kind)?.into_iter().rev() {
        let text = match disk.read(&kind.file(number)) {
            Ok(text) => text,
            // A newer file replaced it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        let lines = text.split(|byte| *byte == b'\n').rev();
        // A line that a crash truncated is ignored.
        let entries = lines.filter_map(|line| serde_json::from_slice(line).ok());
        for entry in entries.filter(&is_meant) {
            if found.len() == most {
                return Ok((found, true));
            }
            found.push(entry);
        }
    }
    Ok((found, false))
}

impl Scribe {
    /// Writes until `stop` is set, and then the entries that were sent before.
    pub(crate) async fn run(mut self, host: Arc<dyn Host>, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        loop {
            let goes_on = tokio::select! {
                count = self.receiver.recv_many(&mut batch, WAITING_MAX) => count > 0,
                () = async { drop(stop.wait_for(|stop| *stop).await) } => false,
            };
            if !goes_on {
                while let Ok(entry) = self.receiver.try_recv() {
                    batch.push(entry);
                }
            }
            if !batch.is_empty() {
                self.write(host.as_ref(), std::mem::take(&mut batch)).await;
            }
            if !goes_on {
                return;
            }
        }
    }

    async fn write(&mut self, host: &dyn Host, batch: Vec<Entry>) {
        let (kind, disk, open) = (self.kind, Arc::clone(&self.disk), self.open.take());
        let work = move || append((kind, disk.as_ref()), open, &batch);
        match shardfeed_host::blocking(host, work).await {
            Ok(Ok(open)) => self.open = Some(open),
            Ok(Err(error)) | Err(error) => {
                tracing::error!(%error, "cannot write the audit; entries are lost");
            }
        }
    }
}

fn append(
    (kind, disk): (AuditFile, &dyn Disk),
    open: Option<Open>,
    batch: &[Entry],
) -> io::Result<Open> {
    let mut open = match open {
        Some(open) => open,
        None => reopen(disk, kind, numbers(disk, kind)?.pop().unwrap_or(1))?,
    };
    if open.bytes >= FILE_BYTES {
        open = reopen(disk, kind, open.number + 1)?;
        let mut there = numbers(disk, kind)?;
        there.truncate(there.len().saturating_sub(kind.files_kept()));
        for number in there {
            disk.remove(&kind.file(number))?;
        }
    }
    let mut text = Vec::new();
    for entry in batch {
        serde_json::to_writer(&mut text, entry)?;
        text.push(b'\n');
    }
    open.file.write_at(open.bytes, &text)?;
    open.file.sync()?;
    open.bytes += text.len() as u64;
    Ok(open)
}

/// Opens a file to append after its last line.
fn reopen(disk: &dyn Disk, kind: AuditFile, number: u64) -> io::Result<Open> {
    let file = disk.open(&kind.file(number))?;
    let mut bytes = file.len()?;
    if bytes > 0 {
        let mut last = [0];
        file.read_at(bytes - 1, &mut last)?;
        if last != [b'\n'] {
            file.write_at(bytes, b"\n")?;
            bytes += 1;
        }
    }
    Ok(Open { number, file, bytes })
}

/// Returns the numbers of the files, ascending.
fn numbers(disk: &dyn Disk, kind: AuditFile) -> io::Result<Vec<u64>> {
    let begins = kind.begins();
    let number = |name: String| name.strip_prefix(begins)?.strip_suffix(".jsonl")?.parse().ok();
    let mut numbers: Vec<u64> = disk.list()?.into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn told(entry: Entry, node: u64) -> AuditEntry {
    AuditEntry {
        at_ms: entry.at_ms,
        principal: entry.principal,
        claimed: entry.claimed,
        role: entry.role,
        remote: entry.remote,
        method: entry.method,
        object: entry.object,
        outcome: entry.outcome,
        message: entry.message,
        request_id: entry.request_id,
        index: entry.index,
        node,
        detail: entry.detail,
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_host::RealDisk;

    use super::*;

    fn entry(at_ms: u64, outcome: &str) -> Entry {
        let (principal, outcome) = ("admin:ada".to_owned(), outcome.to_owned());
        Entry { at_ms, principal, outcome, method: "HoldJob".into(), ..Entry::default() }
    }

    fn disk() -> (tempfile::TempDir, Arc<dyn Disk>) {
        let home = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::new(home.path()).unwrap());
        (home, disk)
    }

    fn asked(since_ms: u64, most: u64) -> ListAuditRequest {
        ListAuditRequest { since_ms, most, ..ListAuditRequest::default() }
    }

    #[test]
    fn entries_are_found_again_also_behind_a_line_that_was_cut_short() {
        let (home, disk) = disk();
        let (audit, _) = channel(Arc::clone(&disk), Instant::now());
        append((AuditFile::Done, disk.as_ref()), None, &[entry(1, DONE)]).unwrap();
        append((AuditFile::Denied, disk.as_ref()), None, &[entry(2, "DENIED")]).unwrap();
        let path = home.path().join(AuditFile::Done.file(1));
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"at_ms\":3,\"princ");
        std::fs::write(&path, text).unwrap();
        append((AuditFile::Done, disk.as_ref()), None, &[entry(4, DONE)]).unwrap();
        let at = |asked: &ListAuditRequest| {
            let answer = audit.list(asked, 7).unwrap();
            (answer.entries.iter().map(|entry| entry.at_ms).collect::<Vec<_>>(), answer.more)
        };
        assert_eq!(at(&asked(0, 10)), (vec![1, 2, 4], false));
        assert_eq!(at(&asked(2, 10)), (vec![2, 4], false));
        assert_eq!(at(&asked(0, 2)), (vec![2, 4], true));
        assert_eq!(at(&ListAuditRequest { refused: true, ..asked(0, 9) }), (vec![2], false));
        let bob = ListAuditRequest { principal: "admin:bob".into(), ..asked(0, 9) };
        assert_eq!(at(&bob), (vec![], false));
    }

    #[test]
    fn entries_of_one_millisecond_are_listed_as_they_were_written() {
        let (_home, disk) = disk();
        let (audit, _) = channel(Arc::clone(&disk), Instant::now());
        let entries: Vec<Entry> = ["first", "second", "third"]
            .map(|object| Entry { object: object.to_owned(), ..entry(7, DONE) })
            .into();
        append((AuditFile::Done, disk.as_ref()), None, &entries).unwrap();
        let listed = |most| {
            let entries = audit.list(&asked(0, most), 7).unwrap().entries;
            entries.into_iter().map(|entry| entry.object).collect::<Vec<_>>()
        };
        assert_eq!(listed(9), ["first", "second", "third"]);
        assert_eq!(listed(2), ["second", "third"]);
    }

    #[test]
    fn old_files_make_room() {
        let (_home, disk) = disk();
        let mut open = None;
        for number in 1..=12 {
            let mut next =
                append((AuditFile::Done, disk.as_ref()), open.take(), &[entry(number, DONE)])
                    .unwrap();
            next.bytes = next.bytes.max(FILE_BYTES);
            open = Some(next);
        }
        assert_eq!(numbers(disk.as_ref(), AuditFile::Done).unwrap(), (5..=12).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_is_refused_does_not_drive_out_what_was_done() {
        let (_home, disk) = disk();
        let begun = Instant::now();
        let (audit, [mut done, mut denied]) = channel(disk, begun);
        for _ in 0..1_000 {
            audit.refused(entry(1, "DENIED"), begun);
        }
        audit.done(entry(2, DONE)).await;
        audit.refused(entry(3, "DENIED"), begun + Duration::from_secs(1));
        let mut sent = Vec::new();
        while let Ok(entry) = denied.receiver.try_recv() {
            sent.push(entry);
        }
        let refused = sent.iter().filter(|entry| entry.at_ms == 1).count() as u64;
        assert_eq!(refused, REFUSED_PER_SECOND);
        assert!(sent.iter().any(|entry| entry.message == "980 more calls were refused"));
        assert_eq!(sent.len(), 22);
        assert_eq!(done.receiver.try_recv().unwrap().at_ms, 2);
    }

    #[tokio::test]
    async fn after_a_flood_its_size_is_written_without_another_refusal() {
        let (_home, disk) = disk();
        let begun = Instant::now();
        let (audit, [_done, mut denied]) = channel(disk, begun);
        for _ in 0..1_000 {
            audit.refused(entry(1, "DENIED"), begun);
        }
        let at = |ms| begun + Duration::from_millis(ms);
        audit.tick(at(999), 999);
        for _ in 0..REFUSED_PER_SECOND {
            assert_eq!(denied.receiver.try_recv().unwrap().at_ms, 1);
        }
        assert!(denied.receiver.try_recv().is_err());
        audit.tick(at(1_000), 1_000);
        let told = denied.receiver.try_recv().unwrap();
        assert_eq!((told.at_ms, told.outcome.as_str()), (1_000, "DENIED"));
        assert_eq!(told.message, "980 more calls were refused");
        // The number is written once; the next one needs another denial.
        audit.tick(at(2_000), 2_000);
        assert!(denied.receiver.try_recv().is_err());
        audit.refused(entry(2_001, "DENIED"), at(2_001));
        audit.tick(at(3_000), 3_000);
        assert_eq!(denied.receiver.try_recv().unwrap().at_ms, 2_001);
        assert!(denied.receiver.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_flood_that_finds_no_room_is_counted_later() {
        let (_home, disk) = disk();
        let begun = Instant::now();
        let (audit, [_done, mut denied]) = channel(disk, begun);
        let at = |second| begun + Duration::from_secs(second);
        for second in 0..=WAITING_MAX as u64 / REFUSED_PER_SECOND {
            for _ in 0..REFUSED_PER_SECOND {
                audit.refused(entry(1, "DENIED"), at(second));
            }
        }
        let passed_over =
            (WAITING_MAX as u64 / REFUSED_PER_SECOND + 1) * REFUSED_PER_SECOND - WAITING_MAX as u64;
        audit.tick(at(1_000), 1);
        while denied.receiver.try_recv().is_ok() {}
        audit.tick(at(1_001), 7);
        let told = denied.receiver.try_recv().unwrap();
        assert_eq!(told.at_ms, 7);
        assert_eq!(told.message, format!("{passed_over} more calls were refused"));
    }
}
