//! Events: what happened, in words.

use shardfeed_proto::coordinator::v1::{Event, ListEventsRequest, ListEventsResponse};
use shardfeed_scheduler::{EndReason, Event as Known, Happening, Hold, State};

/// Events in one answer at most: some hundred bytes each.
const EVENTS_PER_ANSWER_MAX: usize = 5_000;

/// The events that are asked for.
pub(crate) fn events(state: &State, request: &ListEventsRequest) -> ListEventsResponse {
    let ListEventsRequest { after, most, job, worker, dataset, .. } = request;
    let is_meant = |event: &Event| {
        let is = |asked: &str, of: &str| asked.is_empty() || asked == of;
        is(job, &event.job) && is(worker, &event.worker) && is(dataset, &event.dataset)
    };
    let most = usize::try_from(*most).unwrap_or(usize::MAX);
    let most = if most == 0 { EVENTS_PER_ANSWER_MAX } else { most.min(EVENTS_PER_ANSWER_MAX) };
    let mut events: Vec<Event> =
        state.events_after(*after).rev().map(event).filter(is_meant).take(most).collect();
    events.reverse();
    let oldest = state.events_after(0).next().map_or(0, |event| event.number);
    ListEventsResponse { events, last: state.last_event(), oldest }
}

fn event(known: &Known) -> Event {
    let Known { number, index, at_ms, principal, what } = known;
    let mut event = Event {
        number: *number,
        index: *index,
        at_ms: *at_ms,
        principal: principal.clone(),
        kind: known.kind().to_owned(),
        ..Event::default()
    };
    event.text = fill(&mut event, what);
    event
}

/// Fills the fields of an event that its kind has, and says it in a sentence.
fn fill(event: &mut Event, what: &Happening) -> String {
    let stands = |epoch: &u64, step: &u64| format!("epoch {epoch} step {step}");
    match what {
        Happening::WorkerJoined { worker, session, host, version } => {
            event.worker.clone_from(worker);
            format!("worker {worker} on {host} joined as session {session}, version {version}")
        }
        Happening::WorkerEnded { worker, session, reason } => {
            event.worker.clone_from(worker);
            format!("session {session} of worker {worker} ended: {}", ended(*reason))
        }
        Happening::RanksUnserved { job, generation, ranks, worker, reason } => {
            event.job.clone_from(job);
            event.worker.clone_from(worker);
            event.generation = Some(*generation);
            event.ranks.clone_from(ranks);
            let which = listed(ranks);
            format!("{which} of job {job} lost worker {worker}: {}", ended(*reason))
        }
        Happening::WorkerCordoned { worker, state } => {
            event.worker.clone_from(worker);
            format!("worker {worker} is {state} now")
        }
        Happening::DatasetAdded { dataset } => {
            event.dataset.clone_from(dataset);
            format!("dataset {dataset} was added; its files are looked for")
        }
        Happening::DatasetListed { dataset, files, bytes } => {
            event.dataset.clone_from(dataset);
            format!("dataset {dataset} has {files} files of {bytes} bytes; they are scanned")
        }
        Happening::DatasetReady { dataset, shards, records } => {
            event.dataset.clone_from(dataset);
            format!("dataset {dataset} is ready: {shards} shards, {records} records")
        }
        Happening::DatasetFailed { dataset, message } => {
            event.dataset.clone_from(dataset);
            format!("dataset {dataset} failed: {message}")
        }
        Happening::DatasetRemoved { dataset } => {
            event.dataset.clone_from(dataset);
            format!("dataset {dataset} was removed")
        }
        Happening::JobRegistered { job, dataset } => {
            event.job.clone_from(job);
            event.dataset.clone_from(dataset);
            match dataset.is_empty() {
                true => format!("job {job} was registered"),
                false => format!("job {job} was registered, reading dataset {dataset}"),
            }
        }
        Happening::JobRemoved { job } => {
            event.job.clone_from(job);
            format!("job {job} was removed")
        }
        Happening::JobHeld { job, hold } => {
            event.job.clone_from(job);
            match hold {
                Some(Hold::Paused) => format!("job {job} was paused"),
                Some(Hold::Cancelled) => format!("job {job} was cancelled"),
                None => format!("job {job} goes on"),
            }
        }
        Happening::GenerationOpened {
            job,
            generation,
            run,
            world_size,
            rank,
            epoch,
            step,
            moved_from,
        } => {
            event.job.clone_from(job);
            event.generation = Some(*generation);
            event.ranks = vec![*rank];
            (event.epoch, event.step) = (Some(*epoch), Some(*step));
            let at = stands(epoch, step);
            match moved_from {
                Some(from) => format!(
                    "rank {rank} of job {job} moved from generation {from} to {at}: generation {generation}"
                ),
                None => format!(
                    "rank {rank} of {world_size} opened generation {generation} of job {job} at {at}, run {run}"
                ),
            }
        }
        Happening::GenerationComplete { job, generation, world_size } => {
            event.job.clone_from(job);
            event.generation = Some(*generation);
            format!("generation {generation} of job {job} has all its {world_size} ranks")
        }
        Happening::RankServed { job, generation, rank, worker, epoch, step } => {
            event.job.clone_from(job);
            event.worker.clone_from(worker);
            event.generation = Some(*generation);
            event.ranks = vec![*rank];
            (event.epoch, event.step) = (Some(*epoch), Some(*step));
            let at = stands(epoch, step);
            format!("rank {rank} of job {job} is served by worker {worker} from {at} on")
        }
        Happening::RankEnded { job, generation, rank, epoch, step } => {
            event.job.clone_from(job);
            event.generation = Some(*generation);
            event.ranks = vec![*rank];
            (event.epoch, event.step) = (Some(*epoch), Some(*step));
            format!("the trainer of rank {rank} of job {job} ended at {}", stands(epoch, step))
        }
        Happening::EpochSealed { job, generation, epoch } => {
            event.job.clone_from(job);
            event.generation = Some(*generation);
            event.epoch = Some(*epoch);
            format!("every rank of job {job} has left epoch {epoch}")
        }
        Happening::RecordsSkipped { job, records } => {
            event.job.clone_from(job);
            format!("{records} more corrupt records of job {job} are skipped")
        }
    }
}

fn ended(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Left => "it left",
        EndReason::Expired => "nothing was heard of it in time",
        EndReason::Replaced => "it started again",
    }
}

/// Ranks in words: the first ones, and how many more there are.
fn listed(ranks: &[u64]) -> String {
    const NAMED_MAX: usize = 8;
    let named: Vec<String> = ranks.iter().take(NAMED_MAX).map(u64::to_string).collect();
    let (word, named) = (if ranks.len() == 1 { "rank" } else { "ranks" }, named.join(", "));
    match ranks.len().saturating_sub(NAMED_MAX) {
        0 => format!("{word} {named}"),
        more => format!("{word} {named} and {more} more"),
    }
}
