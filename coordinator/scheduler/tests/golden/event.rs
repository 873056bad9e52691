//! Events as one line each.

use shardfeed_scheduler::{EndReason, Event, EventKind};

pub(super) fn line(event: &Event) -> String {
    format!("  event: {}", sentence(&event.what))
}

fn sentence(what: &EventKind) -> String {
    worker(what).or_else(|| dataset(what)).or_else(|| rank(what)).unwrap_or_else(|| other(what))
}

fn reason_of(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Left => "it left",
        EndReason::Expired => "it expired",
        EndReason::Replaced => "another incarnation replaced it",
    }
}

fn worker(what: &EventKind) -> Option<String> {
    Some(match what {
        EventKind::WorkerJoined { worker, session, .. } => {
            format!("worker {worker} joined with session {session}")
        }
        EventKind::WorkerEnded { worker, session, reason } => {
            format!("session {session} of worker {worker} ended: {}", reason_of(*reason))
        }
        EventKind::RanksUnserved { job, generation, ranks, worker, .. } => {
            let ranks = ranks.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            format!("job {job} generation {generation}: ranks {ranks} lost worker {worker}")
        }
        EventKind::WorkerCordoned { worker, state } => format!("worker {worker} is {state}"),
        _ => return None,
    })
}

fn dataset(what: &EventKind) -> Option<String> {
    Some(match what {
        EventKind::DatasetAdded { dataset } => format!("dataset {dataset} was added"),
        EventKind::DatasetListed { dataset, files, bytes } => {
            format!("dataset {dataset} was listed: {files} files, {bytes} bytes")
        }
        EventKind::DatasetReady { dataset, shards, records } => {
            format!("dataset {dataset} is ready: {shards} shards, {records} records")
        }
        EventKind::DatasetFailed { dataset, message } => {
            format!("dataset {dataset} failed: {message}")
        }
        EventKind::DatasetRemoved { dataset } => format!("dataset {dataset} was removed"),
        _ => return None,
    })
}

fn rank(what: &EventKind) -> Option<String> {
    Some(match what {
        EventKind::GenerationOpened { job, generation, run, rank, epoch, step, .. } => {
            let at = format!("epoch {epoch} step {step}");
            format!("job {job}: rank {rank} opened generation {generation} (run {run}) at {at}")
        }
        EventKind::GenerationComplete { job, generation, world_size } => {
            format!("job {job} generation {generation}: all {world_size} ranks have joined")
        }
        EventKind::RankServed { job, generation, rank, worker, epoch, step } => {
            let at = format!("epoch {epoch} step {step}");
            format!("job {job} generation {generation}: rank {rank} is served by {worker} at {at}")
        }
        EventKind::RankEnded { job, generation, rank, epoch, step } => {
            format!(
                "job {job} generation {generation}: rank {rank} ended at epoch {epoch} step {step}"
            )
        }
        EventKind::DoubtDecided { job, rank, epoch, samples, is_dropped, .. } => {
            let way = if *is_dropped { "dropped" } else { "free for other ranks" };
            format!("job {job} epoch {epoch}: {samples} samples in doubt of rank {rank} are {way}")
        }
        EventKind::EpochSealed { job, generation, epoch } => {
            format!("job {job} generation {generation}: epoch {epoch} is sealed")
        }
        _ => return None,
    })
}

fn other(what: &EventKind) -> String {
    match what {
        EventKind::JobRegistered { job, .. } => format!("job {job} was registered"),
        EventKind::JobRemoved { job } => format!("job {job} was removed"),
        EventKind::JobHeld { job, hold } => match hold {
            Some(hold) => format!("job {job} was {hold}"),
            None => format!("job {job} was resumed"),
        },
        EventKind::AccessCreated { token, name, role } => {
            format!("access token {token} was created for {name}, role {role}")
        }
        EventKind::AccessRevoked { token, name } => {
            format!("access token {token} of {name} was revoked")
        }
        EventKind::RecordsSkipped { job, records } => {
            format!("job {job}: {records} corrupt records are new")
        }
        other => format!("{other:?}"),
    }
}
