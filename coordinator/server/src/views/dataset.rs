//! Datasets.

use std::time::Duration;

use shardfeed_proto::coordinator::v1::{Dataset, DatasetState};
use shardfeed_scheduler::{Dataset as Known, LeasedScan, Phase, State};
use tokio::time::Instant;

use crate::error;
use crate::leader::core::Live;

/// A scan without progress for this time is reported as idle.
const IDLE_SHOWN: Duration = Duration::from_secs(2);

/// Returns a dataset as shown to users.
/// - `whole`: also its chunks. `now`: the monotonic clock, and Unix ms.
pub(crate) fn dataset(
    state_of_all: &State,
    live: &Live,
    known: &Known,
    whole: bool,
    (now, now_ms): (Instant, u64),
) -> Dataset {
    let scanning = live.progress.of_dataset(&known.name);
    let waiting = waiting(state_of_all, live, known, now).unwrap_or_default();
    let progress = known.progress();
    let state = match &known.phase {
        Phase::Listing { .. } => DatasetState::Listing,
        Phase::Scanning(_) | Phase::Assembling(_) => DatasetState::Scanning,
        Phase::Ready(_) => DatasetState::Ready,
        Phase::Failed { .. } => DatasetState::Failed,
    };
    let failed = match &known.phase {
        Phase::Failed { failure, .. } => Some(failure),
        _ => None,
    };
    let failure = failed.map(|failure| error::failure_to(failure).to_message());
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
        waiting,
        failure_from: failed.map(|failure| failure.reported_by.clone()).unwrap_or_default(),
        program: known.program.map(|program| program.as_bytes().to_vec()).unwrap_or_default(),
    }
}

/// Returns the reason why a dataset is not ready, if nothing progresses.
fn waiting(state: &State, live: &Live, known: &Known, now: Instant) -> Option<String> {
    let (doing, parts) = match &known.phase {
        Phase::Listing { .. } => ("lists", 0),
        Phase::Scanning(scan) => ("scans", scan.parts.len() as u64),
        _ => return None,
    };
    let place = match known.root() {
        Some(root) => root.to_owned(),
        None => known.patterns.iter().take(3).cloned().collect::<Vec<_>>().join(", "),
    };
    let parts = std::iter::once(None).chain((0..parts).map(Some));
    let held = parts.filter_map(|part| {
        let lease = known.lease_of(part)?;
        let scan = LeasedScan { dataset: known.name.clone(), part, fencing: lease.fencing };
        Some((live.progress.scan_idle(&scan, now), lease.session))
    });
    // If one of the scans makes progress, so does the dataset.
    if let Some((idle, session)) = held.min_by_key(|(idle, _)| *idle) {
        let worker = state.session(session).map_or("?", |session| &session.join.worker);
        let seconds = idle.as_secs();
        let note =
            format!("worker `{worker}` {doing} {place} and made no progress for {seconds} s");
        return (idle >= IDLE_SHOWN).then_some(note);
    }
    (!state.has_reader(known)).then(|| {
        format!(
            "no live worker may read {place}: start one that may, with --data-root for the files of limited \
             tokens and trainers"
        )
    })
}
