//! A worker in the trainer's own process, used when no other worker serves it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use shardfeed_agent::{
    Catalog, Coordinator, CredentialOptions, Credentials, GrpcControl, OpenProgress, Opened,
    Scanner, Session, Source, WorkerInfo,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_source::{DataRoots, Dataset, LoadError, ScanStage};

use crate::contents::Contents;
use crate::link::connect::absolute;
use crate::link::exchange::{Progress, Setting, waiting};
use crate::link::here::Here;
use crate::options::ClusterOptions;

/// Interval between checks for a missing endpoint file.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A worker in the trainer's process.
pub(crate) struct InProcess {
    pub(crate) here: Here,
    pub(crate) coordinator: Coordinator,
    control: Arc<GrpcControl>,
    _scanner: Option<Scanner>,
}

impl InProcess {
    /// Creates the worker for an opened dataset.
    /// - `dataset`: its name in the cluster, and its contents.
    pub(crate) fn new(
        setting: Setting,
        session: Arc<Session>,
        scanner: Option<Scanner>,
        dataset: (String, Arc<Dataset>),
    ) -> Self {
        let coordinator = session.coordinator().clone();
        let control = Arc::new(GrpcControl::new(session));
        let here = Here::in_cluster(setting, Arc::<GrpcControl>::clone(&control), dataset);
        Self { here, coordinator, control, _scanner: scanner }
    }
}

impl Drop for InProcess {
    /// Ends the session synchronously, because the process may exit right after this.
    fn drop(&mut self) {
        self.here.stop();
        self.control.leave();
    }
}

pub(crate) fn cluster_of(setting: &Setting) -> &ClusterOptions {
    setting.options.cluster.as_ref().expect("made for a cluster")
}

pub(crate) fn coordinator(setting: &Setting) -> Result<Coordinator, LoadError> {
    let cluster = cluster_of(setting);
    let principal = format!("trainer:{}@{}", std::process::id(), host());
    let credentials = Credentials::read(CredentialOptions::from_environment())?;
    Ok(Coordinator::new(&cluster.coordinator, principal, cluster.timeout, None, credentials)?)
}

/// Waits for the endpoint file with the coordinators' addresses, if one is configured.
///
/// Without it, it cannot be checked whether a worker belongs to the right cluster.
///
/// # Errors  The file is missing or has no addresses for the coordinator timeout.
pub(crate) fn await_file(
    coordinator: &Coordinator,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let (place, begun) = (coordinator.whereabouts(), Instant::now());
    loop {
        let Err(reason) = place.addresses() else {
            return Ok(());
        };
        if begun.elapsed() >= coordinator.timeout() {
            let message = format!(
                "the endpoint file named no coordinators for {:.0} s ({reason}); check the path \
                 and that `shardfeed coordinator start --endpoint-file` runs, then start again",
                begun.elapsed().as_secs_f64()
            );
            return Err(WireError::new(ErrorKind::Unreachable, message).into());
        }
        if !waiting(progress)(&reason) {
            return Err(LoadError::Interrupted);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

pub(crate) fn session(setting: &Setting) -> Result<Arc<Session>, LoadError> {
    let info = WorkerInfo {
        name: format!("trainer-{}-{}", host(), &setting.trainer[..8]),
        host: host(),
        in_process: true,
        endpoint: String::new(),
        data_roots: DataRoots::default(),
    };
    Ok(Arc::new(Session::start(coordinator(setting)?, info)))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Becomes a worker: registers the dataset and scans for it, as any other worker does.
pub(crate) fn open_here(
    setting: &Setting,
    progress: Progress<'_>,
) -> Result<(InProcess, Contents), LoadError> {
    let options = &setting.options;
    let source = match &options.dataset {
        Some(name) => Source::Named(name.clone()),
        None => Source::Files { patterns: absolute(&options.files)?, rules: options.file_rules() },
    };
    let session = session(setting)?;
    let scanner = Scanner::start(Arc::clone(&session), options.cache.clone())
        .map_err(|source| LoadError::Io { file: "scanning threads".into(), source })?;
    let catalog = Catalog::new(Arc::clone(&session), options.cache.clone());
    let opened = open_in_time(&catalog, &source, cluster_of(setting).timeout, progress)?;
    let contents = Contents::of(&opened.name, opened.rules, &opened.dataset);
    let dataset = (opened.name, opened.dataset);
    Ok((InProcess::new(setting.clone(), session, Some(scanner), dataset), contents))
}

/// Opens a dataset; fails after `timeout` without progress.
fn open_in_time(
    catalog: &Catalog,
    source: &Source,
    timeout: Duration,
    progress: Progress<'_>,
) -> Result<Opened, LoadError> {
    let (mut since, mut late) = (None, None);
    let opened = catalog.open(source, None, &mut |now: &OpenProgress| {
        // Calls to a coordinator that does not answer report that themselves.
        let is_stalled = now.scan.stage == ScanStage::Scanning && !now.note.is_empty();
        // A call that has just begun has no information about the files.
        if now.scan.stage != ScanStage::Waiting || !now.note.is_empty() {
            since = is_stalled.then(|| since.unwrap_or_else(Instant::now));
        }
        let is_late = since.is_some_and(|since: Instant| since.elapsed() >= timeout);
        late = is_late.then(|| now.note.clone());
        !is_late && progress(now)
    });
    match (opened, late) {
        (Err(LoadError::Interrupted), Some(note)) => {
            let seconds = timeout.as_secs_f64();
            let message = format!("the dataset is not ready after {seconds:.1} s: {note}");
            Err(WireError::new(ErrorKind::Unreachable, message).into())
        }
        (opened, _) => opened,
    }
}

/// Runs an attempt on a thread; a thread that cannot be created is a failed attempt.
pub(crate) fn in_background<T: Send + 'static, E: From<LoadError> + Send + 'static>(
    name: &str,
    run: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Receiver<Result<T, E>> {
    let (sender, receiver) = sync_channel(1);
    let own = sender.clone();
    let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
        // The receiver is gone if the loader was closed in the meantime.
        let _ = own.send(run());
    });
    if let Err(source) = spawned {
        let _ = sender.send(Err(LoadError::Io { file: "threads".into(), source }.into()));
    }
    receiver
}
