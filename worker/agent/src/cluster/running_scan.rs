//! Progress of the listings and scans of a worker, for its heartbeats.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::scan_task::Work;

/// A listing or scan of this worker, as reported in heartbeats.
#[derive(Debug)]
pub(crate) struct RunningScan {
    task: wire::ScanProgress,
    files: AtomicU64,
    bytes: AtomicU64,
    beat: AtomicU64,
    /// The coordinator reassigned it to another worker, or the dataset was removed.
    ended: AtomicBool,
}

impl RunningScan {
    pub(crate) fn new(task: &wire::ScanTask) -> Self {
        let (part, is_listing) = match &task.work {
            Some(Work::Scan(scan)) => (scan.part, false),
            _ => (0, true),
        };
        let (dataset, fencing) = (task.dataset.clone(), task.fencing);
        let task = wire::ScanProgress { dataset, fencing, part, is_listing, ..Default::default() };
        let (files, bytes, beat) = Default::default();
        Self { task, files, bytes, beat, ended: AtomicBool::new(false) }
    }

    pub(crate) fn progress(&self) -> wire::ScanProgress {
        wire::ScanProgress {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            beat: self.beat.load(Ordering::Relaxed),
            ..self.task.clone()
        }
    }

    /// Stops it if it is the scan that ended.
    pub(crate) fn end(&self, ended: &wire::ScanProgress) {
        let wire::ScanProgress { dataset, fencing, part, is_listing, .. } = &self.task;
        if (dataset, fencing, part, is_listing)
            == (&ended.dataset, &ended.fencing, &ended.part, &ended.is_listing)
        {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the files and bytes scanned so far.
    pub(crate) fn reached(&self, files: u64, bytes: u64) {
        self.files.store(files, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Counts progress other than files and bytes.
    pub(crate) fn beat(&self) {
        self.beat.fetch_add(1, Ordering::Relaxed);
    }
}
