//! The replicated state, and the function that changes it.

use serde::{Deserialize, Serialize};

use crate::access::Accesses;
use crate::dataset::{Dataset, Datasets, Phase};
use crate::invariant::breach::Breach;
use crate::job::generation::{Generation, Rank};
use crate::job::{Job, Jobs};
use crate::log::{Answer, Change, Command, Dedupe, Event, Events, Result, SessionId, check_label};
use crate::session::{EndedSession, Session, Sessions};

/// Version of the snapshot's JSON.
pub const SNAPSHOT_FORMAT: u32 = 1;

/// The replicated state that the coordinators agree on. [`State::from_snapshot`] computes the
/// derived fields, which are not written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    #[serde(rename = "shardfeed_state")]
    pub(crate) format: u32,
    pub(crate) applied: u64,
    pub(crate) clock_ms: u64,
    pub(crate) dedupe: Dedupe,
    pub(crate) sessions: Sessions,
    pub(crate) datasets: Datasets,
    pub(crate) jobs: Jobs,
    #[serde(default, skip_serializing_if = "Events::is_empty")]
    pub(crate) events: Events,
    #[serde(default, skip_serializing_if = "Accesses::is_empty")]
    pub(crate) access: Accesses,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Answer to the command; a refused command changed nothing.
    pub answer: Result<Answer>,
    /// True if its request had been answered before; then it changed nothing either.
    pub repeated: bool,
}

/// Log index and time at which a command is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) index: u64,
    pub(crate) now_ms: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "the snapshot has format {found}, this shardfeed knows up to {SNAPSHOT_FORMAT}; upgrade \
         shardfeed to the version that wrote it"
    )]
    Later { found: u64 },
    #[error("this is not a whole snapshot: {0}")]
    NotAState(#[from] serde_json::Error),
    #[error("the snapshot contradicts itself: {0}")]
    Broken(#[from] Breach),
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    pub fn new() -> Self {
        Self {
            format: SNAPSHOT_FORMAT,
            applied: 0,
            clock_ms: 0,
            dedupe: Dedupe::default(),
            sessions: Sessions::default(),
            datasets: Datasets::default(),
            jobs: Jobs::default(),
            events: Events::default(),
            access: Accesses::default(),
        }
    }

    /// Applies one command. A repeated request id returns the first answer and changes nothing.
    /// - `index`: log index of the command, higher than all previous ones; it becomes the fencing
    ///   token of the leases that the command grants.
    /// - A refused command changes nothing but the clock and the kept answers.
    ///
    /// Ensures [`State::check`]. Source: docs/ARCHITECTURE.md, Coordinator.
    pub fn apply(&mut self, index: u64, command: &Command) -> Applied {
        debug_assert!(index > self.applied, "log index {index} after {}", self.applied);
        self.applied = index;
        self.clock_ms = self.clock_ms.max(command.now_ms);
        self.dedupe.expire(self.clock_ms);
        let request_id = &command.request_id;
        if let Err(refusal) = check_label("the request id", request_id) {
            return Applied { answer: Err(refusal), repeated: false };
        }
        if let Some(answer) = self.dedupe.answer(request_id) {
            return Applied { answer: answer.clone(), repeated: true };
        }
        let moment = Moment { index, now_ms: self.clock_ms };
        let answer = self.change(moment, command);
        self.events.close(index, moment.now_ms, &command.principal, answer.is_ok());
        self.dedupe.remember(request_id, moment.now_ms, &answer);
        self.debug_check();
        Applied { answer, repeated: false }
    }

    /// True if a command answered this request; a repetition returns the same answer.
    pub fn has_answered(&self, request_id: &str) -> bool {
        self.dedupe.answer(request_id).is_some()
    }

    fn change(&mut self, moment: Moment, command: &Command) -> Result<Answer> {
        match &command.change {
            Change::JoinSession(join) => self.join_session(moment, command, join),
            Change::LeaveSession { session } => self.leave_session(moment, *session),
            Change::ExpireSessions { sessions } => Ok(self.expire_sessions(moment, sessions)),
            Change::AddDataset(add) => self.add_dataset(moment, command, add),
            Change::ClaimScans { session, most } => self.claim_scans(moment, *session, *most),
            Change::ReportListing(report) => self.report_listing(moment, report),
            Change::ReportScan(report) => self.report_scan(report),
            Change::FailScan(fail) => self.fail_scan(moment, fail),
            Change::ReleaseScans { scans } => Ok(self.release_scans(moment, scans)),
            Change::FinishDataset(finish) => self.finish_dataset(moment, finish),
            Change::FailDataset(fail) => self.fail_dataset(moment, fail),
            Change::RegisterJob(register)
            | Change::RegisterMixture(register)
            | Change::RegisterMixtureOfSpecs(register) => {
                self.register_job(moment, command, register)
            }
            Change::StartRank(start) => self.start_rank(moment, start),
            Change::EndRank { lease, is_told, failure, position } => {
                self.end_rank(moment, lease, failure.as_deref(), (*is_told, *position))
            }
            Change::Report { cursors } => Ok(self.report(moment, cursors)),
            Change::ReportSkipped(report) => self.report_skipped(report),
            Change::ClaimGroups { takes } => self.claim_groups(moment, takes),
            Change::Revoke(revoke) => self.revoke(revoke),
            Change::WaitForDoubt(wait) => self.wait_for_doubt(moment, wait),
            Change::DeclareGone { job, rank } => self.declare_gone(moment, job, *rank),
            Change::CordonWorker { worker, state } => self.cordon_worker(worker, *state),
            Change::HoldJob { name, hold, reason } => {
                self.hold_job(moment, name, *hold, (&command.principal, reason))
            }
            Change::RemoveDataset { name } => self.remove_dataset(name),
            Change::RemoveJob { name } => self.remove_job(name),
            Change::CreateAccess(create) => {
                self.create_access(command.now_ms, &command.principal, create)
            }
            Change::RevokeAccess { id } => self.revoke_access(command.now_ms, id),
            Change::ExchangeAccess(exchange) => self.exchange_access(command.now_ms, exchange),
        }
    }

    /// Log index of the last command.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Highest clock of all commands, Unix ms; it never goes back.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// Live sessions, oldest first.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.live.values()
    }

    pub fn session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.live.get(&session)
    }

    /// As [`State::session`], with an error for the session's caller.
    ///
    /// # Errors
    /// `Fenced`, with the reason for its end as far as it is kept.
    pub fn live_session(&self, session: SessionId) -> Result<&Session> {
        self.sessions.live(session)
    }

    /// The last sessions that ended, oldest first.
    pub fn ended_sessions(&self) -> impl Iterator<Item = &EndedSession> {
        self.sessions.ended.iter()
    }

    pub fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.datasets.by_name.values()
    }

    pub fn dataset(&self, name: &str) -> Option<&Dataset> {
        self.datasets.by_name.get(name)
    }

    /// Datasets whose parts are all scanned and that wait for [`Change::FinishDataset`].
    pub fn assembling(&self) -> impl Iterator<Item = &Dataset> {
        self.datasets().filter(|dataset| matches!(dataset.phase, Phase::Assembling(_)))
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.by_name.values()
    }

    pub fn job(&self, name: &str) -> Option<&Job> {
        self.jobs.by_name.get(name)
    }

    pub fn generation(&self, job: &str, number: u64) -> Option<&Generation> {
        self.job(job)?.generations.get(&number)
    }

    pub fn rank(&self, job: &str, generation: u64, rank: u64) -> Option<&Rank> {
        self.generation(job, generation)?.ranks.get(&rank)
    }

    /// Number of the last event, 0 if there is none.
    pub fn last_event(&self) -> u64 {
        self.events.last()
    }

    /// Events after a number, as far as kept: the last [`crate::EVENTS_KEPT`], oldest first.
    pub fn events_after(&self, number: u64) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.after(number)
    }

    pub fn snapshot(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a state is plain data with string and number keys")
    }

    /// Reads the output of [`State::snapshot`].
    ///
    /// # Errors
    /// `Later`, `NotAState`, `Broken`.
    pub fn from_snapshot(json: &[u8]) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Format {
            shardfeed_state: u64,
        }
        let Format { shardfeed_state: found } = serde_json::from_slice(json)?;
        if found > u64::from(SNAPSHOT_FORMAT) {
            return Err(SnapshotError::Later { found });
        }
        let mut state: Self = serde_json::from_slice(json)?;
        state.index();
        state.check()?;
        Ok(state)
    }

    pub(crate) fn index(&mut self) {
        self.dedupe.index();
        self.sessions.index();
        self.datasets.index(&mut self.sessions);
        self.jobs.index(&mut self.sessions);
    }

    /// Checks the invariants in debug builds, more rarely the larger the state is, to keep tests
    /// with thousands of ranks fast.
    fn debug_check(&self) {
        const CHECKED_ALWAYS: u64 = 256;
        if cfg!(debug_assertions) {
            let named = self.datasets.by_name.len() + self.jobs.by_name.len();
            let held = named + self.sessions.live.len() + self.dedupe.len() + self.events.len();
            let size = held as u64 + self.jobs.ranks + self.datasets.parts() + self.jobs.groups();
            if self.applied.is_multiple_of(1 + (size / CHECKED_ALWAYS).pow(2)) {
                let checked = self.check();
                assert!(checked.is_ok(), "after log index {}: {checked:?}", self.applied);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use shardfeed_plan::Tail;

    use super::*;
    use crate::fixture::{Fixture, first_of_two, wrapped};

    fn busy() -> Fixture {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.request("a", Change::StartRank(first_of_two(session)));
        fixture.report(0, 0, 7);
        fixture
    }

    #[test]
    fn the_clock_never_goes_back() {
        let mut fixture = Fixture { now_ms: 50, ..Fixture::default() };
        fixture.join("a");
        fixture.now_ms = 20;
        let session = fixture.join("b");
        assert_eq!(fixture.state.clock_ms(), 50);
        assert_eq!(fixture.state.session(session).unwrap().joined_ms, 50);
    }

    #[test]
    fn a_snapshot_is_the_whole_state() {
        let state = busy().state;
        let again = State::from_snapshot(&state.snapshot()).unwrap();
        assert_eq!(again, state);
        assert_eq!(again.snapshot(), state.snapshot());
    }

    #[test]
    fn a_snapshot_that_is_not_whole_is_refused() {
        let snapshot = String::from_utf8(busy().state.snapshot()).unwrap();
        let refused =
            |json: &str| wrapped(&State::from_snapshot(json.as_bytes()).unwrap_err().to_string());
        assert!(refused(&snapshot[..200]).starts_with("this is not a whole snapshot"));
        assert!(refused("{}").starts_with("this is not a whole snapshot"));
        let later = snapshot.replace("\"shardfeed_state\":1", "\"shardfeed_state\":2");
        expect![[r#"
            the snapshot has format 2, this shardfeed knows up to 1;
            upgrade shardfeed to the version that wrote it"#]]
        .assert_eq(&refused(&later));
        let broken = snapshot.replace("\"session\":1", "\"session\":3");
        expect![[r#"
            the snapshot contradicts itself: rank 0 of generation 0 of
            job train is held by session 3, which does not live"#]]
        .assert_eq(&refused(&broken));
    }
}
