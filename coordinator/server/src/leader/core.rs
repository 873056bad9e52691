//! Shared parts of the coordinator: the node, the chunks, the leader's memory.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardfeed_host::Host;
use shardfeed_plan::Digest;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_raft::{Leadership, Node, Peer, Role};
use shardfeed_scheduler::{
    Answer, Change, Command, Cordon, LeaseRef, LeasedScan, Scan, ScanRef, Session, State,
};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::config::CoordinatorOptions;
use crate::error::{self, Result, retry};
use crate::leader::claim_queue::{ClaimSender, POLLS_MAX};
use crate::leader::plans::Plans;
use crate::leader::progress::LiveProgress;
use crate::leader::sessions::LiveSessions;
use crate::leader::shard_counts::ShardCounts;
use crate::leader::standing::{scan_lease, standing};
use crate::metrics::{Audited, Denial, Metrics, WorkerIs};
use crate::net::front::Front;
use crate::net::links::Channels;
use crate::rpc::audit::{Audit, Entry};
use crate::rpc::context::Caller;
use crate::rpc::who::Denied;
use crate::storage::chunks::ChunkStore;
use crate::storage::machine::Scheduler;
use crate::storage::manifests::Manifests;
use crate::storage::turns::Turns;

pub(crate) const OWN_PRINCIPAL: &str = "coordinator";

/// Maximum concurrent calls; further callers must retry.
pub const CALLS_MAX: usize = 2048;

/// Maximum commands with cursors in one round; the rest waits for the next.
const REPORTS_PER_ROUND_MAX: usize = 16;

/// A leader without contact to a majority for this many longest election timeouts answers no calls:
/// another one was elected long ago, and workers should look for it.
const LONELY_ELECTIONS: u64 = 4;

/// Minimum time, ms, that counts as a suspension: the two clocks are read one after the other, and
/// no election takes less time.
const SUSPENDED_MS_MIN: u64 = 20;

pub(crate) struct Core {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) options: CoordinatorOptions,
    pub(crate) advertise: String,
    pub(crate) links: Channels,
    pub(crate) node: Node<Scheduler>,
    pub(crate) chunks: ChunkStore,
    pub(crate) turns: Turns,
    pub(crate) manifests: Manifests,
    pub(crate) plans: Plans,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) calls: Semaphore,
    /// Permits for ranks that wait for groups.
    pub(crate) polls: Semaphore,
    pub(crate) asks: ClaimSender,
    pub(crate) audit: Audit,
    /// Shards of running epochs by state, for monitoring.
    pub(crate) shard_counts: ShardCounts,
    pub(crate) started: Instant,
    leadership: watch::Receiver<Leadership>,
    /// Term in which this node leads and has applied everything acknowledged before; 0: none.
    ready_term: AtomicU64,
    /// Time that the machine had been suspended, ms, when a majority last confirmed this leader.
    confirmed_at_ms: AtomicU64,
    /// Time of the last log message from the leader, if the leader is another node.
    heard: Mutex<Instant>,
    /// Rounds of writing cursors that have begun.
    cursor_rounds: AtomicU64,
    /// The last round that ended, held during a round: calls wait for cursors that it writes, and
    /// those made before it began need no round of their own.
    cursor_round_ended: tokio::sync::Mutex<u64>,
    live: Mutex<Live>,
}

impl Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The leader's memory, for data that needs no command. Valid for one term.
#[derive(Debug, Default)]
pub(crate) struct Live {
    term: u64,
    pub(crate) sessions: LiveSessions,
    pub(crate) progress: LiveProgress,
}

impl Core {
    pub(crate) fn new(
        front: &Front,
        node: Node<Scheduler>,
        chunks: ChunkStore,
        asks: ClaimSender,
        audit: Audit,
    ) -> Self {
        let host = Arc::clone(&front.host);
        Self {
            leadership: node.leadership(),
            started: host.now(),
            heard: Mutex::new(host.now()),
            host,
            options: front.options.clone(),
            advertise: front.advertise.clone(),
            links: front.links.clone(),
            node,
            chunks,
            turns: Turns::default(),
            manifests: Manifests::default(),
            plans: Plans::default(),
            metrics: Arc::clone(&front.metrics),
            calls: Semaphore::new(CALLS_MAX),
            polls: Semaphore::new(POLLS_MAX),
            asks,
            audit,
            shard_counts: ShardCounts::default(),
            ready_term: AtomicU64::new(0),
            confirmed_at_ms: AtomicU64::new(0),
            cursor_rounds: AtomicU64::new(0),
            cursor_round_ended: tokio::sync::Mutex::default(),
            live: Mutex::default(),
        }
    }

    /// Runs `view` on the applied state, under its lock: `view` must be short.
    pub(crate) fn read<T>(&self, view: impl FnOnce(&State) -> T) -> T {
        self.node.read(|machine| view(&machine.state))
    }

    /// Records that another node sent a message of the log.
    pub(crate) fn hears(&self, node: u64) {
        if self.leadership.borrow().leader.as_ref().is_some_and(|leader| leader.node == node) {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = self.host.now();
        }
    }

    /// True if the leader is silent for too long: it is gone, or this node is no longer a member.
    fn is_forgotten(&self) -> bool {
        let most = self.options.election_max_ms.saturating_mul(LONELY_ELECTIONS);
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        self.host.now().saturating_duration_since(heard) > Duration::from_millis(most)
    }

    /// Proposes a change, and returns its answer once it is applied.
    pub(crate) async fn propose(&self, caller: Caller, change: Change) -> Result<Answer> {
        let Caller { request_id, principal, who, index } = caller;
        let (scope, now_ms) = (who.scope(), self.host.wall_ms());
        let command = Command { request_id, principal, scope, now_ms, change };
        self.metrics.proposals.inc();
        let (pending, began) = (Pending::new(&self.metrics), self.host.now());
        let applied = self.node.propose(command.to_bytes()).await;
        drop(pending);
        let took = self.host.now().saturating_duration_since(began);
        let applied = applied.map_err(|error| {
            self.metrics.proposals_failed.inc();
            error::proposal(&error)
        })?;
        self.metrics.proposal.observe(took.as_secs_f64());
        index.store(applied.index, Ordering::Relaxed);
        applied.answer.map_err(|refusal| error::refusal(&refusal))
    }

    pub(crate) async fn propose_own(&self, change: Change) -> Result<Answer> {
        let principal = OWN_PRINCIPAL.to_owned();
        self.propose(Caller { principal, ..Caller::default() }, change).await
    }

    /// Audits and counts a call that was denied because of its caller.
    pub(crate) fn refused(&self, entry: Entry, reason: Denial) {
        self.metrics.denied(reason);
        self.metrics.audited(Audited::Denied);
        self.audit.refused(entry, self.host.now());
    }

    /// Writes the reported cursors: periodically, and before each decision that depends on them. On
    /// return, cursors that were reported before the call are written, unless that failed.
    pub(crate) async fn write_cursors(&self) {
        let begun = self.cursor_rounds.load(Ordering::Acquire);
        let mut ended = self.cursor_round_ended.lock().await;
        if *ended > begun {
            return;
        }
        let round = self.cursor_rounds.fetch_add(1, Ordering::AcqRel) + 1;
        self.write_unreported().await;
        *ended = round;
    }

    async fn write_unreported(&self) {
        for _ in 0..REPORTS_PER_ROUND_MAX {
            let cursors = self.live().progress.unreported();
            if cursors.is_empty() {
                return;
            }
            match self.propose_own(Change::Report { cursors: cursors.clone() }).await {
                Ok(_) => {
                    self.metrics.cursors_reported.inc_by(cursors.len() as u64);
                    self.live().progress.reported(&cursors);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot write cursors down");
                    return;
                }
            }
        }
    }

    /// Returns the leader's memory, under its lock: hold it only briefly. A new term begins with an
    /// empty memory, so that data of an earlier term about sessions ends none of them.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let term = self.ready_term.load(Ordering::Acquire);
        if live.term != term {
            *live = Live { term, ..Live::default() };
        }
        live
    }

    pub(crate) fn leadership(&self) -> Leadership {
        self.leadership.borrow().clone()
    }

    /// Follows the leadership: this node answers whenever it leads. Runs until `stop` is set.
    pub(crate) async fn follow_terms(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut changes = self.leadership.clone();
        let mut led = None;
        loop {
            let Leadership { term, leader, is_leader } = changes.borrow_and_update().clone();
            let leads = leader.as_ref().map(|leader| leader.node);
            if leads.is_some() && led != leads {
                led = leads;
                self.metrics.leader_changes.inc();
                tracing::info!(term, leader = leads, "a leader is known");
            }
            let ready = is_leader && self.ready_term.load(Ordering::Acquire) == term;
            if !is_leader {
                self.ready_term.store(0, Ordering::Release);
            } else if !ready {
                self.take_office(term).await;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                _ = stop.wait_for(|stop| *stop) => return,
                // A majority may be lost and return without a change of the leader.
                () = tokio::time::sleep(OFFICE_AGAIN), if is_leader => {}
            }
        }
    }

    /// Starts to answer as the leader of a term, once everything acknowledged before is applied: a
    /// worker must not lose its session only because this node has not read it yet. This node's
    /// proposals from an earlier leadership in the same term are then decided, too.
    pub(crate) async fn take_office(&self, term: u64) {
        let last = self.node.status().last;
        match self.node.linearize().await {
            Ok(()) if self.node.status().applied < last => {}
            Ok(()) if self.leadership().term == term => {
                self.ready_term.store(term, Ordering::Release);
                tracing::info!(term, "this node leads");
            }
            Ok(()) => {}
            Err(error) => tracing::debug!(%error, "this node does not lead yet"),
        }
    }

    /// Rejects calls that this node cannot answer with authority.
    pub(crate) fn available(&self) -> Result<()> {
        if let Some(reason) = self.node.status().fatal {
            return Err(WireError::new(ErrorKind::Storage, storage_failed(&reason)));
        }
        let Leadership { term, leader, is_leader } = self.leadership();
        if !is_leader {
            return Err(not_leader(leader.as_ref()));
        }
        if self.ready_term.load(Ordering::Acquire) != term {
            // It was just elected, lost its majority, or does not know the outcome of a proposal.
            let message = "this node leads, but no majority has confirmed it yet; try again, or at another node";
            return Err(retry(message));
        }
        Ok(())
    }

    /// Like [`Core::available`], for a caller that may be unauthenticated.
    ///
    /// A caller whose token this node does not know is sent to other nodes, which may know it, but
    /// does not learn which of them leads. Any other denial is the answer, leader or not.
    ///
    /// # Errors  As [`Core::available`].
    pub(crate) fn available_to(&self, denied: Option<&Denied>) -> Result<()> {
        match denied.map(|denied| denied.reason) {
            None => self.available(),
            Some(Denial::Unknown | Denial::Unusable) => {
                self.available().map_err(|error| match error.kind {
                    ErrorKind::NotLeader => WireError::new(error.kind, NOT_LEADER),
                    _ => error,
                })
            }
            Some(_) => Ok(()),
        }
    }

    /// True if this node leads, as far as it knows, but has no contact to a majority.
    pub(crate) fn is_lonely(&self) -> bool {
        let most = self.options.election_max_ms.saturating_mul(LONELY_ELECTIONS);
        let members = self.node.members();
        let voters = members.iter().filter(|member| member.role != Role::Learner);
        let (heard, all) = voters.fold((0, 0), |(heard, all), voter| {
            let hears = voter.heard_ms.is_some_and(|heard| heard <= most);
            (heard + usize::from(hears), all + 1)
        });
        all > 1 && heard * 2 <= all
    }

    /// Proves that no other node leads yet. Usually a majority answered so recently that none can.
    ///
    /// # Errors  `Retry`: there may be another leader, which renews other sessions.
    pub(crate) async fn prove_lead(&self) -> Result<()> {
        let most = Duration::from_millis(self.options.election_max_ms);
        let suspended_ms = self.host.suspended().as_millis() as u64;
        // While this machine was suspended, the others may have elected another leader.
        let is_awake =
            suspended_ms < self.confirmed_at_ms.load(Ordering::Acquire) + SUSPENDED_MS_MIN;
        if is_awake && self.node.heard_majority().is_some_and(|age| age < most) {
            return Ok(());
        }
        if self.is_confirmed().await {
            self.confirmed_at_ms.fetch_max(suspended_ms, Ordering::AcqRel);
            return Ok(());
        }
        let message = "this node leads but has lost its quorum; try again, best at another node";
        Err(retry(message))
    }

    /// True if a majority soon confirms that this node leads: its last contact may be old only
    /// because there was nothing to send.
    pub(crate) async fn is_confirmed(&self) -> bool {
        let wait = Duration::from_millis(self.options.election_max_ms);
        let confirmed = tokio::time::timeout(wait, self.node.linearize()).await;
        confirmed.is_ok_and(|confirmed| confirmed.is_ok())
    }

    /// Rejects all calls until a majority has confirmed that this node leads.
    pub(crate) fn leave_office(&self) {
        self.ready_term.store(0, Ordering::Release);
    }

    /// Waits until this node has applied everything that any node acknowledged before.
    ///
    /// # Errors  `NotLeader`, `Retry`: it does not lead, or cannot prove it.
    pub(crate) async fn linearize(&self) -> Result<()> {
        self.node.linearize().await.map_err(|error| error::proposal(&error))
    }

    /// Returns the reason why only a restart helps, if there is one. A missing majority is none.
    pub(crate) fn dead(&self) -> Option<String> {
        self.node.status().fatal.map(|reason| storage_failed(&reason))
    }

    /// Returns the reason why requests would not be answered, if there is one.
    pub(crate) fn unready(&self) -> Option<String> {
        if let Some(reason) = self.dead() {
            return Some(reason);
        }
        if let Some(reason) = self.chunks.failure() {
            return Some(format!("chunks cannot be stored: {reason}"));
        }
        if let Some(full) = self.chunks.full() {
            return Some(format!("chunks cannot be stored: {full}"));
        }
        let members = self.node.members();
        if !members.is_empty() && members.iter().all(|member| member.node != self.options.node_id) {
            return Some(format!(
                "node {} was removed from cluster {}; stop it",
                self.options.node_id,
                self.node.cluster_id()
            ));
        }
        let Leadership { term, leader, is_leader } = self.leadership();
        let ready = !is_leader || self.ready_term.load(Ordering::Acquire) == term;
        match leader {
            // Callers of this page are not authenticated, so the leader is not named.
            Some(_) if !is_leader && self.is_forgotten() => Some(
                "the leader says nothing: it is gone, or this node was removed from the cluster"
                    .into(),
            ),
            Some(_) if ready => None,
            _ => Some("no leader: an election is in progress, or most nodes are gone".into()),
        }
    }

    pub(crate) fn measure(&self) {
        let status = self.node.status();
        let (now, metrics) = (self.host.now(), &self.metrics);
        let silent = Duration::from_millis(self.options.heartbeat_ms * HEARTBEATS_MISSED);
        let (sessions, leases, datasets, jobs) = self.read(|state| {
            let live = self.live();
            let is = |session: &Session| match state.cordon(&session.join.worker) {
                Cordon::Cordoned if !session.join.in_process => WorkerIs::Cordoned,
                Cordon::Draining if !session.join.in_process => WorkerIs::Draining,
                _ => match live.sessions.seen(session.id) {
                    Some(seen) if now.saturating_duration_since(seen) > silent => WorkerIs::Silent,
                    _ => WorkerIs::Live,
                },
            };
            metrics.set_workers(state.sessions().map(is));
            let leases: usize = state.sessions().map(|session| session.leases.len()).sum();
            (state.sessions().count(), leases, state.datasets().count(), state.jobs().count())
        });
        metrics.leases.set(leases as i64);
        metrics.sessions.set(sessions as i64);
        metrics.datasets.set(datasets as i64);
        metrics.jobs.set(jobs as i64);
        metrics.unreferenced_bytes.set(self.chunks.unreferenced_bytes() as i64);
        metrics.term.set(status.term as i64);
        metrics.last_index.set(status.last.unwrap_or(0) as i64);
        metrics.committed_index.set(status.committed.unwrap_or(0) as i64);
        metrics.applied_index.set(status.applied.unwrap_or(0) as i64);
        metrics.snapshot_index.set(status.snapshot.unwrap_or(0) as i64);
        metrics.log_bytes.set(status.log_bytes as i64);
        metrics.snapshot_bytes.set(status.snapshot_bytes as i64);
        metrics.leader.set(i64::from(status.is_leader));
        metrics.storage_failed.set(i64::from(status.fatal.is_some()));
        metrics.chunks_failed.set(i64::from(self.chunks.failure().is_some()));
        let members = self.node.members();
        let heard = members.iter().filter(|member| {
            member.node != self.options.node_id
                && member.heard_ms.is_some_and(|heard| heard <= self.options.election_max_ms)
        });
        let me = members.iter().find(|member| member.node == self.options.node_id);
        metrics.learner.set(me.is_some_and(|me| me.role == Role::Learner).into());
        metrics.members.set(members.len() as i64);
        metrics.peers_heard.set(heard.count() as i64);
    }
}

/// Number of missing heartbeats after which a worker is silent.
const HEARTBEATS_MISSED: u64 = 2;

/// A proposal without an answer, even if its caller has gone.
struct Pending<'a>(&'a Metrics);

impl<'a> Pending<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.proposals_pending.inc();
        Self(metrics)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.proposals_pending.dec();
    }
}

/// Delay before a leader that is not ready yet tries again.
const OFFICE_AGAIN: Duration = Duration::from_millis(50);

impl Live {
    /// Removes data that the state no longer has, and adds its new sessions and scans.
    pub(crate) fn follow(&mut self, state: &State, now: Instant) {
        let ttl = |ttl_ms| Duration::from_millis(ttl_ms);
        let sessions = state.sessions().map(|session| (session.id, ttl(session.join.ttl_ms)));
        self.sessions.follow(&sessions.collect(), now);
        let lease = |lease: &LeaseRef| standing(state, lease).is_ok();
        let scan = |scan: &LeasedScan| scan_lease(state, scan).is_some();
        self.progress.retain(lease, scan, now);
        for session in state.sessions().filter(|session| !session.scans.is_empty()) {
            for ScanRef { dataset, part } in &session.scans {
                let lease = state.dataset(dataset).and_then(|dataset| dataset.lease_of(*part));
                let Some(fencing) = lease.map(|lease| lease.fencing) else { continue };
                let (dataset, part) = (dataset.clone(), *part);
                self.progress.expect_scan(LeasedScan { dataset, part, fencing }, now);
            }
        }
    }
}

/// Returns the chunks that datasets and jobs refer to.
pub(crate) fn referenced(state: &State) -> Vec<Digest> {
    let scans = state.datasets().filter_map(|dataset| dataset.scan());
    let programs = state.datasets().filter_map(|dataset| dataset.program);
    let specs = state.jobs().flat_map(|job| job.record_spec_chunks.iter().copied());
    scans.flat_map(Scan::held).chain(programs).chain(specs).collect()
}

/// Runs blocking or long-running work outside the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    core: &Arc<Core>,
    what: &'static str,
    work: impl FnOnce(&Core) -> Result<T> + Send + 'static,
) -> Result<T> {
    let shared = Arc::clone(core);
    let done = shardfeed_host::blocking(core.host.as_ref(), move || work(&shared)).await;
    done.unwrap_or_else(|_| Err(error::lost(what)))
}

/// Message to a caller that this node does not know and that must not learn the leader.
const NOT_LEADER: &str = "this node is not the leader; try another one";

fn not_leader(leader: Option<&Peer>) -> WireError {
    let message = match leader {
        Some(leader) => format!("this node is not the leader; ask {leader}"),
        None => "this node is not the leader, and no node leads at the moment; try again".into(),
    };
    WireError {
        leader: leader.and_then(error::address_of).map(String::into_boxed_str),
        ..WireError::new(ErrorKind::NotLeader, message)
    }
}

fn storage_failed(reason: &str) -> String {
    format!(
        "the coordinator cannot continue with its log and has stopped: {reason}; if its disk is \
         the cause, free space or repair it, then restart the node; everything acknowledged before \
         is kept"
    )
}
