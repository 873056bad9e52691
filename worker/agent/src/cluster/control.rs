//! The `Control` port over gRPC.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shardfeed_pipeline::Account;
use shardfeed_plan::dynamic::GroupRange;
use shardfeed_plan::{Digest, Intent, LoaderState, Mode, Segment};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{
    ErrorKind, WireError, identity_to, mixture_to, record_spec_chunks, segments_from,
};
use shardfeed_reader::{
    Claim, Control, ControlError, Grant, JobSpec, Lease, LeaseRequest, LeaseUpdate, Notifier,
    Skipped, Waiting, traced,
};
use shardfeed_socket::Peer;
use shardfeed_source::Lock;
use tokio::task::JoinHandle;

use crate::cluster::coordinator::wait;
use crate::cluster::runtime::runtime;
use crate::cluster::served::{Moved, Moves, Served, ServedState};
use crate::cluster::session::{Session, SharedSession, is_definite, ms_of, start_message};

/// Maximum number of shards in a rank's report of shards being read.
const READING_MAX: usize = 1024;

/// Maximum time that a start waits for the final report of the previous loader.
const LAST_WORD_WAIT: Duration = Duration::from_secs(2);

/// Maximum time that leaving waits for the ranks' final reports to reach the coordinator.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(3);

/// Pause before the end of a rank is reported again.
const END_AGAIN: Duration = Duration::from_millis(500);

/// Maximum time that leaving waits for the coordinator's confirmation; else the session expires.
const LEAVE_WAIT: Duration = Duration::from_secs(2);

/// Maximum wait of a reconnect or a move before it is granted provisionally.
const RECONNECT_WAIT: Duration = Duration::from_millis(300);

/// Maximum unreported moves of one rank: one a minute for a month. Further ones wait.
const MOVES_MAX: usize = 43_200;

/// Maximum number of released ranks whose moves are kept; far more than a host has.
const LEFT_MAX: usize = 4096;

/// Maximum bytes of a record spec that is sent before the coordinator requests it.
const UNASKED_BYTES_MAX: usize = 4096;

/// Maximum number of calls to register one job: one for each chunk of its record spec, repeated for
/// a few changes of the leader.
const REGISTER_ROUNDS_MAX: usize = 16;

/// Control by a coordinator, within one session.
#[derive(Debug)]
pub struct GrpcControl {
    session: Arc<Session>,
    served: Lock<BTreeMap<(String, u64), Arc<Served>>>,
    leases: AtomicU64,
    /// Final reports being sent, by job and rank.
    ending: Lock<BTreeMap<(String, u64), JoinHandle<()>>>,
    /// Ranks that were released before their moves were reported to the coordinator.
    left: Lock<BTreeMap<(String, u64), Arc<Served>>>,
}

impl GrpcControl {
    pub fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            served: Lock::default(),
            leases: AtomicU64::new(0),
            ending: Lock::default(),
            left: Lock::default(),
        }
    }

    fn find(&self, lease: &Lease) -> Option<Arc<Served>> {
        let served = self.served.lock().get(&(lease.job.to_string(), lease.rank)).cloned();
        served.filter(|served| served.serial == lease.serial)
    }

    /// Returns the lease's rank as it is served, unless the lease is known to have ended.
    fn good(&self, lease: &Lease) -> Result<Arc<Served>, ControlError> {
        let Some(served) = self.find(lease) else {
            return Err(replaced(&lease.job, lease.rank));
        };
        let verdict = served.lock().verdict.clone();
        verdict.map_or(Ok(served), Err)
    }

    /// Serves a rank under a granted lease; fencing token 0: a provisional one.
    ///
    /// # Errors  `Replaced`: the rank is served under a lease that was granted later.
    fn serve(
        &self,
        request: &LeaseRequest,
        (generation, fencing): (u64, u64),
        moves: Moves,
    ) -> Result<Arc<Served>, ControlError> {
        let (epoch, step) = position(request);
        let state = ServedState { generation, fencing, epoch, step, ..ServedState::default() };
        let serial = 1 + self.leases.fetch_add(1, Ordering::Relaxed);
        let served = Served::new(request.clone(), serial, moves, state);
        let key = (request.job.clone(), request.rank);
        let shared = &self.session.shared;
        let mut all = self.served.lock();
        // Answers to starts on the same worker may be processed in another order.
        if fencing > 0 && all.get(&key).is_some_and(|other| other.lock().fencing > fencing) {
            return Err(replaced(&request.job, request.rank));
        }
        if let Some(before) = all.insert(key, Arc::clone(&served)) {
            shared.unserve(&before);
        }
        shared.serve(Arc::clone(&served));
        Ok(served)
    }

    /// Continues the same loader in `generation`: provisionally, if no coordinator answers at once.
    fn go_on(
        &self,
        request: &LeaseRequest,
        generation: u64,
        moves: Moves,
    ) -> Result<Lease, ControlError> {
        let (mut generation, mut fencing) = (generation, 0);
        let mut place = (request.at.epoch, request.at.segments.clone());
        if let Some(id) = self.session.shared.current_id() {
            let (shared, asked) = (Arc::clone(&self.session.shared), request.clone());
            let moves = Arc::clone(&moves);
            let call = async move {
                let mut moves = moves.lock().await;
                match moves.len() {
                    0 => shared.start_rank(id, &asked, &asked.at.intent).await,
                    // No move was granted provisionally yet: the coordinator chooses.
                    1 if matches!(asked.at.intent, Intent::Move { .. }) => {
                        let started = shared.start_rank(id, &asked, &asked.at.intent).await?;
                        moves.clear();
                        Ok(started)
                    }
                    _ => shared.catch_up(id, &asked, &mut moves).await,
                }
            };
            let answer =
                runtime().block_on(async { tokio::time::timeout(RECONNECT_WAIT, call).await.ok() });
            match answer {
                Some(Ok(started)) => {
                    (generation, fencing) = (started.generation, started.fencing);
                    if matches!(request.at.intent, Intent::Move { .. }) {
                        place = (started.epoch, segments_of(started.segments)?);
                    }
                }
                Some(Err(error)) if is_definite(&error) => return Err(error),
                // The session requests the lease again later; until then no coordinator is needed.
                Some(Err(_)) | None => {}
            }
        }
        let served = self.serve(request, (generation, fencing), moves)?;
        Ok(lease_of(&served, place))
    }

    /// Moves the same loader without the coordinator if it does not answer; the new generation is
    /// then the one after `from`. `None`: too many moves are unreported already.
    fn move_on(
        &self,
        request: &LeaseRequest,
        from: u64,
        (epoch, segments): (u64, &[Segment]),
        waiting: Waiting<'_>,
    ) -> Option<Result<Lease, ControlError>> {
        self.await_ending(request, RECONNECT_WAIT, waiting);
        let (before, moves) = self.untold(request, from);
        {
            let mut moves = moves.blocking_lock();
            if moves.len() >= MOVES_MAX {
                return None;
            }
            if let (Some(last), Some(before)) = (moves.last_mut(), before) {
                let state = before.lock();
                last.left = Some((state.epoch, state.step));
            }
            let segments = segments.to_vec();
            moves.push(Moved { from, epoch, segments, is_told: false, left: None });
        }
        Some(self.go_on(request, from.saturating_add(1), moves))
    }

    /// True if another loader serves this rank here, in `generation` or a later one: only the
    /// coordinator knows which of the two was started last.
    fn is_disputed(&self, request: &LeaseRequest, generation: u64) -> bool {
        let served = self.served.lock();
        let other = served.get(&(request.job.clone(), request.rank));
        other.filter(|other| other.request.trainer != request.trainer).is_some_and(|other| {
            let state = other.lock();
            state.generation >= generation && state.verdict.is_none()
        })
    }

    /// Returns the unreported moves of this loader up to `generation`.
    fn untold(&self, request: &LeaseRequest, generation: u64) -> (Option<Arc<Served>>, Moves) {
        let key = (request.job.clone(), request.rank);
        let before = self.left.lock().remove(&key).filter(|before| {
            before.request.trainer == request.trainer && before.lock().generation == generation
        });
        let moves = before.as_ref().map(|before| Arc::clone(&before.moves)).unwrap_or_default();
        (before, moves)
    }

    /// Waits until the final report of the loader that served this rank here before is sent, so that
    /// the coordinator compares with its actual position.
    fn await_ending(&self, request: &LeaseRequest, patience: Duration, waiting: Waiting<'_>) {
        let ending = self.ending.lock().remove(&(request.job.clone(), request.rank));
        if let Some(ending) = ending {
            // If the coordinator does not answer, the start itself waits for it.
            let ended = async move { tokio::time::timeout(patience, ending).await.is_ok() };
            let _ = wait(ended, || waiting(""));
        }
    }

    /// Other loader that serves this rank here, and that a start may replace.
    fn other(&self, request: &LeaseRequest) -> Option<Arc<Served>> {
        let other = self.served.lock().get(&(request.job.clone(), request.rank)).cloned();
        // The coordinator refuses another user's start, which must not end this loader.
        other.filter(|other| {
            other.request.trainer != request.trainer
                && may_replace(request.peer, other.request.peer)
        })
    }

    /// Ends the lease of the loader of a dynamic job that a start replaces: its samples are granted
    /// again before the new loader gets any.
    ///
    /// # Errors  The caller does not wait any longer.
    fn end_other(&self, request: &LeaseRequest, waiting: Waiting<'_>) -> Result<(), ControlError> {
        let Some(other) = self.other(request) else {
            return Ok(());
        };
        let shared = Arc::clone(&self.session.shared);
        let told = tell_last(shared, other.progress(), None, false);
        let told = async move { tokio::time::timeout(LAST_WORD_WAIT, told).await.is_ok() };
        wait(told, || waiting("")).map(drop)
    }

    /// Leaves the cluster after the final positions and errors of its ranks are reported. Waits for
    /// both, a few seconds at most.
    pub fn leave(&self) {
        // After the session has ended, its reports are rejected.
        self.tell_rest();
        self.session.leave(LEAVE_WAIT);
    }

    /// Waits until the final reports of ended ranks are sent, at most [`LAST_WORDS_WAIT`].
    fn tell_rest(&self) {
        let ending = std::mem::take(&mut *self.ending.lock());
        runtime().block_on(async {
            let all = futures::future::join_all(ending.into_values());
            // A later start of these ranks reports the rest.
            let _ = tokio::time::timeout(LAST_WORDS_WAIT, all).await;
        });
    }
}

fn lease_of(served: &Served, (epoch, segments): (u64, Vec<Segment>)) -> Lease {
    let LeaseRequest { ref job, rank, mixture, .. } = served.request;
    let (job, serial) = (job.as_str().into(), served.serial);
    let ServedState { generation, fencing, .. } = *served.lock();
    Lease { job, generation, rank, fencing, serial, mixture, epoch, segments }
}

/// Reports a rank's final position, and that it ended; `failure`: the error with which it did.
async fn tell_last(
    shared: Arc<SharedSession>,
    progress: wire::RankProgress,
    failure: Option<String>,
    is_told: bool,
) {
    let Some(session) = shared.current_id() else {
        return;
    };
    let position = Some(wire::Position { epoch: progress.epoch, step: progress.step });
    let lease = progress.lease.clone();
    let end = wire::EndRankRequest { context: None, lease, failure, is_told, position };
    let (ranks, scans) = (vec![progress], vec![]);
    let last = wire::HeartbeatRequest { context: None, session, ranks, scans };
    if let Err(error) = shared.coordinator.once(&last).await {
        tracing::debug!(%error, "a rank's last step was not reported");
    }
    // While this worker lives, only this report frees the samples that were granted to the rank.
    loop {
        let Err(error) = shared.coordinator.once(&end).await else {
            return;
        };
        tracing::debug!(%error, "a rank's end was not reported");
        if is_definite(&error)
            || error.kind == ErrorKind::Fenced
            || shared.current_id() != Some(session)
        {
            return;
        }
        tokio::time::sleep(END_AGAIN).await;
    }
}

impl Control for GrpcControl {
    fn register(&self, job: &JobSpec, waiting: Waiting<'_>) -> Result<(), ControlError> {
        let _operation = traced::enter("register", None);
        let chunks: Vec<_> = record_spec_chunks(job.record_spec.bytes()).collect();
        let mut send = chunks[0].1;
        if send.len() > UNASKED_BYTES_MAX {
            send = &[];
        }
        for _ in 0..REGISTER_ROUNDS_MAX {
            let request = wire::RegisterJobRequest {
                context: None,
                name: job.name.clone(),
                dataset: job.dataset.clone(),
                identity: Some(identity_to(&job.identity)),
                record_spec_chunks: chunks.iter().map(|(d, _)| d.as_bytes().to_vec()).collect(),
                chunk: send.to_vec(),
                mixture: job.mixture.as_deref().map(mixture_to),
            };
            let answer = self.session.coordinator().call(waiting, &request)?;
            let Some(missing) = answer.missing.first() else {
                let mixture = job.mixture.as_ref().map(|mixture| mixture.digest());
                let expected = mixture.map_or(vec![], |digest| digest.as_bytes().to_vec());
                if expected != answer.mixture {
                    let message = "the coordinator mixes no datasets; upgrade it";
                    return Err(WireError::new(ErrorKind::WrongVersion, message));
                }
                return Ok(());
            };
            let asked = chunks.iter().find(|(digest, _)| digest.as_bytes()[..] == missing[..]);
            send = asked.map_or(&[][..], |(_, content)| *content);
        }
        let message = format!(
            "the coordinator did not store the record spec of job `{}` in {REGISTER_ROUNDS_MAX} calls",
            job.name
        );
        Err(WireError::new(ErrorKind::Retry, message))
    }

    fn lease(&self, request: &LeaseRequest, waiting: Waiting<'_>) -> Result<Lease, ControlError> {
        let _operation = traced::enter("lease", None);
        let _reporting = self.session.shared.reporting(&request.job, request.rank);
        // Grants of a dynamic job are exclusive, so they require the coordinator's confirmation.
        let is_dynamic = request.mode == Mode::Dynamic;
        match &request.at.intent {
            Intent::Reconnect { generation, .. }
                if !is_dynamic && !self.is_disputed(request, *generation) =>
            {
                let (_, moves) = self.untold(request, *generation);
                return self.go_on(request, *generation, moves);
            }
            Intent::Reconnect { .. } => {}
            Intent::Move { from, epoch, segments }
                if !is_dynamic && !self.is_disputed(request, *from) =>
            {
                if let Some(moved) = self.move_on(request, *from, (*epoch, segments), waiting) {
                    return moved;
                }
                self.await_ending(request, LAST_WORD_WAIT, waiting);
            }
            Intent::Move { .. } => self.await_ending(request, LAST_WORD_WAIT, waiting),
            Intent::Start { .. } => {
                drop(self.left.lock().remove(&(request.job.clone(), request.rank)));
                self.await_ending(request, LAST_WORD_WAIT, waiting);
                if is_dynamic {
                    self.end_other(request, waiting)?;
                }
            }
        }
        let is_start = matches!(request.at.intent, Intent::Start { .. });
        loop {
            let id = self.session.id(waiting)?;
            let mut message = start_message(id, request, &request.at.intent);
            if is_start && !is_dynamic {
                // The worker's own position is final. Only a start that is accepted ends that loader.
                message.replaces = self.other(request).map(|other| other.progress());
            }
            let started = match self.session.coordinator().call(waiting, &message) {
                Err(error) if error.kind == ErrorKind::Fenced => {
                    // The session ended in the meantime.
                    self.session.shared.forget(id);
                    continue;
                }
                other => other?,
            };
            let segments = segments_of(started.segments)?;
            // If the session ended while the response was in transit, the lease is requested again
            // from the rank's current position; a dynamic rank does that on its own.
            let is_held = is_dynamic || self.session.shared.current_id() == Some(id);
            let fencing = if is_held { started.fencing } else { 0 };
            let granted = (started.generation, fencing);
            let served = self.serve(request, granted, Moves::default())?;
            if let Intent::Reconnect { .. } = request.at.intent {
                return Ok(lease_of(&served, (request.at.epoch, request.at.segments.clone())));
            }
            return Ok(lease_of(&served, (started.epoch, segments)));
        }
    }

    fn check(&self, lease: &Lease) -> Result<(), ControlError> {
        self.good(lease).map(drop)
    }

    fn report(&self, lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError> {
        let served = self.good(lease)?;
        let mut state = served.lock();
        (state.epoch, state.step) = (epoch, step);
        drop(state);
        served.ring(LeaseUpdate::Consumed { epoch, step });
        Ok(())
    }

    fn report_skipped(&self, job: &str, mixture: Option<Digest>, skipped: &[Skipped]) {
        self.session.shared.tell_skipped(job, mixture, skipped);
    }

    fn take(
        &self,
        lease: &Lease,
        take: &Claim,
        waiting: Waiting<'_>,
    ) -> Result<Grant, ControlError> {
        let served = self.good(lease)?;
        let (at, named) = {
            let state = served.lock();
            ((state.epoch, state.step), served.lease_of(&state))
        };
        let step = match at.0.cmp(&take.epoch) {
            std::cmp::Ordering::Equal => at.1,
            std::cmp::Ordering::Less => 0,
            // The trainer has passed this epoch.
            std::cmp::Ordering::Greater => {
                return Ok(Grant { first: take.known, ended: true, ..Grant::default() });
            }
        };
        let Some(session) = self.session.shared.current_id() else {
            return Err(WireError::new(ErrorKind::Retry, "the session is being joined again"));
        };
        let request = wire::ClaimGroupsRequest {
            context: None,
            session,
            lease: Some(named),
            epoch: take.epoch,
            step,
            started: take.started,
            known: take.known,
            wants: take.wants,
            ahead: take.ahead,
            released: take.released.map(|release| release.from),
            version: take.released.map_or(0, |release| release.version),
            known_version: Some(take.version),
            wait_ms: ms_of(take.wait),
        };
        let coordinator = self.session.coordinator();
        coordinator.call_longer(take.wait, waiting, &request).map(grant_from)
    }

    fn watch(&self, lease: &Lease, bell: Notifier) {
        if let Some(served) = self.find(lease) {
            served.watch(bell);
        }
    }

    fn good_for(&self, lease: &Lease) -> Option<Duration> {
        let served = self.find(lease)?;
        let is_dynamic = served.request.mode == Mode::Dynamic;
        // A new session does not renew a lease that lapsed with an earlier one.
        let has_lapsed = served.lock().verdict.is_some();
        let good_for = || if has_lapsed { Duration::ZERO } else { self.session.shared.good_for() };
        is_dynamic.then(good_for)
    }

    fn paused(&self, lease: &Lease) -> Option<String> {
        self.find(lease)?.lock().paused.clone()
    }

    fn report_ahead(&self, lease: &Lease, ready: u64, reading: &[u32]) {
        if let Some(served) = self.find(lease) {
            let mut state = served.lock();
            state.ready = ready;
            state.reading.clear();
            state.reading.extend(reading.iter().take(READING_MAX));
        }
    }

    fn report_account(&self, lease: &Lease, account: &Account) {
        if let Some(served) = self.find(lease) {
            served.lock().account = Some((*account, Instant::now()));
        }
    }

    fn report_failure(&self, lease: &Lease, failure: &str) {
        if let Some(served) = self.find(lease) {
            served.lock().failure.get_or_insert_with(|| failure.to_owned());
        }
    }

    fn release(&self, lease: &Lease, is_told: bool) {
        let Some(served) = self.find(lease) else {
            return;
        };
        let key = (lease.job.to_string(), lease.rank);
        let shared = Arc::clone(&self.session.shared);
        let reporting = shared.reporting(&lease.job, lease.rank);
        shared.unserve(&served);
        if served.lock().fencing == 0 {
            let mut left = self.left.lock();
            if left.len() >= LEFT_MAX {
                left.pop_first();
            }
            left.insert(key.clone(), Arc::clone(&served));
        } else {
            let failure = served.lock().failure.take();
            let told = tell_last(shared, served.progress(), failure, is_told);
            let told = runtime().spawn(async move {
                let _reporting = reporting;
                told.await;
            });
            let mut ending = self.ending.lock();
            ending.retain(|_, told| !told.is_finished());
            ending.insert(key.clone(), told);
        }
        // Last: a start that does not find the rank here finds its final report in progress.
        let mut ranks = self.served.lock();
        if ranks.get(&key).is_some_and(|other| Arc::ptr_eq(other, &served)) {
            ranks.remove(&key);
        }
    }

    fn has_untold(&self) -> bool {
        // A locked list is being reported.
        let untold =
            |served: &Arc<Served>| served.moves.try_lock().map_or(true, |moves| !moves.is_empty());
        self.served.lock().values().any(untold) || self.left.lock().values().any(untold)
    }

    fn latest(&self, job: &str, waiting: Waiting<'_>) -> Result<Option<LoaderState>, ControlError> {
        let request = wire::LatestStateRequest { context: None, job: job.to_owned() };
        let answer = self.session.coordinator().call(waiting, &request)?;
        let state = answer.state.map(|text| LoaderState::from_json(&text)).transpose();
        state.map_err(|error| WireError::new(ErrorKind::State, error.to_string()))
    }
}

fn grant_from(answer: wire::ClaimGroupsResponse) -> Grant {
    let piece =
        |piece: wire::GroupRange| GroupRange { group: piece.group, from: piece.from, to: piece.to };
    let wire::ClaimGroupsResponse {
        pieces,
        first,
        samples,
        horizon,
        version,
        closed,
        revoke_from,
        ended,
        steps_before: first_step,
    } = answer;
    let pieces = pieces.into_iter().map(piece).collect();
    Grant { first, pieces, samples, horizon, version, closed, revoke_from, ended, first_step }
}

/// True if a process may replace another loader of its rank: both have one user, or it is root's.
fn may_replace(peer: Option<Peer>, before: Option<Peer>) -> bool {
    let (Some(peer), Some(before)) = (peer, before) else {
        return true;
    };
    peer.uid == before.uid || peer.uid == 0
}

/// Returns the first step that a rank has not consumed when it starts in this way.
fn position(request: &LeaseRequest) -> (u64, u64) {
    match &request.at.intent {
        Intent::Reconnect { epoch, step, .. } => (*epoch, *step),
        Intent::Start { epoch, segments, .. } | Intent::Move { epoch, segments, .. } => {
            (*epoch, segments.iter().map(|segment| segment.steps.most()).sum())
        }
    }
}

fn segments_of(
    segments: Vec<shardfeed_proto::common::v1::Segment>,
) -> Result<Vec<Segment>, WireError> {
    let bad = |error: shardfeed_proto::InvalidMessage| {
        WireError::new(ErrorKind::Unspecified, error.to_string())
    };
    segments_from(segments).map_err(bad)
}

fn replaced(job: &str, rank: u64) -> ControlError {
    let message = format!(
        "rank {rank} of job `{job}` was started again; this loader no longer speaks for it"
    );
    WireError::new(ErrorKind::Replaced, message)
}
