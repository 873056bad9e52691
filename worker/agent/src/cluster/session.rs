//! A worker's session with its coordinator: it joins, renews, reports the progress of ranks, and
//! is notified when leases end. Losing the connection ends no lease; only an explicit response
//! does.

mod reporting;
mod skipped;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use shardfeed_pipeline::{JPEG_LIBRARY, PIXEL_CONTRACT};
use shardfeed_plan::Intent;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError, intent_to, left_out_to};
use shardfeed_reader::{ControlError, LeaseRequest, LeaseTime, Waiting};
use shardfeed_socket::Peer;
use shardfeed_source::{DataRoots, Lock, jittered, wait_for};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::cluster::confirmed::Confirmed;
use crate::cluster::coordinator::{Coordinator, gave_up, new_id};
use crate::cluster::job_skips::JobSkips;
use crate::cluster::report::WorkerReport;
use crate::cluster::running_scan::RunningScan;
use crate::cluster::runtime::runtime;
use crate::cluster::served::{Moved, Served, ServedState};
use crate::cluster::verdict::{ask_back, judge, pause};

/// Heartbeat interval until the coordinator sets another.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Pause before a retry after a definite refusal (wrong cluster, wrong version).
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Pause between attempts while no coordinator answers.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Interval at which a caller that waits for the session is asked whether to continue.
const ASK_EVERY: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// Name; unique among live workers.
    pub name: String,
    pub host: String,
    /// True if it lives in a trainer's process.
    pub in_process: bool,
    /// Path of its trainer socket; empty without one.
    pub endpoint: String,
    /// Folders and URLs below which it reads for the cluster, and for other users than its own.
    pub data_roots: DataRoots,
}

#[derive(Debug)]
pub struct Session {
    pub(crate) shared: Arc<SharedSession>,
}

#[derive(Debug)]
pub(crate) struct SharedSession {
    pub(crate) coordinator: Coordinator,
    info: WorkerInfo,
    incarnation: String,
    state: Lock<SessionState>,
    /// The session was joined or refused, or there is something to scan.
    changed: Condvar,
    /// There is something to report to the coordinator now.
    wake: Notify,
    /// Held by the heartbeat that confirms leases and reports corrupt records first.
    confirming: AsyncMutex<()>,
}

#[derive(Debug, Default)]
struct SessionState {
    id: Option<u64>,
    refused: Option<WireError>,
    ranks: Vec<Arc<Served>>,
    /// Listings and scans of its threads, including those that the coordinator has reassigned.
    scans: Vec<Arc<RunningScan>>,
    has_scans: bool,
    closing: bool,
    /// The coordinator was notified of leaving, or the attempt failed.
    has_left: bool,
    has_joined: bool,
    heartbeat: Option<Duration>,
    lost: Option<ErrorKind>,
    /// Trainers are to be handed over to their own processes; never reset.
    is_draining: bool,
    /// Last time when the session was known to be alive.
    confirmed: Option<Confirmed>,
    heartbeat_took: Option<Duration>,
    /// Corrupt records by job.
    skipped: BTreeMap<String, JobSkips>,
    /// Starts and ends that are being reported, by job and rank.
    reporting: BTreeMap<(String, u64), usize>,
}

impl Session {
    /// Joins in the background, with retries.
    pub fn start(coordinator: Coordinator, info: WorkerInfo) -> Self {
        let shared = Arc::new(SharedSession {
            coordinator,
            info,
            incarnation: new_id(),
            state: Lock::default(),
            changed: Condvar::new(),
            wake: Notify::new(),
            confirming: AsyncMutex::default(),
        });
        runtime().spawn(Arc::clone(&shared).keep());
        Self { shared }
    }

    /// Leaves the cluster, and waits at most `patience` until the coordinator confirms it.
    pub fn leave(&self, patience: Duration) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        self.shared.wake.notify_one();
        let staying = |state: &mut SessionState| !state.has_left;
        drop(self.shared.changed.wait_timeout_while(state, patience, staying));
    }

    pub fn coordinator(&self) -> &Coordinator {
        &self.shared.coordinator
    }

    /// Waits until the coordinator has accepted this worker; returns the session id.
    ///
    /// # Errors  It refuses; `waiting` cancels.
    pub fn id(&self, waiting: Waiting<'_>) -> Result<u64, ControlError> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(id) = state.id {
                return Ok(id);
            }
            if let Some(refused) = &state.refused {
                return Err(refused.clone());
            }
            state = wait_for(&self.shared.changed, state, ASK_EVERY);
            let note = self.shared.coordinator.whereabouts().are_silent();
            if state.id.is_none() && !waiting(if state.lost.is_some() { &note } else { "" }) {
                return Err(gave_up());
            }
        }
    }

    /// Returns why the coordinator refuses this worker, if it does.
    pub(crate) fn refusal(&self) -> Option<WireError> {
        let state = self.shared.state.lock();
        state.refused.clone().filter(|_| state.id.is_none())
    }

    /// True if the coordinator wants this worker to hand over its ranks, and leave.
    pub(crate) fn is_draining(&self) -> bool {
        self.shared.state.lock().is_draining
    }

    /// Waits until there may be something to scan, or the scanner should stop.
    pub(crate) fn wait_for_scans(&self) {
        let nothing = |state: &mut SessionState| !state.has_scans;
        let wait = self.shared.changed.wait_while(self.shared.state.lock(), nothing);
        wait.unwrap_or_else(PoisonError::into_inner).has_scans = false;
    }

    /// Notes that there may be something to scan, or that the scanner should stop.
    pub(crate) fn look_for_scans(&self) {
        self.shared.state.lock().has_scans = true;
        self.shared.changed.notify_all();
    }

    pub(crate) fn scans(&self) -> Vec<Arc<RunningScan>> {
        self.shared.state.lock().scans.clone()
    }

    pub(crate) fn add_scan(&self, scan: &Arc<RunningScan>) {
        self.shared.state.lock().scans.push(Arc::clone(scan));
    }

    pub(crate) fn remove_scan(&self, scan: &Arc<RunningScan>) {
        self.shared.state.lock().scans.retain(|other| !Arc::ptr_eq(other, scan));
    }

    /// Returns the folders and URLs below which it reads.
    pub(crate) fn data_roots(&self) -> &DataRoots {
        &self.shared.info.data_roots
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.wake.notify_one();
    }
}

impl SharedSession {
    /// Returns the time for which granted samples may be delivered without a confirmation.
    pub(crate) fn good_for(&self) -> Duration {
        let now = LeaseTime::now();
        self.state.lock().confirmed.map_or(Duration::ZERO, |confirmed| confirmed.good_for(now))
    }

    /// Returns the state of the session and of the served ranks.
    pub(crate) fn report(&self) -> WorkerReport {
        let state = self.state.lock();
        let ranks = state.ranks.iter().map(|served| served.report()).collect();
        let of_job = |(job, skips): (&String, &JobSkips)| (job.clone(), skips.count());
        WorkerReport {
            session: state.id.filter(|_| state.lost.is_none()),
            has_joined: state.has_joined,
            refused: state.refused.as_ref().map(|error| error.message.clone()),
            confirmed: state.confirmed.map(|confirmed| confirmed.age()),
            heartbeat_took: state.heartbeat_took,
            corrupt_records: state.skipped.iter().map(of_job).collect(),
            certificate_not_after: self.coordinator.credentials().certificate_not_after(),
            is_draining: state.is_draining,
            trainers: 0,
            budget_bytes: 0,
            budget_left_bytes: 0,
            ranks,
        }
    }

    pub(crate) fn current_id(&self) -> Option<u64> {
        self.state.lock().id
    }

    /// Drops a session that is known to have ended, and joins again.
    pub(crate) fn forget(&self, id: u64) {
        let mut state = self.state.lock();
        if state.id == Some(id) {
            (state.id, state.confirmed) = (None, None);
        }
        drop(state);
        self.wake.notify_one();
    }

    pub(crate) fn serve(&self, served: Arc<Served>) {
        self.state.lock().ranks.push(served);
        self.wake.notify_one();
    }

    pub(crate) fn unserve(&self, served: &Arc<Served>) {
        self.state.lock().ranks.retain(|other| !Arc::ptr_eq(other, served));
    }

    async fn keep(self: Arc<Self>) {
        loop {
            let (id, closing) = {
                let state = self.state.lock();
                (state.id, state.closing)
            };
            let pause = match id {
                _ if closing => {
                    self.leave(id).await;
                    self.state.lock().has_left = true;
                    return self.changed.notify_all();
                }
                None => self.join().await,
                Some(id) => self.renew(id).await,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    async fn join(&self) -> Duration {
        let WorkerInfo { name, host, in_process, endpoint, data_roots } = self.info.clone();
        let (incarnation, sent) = (self.incarnation.clone(), LeaseTime::now());
        let request = wire::JoinRequest {
            context: None,
            worker: name,
            host,
            incarnation,
            version: env!("CARGO_PKG_VERSION").into(),
            in_process,
            endpoint,
            decoders: [PIXEL_CONTRACT, JPEG_LIBRARY].map(str::to_owned).into(),
            data_roots: data_roots.given().to_vec(),
        };
        match self.coordinator.once(&request).await {
            Ok(joined) => {
                self.coordinator.expect_cluster(&joined.cluster_id);
                let heartbeat = Duration::from_millis(joined.heartbeat_ms.max(10));
                let mut state = self.state.lock();
                (state.id, state.has_joined) = (Some(joined.session), true);
                let ttl = Duration::from_millis(joined.ttl_ms);
                state.confirmed = Some(Confirmed { sent, ttl });
                (state.refused, state.heartbeat) = (None, Some(heartbeat));
                // Earlier tasks to scan may still exist.
                state.has_scans = true;
                // Leases of an earlier session ended with it.
                for served in &state.ranks {
                    served.lapse();
                }
                self.found(&mut state);
                drop(state);
                self.changed.notify_all();
                Duration::ZERO
            }
            Err(error) if error.kind == ErrorKind::Retry => {
                self.lost(&error);
                jittered(RETRY_PAUSE)
            }
            Err(error) => {
                tracing::error!(%error, "the coordinator refuses this worker");
                self.state.lock().refused = Some(error);
                self.changed.notify_all();
                REFUSED_PAUSE
            }
        }
    }

    /// Sends a heartbeat. If it is not answered within the usual pause, the next one is sent
    /// anyway, so that slow answers do not end the session. A late answer still counts.
    async fn renew(self: &Arc<Self>, id: u64) -> Duration {
        let heartbeat = self.state.lock().heartbeat.unwrap_or(HEARTBEAT);
        let renewing = runtime().spawn(Arc::clone(self).renew_once(id));
        match tokio::time::timeout(heartbeat, renewing).await {
            Ok(Ok(pause)) => pause,
            // It panicked, which was already logged.
            Ok(Err(_)) => heartbeat,
            Err(_) => Duration::ZERO,
        }
    }

    /// Sends one heartbeat and handles its response.
    /// - Returns the pause before the next one.
    async fn renew_once(self: Arc<Self>, id: u64) -> Duration {
        if let Ok(_alone) = self.confirming.try_lock() {
            self.confirm(id).await;
            if self.report_skipped(id).await {
                self.wake.notify_one();
            }
        }
        let (ranks, heartbeat) = {
            let state = self.state.lock();
            (state.ranks.clone(), state.heartbeat.unwrap_or(HEARTBEAT))
        };
        let sent = LeaseTime::now();
        let result = self.beat(id, &ranks).await;
        let is_overtaken =
            self.state.lock().confirmed.is_some_and(|confirmed| confirmed.sent > sent);
        match result {
            Ok(response) => {
                for verdict in response.verdicts {
                    judge(&ranks, &verdict);
                }
                if !is_overtaken {
                    pause(&ranks, &response.pauses);
                }
                for revocation in response.revocations {
                    ask_back(&ranks, &revocation);
                }
                self.end_unknown(response.unlisted);
                let mut state = self.state.lock();
                for ended in &response.ended_scans {
                    state.scans.iter().for_each(|scan| scan.end(ended));
                }
                state.heartbeat_took = Some(LeaseTime::now().since(sent));
                if state.id == Some(id)
                    && let Some(confirmed) = &mut state.confirmed
                {
                    confirmed.sent = confirmed.sent.max(sent);
                }
                self.found(&mut state);
                state.has_scans |= response.has_scans;
                state.is_draining |= response.draining;
                drop(state);
                self.changed.notify_all();
                heartbeat.saturating_sub(LeaseTime::now().since(sent))
            }
            Err(error) if error.kind == ErrorKind::Fenced => {
                tracing::warn!(%error, "the session ended, joining again");
                self.forget(id);
                Duration::ZERO
            }
            // A later heartbeat was answered.
            Err(_) if is_overtaken => heartbeat,
            Err(error) if matches!(error.kind, ErrorKind::WrongCluster | ErrorKind::Denied) => {
                // Another cluster has this address now, or ours does not know us: both may change.
                self.lost(&error);
                REFUSED_PAUSE
            }
            Err(error) => {
                self.lost(&error);
                heartbeat.min(jittered(RETRY_PAUSE))
            }
        }
    }

    /// Reports the progress of ranks and scans; returns the coordinator's response.
    async fn beat(
        &self,
        session: u64,
        ranks: &[Arc<Served>],
    ) -> Result<wire::HeartbeatResponse, WireError> {
        let progress = |served: &Arc<Served>| {
            let is_confirmed = served.lock().fencing != 0;
            is_confirmed.then(|| served.progress())
        };
        let progress = ranks.iter().filter_map(progress).collect();
        let scans = self.state.lock().scans.clone();
        let scans =
            scans.iter().filter(|scan| !scan.is_ended()).map(|scan| scan.progress()).collect();
        let request = wire::HeartbeatRequest { context: None, session, ranks: progress, scans };
        self.coordinator.once(&request).await
    }

    /// Requests the leases that are provisional, or ended with an earlier session.
    async fn confirm(&self, id: u64) {
        let ranks = self.state.lock().ranks.clone();
        for served in ranks {
            let (is_open, intent) = {
                let state = served.lock();
                let ServedState { generation, epoch, step, .. } = *state;
                let is_open = state.fencing == 0 && state.verdict.is_none();
                (is_open, Intent::Reconnect { generation, epoch, step })
            };
            if !is_open {
                continue;
            }
            let confirmed = {
                let mut moves = served.moves.lock().await;
                match moves.is_empty() {
                    true => self.start_rank(id, &served.request, &intent).await,
                    false => self.catch_up(id, &served.request, &mut moves).await,
                }
            };
            match confirmed {
                Ok(started) => served.lock().fencing = started.fencing,
                Err(error) if !is_definite(&error) => return,
                Err(error) => served.lock().verdict = Some(error),
            }
        }
    }

    /// Reports moves that were made while no coordinator answered, in order, with the rank's last
    /// position in each generation. Reported moves are removed from the list.
    ///
    /// # Errors  `Superseded`: the coordinator has other generation numbers, or refuses a move.
    pub(crate) async fn catch_up(
        &self,
        session: u64,
        request: &LeaseRequest,
        moves: &mut Vec<Moved>,
    ) -> Result<wire::StartRankResponse, WireError> {
        loop {
            let Some(first) = moves.first().cloned() else {
                return Err(WireError::new(ErrorKind::Unspecified, "no move to report"));
            };
            let Moved { from, epoch, segments, is_told, left } = first;
            let (generation, place) = (from.saturating_add(1), (epoch, segments.clone()));
            let told = async |intent: Intent| {
                let started = self.start_rank(session, request, &intent).await;
                let started = started.map_err(|error| not_so(request, generation, error))?;
                match started.generation == generation {
                    true => Ok(started),
                    false => Err(other_number(request, generation, started.generation)),
                }
            };
            if !is_told || left.is_none() {
                let (epoch, segments) = place;
                let started = told(Intent::Move { from, epoch, segments }).await?;
                moves[0].is_told = true;
                if left.is_none() {
                    moves.clear();
                    return Ok(started);
                }
            }
            if let Some((epoch, step)) = left {
                told(Intent::Reconnect { generation, epoch, step }).await?;
                moves.remove(0);
            }
        }
    }

    pub(crate) async fn start_rank(
        &self,
        session: u64,
        request: &LeaseRequest,
        intent: &Intent,
    ) -> Result<wire::StartRankResponse, WireError> {
        self.coordinator.once(&start_message(session, request, intent)).await
    }

    async fn leave(&self, id: Option<u64>) {
        let Some(session) = id else {
            return;
        };
        while self.report_skipped(session).await {}
        // Ranks whose trainers continue without this worker: their positions are reported first.
        let ranks = self.state.lock().ranks.clone();
        if !ranks.is_empty()
            && let Err(error) = self.beat(session, &ranks).await
        {
            tracing::debug!(%error, "the ranks' positions were not reported");
        }
        let request = wire::LeaveRequest { context: None, session };
        if let Err(error) = self.coordinator.once(&request).await {
            tracing::debug!(%error, "leaving was not reported");
        }
    }

    fn lost(&self, error: &WireError) {
        let mut state = self.state.lock();
        // A refusal is named also where there was no answer before.
        let is_new =
            state.lost.is_none_or(|known| known != error.kind && error.kind != ErrorKind::Retry);
        if is_new && state.id.is_none() {
            // Before the first session, the caller that waits for it reports the note.
            tracing::warn!(
                target: "shardfeed_waiting",
                coordinator = %self.coordinator.whereabouts(), %error, "the coordinator does not answer"
            );
        } else if is_new {
            tracing::warn!(
                coordinator = %self.coordinator.whereabouts(), %error,
                "the coordinator does not answer; running jobs continue, dynamic ones as long as \
                 their leases last"
            );
        }
        if is_new {
            state.lost = Some(error.kind);
        }
    }

    fn found(&self, state: &mut SessionState) {
        if state.lost.is_some() {
            tracing::info!(coordinator = %self.coordinator.whereabouts(), "the coordinator is back");
        }
        state.lost = None;
    }
}

/// True if the same request would be refused again.
pub(super) fn is_definite(error: &WireError) -> bool {
    !matches!(error.kind, ErrorKind::Retry | ErrorKind::Fenced | ErrorKind::Storage)
}

/// Converts a definite refusal of a provisional move; the rank may be admitted again after a
/// `Denied` or `WrongCluster`.
fn not_so(request: &LeaseRequest, generation: u64, error: WireError) -> WireError {
    if !is_definite(&error) {
        return error;
    }
    let LeaseRequest { job, rank, .. } = request;
    let message = format!(
        "rank {rank} of job `{job}` continued as generation {generation} while no coordinator \
         answered, and is refused now: {}",
        error.message
    );
    let kind = match error.kind {
        ErrorKind::Denied | ErrorKind::WrongCluster => error.kind,
        _ => ErrorKind::Superseded,
    };
    WireError::new(kind, message)
}

/// Returns the error for generations that other ranks opened in the meantime.
fn other_number(request: &LeaseRequest, ours: u64, theirs: u64) -> WireError {
    let LeaseRequest { job, rank, .. } = request;
    let message = format!(
        "rank {rank} of job `{job}` continued as generation {ours} while no coordinator answered, \
         and the coordinator makes that generation {theirs}: other ranks went elsewhere; start all \
         ranks from one state"
    );
    WireError::new(ErrorKind::Superseded, message)
}

pub(super) fn ms_of(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Creates the request of a start, without its context.
pub(crate) fn start_message(
    session: u64,
    request: &LeaseRequest,
    intent: &Intent,
) -> wire::StartRankRequest {
    wire::StartRankRequest {
        context: None,
        session,
        job: request.job.clone(),
        run: request.run.clone(),
        rank: request.rank,
        world_size: request.world_size,
        limit: request.limit,
        trainer: request.trainer.clone(),
        intent: Some(intent_to(intent)),
        left: request.at.left.map(|(epoch, step)| wire::Position { epoch, step }),
        left_out: match intent {
            Intent::Start { .. } => left_out_to(&request.at.left_out),
            // The generation has them, or another epoch begins.
            Intent::Move { .. } | Intent::Reconnect { .. } => vec![],
        },
        mixture: request.mixture.map_or(vec![], |mixture| mixture.as_bytes().to_vec()),
        in_doubt: match request.doubt.is_drop {
            true => wire::InDoubt::Drop.into(),
            false => wire::InDoubt::Redeliver.into(),
        },
        in_doubt_grace_ms: Some(ms_of(request.doubt.grace)),
        peer: request.peer.map(|Peer { uid, gid, pid }| wire::Peer {
            uid,
            gid,
            pid: pid.unwrap_or(0),
        }),
        replaces: None,
    }
}
