//! The cluster of a loader: coordinators over gRPC, and a worker in the trainer's own process.
//!
//! The loader itself is `shardfeed-embedded`, which knows neither; it gets [`GrpcCluster`] with its
//! [`ClusterOptions`]. This crate must not depend on Python or on the coordinator.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_agent::{
    Catalog, Coordinator, CredentialOptions, Credentials, GrpcControl, Opened, SampleSource,
    Scanner, Session, Source, Whereabouts, WorkerInfo,
};
use shardfeed_embedded::{
    ClusterOptions, ClusterPort, DatasetRequest, InProcessWorker, Joined, LoaderOptions,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::Control;
use shardfeed_source::{
    DataRoots, LoadError, OnProgress, OpenProgress, ScanStage, absolute_pattern,
};

/// Interval between checks for a missing endpoint file.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The coordinators of a cluster, over gRPC.
#[derive(Clone, Copy, Debug)]
pub struct GrpcCluster;

impl ClusterPort for GrpcCluster {
    /// Without the addresses, it cannot be checked whether a worker belongs to the right cluster.
    fn await_addresses(
        &self,
        cluster: &ClusterOptions,
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError> {
        await_file(&coordinator(cluster)?, progress)
    }

    /// A worker may not be allowed to read this trainer's endpoint file, and has another working
    /// directory. If the file cannot be read at the moment, nothing is sent and the worker's
    /// cluster is trusted, because a worker of this loader's cluster was there before.
    fn addresses(&self, coordinator: &str) -> String {
        match coordinator.parse() {
            Ok(place @ Whereabouts::File(_)) => {
                place.addresses().map_or_else(|_| String::new(), |addresses| addresses.to_string())
            }
            _ => coordinator.to_owned(),
        }
    }

    fn open(
        &self,
        options: &LoaderOptions,
        requests: &[DatasetRequest],
        trainer: &str,
        progress: OnProgress<'_>,
    ) -> Result<Joined, LoadError> {
        let sources = requests.iter().map(|request| source(options, request));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let session = session(options, trainer)?;
        let scanner = Scanner::start(Arc::clone(&session), options.cache.clone())
            .map_err(|source| LoadError::Io { file: "scanning threads".into(), source })?;
        let catalog = Catalog::new(Arc::clone(&session), options.cache.clone());
        let timeout = cluster_of(options).timeout;
        let open = |(source, request): (&SampleSource, &DatasetRequest)| {
            let Opened { name, rules, dataset, missing, .. } =
                open_in_time(&catalog, source, timeout, progress)?;
            Ok(request.opened((name, rules), Arc::unwrap_or_clone(dataset), missing))
        };
        let datasets = sources.iter().zip(requests).map(open);
        let datasets = datasets.collect::<Result<_, LoadError>>()?;
        let worker = Box::new(Member::new(session, Some(scanner)));
        Ok(Joined { worker, datasets })
    }

    fn join(
        &self,
        options: &LoaderOptions,
        trainer: &str,
    ) -> Result<Box<dyn InProcessWorker>, LoadError> {
        Ok(Box::new(Member::new(session(options, trainer)?, None)))
    }
}

/// A worker in the trainer's process.
struct Member {
    coordinator: Coordinator,
    control: Arc<GrpcControl>,
    _scanner: Option<Scanner>,
}

impl Member {
    fn new(session: Arc<Session>, scanner: Option<Scanner>) -> Self {
        let coordinator = session.coordinator().clone();
        Self { coordinator, control: Arc::new(GrpcControl::new(session)), _scanner: scanner }
    }
}

impl InProcessWorker for Member {
    fn control(&self) -> Arc<dyn Control> {
        Arc::<GrpcControl>::clone(&self.control)
    }

    fn cluster_id(&self) -> Option<String> {
        self.coordinator.cluster_id()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.control.leave();
    }
}

/// Returns what a worker is asked for.
fn source(options: &LoaderOptions, request: &DatasetRequest) -> Result<SampleSource, LoadError> {
    let source = match &request.dataset {
        Some(name) => Source::Named(name.clone()),
        None => {
            let patterns = request.files.iter().map(|file| absolute_pattern(file));
            let patterns = patterns.collect::<Result<_, _>>()?;
            Source::Files { patterns, rules: request.rules }
        }
    };
    let (program, corrupt) = (request.program().to_vec(), options.corrupt);
    Ok(SampleSource { source, program, corrupt, kept: request.kept(options)? })
}

fn cluster_of(options: &LoaderOptions) -> &ClusterOptions {
    options.cluster.as_ref().expect("only a cluster has this port")
}

fn coordinator(cluster: &ClusterOptions) -> Result<Coordinator, LoadError> {
    let principal = format!("trainer:{}@{}", std::process::id(), host());
    let credentials = Credentials::read(CredentialOptions::from_environment())?;
    Ok(Coordinator::new(&cluster.coordinator, principal, cluster.timeout, None, credentials)?)
}

/// Waits for the endpoint file with the coordinators' addresses, if one is configured.
///
/// # Errors  The file is missing or has no addresses for the coordinator timeout.
fn await_file(coordinator: &Coordinator, progress: OnProgress<'_>) -> Result<(), LoadError> {
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
        if !progress(&OpenProgress::waiting(reason)) {
            return Err(LoadError::Interrupted);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn session(options: &LoaderOptions, trainer: &str) -> Result<Arc<Session>, LoadError> {
    let info = WorkerInfo {
        name: format!("trainer-{}-{}", host(), &trainer[..8]),
        host: host(),
        in_process: true,
        endpoint: String::new(),
        data_roots: DataRoots::default(),
    };
    Ok(Arc::new(Session::start(coordinator(cluster_of(options))?, info)))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Opens a dataset; fails after `timeout` without progress.
fn open_in_time(
    catalog: &Catalog,
    source: &SampleSource,
    timeout: Duration,
    progress: OnProgress<'_>,
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
