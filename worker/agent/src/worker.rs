//! The worker process: joins a cluster, scans for it, and serves the trainers of its host.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_proto::WireError;
use shardfeed_reader::use_threads;
use shardfeed_socket::{AcceptError, BindError, ListenOptions, Listener};
use shardfeed_source::{CacheOptions, DataRoots, descriptors};

use crate::catalog::{Catalog, Scanner};
use crate::cluster::{Coordinator, GrpcControl, Session, WorkerInfo};
use crate::pulse::Pulse;
use crate::serve::{Budget, Hub, Mixtures, serve};
use crate::view::WorkerView;

/// Maximum number of trainers; each has two threads.
const TRAINERS_MAX: usize = 1024;

/// Interval at which the accepting thread checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Pause after the system refused a connection for lack of a resource.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum time that stopping waits for trainers to end.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Time that stopping waits for trainers before it leaves the cluster without waiting for the rest,
/// as others wait for the leases.
const LET_GO_WAIT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Name; unique in the cluster.
    pub name: String,
    pub host: String,
    pub coordinator: Coordinator,
    pub socket: PathBuf,
    pub listen: ListenOptions,
    /// Bytes for all ranks that it serves.
    pub memory_budget_bytes: u64,
    /// Computing threads; `None`: chosen while reading, at most one for each core.
    pub threads: Option<usize>,
    pub cache: CacheOptions,
    /// Folders and URLs below which it reads for the cluster, and for other users than its own.
    pub data_roots: DataRoots,
}

/// Reason why a worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(transparent)]
    Socket(#[from] BindError),
    #[error("cannot start the worker's threads: {0}")]
    Threads(#[from] std::io::Error),
    #[error(transparent)]
    Refused(#[from] WireError),
}

/// A running worker; it leaves its cluster when dropped.
pub struct Worker {
    hub: Arc<Hub>,
    listener: Arc<Listener>,
    accepting: Option<JoinHandle<()>>,
    _scanner: Scanner,
}

impl Worker {
    /// Starts to serve. The cluster is joined in the background.
    pub fn start(options: WorkerOptions) -> Result<Self, WorkerError> {
        let WorkerOptions { name, host, coordinator, socket, listen, .. } = options;
        let listener = Arc::new(Listener::bind(&socket, listen)?);
        use_threads(options.threads);
        // Each trainer needs a socket and, while it starts, a descriptor for each batch ahead.
        descriptors::limit();
        let endpoint = socket.display().to_string();
        let data_roots = options.data_roots;
        let info = WorkerInfo { name: name.clone(), host, in_process: false, endpoint, data_roots };
        let session = Arc::new(Session::start(coordinator, info));
        let scanner = Scanner::start(Arc::clone(&session), options.cache.clone())?;
        let hub = Arc::new(Hub {
            name,
            control: Arc::new(GrpcControl::new(Arc::clone(&session))),
            catalog: Catalog::new(Arc::clone(&session), options.cache),
            session,
            budget: Budget::new(options.memory_budget_bytes),
            stop: Arc::default(),
            is_draining: AtomicBool::new(false),
            serving: Default::default(),
            mixtures: Mixtures::default(),
            trainers: AtomicUsize::new(0),
            pulse: Pulse::new(),
        });
        let (of_loop, listening) = (Arc::clone(&hub), Arc::clone(&listener));
        let accept = Accept { hub: of_loop, listener: listening, draining: Draining::No };
        let accepting =
            std::thread::Builder::new().name("shardfeed-accept".into()).spawn(|| accept.run())?;
        let accepting = Some(accepting);
        Ok(Self { hub, listener, accepting, _scanner: scanner })
    }

    pub fn session(&self) -> &Session {
        &self.hub.session
    }

    pub fn view(&self) -> WorkerView {
        WorkerView { hub: Arc::clone(&self.hub) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.hub.stop.store(true, Ordering::Relaxed);
        self.listener.stop();
        if let Some(accepting) = self.accepting.take()
            && accepting.join().is_err()
        {
            tracing::error!("the accepting thread panicked");
        }
        let begun = Instant::now();
        let let_go = |most: Duration| {
            while self.hub.trainers.load(Ordering::Relaxed) > 0 && begun.elapsed() < most {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let_go(LET_GO_WAIT);
        self.hub.control.leave();
        let_go(STOP_WAIT);
    }
}

struct Accept {
    hub: Arc<Hub>,
    listener: Arc<Listener>,
    draining: Draining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    No,
    /// Trainers are asked to leave.
    Begun,
    /// No trainer is served, and the worker has left the cluster.
    Done,
}

impl Accept {
    /// Hands trainers over, then leaves the cluster, and keeps running until it is stopped.
    fn drain(&mut self) {
        if self.draining == Draining::No && self.hub.session.is_draining() {
            self.draining = Draining::Begun;
            self.hub.is_draining.store(true, Ordering::Relaxed);
            let trainers = self.hub.trainers.load(Ordering::Relaxed);
            tracing::info!(trainers, "draining: trainers are handed over to their own processes");
        }
        if self.draining == Draining::Begun && self.hub.trainers.load(Ordering::Relaxed) == 0 {
            self.draining = Draining::Done;
            self.hub.control.leave();
            tracing::info!(
                "drained: this worker serves nothing and has left the cluster; stop it, or start it again \
                 once it is uncordoned"
            );
        }
    }

    fn run(mut self) {
        while !self.hub.stop.load(Ordering::Relaxed) {
            self.hub.pulse.beat();
            self.drain();
            let incoming = match self.listener.accept(LOOK_EVERY) {
                Ok(Some(incoming)) => incoming,
                Ok(None) => continue,
                Err(AcceptError::Stopped) => return,
                Err(error) => {
                    tracing::warn!(%error, "a trainer could not connect");
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            if self.hub.trainers.load(Ordering::Relaxed) >= TRAINERS_MAX {
                tracing::error!(trainers = TRAINERS_MAX, "too many trainers, one was turned away");
                continue;
            }
            self.hub.trainers.fetch_add(1, Ordering::Relaxed);
            let served = TrainerGuard(Arc::clone(&self.hub));
            let named = std::thread::Builder::new().name("shardfeed-trainer".into());
            let spawned = named.spawn(move || {
                serve(&served.0, incoming);
            });
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread for a trainer");
            }
        }
    }
}

/// A trainer that is being served, counted until dropped.
struct TrainerGuard(Arc<Hub>);

impl Drop for TrainerGuard {
    fn drop(&mut self) {
        self.0.trainers.fetch_sub(1, Ordering::Relaxed);
    }
}
