//! Jobs and their generations.

use shardfeed_proto::coordinator::v1::job::Failure;
use shardfeed_proto::coordinator::v1::{Generation, Held, Hold as WireHold, Job, JobPhase};
use shardfeed_proto::{identity_to, mixture_to};
use shardfeed_scheduler::{Generation as Known, Hold, Job as KnownJob, JobPhase as Phase};

/// Returns a job as shown to users.
/// - `whole`: also its history.
pub(crate) fn job(known: &KnownJob, whole: bool, now_ms: u64) -> Job {
    let generations = known.generations.values().filter(|_| whole);
    Job {
        name: known.name.clone(),
        dataset: known.dataset.clone(),
        identity: Some(identity_to(&known.identity)),
        digest: known.identity.digest().as_bytes().to_vec(),
        generation: known.current().map(|current| generation(current, now_ms)),
        generations: known.opened,
        age_ms: now_ms.saturating_sub(known.registered_ms),
        held: known.held.as_ref().map(|held| Held {
            hold: match held.hold {
                Hold::Paused => WireHold::Paused.into(),
                Hold::Cancelled => WireHold::Cancelled.into(),
            },
            principal: held.principal.clone(),
            reason: held.reason.clone(),
            age_ms: now_ms.saturating_sub(held.since_ms),
        }),
        phase: phase(known.phase()).into(),
        failure: known
            .failure()
            .map(|(rank, message)| Failure { rank, message: message.to_owned() }),
        mixture: known.mixture_shown().filter(|_| whole).map(mixture_to),
        history: generations.map(|known| generation(known, now_ms)).collect(),
    }
}

fn phase(known: Phase) -> JobPhase {
    match known {
        Phase::Waiting => JobPhase::Waiting,
        Phase::Running => JobPhase::Running,
        Phase::Paused => JobPhase::Paused,
        Phase::Cancelled => JobPhase::Cancelled,
        Phase::Finished => JobPhase::Finished,
        Phase::Failed => JobPhase::Failed,
    }
}

fn generation(known: &Known, now_ms: u64) -> Generation {
    let cursor = known.cursor();
    Generation {
        number: known.number,
        parent: known.parent,
        run: known.run.clone(),
        world_size: known.world_size,
        global_batch: known.origin.global_batch(),
        lanes: known.origin.lanes(),
        epoch: known.origin.epoch,
        step: known.origin.step(),
        ranks_started: known.ranks.len() as u64,
        ranks_served: known.ranks_served(),
        cursor_epoch: Some(cursor.epoch),
        cursor_step: Some(cursor.step),
        superseded_by: known.superseded_by.as_ref().map(|by| by.generation),
        age_ms: now_ms.saturating_sub(known.started_ms),
        limit: known.limit,
    }
}
