//! Checks of the host: its disk, memory, limits and devices.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, statvfs};
use rustix::process::{Resource, getrlimit};
use shardfeed_device::{DeviceError, device_count};
use shardfeed_embedded::default_budget_bytes;

use super::{Check, Verdict};
use crate::output;

const SYNCS: usize = 40;

/// A log entry of typical size.
const ENTRY: [u8; 4096] = [7; 4096];

/// Limits for making an entry durable. A leader's heartbeats are 100 ms apart: a disk slower than a
/// fraction of that delays every command, and one as slow as an election timeout causes elections.
const SLOW: Duration = Duration::from_millis(25);
const TOO_SLOW: Duration = Duration::from_millis(300);

/// Minimum limit of open files: a worker with many files and trainers needs some thousand.
const DESCRIPTORS_MIN: u64 = 4_096;

/// Minimum free space for the index cache, bytes: less is soon full of indexes.
const CACHE_ROOM_MIN: u64 = 256 << 20;

/// Measures how long the disk takes to make a log entry durable.
pub(super) fn fsync(folder: &Path) -> Check {
    judged(folder, sync_times(folder))
}

fn judged(folder: &Path, times: io::Result<Vec<Duration>>) -> Check {
    const NAME: &str = "fsync";
    let path = folder.display();
    match times {
        Ok(mut times) => {
            times.sort_unstable();
            let at = |part: usize| times[(times.len() - 1) * part / 100];
            let (middle, slowest) = (at(50), at(100));
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let found = format!(
                "{path}: {:.1} ms for 4 KiB, {:.1} ms the slowest of {SYNCS}",
                ms(middle),
                ms(slowest)
            );
            match (middle, slowest) {
                (_, slowest) if slowest >= TOO_SLOW => Check::new(NAME, Verdict::Fail, found)
                    .hint("put a coordinator's data on another disk: this one costs elections"),
                (middle, _) if middle >= SLOW => Check::new(NAME, Verdict::Warn, found)
                    .hint("every command waits for it; a local SSD needs a millisecond"),
                _ => Check::new(NAME, Verdict::Ok, found),
            }
        }
        Err(error) => Check::new(NAME, Verdict::Fail, format!("{path}: {error}"))
            .hint("name a folder that this user may write to: --data DIR"),
    }
}

fn sync_times(folder: &Path) -> io::Result<Vec<Duration>> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let once = |_| {
        file.write_all(&ENTRY)?;
        let begun = Instant::now();
        file.as_file().sync_data()?;
        Ok(begun.elapsed())
    };
    (0..SYNCS).map(once).collect()
}

/// Checks whether batches can be handed over: through anonymous memory that can be sealed.
pub(super) fn memfd() -> Check {
    let sealed = || -> rustix::io::Result<()> {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let memory = memfd_create("shardfeed-doctor", flags)?;
        ftruncate(&memory, 1 << 20)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)
    };
    match sealed() {
        Ok(()) => {
            let found = "sealed memory can be made; nothing in /dev/shm is needed";
            Check::new("shared memory", Verdict::Ok, found)
        }
        Err(error) => Check::new("shared memory", Verdict::Fail, format!("memfd_create: {error}"))
            .hint("a seccomp profile or `ulimit -f` forbids it; workers cannot hand batches over without"),
    }
}

pub(super) fn descriptors() -> Check {
    let limit = getrlimit(Resource::Nofile).current;
    let found = match limit {
        Some(limit) => format!("{} files may be open", output::count(limit)),
        None => "any number of files may be open".to_owned(),
    };
    match limit.is_none_or(|limit| limit >= DESCRIPTORS_MIN) {
        true => Check::new("descriptors", Verdict::Ok, found),
        false => Check::new("descriptors", Verdict::Warn, found).hint("raise `ulimit -n`"),
    }
}

/// Reports the default memory budget of a worker.
pub(super) fn memory() -> Check {
    budgeted(default_budget_bytes())
}

fn budgeted(budget: u64) -> Check {
    let found = format!("a worker takes {} by default", output::size(budget));
    match budget >= 64 << 20 {
        true => Check::new("memory", Verdict::Ok, found),
        false => Check::new("memory", Verdict::Warn, found)
            .hint("give --memory-budget, or the container more memory"),
    }
}

/// Checks whether indexes can be kept.
pub(super) fn cache() -> Check {
    const NAME: &str = "index cache";
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = match set("SHARDFEED_CACHE_DIR") {
        Some(folder) if folder.as_os_str() == "off" => {
            let found = "off: every start scans all files again";
            return Check::new(NAME, Verdict::Note, found);
        }
        Some(folder) => Some(folder),
        None => set("XDG_CACHE_HOME")
            .or_else(|| Some(set("HOME")?.join(".cache")))
            .map(|folder| folder.join("shardfeed")),
    };
    let Some(folder) = folder else {
        return Check::new(NAME, Verdict::Warn, "neither HOME nor SHARDFEED_CACHE_DIR is set")
            .hint("without a cache every start scans all files again");
    };
    let path = folder.display();
    // A missing folder will be created in its first existing ancestor.
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let usable =
        tempfile::NamedTempFile::new_in(there).map(drop).and_then(|()| Ok(statvfs(there)?));
    match usable {
        Ok(found) => {
            let room = found.f_bavail.saturating_mul(found.f_frsize);
            let told = format!("{path}: room for {}", output::size(room));
            match room >= CACHE_ROOM_MIN {
                true => Check::new(NAME, Verdict::Ok, told),
                false => Check::new(NAME, Verdict::Warn, told).hint("free some space"),
            }
        }
        Err(error) => Check::new(NAME, Verdict::Warn, format!("{path}: {error}"))
            .hint("set SHARDFEED_CACHE_DIR to a folder that this user may write to"),
    }
}

/// Checks whether `device="cuda:0"` is possible.
pub(super) fn gpu() -> Check {
    driven(device_count())
}

fn driven(devices: Result<usize, DeviceError>) -> Check {
    match devices {
        Ok(0) => Check::new("GPU", Verdict::Note, "the driver has no device"),
        Ok(count) => Check::new("GPU", Verdict::Ok, output::counted(count as u64, "CUDA device")),
        Err(error) => Check::new("GPU", Verdict::Note, error.to_string())
            .hint("only device=\"cuda:N\" needs one"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use expect_test::expect;

    use super::*;

    #[test]
    fn what_is_not_fit_comes_with_what_to_do() {
        let disk = |ms: u64| judged(Path::new("/d"), Ok(vec![Duration::from_millis(ms); SYNCS]));
        let checks =
            [disk(1), disk(30), disk(400), budgeted(1 << 20), driven(Ok(0)), driven(Ok(2))];
        let said = checks.map(|Check { check, verdict, found, hint }| {
            let hint = hint.map(|hint| format!(": {hint}")).unwrap_or_default();
            format!("{check}: {verdict:?}: {found}{hint}\n")
        });
        expect![[r#"
            fsync: Ok: /d: 1.0 ms for 4 KiB, 1.0 ms the slowest of 40
            fsync: Warn: /d: 30.0 ms for 4 KiB, 30.0 ms the slowest of 40: every command waits for it; a local SSD needs a millisecond
            fsync: Fail: /d: 400.0 ms for 4 KiB, 400.0 ms the slowest of 40: put a coordinator's data on another disk: this one costs elections
            memory: Warn: a worker takes 1.05 MB by default: give --memory-budget, or the container more memory
            GPU: Note: the driver has no device
            GPU: Ok: 2 CUDA devices
        "#]].assert_eq(&said.concat());
        let none = driven(Err(DeviceError::NoLibrary { library_path: "/x".into() }));
        assert_eq!(none.hint.as_deref(), Some("only device=\"cuda:N\" needs one"));
    }

    #[test]
    fn a_folder_that_is_not_there_fails_with_its_name() {
        let check = fsync(Path::new("/nowhere/at/all"));
        assert_eq!(check.verdict, Verdict::Fail);
        assert!(check.found.starts_with("/nowhere/at/all: "), "{}", check.found);
        let folder = tempfile::tempdir().unwrap();
        let found = fsync(folder.path()).found;
        assert!(found.ends_with("the slowest of 40"), "{found}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
