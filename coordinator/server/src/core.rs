//! What all parts of the coordinator share: the node, the chunks, the leader's memory.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use shardfeed_plan::Digest;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_raft::Node;
use shardfeed_scheduler::{Answer, Change, Command, LeaseRef, Scan, State};
use tokio::sync::Semaphore;

use crate::chunks::ChunkStore;
use crate::config::CoordinatorOptions;
use crate::error;
use crate::machine::{self, Scheduler};
use crate::manifests::Manifests;
use crate::metrics::Metrics;
use crate::plans::Plans;
use crate::progress::Progress;
use crate::rpc::{CALLS_MAX, Caller};
use crate::sessions::Sessions;
use crate::standing::{scans, standing};

/// Who proposes what nobody asked for.
pub(crate) const OWN_PRINCIPAL: &str = "coordinator";

/// See the module.
/// Commands of cursors in one round at most; what is left waits for the next.
const REPORTS_PER_ROUND_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: CoordinatorOptions,
    pub(crate) node: Node<Scheduler>,
    pub(crate) chunks: ChunkStore,
    pub(crate) manifests: Manifests,
    pub(crate) plans: Plans,
    pub(crate) metrics: Metrics,
    /// Calls that may still begin.
    pub(crate) calls: Semaphore,
    pub(crate) started: Instant,
    live: Mutex<Live>,
}

/// The leader's memory: what is not worth a command.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) sessions: Sessions,
    pub(crate) progress: Progress,
}

impl Core {
    pub(crate) fn new(
        options: CoordinatorOptions,
        node: Node<Scheduler>,
        chunks: ChunkStore,
    ) -> Self {
        Self {
            options,
            node,
            chunks,
            manifests: Manifests::default(),
            plans: Plans::default(),
            metrics: Metrics::new(),
            calls: Semaphore::new(CALLS_MAX),
            started: Instant::now(),
            live: Mutex::default(),
        }
    }

    /// Looks at the applied state, under its lock: be short.
    pub(crate) fn read<T>(&self, view: impl FnOnce(&State) -> T) -> T {
        self.node.read(|machine| view(&machine.state))
    }

    /// Has a change agreed upon and carried out.
    pub(crate) async fn propose(
        &self,
        caller: Caller,
        change: Change,
    ) -> Result<Answer, WireError> {
        let Caller { request_id, principal } = caller;
        let command = Command { request_id, principal, now_ms: now_ms(), change };
        let command =
            serde_json::to_vec(&command).map_err(|_| error::lost("encoding a command"))?;
        let applied = self.node.propose(command).await;
        let applied = applied.map_err(|error| error::proposal(&error))?;
        let answer = machine::decode(&applied.answer);
        answer.map_err(|_| error::lost("the state"))?.map_err(|refusal| error::refusal(&refusal))
    }

    /// Has a change carried out that nobody asked for.
    pub(crate) async fn propose_own(&self, change: Change) -> Result<Answer, WireError> {
        let principal = OWN_PRINCIPAL.to_owned();
        self.propose(Caller { request_id: String::new(), principal }, change).await
    }

    /// Writes down how far ranks were told to be: now and then, and before anything is decided by it.
    pub(crate) async fn write_cursors(&self) {
        for _ in 0..REPORTS_PER_ROUND_MAX {
            let cursors = self.live().progress.take_reports();
            if cursors.is_empty() {
                return;
            }
            let count = cursors.len() as u64;
            match self.propose_own(Change::Report { cursors: cursors.clone() }).await {
                Ok(_) => {
                    self.metrics.cursors_reported.inc_by(count);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot write cursors down");
                    self.live().progress.put_back(&cursors);
                    return;
                }
            }
        }
    }

    /// The leader's memory, under its lock: be short.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses calls that this node cannot answer with authority.
    pub(crate) fn available(&self) -> Result<(), WireError> {
        let status = self.node.status();
        if let Some(reason) = status.fatal {
            return Err(WireError::new(ErrorKind::Storage, storage_failed(&reason)));
        }
        if !status.is_leader {
            let leader = match status.leader {
                Some(leader) => format!("node {leader} leads"),
                None => "no node leads at the moment; try again".to_owned(),
            };
            let message = format!("this node is not the leader; {leader}");
            return Err(WireError::new(ErrorKind::NotLeader, message));
        }
        Ok(())
    }

    /// Why requests would not be answered, if so.
    pub(crate) fn unready(&self) -> Option<String> {
        let status = self.node.status();
        match (status.fatal, status.leader) {
            (Some(reason), _) => Some(storage_failed(&reason)),
            (None, None) => {
                Some("no leader: an election is going on, or most nodes are gone".into())
            }
            (None, Some(_)) => None,
        }
    }

    /// Brings the gauges up to date.
    pub(crate) fn measure(&self) {
        let status = self.node.status();
        let (sessions, datasets, jobs) = self.read(|state| {
            (state.sessions().count(), state.datasets().count(), state.jobs().count())
        });
        let metrics = &self.metrics;
        metrics.sessions.set(sessions as i64);
        metrics.datasets.set(datasets as i64);
        metrics.jobs.set(jobs as i64);
        metrics.unreferenced_bytes.set(self.chunks.unreferenced_bytes() as i64);
        metrics.applied_index.set(status.applied.unwrap_or(0) as i64);
        metrics.leader.set(i64::from(status.is_leader));
        metrics.storage_failed.set(i64::from(status.fatal.is_some()));
    }
}

impl Live {
    /// Forgets what the state no longer knows, and hears of what it does.
    /// - `begins`: this node begins to lead; everybody gets a full ttl.
    pub(crate) fn follow(&mut self, state: &State, begins: bool, now: Instant) {
        let ttl = |ttl_ms| Duration::from_millis(ttl_ms);
        let sessions = state.sessions().map(|session| (session.id, ttl(session.join.ttl_ms)));
        let sessions = sessions.collect();
        match begins {
            true => self.sessions.renew_all(&sessions, now),
            false => self.sessions.follow(&sessions, now),
        }
        let lease = |lease: &LeaseRef| standing(state, lease).is_ok();
        let scan = |dataset: &str, part, fencing| scans(state, dataset, part, fencing);
        self.progress.retain(lease, scan, now);
    }
}

/// Chunks that datasets refer to.
pub(crate) fn referenced(state: &State) -> Vec<Digest> {
    let scans = state.datasets().filter_map(|dataset| dataset.scan());
    let chunks = |scan: &Scan| {
        let listed: Vec<Digest> = scan.parts.iter().map(|part| part.listed.chunk).collect();
        listed.into_iter().chain(scan.chunks().collect::<Vec<_>>())
    };
    scans.flat_map(chunks).collect()
}

/// Runs what blocks, or computes for long, on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, WireError> + Send + 'static,
) -> Result<T, WireError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(error::lost(what)))
}

/// The wall clock, Unix ms.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn storage_failed(reason: &str) -> String {
    format!(
        "the coordinator cannot write its log and has stopped: {reason}; free space or mend the disk \
         of its data folder, then restart it; everything acknowledged before is kept"
    )
}
