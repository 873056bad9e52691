//! Datasets.

use shardfeed_proto::coordinator::v1::{Dataset, DatasetState};
use shardfeed_scheduler::{Dataset as Known, Phase};

use crate::error;

/// A dataset as people see it.
/// - `scanning`: files and bytes of parts that are being scanned. `whole`: also its chunks.
pub(crate) fn dataset(known: &Known, scanning: (u64, u64), whole: bool, now_ms: u64) -> Dataset {
    let progress = known.progress();
    let state = match &known.phase {
        Phase::Listing { .. } => DatasetState::Listing,
        Phase::Scanning(_) | Phase::Assembling(_) => DatasetState::Scanning,
        Phase::Ready(_) => DatasetState::Ready,
        Phase::Failed { .. } => DatasetState::Failed,
    };
    let failure = match &known.phase {
        Phase::Failed { failure, .. } => Some(error::failure_to(failure).to_message()),
        _ => None,
    };
    let ready = known.ready();
    let chunks = ready.filter(|_| whole).map(|ready| ready.chunks().collect::<Vec<_>>());
    let chunks = chunks.unwrap_or_default().iter().map(|chunk| chunk.as_bytes().to_vec()).collect();
    Dataset {
        name: known.name.clone(),
        state: state.into(),
        patterns: known.patterns.clone(),
        compression: known.compression.clone(),
        corrupt: known.corrupt.to_string(),
        root: known.root().unwrap_or_default().to_owned(),
        content: ready.map(|ready| ready.content.as_bytes().to_vec()).unwrap_or_default(),
        files: progress.files,
        records: progress.records,
        bytes: progress.bytes,
        files_scanned: progress.files_done.saturating_add(scanning.0).min(progress.files),
        bytes_scanned: progress.bytes_done.saturating_add(scanning.1).min(progress.bytes),
        failure,
        chunks,
        age_ms: now_ms.saturating_sub(known.added_ms),
    }
}
