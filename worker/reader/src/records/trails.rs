//! Marks from which the headers of a shard are walked.

use std::collections::BTreeMap;

use shardfeed_plan::Sample;
use shardfeed_source::{DatasetFile, Lock};
use shardfeed_tfrecord::Mark;

/// Returns the last mark at or before a record.
pub(crate) fn mark_before(file: &DatasetFile, ordinal: u64) -> Mark {
    let after = file.marks.partition_point(|mark| mark.ordinal <= ordinal);
    after.checked_sub(1).map_or(Mark { ordinal: 0, offset: 0 }, |index| file.marks[index])
}

/// For each shard, the mark of the record after the last one that a lane of the rank found. A lane
/// that starts there, as consecutive lanes do, walks no headers.
#[derive(Debug, Default)]
pub(crate) struct Trails(Lock<BTreeMap<u32, Mark>>);

impl Trails {
    /// Returns the mark where a walk to a sample begins.
    pub(crate) fn before(&self, file: &DatasetFile, sample: Sample) -> Mark {
        let mark = mark_before(file, sample.ordinal);
        let trails = self.0.lock();
        let trail = trails.get(&sample.shard).filter(|trail| trail.ordinal <= sample.ordinal);
        trail.filter(|trail| trail.ordinal > mark.ordinal).copied().unwrap_or(mark)
    }

    /// Records where a walk in a shard ended.
    pub(crate) fn leave(&self, shard: u32, mark: Mark) {
        self.0.lock().insert(shard, mark);
    }
}
