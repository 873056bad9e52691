//! Session of a worker, as `shardfeed-agent` keeps it: joins, renews, reports the ranks' progress,
//! and receives the leases that ended.
//!
//! Losing the connection revokes no lease; only an explicit answer does.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::{Intent, LeftOut, Sample};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError, intent_to, left_out_to};
use tokio::sync::{Mutex, Notify};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::holds::Sure;
use crate::oracle::Oracle;
use crate::trace::Trace;
use crate::world::catalog::{GRACE_MS, JobFacts, policy_of};
use crate::world::client::{Call, Cluster, Kind};
use crate::world::mixture::Mix;
use crate::world::node::TTL_MS;

/// Pause between attempts while no coordinator answers.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Pause after a definite refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Request of a rank.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Name of the job.
    pub job: String,
    /// Run name, given by the launcher.
    pub run: String,
    /// Rank number.
    pub rank: u64,
    /// Number of ranks.
    pub world_size: u64,
    /// Id of one loader in one process.
    pub trainer: String,
    /// Digest of the mixture that it reads; empty: none.
    pub mixture: Vec<u8>,
    /// Steps of the epoch of its start that were left out.
    pub left_out: LeftOut,
}

/// Rank that a worker serves.
#[derive(Debug)]
pub struct Served {
    /// Request of the rank.
    pub asked: Asked,
    /// Current lease and position.
    pub state: RefCell<ServedState>,
    /// True if a grant of the rank was revoked.
    pub is_revoked: Cell<bool>,
    /// True while its batches must not be delivered.
    pub is_paused: Cell<bool>,
}

/// Lease and position of a [`Served`] rank.
#[derive(Clone, Debug)]
pub struct ServedState {
    /// Generation of the rank.
    pub generation: u64,
    /// Fencing token of its lease; 0: not confirmed.
    pub fencing: u64,
    /// Epoch of the first step that is not consumed.
    pub epoch: u64,
    /// First step that is not consumed.
    pub step: u64,
    /// Reason why the lease ended, if it did.
    pub verdict: Option<WireError>,
    /// Epoch that the trainer left before its end, and its first step that is not consumed, until
    /// the coordinators know it.
    pub left: Option<(u64, u64)>,
}

impl Served {
    fn progress(&self) -> wire::RankProgress {
        let ServedState { generation, fencing, epoch, step, .. } = *self.state.borrow();
        let Asked { job, rank, .. } = &self.asked;
        let lease = wire::Lease { job: job.clone(), generation, rank: *rank, fencing };
        wire::RankProgress {
            lease: Some(lease),
            epoch,
            step,
            ready: 1,
            reading: vec![],
            account: None,
        }
    }
}

/// Session that is kept alive until dropped.
#[derive(Debug)]
pub struct Session {
    /// Client of the coordinators.
    pub cluster: Rc<Cluster>,
    name: String,
    host: String,
    incarnation: String,
    in_process: bool,
    id: Cell<Option<u64>>,
    heartbeat: Cell<Duration>,
    ranks: RefCell<Vec<Rc<Served>>>,
    has_scans: Cell<bool>,
    /// Corrupt records by job and mixture.
    skipped: RefCell<BTreeMap<(String, Mix), CorruptRecords>>,
    wake: Notify,
    /// Mutex held by the heartbeat that confirms leases and reports corrupt records first.
    confirming: Mutex<()>,
    /// Send time of the last heartbeat that was answered.
    heard: Cell<Option<Instant>>,
    oracle: Rc<Oracle>,
    trace: Trace,
    /// Starts under way, by job and rank.
    starting: RefCell<Vec<(String, u64)>>,
}

/// Intent of a start, the epoch that the trainer leaves before its end with its position there, and
/// the loader that ends if the start is accepted.
pub type Placement<'a> = (&'a Intent, Option<(u64, u64)>, Option<&'a Rc<Served>>);

/// Corrupt records of a job, and whether each was reported successfully.
type CorruptRecords = (Rc<JobFacts>, BTreeMap<Sample, bool>);

/// Handle that ends a session without notice when dropped, as a crash would.
#[derive(Debug)]
pub struct Kept {
    /// The session.
    pub session: Rc<Session>,
    task: JoinHandle<()>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    /// Starts a session that joins, and retries until it succeeds.
    pub fn start(
        cluster: Rc<Cluster>,
        (name, host, in_process): (String, String, bool),
        (oracle, trace): (Rc<Oracle>, Trace),
    ) -> Kept {
        let incarnation = cluster.id();
        let session = Rc::new(Self {
            cluster,
            name,
            host,
            incarnation,
            in_process,
            id: Cell::new(None),
            heartbeat: Cell::new(Duration::from_millis(300)),
            ranks: RefCell::default(),
            has_scans: Cell::new(false),
            skipped: RefCell::default(),
            wake: Notify::new(),
            confirming: Mutex::default(),
            heard: Cell::new(None),
            oracle,
            trace,
            starting: RefCell::default(),
        });
        let task = tokio::task::spawn_local(Rc::clone(&session).keep());
        Kept { session, task }
    }

    /// Returns the session's id, once it has joined.
    pub fn id(&self) -> Option<u64> {
        self.id.get()
    }

    /// Returns true if the session is surely alive, so that its grants cannot belong to another
    /// session yet.
    pub fn is_good(&self) -> bool {
        let ttl = Duration::from_millis(TTL_MS);
        let margin = (ttl / 5).max(Duration::from_secs(1).min(ttl / 2));
        self.id.get().is_some()
            && self.heard.get().is_some_and(|sent| sent.elapsed() < ttl - margin)
    }

    /// Joins again because the session `id` is known to have ended.
    pub fn forget(&self, id: u64) {
        if self.id.get() == Some(id) {
            self.id.set(None);
        }
        self.wake.notify_one();
    }

    /// Returns true once for each report that there may be files to scan.
    pub fn take_has_scans(&self) -> bool {
        self.id.get().is_some() && self.has_scans.replace(false)
    }

    /// Records that there may be files to scan.
    pub fn look_for_scans(&self) {
        self.has_scans.set(true);
    }

    /// Starts serving a rank.
    pub fn serve(&self, served: Rc<Served>) {
        self.ranks.borrow_mut().push(served);
        self.wake.notify_one();
    }

    /// Stops serving a rank.
    pub fn unserve(&self, served: &Rc<Served>) {
        self.ranks.borrow_mut().retain(|other| !Rc::ptr_eq(other, served));
    }

    /// Returns another loader of this rank that is served here.
    pub fn other(&self, asked: &Asked) -> Option<Rc<Served>> {
        let ranks = self.ranks.borrow();
        let other = ranks.iter().find(|served| {
            let other = &served.asked;
            (&other.job, other.rank) == (&asked.job, asked.rank) && other.trainer != asked.trainer
        });
        other.cloned()
    }

    /// Ends a loader of a rank that another one replaced.
    pub fn replace(&self, other: &Rc<Served>) {
        self.unserve(other);
        let error = WireError::new(ErrorKind::Replaced, "another loader of the rank started here");
        other.state.borrow_mut().verdict = Some(error);
    }

    /// Queues corrupt records for a report to the coordinators, except those already known.
    /// - `mix`: mixture in which they are numbered.
    pub fn tell_skipped(&self, job: &Rc<JobFacts>, mix: Mix, records: &[Sample]) {
        if records.is_empty() {
            return;
        }
        let mut skipped = self.skipped.borrow_mut();
        let new = || (Rc::clone(job), BTreeMap::new());
        let (_, known) = skipped.entry((job.name.clone(), mix)).or_insert_with(new);
        for record in records {
            known.entry(*record).or_insert(false);
        }
        self.wake.notify_one();
    }

    /// Reports corrupt records; those of a failed report are retried with the next heartbeat.
    async fn report_skipped(&self, session: u64) {
        let jobs: Vec<_> =
            self.skipped.borrow().iter().map(|((_, mix), of)| (*mix, of.clone())).collect();
        for (mix, (job, known)) in jobs {
            let untold = known.iter().filter(|(_, is_told)| !**is_told);
            let untold: BTreeSet<Sample> = untold.map(|(sample, _)| *sample).collect();
            if untold.is_empty() {
                continue;
            }
            let corrupt = job.corrupt_of(mix);
            let record = |sample: &Sample| {
                let (_, offset, reason) = corrupt[sample].clone();
                let (shard, ordinal) = (sample.shard.into(), sample.ordinal);
                wire::SkippedRecord { shard, ordinal, offset, reason, path: String::new() }
            };
            let records: Vec<_> = untold.iter().map(record).collect();
            let name = job.name.clone();
            let digest = job.mixture(mix).map(|mixture| mixture.digest());
            let call: Call<wire::ReportSkippedResponse> = Rc::new(move |mut clients, context| {
                let (job, records) = (name.clone(), records.clone());
                let mixture = digest.map_or(vec![], |digest| digest.as_bytes().to_vec());
                let request =
                    wire::ReportSkippedRequest { context, session, job, records, mixture };
                Box::pin(async move { clients.worker.report_skipped(request).await })
            });
            self.oracle.skips.tells((&job, mix), &untold);
            if self.cluster.call((Kind::Changes, Duration::ZERO), call).await.is_ok() {
                self.oracle.skips.knows((&job, mix), &untold);
                let of = (job.name.clone(), mix);
                if let Some((_, known)) = self.skipped.borrow_mut().get_mut(&of) {
                    known.extend(untold.iter().map(|sample| (*sample, true)));
                }
            }
        }
    }

    async fn keep(self: Rc<Self>) {
        // Pending heartbeats end with this task.
        let mut renewing = JoinSet::new();
        loop {
            while renewing.try_join_next().is_some() {}
            let pause = match self.id.get() {
                None => self.join().await,
                Some(id) => {
                    // The next heartbeat does not wait for the answer to the previous one.
                    renewing.spawn_local(Rc::clone(&self).renew(id));
                    let answered = timeout(self.heartbeat.get(), renewing.join_next()).await;
                    answered.map_or(Duration::ZERO, |joined| match joined {
                        Some(Ok(pause)) => pause,
                        _ => self.heartbeat.get(),
                    })
                }
            };
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    async fn join(&self) -> Duration {
        let request = wire::JoinRequest {
            context: None,
            worker: self.name.clone(),
            host: self.host.clone(),
            incarnation: self.incarnation.clone(),
            version: "0.1.0".into(),
            in_process: self.in_process,
            endpoint: String::new(),
            decoders: vec![],
            data_roots: vec![],
        };
        let call: Call<wire::JoinResponse> = Rc::new(move |mut clients, context| {
            let request = wire::JoinRequest { context, ..request.clone() };
            Box::pin(async move { clients.worker.join(request).await })
        });
        let patience = (Kind::Changes, Duration::from_millis(1500));
        let sent = Instant::now();
        match self.cluster.call(patience, call).await {
            Ok(joined) => {
                self.heard.set(Some(sent));
                self.cluster.expect(&joined.cluster_id);
                self.id.set(Some(joined.session));
                self.heartbeat.set(Duration::from_millis(joined.heartbeat_ms.max(10)));
                self.has_scans.set(true);
                // Leases of an earlier session ended with it.
                for served in self.ranks.borrow().iter() {
                    served.state.borrow_mut().fencing = 0;
                }
                self.trace.tell(format!("{} joined as session {}", self.name, joined.session));
                Duration::ZERO
            }
            Err(error) if error.kind == ErrorKind::Retry => RETRY_PAUSE,
            Err(error) => {
                self.trace.tell(format!("{} is refused: {error}", self.name));
                REFUSED_PAUSE
            }
        }
    }

    async fn renew(self: Rc<Self>, id: u64) -> Duration {
        if let Ok(_alone) = self.confirming.try_lock() {
            self.confirm(id).await;
            self.report_skipped(id).await;
        }
        let ranks = self.ranks.borrow().clone();
        let confirmed = ranks.iter().filter(|served| served.state.borrow().fencing != 0);
        let ranks_told: Vec<_> = confirmed.map(|served| served.progress()).collect();
        self.oracle.tells(&ranks_told);
        let leases: Vec<_> = ranks_told.iter().filter_map(|told| told.lease.clone()).collect();
        let request =
            wire::HeartbeatRequest { context: None, session: id, ranks: ranks_told, scans: vec![] };
        let call: Call<wire::HeartbeatResponse> = Rc::new(move |mut clients, context| {
            let request = wire::HeartbeatRequest { context, ..request.clone() };
            Box::pin(async move { clients.worker.heartbeat(request).await })
        });
        let sure: Vec<_> = leases.iter().map(|l| self.oracle.holds.sends(&l.job)).collect();
        let sent = Instant::now();
        let answer = self.cluster.once(&self.cluster.id(), &call).await;
        if self.id.get() != Some(id) {
            // The answer belongs to an earlier session.
            return Duration::ZERO;
        }
        let is_overtaken = self.heard.get().is_some_and(|heard| heard > sent);
        match answer {
            Ok(response) => {
                self.heard.set(self.heard.get().max(Some(sent)));
                for (lease, sure) in leases.iter().zip(sure) {
                    self.hear(lease, sure, &response);
                }
                if !is_overtaken {
                    pause(&ranks, &response.pauses);
                }
                response.verdicts.iter().for_each(|verdict| self.judge(&ranks, verdict));
                for revocation in &response.revocations {
                    let asked = |served: &&Rc<Served>| served.progress().lease == revocation.lease;
                    ranks.iter().filter(asked).for_each(|served| served.is_revoked.set(true));
                }
                self.has_scans.set(self.has_scans.get() | response.has_scans);
                self.end_unknown(response.unlisted);
                self.heartbeat.get()
            }
            Err(error) if error.kind == ErrorKind::Fenced => {
                self.trace.tell(format!("{}: session {id} ended: {error}", self.name));
                if let Some(heard) = self.heard.take() {
                    self.oracle.session_ended(&self.name, id, heard.elapsed());
                }
                self.forget(id);
                Duration::ZERO
            }
            Err(error) if error.kind == ErrorKind::WrongCluster => REFUSED_PAUSE,
            Err(_) if is_overtaken => self.heartbeat.get(),
            Err(_) => self.heartbeat.get().min(RETRY_PAUSE),
        }
    }

    /// Ends leases that no trainer here has: it was gone before its start was answered, or ended
    /// without a report.
    fn end_unknown(self: &Rc<Self>, unlisted: Vec<wire::Lease>) {
        for lease in unlisted {
            let key = (lease.job.clone(), lease.rank);
            let served =
                |served: &Rc<Served>| (&served.asked.job, served.asked.rank) == (&key.0, key.1);
            if self.starting.borrow().contains(&key) || self.ranks.borrow().iter().any(served) {
                continue;
            }
            self.trace.tell(format!("{}: {} rank {} has no trainer", self.name, key.0, key.1));
            let session = Rc::clone(self);
            tokio::task::spawn_local(async move { session.end_lease(lease, None).await });
        }
    }

    /// Requests leases that are not confirmed or that ended with an earlier session.
    async fn confirm(&self, id: u64) {
        let ranks = self.ranks.borrow().clone();
        for served in ranks {
            let ServedState { generation, fencing, epoch, step, verdict, left } =
                served.state.borrow().clone();
            if fencing != 0 || verdict.is_some() {
                continue;
            }
            let intent = Intent::Reconnect { generation, epoch, step };
            match self.start_rank(id, &served.asked, (&intent, left, None), Duration::ZERO).await {
                Ok(started) => {
                    let mut state = served.state.borrow_mut();
                    // The trainer may have left another epoch meanwhile.
                    if (state.epoch, state.left) == (epoch, left) {
                        (state.fencing, state.left) = (started.fencing, None);
                    }
                }
                Err(error) if matches!(error.kind, ErrorKind::Retry | ErrorKind::Storage) => return,
                Err(error) if error.kind == ErrorKind::Fenced => return,
                Err(error) => served.state.borrow_mut().verdict = Some(error),
            }
        }
    }

    /// Starts a rank, or reconnects it.
    ///
    /// # Errors  As returned by the coordinator.
    pub async fn start_rank(
        &self,
        session: u64,
        asked: &Asked,
        (intent, left, replaced): Placement<'_>,
        patience: Duration,
    ) -> Result<wire::StartRankResponse, WireError> {
        let Asked { job, run, rank, world_size, trainer, mixture, left_out } = asked.clone();
        let replaces = replaced.map(|other| other.progress());
        if let Some(progress) = &replaces {
            self.oracle.tells(std::slice::from_ref(progress));
            self.oracle.count("replaced");
        }
        let request = wire::StartRankRequest {
            context: None,
            session,
            job,
            run: Some(run),
            rank,
            world_size,
            limit: None,
            trainer,
            intent: Some(intent_to(intent)),
            left: left.map(|(epoch, step)| wire::Position { epoch, step }),
            in_doubt: policy_of(&asked.job).into(),
            in_doubt_grace_ms: Some(GRACE_MS),
            peer: None,
            replaces,
            mixture,
            // Of the generation to which a rank reconnects.
            left_out: match intent {
                Intent::Start { .. } => left_out_to(&left_out),
                Intent::Move { .. } | Intent::Reconnect { .. } => vec![],
            },
        };
        let call: Call<wire::StartRankResponse> = Rc::new(move |mut clients, context| {
            let request = wire::StartRankRequest { context, ..request.clone() };
            Box::pin(async move { clients.worker.start_rank(request).await })
        });
        let sent = self.oracle.sends();
        let sure = self.oracle.holds.sends(&asked.job);
        self.oracle.asks(asked, intent);
        let answer = {
            let _starting = Starting::new(self, (asked.job.clone(), asked.rank));
            self.cluster.call((Kind::Changes, patience), call).await
        };
        self.oracle.holds.started(sure, &answer);
        if let Ok(started) = &answer {
            self.oracle.granted(asked, intent, started, sent);
            let (g, f) = (started.generation, started.fencing);
            let Asked { job, run, rank, .. } = asked;
            self.trace.tell(format!("{job} {run} rank {rank}: generation {g}, lease {f}"));
        }
        answer
    }

    /// Reports the final progress of a rank, then that it ended.
    pub async fn end_rank(&self, served: &Rc<Served>) {
        let (Some(session), true) = (self.id.get(), served.state.borrow().fencing != 0) else {
            return;
        };
        let progress = served.progress();
        let lease = progress.lease.clone();
        self.oracle.tells(std::slice::from_ref(&progress));
        let position = Some(wire::Position { epoch: progress.epoch, step: progress.step });
        let request =
            wire::HeartbeatRequest { context: None, session, ranks: vec![progress], scans: vec![] };
        let call: Call<wire::HeartbeatResponse> = Rc::new(move |mut clients, context| {
            let request = wire::HeartbeatRequest { context, ..request.clone() };
            Box::pin(async move { clients.worker.heartbeat(request).await })
        });
        // One attempt suffices: otherwise the coordinators detect the end through the session.
        let _ = self.cluster.once(&self.cluster.id(), &call).await;
        if let Some(lease) = lease {
            self.end_lease(lease, position).await;
        }
    }

    /// Reports the end of a lease.
    /// - `position`: the trainer's last one, if it is known.
    async fn end_lease(&self, lease: wire::Lease, position: Option<wire::Position>) {
        let call: Call<wire::EndRankResponse> = Rc::new(move |mut clients, context| {
            let (lease, is_told) = (Some(lease.clone()), position.is_some());
            let request = wire::EndRankRequest { context, lease, failure: None, is_told, position };
            Box::pin(async move { clients.worker.end_rank(request).await })
        });
        let _ = self.cluster.call((Kind::Changes, Duration::from_millis(500)), call).await;
    }

    /// Compares a heartbeat's verdict on a lease with the operators' requests about its job.
    fn hear(&self, lease: &wire::Lease, sure: Option<Sure>, response: &wire::HeartbeatResponse) {
        let mut verdicts = response.verdicts.iter();
        let ended = verdicts.find(|verdict| verdict.lease.as_ref() == Some(lease));
        let ended = ended.map(|verdict| WireError::from_message(verdict.error.clone()).kind);
        let mut pauses = response.pauses.iter();
        let paused = pauses.find(|pause| pause.lease.as_ref() == Some(lease));
        self.oracle.holds.beat(sure, ended, paused.map(|pause| pause.note.as_str()));
    }

    /// Passes a verdict on to the rank that holds the lease.
    fn judge(&self, ranks: &[Rc<Served>], verdict: &wire::heartbeat_response::Verdict) {
        let Some(lease) = &verdict.lease else {
            return;
        };
        for served in ranks {
            if served.progress().lease.as_ref() == Some(lease) {
                let error = WireError::from_message(verdict.error.clone());
                let (job, rank) = (&lease.job, lease.rank);
                self.trace.tell(format!("{}: {job} rank {rank} ends: {error}", self.name));
                served.state.borrow_mut().verdict = Some(error);
            }
        }
    }
}

/// While it exists, a start of a rank is under way.
struct Starting<'a>(&'a Session, (String, u64));

impl<'a> Starting<'a> {
    fn new(session: &'a Session, rank: (String, u64)) -> Self {
        session.starting.borrow_mut().push(rank.clone());
        Self(session, rank)
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut starting = self.0.starting.borrow_mut();
        let at = starting.iter().position(|rank| *rank == self.1);
        at.into_iter().for_each(|at| drop(starting.swap_remove(at)));
    }
}

/// Pauses the ranks of paused jobs and resumes the others.
fn pause(ranks: &[Rc<Served>], pauses: &[wire::heartbeat_response::Pause]) {
    for served in ranks {
        let lease = served.progress().lease;
        served.is_paused.set(pauses.iter().any(|pause| pause.lease == lease));
    }
}
