//! Samples that are counted while their files are indexed, so that each byte is read once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardfeed_pipeline::{MeasuredColumns, Row, SampleProgram};
use shardfeed_plan::{Digest, Shard};
use shardfeed_tfrecord::{IndexOptions, ReadAt, ShardIndex, index_chunks};

use super::counting::{ROWS, SAMPLES_MAX, rows_of};
use super::kept_maps::{HostLogs, MapNames};
use super::samples::SampleMap;
use crate::cache::CacheOptions;
use crate::index::ScanCount;

/// Counts the samples of intact files, and keeps their maps on this host. Other files are left to
/// the counting pass.
pub(super) struct ScanCounter {
    root: PathBuf,
    program: Arc<SampleProgram>,
    names: MapNames,
    host: HostLogs,
}

impl ScanCounter {
    /// Returns the counter of a program; `None` without one, or if this host keeps no maps, or adds new
    /// ones to an index.
    pub(super) fn of(
        root: &Path,
        program: Option<&Arc<SampleProgram>>,
        options: &CacheOptions,
    ) -> Option<Arc<dyn ScanCount>> {
        let program = program?;
        let is_added = options.index.as_ref().is_some_and(|index| !index.is_filling());
        let folder = options.folder.folder().filter(|_| !is_added)?;
        let names = MapNames::new(program);
        let host = HostLogs::open(folder, program, &names);
        let (root, program) = (root.to_owned(), Arc::clone(program));
        Some(Arc::new(Self { root, program, names, host }))
    }
}

impl ScanCount for ScanCounter {
    fn index(
        &self,
        source: &mut dyn ReadAt,
        file: &Path,
        options: &IndexOptions,
        stop: &AtomicBool,
        on_progress: &mut dyn FnMut(u64),
    ) -> Option<ShardIndex> {
        let path = file.strip_prefix(&self.root).ok()?.to_str()?;
        let (mut map, mut columns) = (SampleMap::new(&self.program), MeasuredColumns::default());
        let mut count = |rows: &[Row<'_>]| -> Option<()> {
            let records = self.program.count(rows, path, Some(&mut columns)).ok()?;
            rows.iter().zip(&records).for_each(|(row, record)| map.push(record, row.len() as u64));
            (map.samples() <= SAMPLES_MAX).then_some(())
        };
        let index = index_chunks(source, path, options, on_progress, &mut |chunk| {
            let rows = rows_of(chunk, 0, usize::MAX);
            let counted = rows.chunks(ROWS).try_for_each(&mut count);
            counted.is_some() && !stop.load(Ordering::Relaxed)
        });
        let index = index.ok()??;
        let (path, digest) = (path.to_owned(), Digest::from_bytes(index.digest));
        let shard = Shard { path, records: index.records, digest };
        self.host.keep(&self.names, &shard, &map, &columns);
        Some(index)
    }
}
