//! The log's disk with metrics: the time to make bytes durable, and the sizes of files.

use std::io;
use std::sync::Arc;

use shardfeed_host::{Disk, DiskFile, DiskLock, Host};

use crate::metrics::Metrics;

/// File of the log: its final name, and its name until it is complete. Beside it are a commit mark,
/// which is synced with it, and snapshots.
const LOG: [&str; 2] = ["log.redb", "log.redb.new"];

/// Prefix and suffix of snapshots' names.
const SNAPSHOT: (&str, &str) = ("snapshot-", ".snap");

/// Name of a snapshot until it is complete.
const SNAPSHOT_UNFINISHED: &str = "snapshot.new";

#[derive(Debug)]
pub(crate) struct MeteredDisk {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct MeteredFile {
    file: Box<dyn DiskFile>,
    host: Arc<dyn Host>,
    metrics: Arc<Metrics>,
}

impl Disk for MeteredDisk {
    fn lock(&self) -> io::Result<DiskLock> {
        self.disk.lock()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(name)?;
        if !LOG.contains(&name) {
            return Ok(file);
        }
        self.metrics.log_bytes.set(file.len()? as i64);
        let (host, metrics) = (Arc::clone(&self.host), Arc::clone(&self.metrics));
        Ok(Box::new(MeteredFile { file, host, metrics }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let bytes = self.disk.read(name)?;
        if name.starts_with(SNAPSHOT.0) && name.ends_with(SNAPSHOT.1) {
            self.metrics.snapshot_bytes.set(bytes.len() as i64);
        }
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.disk.write(name, bytes)?;
        if name == SNAPSHOT_UNFINISHED {
            self.metrics.snapshot_bytes.set(bytes.len() as i64);
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn path_text(&self, name: &str) -> String {
        self.disk.path_text(name)
    }
}

impl DiskFile for MeteredFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    /// The log's database sets the length of its file before it writes there.
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.metrics.log_bytes.set(bytes as i64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let began = self.host.now();
        self.file.sync()?;
        let took = self.host.now().saturating_duration_since(began);
        self.metrics.log_fsync.observe(took.as_secs_f64());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_host::RealHost;

    use super::*;

    #[test]
    fn the_logs_syncs_are_timed_and_its_files_measured() {
        let home = tempfile::tempdir().unwrap();
        let (host, metrics) = (Arc::new(RealHost), Arc::new(Metrics::new()));
        let disk = host.disk(home.path()).unwrap();
        let disk = MeteredDisk { disk, host, metrics: Arc::clone(&metrics) };
        let log = disk.open(LOG[0]).unwrap();
        log.set_len(4096).unwrap();
        log.write_at(0, b"entry").unwrap();
        log.sync().unwrap();
        log.sync().unwrap();
        disk.open("log.witness").unwrap().sync().unwrap();
        disk.write(SNAPSHOT_UNFINISHED, &[0; 77]).unwrap();
        disk.rename(SNAPSHOT_UNFINISHED, "snapshot-5.snap").unwrap();
        let says = |line: &str| {
            let text = metrics.text();
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        };
        says("shardfeed_coordinator_log_fsync_seconds_count 2");
        says("shardfeed_coordinator_log_bytes 4096");
        says("shardfeed_coordinator_snapshot_bytes 77");
        // A restarted node gets the size from its read.
        metrics.snapshot_bytes.set(0);
        assert_eq!(disk.read("snapshot-5.snap").unwrap().len(), 77);
        says("shardfeed_coordinator_snapshot_bytes 77");
    }
}
