//! Runs a test in a separate process, with a fake CUDA driver (`libcuda.c`, the stand-in).
#![allow(missing_docs, unreachable_pub)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

const IN_CHILD: &str = "SHARDFEED_STANDIN_CHILD";

/// Result of the process.
pub struct End {
    /// Signal that ended it, if any.
    pub signal: Option<i32>,
    pub output: String,
    /// The fake driver's report.
    pub report: Value,
}

impl End {
    /// Checks that no violation occurred and nothing was leaked.
    pub fn is_clean(&self) {
        assert_eq!(self.report["violation"], "", "{}", self.output);
        for (what, count) in self.report["live"].as_object().expect("the report has it") {
            assert_eq!(count, 0, "{what} left behind: {}", self.report["live"]);
        }
    }

    pub fn number(&self, what: &str) -> u64 {
        self.report[what].as_u64().expect("the report has it")
    }

    /// Parts of the queued work: stream, kind, begin or end, address, bytes.
    pub fn trace(&self) -> Vec<(u64, String, String, u64, u64)> {
        let number = |value: &Value| value.as_u64().expect("a number");
        let text = |value: &Value| value.as_str().expect("a word").to_owned();
        let pieces = self.report["trace"].as_array().expect("the report has it").iter();
        let piece =
            |p: &Value| (number(&p[0]), text(&p[1]), text(&p[2]), number(&p[4]), number(&p[5]));
        pieces.map(piece).collect()
    }
}

/// Runs `body` in another process, with the fake driver.
/// - `test`: name of the calling test, which that process also runs.
/// - Returns `None` in that process, after `body`.
pub fn run(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Option<End> {
    run_with(&library(), test, environment, body)
}

/// As [`run`], with another folder of libraries.
pub fn run_with(
    libraries: &Path,
    test: &str,
    environment: &[(&str, &str)],
    body: impl FnOnce(),
) -> Option<End> {
    if std::env::var_os(IN_CHILD).is_some() {
        body();
        return None;
    }
    let report = scratch().join(format!("{test}-{}.json", std::process::id()));
    let mut command = Command::new(std::env::current_exe().expect("this test has a file"));
    command.args(["--exact", test, "--nocapture"]).env(IN_CHILD, "1");
    // The library exists also as libcuda.so, the name that is looked up first.
    command.env("LD_LIBRARY_PATH", libraries).env("STANDIN_REPORT", &report);
    command.envs(environment.iter().copied());
    let output = command.output().expect("the test runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert!(output.status.success() || signal.is_some(), "{text}");
    let told = std::fs::read_to_string(&report).unwrap_or_default();
    let _ = std::fs::remove_file(&report);
    let report = serde_json::from_str(&told).unwrap_or(Value::Null);
    Some(End { signal, output: text.into_owned(), report })
}

fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Folder of the fake driver, which is built if its source is newer.
pub fn library() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/libcuda.c");
    build("standin", &source)
}

/// Builds a `libcuda` from `source`, and from files beside it, in a separate folder; tests run
/// concurrently.
pub fn build(name: &str, source: &Path) -> PathBuf {
    let folder = scratch().join(name);
    std::fs::create_dir_all(&folder).expect("the folder is made");
    let library = folder.join("libcuda.so");
    let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let beside = source.parent().expect("a file is in a folder");
    let beside = std::fs::read_dir(beside).expect("the folder is read").flatten();
    if changed(&library) < beside.filter_map(|file| changed(&file.path())).max() {
        let new = format!("new-{}-{:?}", std::process::id(), std::thread::current().id());
        let new = folder.join(new);
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"])
            .args([&new, source])
            .status();
        assert!(built.expect("a C compiler is there").success(), "the stand-in does not compile");
        std::fs::rename(&new, &library).expect("the library is put there");
    }
    folder
}

/// Waits until the device's thread has ended, which happens when the device is no longer used.
pub fn wait_for_the_thread() {
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_there = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads are listed").flatten();
        let names = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
        names.into_iter().any(|name| name.trim() == "shardfeed-gpu")
    };
    while is_there() {
        assert!(Instant::now() < deadline, "the device's thread does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}
