//! Events that commands produced; the last ones are kept, for people.

use std::collections::VecDeque;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::log::bound::EVENTS_KEPT;
use crate::log::id::SessionId;
use crate::log::value::{AccessRole, Cordon, EndReason, Hold};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event: counts up from 1, the same on every node.
    pub number: u64,
    /// Log index of the command that produced it.
    pub index: u64,
    /// Time by the state's clock, Unix ms.
    pub at_ms: u64,
    pub principal: String,
    pub what: EventKind,
}

/// Kinds of events, displayed as sentences. Grants to ranks of dynamic jobs are missing: there may
/// be thousands per second.
#[derive(Clone, Debug, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    #[display("worker {worker} on {host} joined as session {session}, version {version}")]
    WorkerJoined { worker: String, session: SessionId, host: String, version: String },
    #[display("session {session} of worker {worker} ended: {}", ended(*reason))]
    WorkerEnded { worker: String, session: SessionId, reason: EndReason },
    #[display("{} of job {job} lost worker {worker}: {}", listed(ranks, *count), ended(*reason))]
    RanksUnserved {
        job: String,
        generation: u64,
        /// The first of these ranks, ascending.
        ranks: Vec<u64>,
        /// Number of all these ranks.
        count: u64,
        worker: String,
        reason: EndReason,
    },
    #[display("worker {worker} is {state} now")]
    WorkerCordoned { worker: String, state: Cordon },
    #[display("dataset {dataset} was added; its files are looked for")]
    DatasetAdded { dataset: String },
    #[display("dataset {dataset} has {files} files of {bytes} bytes; they are scanned")]
    DatasetListed { dataset: String, files: u64, bytes: u64 },
    #[display("dataset {dataset} is ready: {shards} shards, {records} records")]
    DatasetReady { dataset: String, shards: u64, records: u64 },
    #[display("dataset {dataset} failed: {message}")]
    DatasetFailed { dataset: String, message: String },
    #[display("dataset {dataset} was removed")]
    DatasetRemoved { dataset: String },
    /// A job was registered for the first time. `dataset` is empty if it has no name.
    #[display("job {job} was registered{}", reading(dataset))]
    JobRegistered { job: String, dataset: String },
    #[display("job {job} was removed")]
    JobRemoved { job: String },
    #[display("job {job} was {}", hold.map_or("resumed".to_owned(), |hold| hold.to_string()))]
    JobHeld { job: String, hold: Option<Hold> },
    #[display("{}", match moved_from {
        Some(from) => format!(
            "rank {rank} of job {job} moved from generation {from} to epoch {epoch} step {step}: \
             generation {generation}"
        ),
        None => format!(
            "rank {rank} of {world_size} opened generation {generation} of job {job} at epoch \
             {epoch} step {step}, run {run}"
        ),
    })]
    GenerationOpened {
        job: String,
        generation: u64,
        run: String,
        world_size: u64,
        rank: u64,
        epoch: u64,
        step: u64,
        /// Generation that its ranks move from, which stays valid; `None`: earlier ones ended.
        moved_from: Option<u64>,
    },
    #[display("generation {generation} of job {job} has all its {world_size} ranks")]
    GenerationComplete { job: String, generation: u64, world_size: u64 },
    /// A rank is served again, or by another worker.
    #[display(
        "rank {rank} of job {job} is served by worker {worker} from epoch {epoch} step {step} on"
    )]
    RankServed { job: String, generation: u64, rank: u64, worker: String, epoch: u64, step: u64 },
    #[display("the trainer of rank {rank} of job {job} ended at epoch {epoch} step {step}")]
    RankEnded { job: String, generation: u64, rank: u64, epoch: u64, step: u64 },
    #[display(
        "{samples} samples of epoch {epoch} that rank {rank} of job {job} left in doubt {}",
        if *is_dropped { "were dropped" } else { "go to other ranks" }
    )]
    DoubtDecided {
        job: String,
        generation: u64,
        rank: u64,
        epoch: u64,
        samples: u64,
        is_dropped: bool,
    },
    /// Every rank has left an epoch, or nothing of it is left to deliver.
    #[display("epoch {epoch} of job {job} is over")]
    EpochSealed { job: String, generation: u64, epoch: u64 },
    /// An access token was created, also in exchange for a join token.
    #[display("access token {token} was made for {name}: {role}")]
    AccessCreated { token: String, name: String, role: AccessRole },
    #[display("access token {token} of {name} was revoked")]
    AccessRevoked { token: String, name: String },
    #[display("{records} more corrupt records of job {job} are skipped")]
    RecordsSkipped { job: String, records: u64 },
}

fn reading(dataset: &str) -> String {
    match dataset {
        "" => String::new(),
        dataset => format!(", reading dataset {dataset}"),
    }
}

fn ended(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Left => "it left",
        EndReason::Expired => "no heartbeat arrived in time",
        EndReason::Replaced => "it started again",
    }
}

/// Formats ranks: the first ones, and the number of the others.
fn listed(ranks: &[u64], count: u64) -> String {
    const NAMED_MAX: usize = 8;
    let named: Vec<String> = ranks.iter().take(NAMED_MAX).map(u64::to_string).collect();
    let (word, rest) = (if count == 1 { "rank" } else { "ranks" }, count - named.len() as u64);
    let named = named.join(", ");
    match rest {
        0 => format!("{word} {named}"),
        more => format!("{word} {named} and {more} more"),
    }
}

/// The last events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Events {
    #[serde(default)]
    last: u64,
    #[serde(default)]
    kept: VecDeque<Event>,
    /// Events of the current command so far.
    #[serde(skip)]
    told: Vec<EventKind>,
}

impl Events {
    pub(crate) fn is_empty(&self) -> bool {
        self.last == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn tell(&mut self, what: EventKind) {
        self.told.push(what);
    }

    /// Stores the events of the current command, or discards them if it was refused.
    pub(crate) fn close(&mut self, index: u64, at_ms: u64, principal: &str, is_done: bool) {
        let told = std::mem::take(&mut self.told);
        for what in told.into_iter().filter(|_| is_done) {
            self.last += 1;
            let (number, principal) = (self.last, principal.to_owned());
            self.kept.push_back(Event { number, index, at_ms, principal, what });
        }
        let too_many = self.kept.len().saturating_sub(EVENTS_KEPT);
        self.kept.drain(..too_many);
    }

    /// Number of the last event, 0 if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn after(&self, number: u64) -> impl DoubleEndedIterator<Item = &Event> {
        let first = self.kept.partition_point(|event| event.number <= number);
        self.kept.range(first..)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use shardfeed_plan::{Intent, Segment, Tail};

    use super::*;
    use crate::fixture::{DATASET, Fixture, first_of_two, identity, join};
    use crate::log::bound::EVENT_RANKS_MAX;
    use crate::{Change, RegisterJob, StartRank, State};

    fn kinds(state: &State) -> Vec<(u64, String)> {
        let kind = |event: &Event| {
            let what = serde_json::to_value(&event.what).unwrap();
            (event.index, what.as_object().unwrap().keys().next().unwrap().clone())
        };
        state.events_after(0).map(kind).collect()
    }

    #[test]
    fn what_commands_bring_is_told_in_their_order() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let start = first_of_two(session);
        fixture.start_all(&start);
        fixture.done(Change::ExpireSessions { sessions: vec![session] });
        let other = fixture.join("v");
        let intent = Intent::Reconnect { generation: 0, epoch: 0, step: 0 };
        let back = StartRank { session: other, trainer: "t-0".into(), intent, ..start };
        fixture.start(back.clone());
        // A return through the same worker produces no event.
        fixture.start(back);
        let lease = fixture.lease(0);
        fixture.done(Change::EndRank { lease, is_told: true, failure: None, position: None });
        expect![[r#"
            [
                (
                    1,
                    "worker_joined",
                ),
                (
                    2,
                    "dataset_added",
                ),
                (
                    4,
                    "dataset_listed",
                ),
                (
                    7,
                    "dataset_ready",
                ),
                (
                    8,
                    "job_registered",
                ),
                (
                    9,
                    "generation_opened",
                ),
                (
                    10,
                    "generation_complete",
                ),
                (
                    11,
                    "worker_ended",
                ),
                (
                    11,
                    "ranks_unserved",
                ),
                (
                    12,
                    "worker_joined",
                ),
                (
                    13,
                    "rank_served",
                ),
                (
                    15,
                    "rank_ended",
                ),
            ]
        "#]]
        .assert_debug_eq(&kinds(&fixture.state));
        let numbers: Vec<u64> = fixture.state.events_after(9).map(|event| event.number).collect();
        assert_eq!(numbers, [10, 11, 12]);
        let unserved = fixture.state.events_after(8).next().unwrap();
        let EventKind::RanksUnserved { ranks, worker, reason, .. } = &unserved.what else {
            panic!("{unserved:?}");
        };
        assert_eq!((ranks.as_slice(), worker.as_str()), (&[0, 1][..], "w"));
        assert_eq!((*reason, unserved.principal.as_str()), (EndReason::Expired, "test"));
    }

    #[test]
    fn a_refused_command_and_one_that_is_repeated_bring_nothing() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let before = fixture.state.last_event();
        let odd = StartRank { world_size: 0, ..first_of_two(session) };
        assert!(fixture.apply(Change::StartRank(odd)).is_err());
        fixture.join("w");
        assert_eq!(fixture.state.last_event(), before);
        fixture.request("once", Change::JoinSession(join("v", "i1")));
        fixture.request("once", Change::JoinSession(join("v", "i1")));
        assert_eq!(fixture.state.last_event(), before + 1);
    }

    #[test]
    fn a_worker_of_many_ranks_is_told_of_in_few() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let count = EVENT_RANKS_MAX as u64 * 2;
        let mut identity = identity(Tail::Drop);
        identity.lanes = count;
        let (name, dataset) = ("wide".to_owned(), DATASET.to_owned());
        fixture.done(Change::RegisterJob(RegisterJob {
            name,
            identity,
            dataset,
            record_spec_chunks: vec![],
            mixture: None,
        }));
        let segments = vec![Segment::start(count, 1, count).unwrap()];
        for rank in 0..count {
            let (job, trainer) = ("wide".to_owned(), rank.to_string());
            let segments = segments.clone();
            let intent =
                Intent::Start { state_generation: None, epoch: 0, segments, is_reshard: false };
            let world_size = count;
            let of = StartRank { job, trainer, rank, world_size, intent, ..first_of_two(session) };
            fixture.start(of);
        }
        fixture.done(Change::LeaveSession { session });
        let told = fixture.state.events_after(0).last().unwrap();
        let EventKind::RanksUnserved { ranks, count: of, .. } = &told.what else {
            panic!("{told:?}");
        };
        assert_eq!((ranks.len(), *of), (EVENT_RANKS_MAX, count));
    }

    #[test]
    fn the_last_ones_are_kept_and_go_with_the_snapshot() {
        let mut fixture = Fixture::default();
        for _ in 0..EVENTS_KEPT / 2 + 3 {
            let session = fixture.state.applied() + 1;
            let come = fixture.command(Change::JoinSession(join("a", "i")));
            let go = fixture.command(Change::LeaveSession { session });
            assert!(fixture.state.apply(session, &come).answer.is_ok());
            assert!(fixture.state.apply(session + 1, &go).answer.is_ok());
        }
        let state = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        assert_eq!(state, fixture.state);
        let kept: Vec<u64> = state.events_after(0).map(|event| event.number).collect();
        assert_eq!((kept.len(), kept[0]), (EVENTS_KEPT, 7));
        assert_eq!(state.last_event(), EVENTS_KEPT as u64 + 6);
    }

    #[test]
    fn many_ranks_are_some_and_how_many() {
        assert_eq!(listed(&[4], 1), "rank 4");
        assert_eq!(listed(&[1, 2], 2), "ranks 1, 2");
        let ranks: Vec<u64> = (0..64).collect();
        assert_eq!(listed(&ranks, 4096), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4088 more");
    }
}
