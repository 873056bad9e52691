//! A timeline of each thread's work, for Perfetto. When off, a span costs one atomic load.
//! Source: Trace Event Format, JSON object format, complete events.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use shardfeed_tfrecord::NewFile;

use crate::shared::Lock;

/// Maximum number of recorded spans; later ones are only counted. They use 11 MB, enough for some
/// hundreds of seconds of a busy loader.
const SPANS_MAX: usize = 1 << 17;

pub const NONE: (&str, u64) = ("", 0);

static IS_ON: AtomicBool = AtomicBool::new(false);
static RECORDING: Lock<Recording> =
    Lock::new(Recording { spans: Vec::new(), threads: BTreeMap::new(), lost: 0 });
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Start of the recording, in the time of [`now_ns`].
static STARTED_NS: AtomicU64 = AtomicU64::new(0);

type Numbers = [(&'static str, u64); 2];

#[derive(Debug)]
struct Recording {
    spans: Vec<Recorded>,
    threads: BTreeMap<i32, String>,
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Recorded {
    name: &'static str,
    numbers: Numbers,
    thread: i32,
    begun_ns: u64,
    took_ns: u64,
}

/// Starts recording; `false` if a recording is already in progress.
pub fn start() -> bool {
    let mut recording = RECORDING.lock();
    if IS_ON.load(Ordering::Relaxed) {
        return false;
    }
    recording.spans.clear();
    recording.threads.clear();
    recording.lost = 0;
    STARTED_NS.store(now_ns(), Ordering::Relaxed);
    IS_ON.store(true, Ordering::Relaxed);
    true
}

pub fn stop() {
    IS_ON.store(false, Ordering::Relaxed);
    let mut recording = RECORDING.lock();
    recording.spans = Vec::new();
    recording.threads.clear();
}

/// A period of work on this thread; recorded when dropped.
#[derive(Debug)]
pub struct Span {
    name: &'static str,
    numbers: Numbers,
    begun_ns: Option<u64>,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(begun_ns) = self.begun_ns {
            record(self.name, self.numbers, begun_ns);
        }
    }
}

/// Begins a span, which ends when it is dropped.
pub fn span(name: &'static str) -> Span {
    span_of(name, [NONE, NONE])
}

/// As [`span`], with numbers that describe the work.
pub fn span_of(name: &'static str, numbers: Numbers) -> Span {
    let begun_ns = IS_ON.load(Ordering::Relaxed).then(now_ns);
    Span { name, numbers, begun_ns }
}

/// Returns the time since the first call in this process, ns.
pub fn now_ns() -> u64 {
    u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of this thread, ns.
pub fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// Records a span that began at `begun_ns` and ends now, unless it began before the recording.
pub fn since(name: &'static str, begun_ns: u64) {
    record(name, [NONE, NONE], begun_ns);
}

fn record(name: &'static str, numbers: Numbers, begun_ns: u64) {
    if !IS_ON.load(Ordering::Relaxed) || begun_ns < STARTED_NS.load(Ordering::Relaxed) {
        return;
    }
    let now = now_ns();
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let mut recording = RECORDING.lock();
    if recording.spans.len() >= SPANS_MAX {
        recording.lost += 1;
        return;
    }
    recording.threads.entry(thread).or_insert_with(|| {
        std::thread::current().name().map_or_else(|| "trainer".into(), ToOwned::to_owned)
    });
    let took_ns = now.saturating_sub(begun_ns);
    recording.spans.push(Recorded { name, numbers, thread, begun_ns, took_ns });
}

/// Returns the spans recorded so far, in the format of Perfetto and chrome://tracing.
/// - `process`: process name in the timeline.
pub fn to_json(process: &str) -> String {
    let recording = RECORDING.lock();
    let mut spans = recording.spans.clone();
    let (threads, lost) = (recording.threads.clone(), recording.lost);
    drop(recording);
    spans.sort_by_key(|span| span.begun_ns);
    let pid = std::process::id();
    let text = |text: &str| serde_json::to_string(text).expect("a text is JSON");
    let named = |what: &str, thread: i64, name: &str| {
        let name = text(name);
        format!(
            r#"{{"name":"{what}","ph":"M","pid":{pid},"tid":{thread},"args":{{"name":{name}}}}}"#
        )
    };
    let mut json = String::from("{\"traceEvents\":[");
    json += &named("process_name", i64::from(pid), process);
    for (thread, name) in &threads {
        json += ",\n";
        json += &named("thread_name", i64::from(*thread), name);
    }
    for Recorded { name, numbers, thread, begun_ns, took_ns } in spans {
        let (ts, dur) = (begun_ns as f64 / 1e3, took_ns as f64 / 1e3);
        let numbers = numbers.iter().filter(|(name, _)| !name.is_empty());
        let args: Vec<_> = numbers.map(|(name, number)| format!("\"{name}\":{number}")).collect();
        let args = args.join(",");
        json += ",\n";
        json += &format!(
            r#"{{"name":"{name}","cat":"shardfeed","ph":"X","ts":{ts},"dur":{dur},"pid":{pid},"tid":{thread},"args":{{{args}}}}}"#
        );
    }
    let version = env!("CARGO_PKG_VERSION");
    json += &format!(
        r#"],"displayTimeUnit":"ms","otherData":{{"spans_lost":{lost},"version":"{version}"}}}}"#
    );
    json
}

/// Writes the spans recorded so far to a file, atomically.
///
/// # Errors  Those of the system.
pub fn write(path: &Path, process: &str) -> std::io::Result<()> {
    let mut file = NewFile::beside(path)?;
    file.file().write_all(to_json(process).as_bytes())?;
    file.finish()
}
