//! Samples that are counted while their files are indexed, so that each byte is read once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardfeed_pipeline::{MeasuredColumns, Row, RowFault, SampleProgram};
use shardfeed_plan::{Digest, Portion, Sample, Shard};
use shardfeed_tfrecord::{
    Chunk, FOOTER_BYTES, IndexOptions, ReadAt, RecordSpan, ShardIndex, index_chunks,
};

use super::map_names::{COLUMNS, MapNames, column_name, encode_column};
use super::samples::{self, SampleMap};
use crate::cache::CacheOptions;
use crate::cache::kept::KeptObjects;

/// Maximum number of rows that are parsed together.
const ROWS: usize = 512;

/// Maximum number of samples of a shard.
pub(super) const SAMPLES_MAX: u64 = 1 << 31;

/// A file that was indexed and counted in one pass.
pub(crate) enum ScanCounted {
    Indexed(ShardIndex),
    /// It is to be indexed alone.
    Alone,
    /// A checksum does not match: it is to be read again.
    Doubtful,
}

/// Counts the samples of intact files, and keeps their maps; the counting pass does the others.
pub(crate) struct ScanCounter {
    root: PathBuf,
    program: Arc<SampleProgram>,
    names: MapNames,
    kept: KeptObjects,
}

impl ScanCounter {
    /// Returns a program's counter; `None`: there is none, or nowhere to keep its maps.
    pub(super) fn of(
        root: &Path,
        program: Option<&Arc<SampleProgram>>,
        options: &CacheOptions,
    ) -> Option<Arc<Self>> {
        let program = program?;
        let is_added = options.index.as_ref().is_some_and(|index| !index.is_filling);
        let (kept, names) = (KeptObjects::new(options), MapNames::new(program));
        if is_added || !kept.is_on_host() {
            return None;
        }
        let (root, program) = (root.to_owned(), Arc::clone(program));
        Some(Arc::new(Self { root, program, names, kept }))
    }

    /// Indexes a file, and counts its samples.
    pub(crate) fn index(
        &self,
        source: &mut dyn ReadAt,
        file: &Path,
        options: &IndexOptions,
        stop: &AtomicBool,
        on_progress: &mut dyn FnMut(u64),
    ) -> ScanCounted {
        let Some(path) = file.strip_prefix(&self.root).ok().and_then(Path::to_str) else {
            return ScanCounted::Alone;
        };
        let (mut map, mut columns) = (SampleMap::new(&self.program), MeasuredColumns::default());
        let mut is_doubtful = false;
        let mut count = |rows: &[Row<'_>]| -> Option<()> {
            let counted = self.program.count(rows, path, Some(&mut columns));
            let counted = counted.inspect_err(|error| {
                is_doubtful = matches!(error.fault, RowFault::Data(_));
            });
            map.push(&counted.ok()?);
            (map.samples() <= SAMPLES_MAX).then_some(())
        };
        let index = index_chunks(source, path, options, on_progress, &mut |chunk| {
            let counted = row_groups(chunk, 0, usize::MAX).try_for_each(|rows| count(&rows));
            counted.is_some() && !stop.load(Ordering::Relaxed)
        });
        let Ok(Some(index)) = index else {
            return if is_doubtful { ScanCounted::Doubtful } else { ScanCounted::Alone };
        };
        let (path, digest) = (path.to_owned(), Digest::from_bytes(index.digest));
        let shard = Shard { path, records: index.records, digest };
        for (key, column) in columns.whole() {
            let name = column_name(&shard, key);
            self.kept.keep(COLUMNS, [(&name, encode_column(&name, column))]);
        }
        let name = self.names.map(&shard);
        self.kept.keep(samples::KIND, [(&name, map.encode(&name))]);
        ScanCounted::Indexed(index)
    }
}

/// Iterates over the first `most` records of a chunk, in groups that are parsed together.
pub(super) fn row_groups(
    chunk: &Chunk,
    shard: u32,
    most: usize,
) -> impl Iterator<Item = Vec<Row<'_>>> {
    let row = move |(span, ordinal): (&RecordSpan, u64)| Row {
        portion: Portion::default(),
        sample: Sample { shard, ordinal },
        offset: span.offset,
        stored: &chunk.bytes[span.start..span.start + span.len + FOOTER_BYTES],
        valid: true,
        part: 0,
        occurrence: 0,
    };
    let spans = &chunk.records[..chunk.records.len().min(most)];
    let groups = spans.chunks(ROWS).zip((chunk.first_ordinal..).step_by(ROWS));
    groups.map(move |(spans, first)| spans.iter().zip(first..).map(row).collect())
}
