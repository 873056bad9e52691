//! `shardfeed worker start`: the process that reads for the trainers of its host.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use shardfeed_agent::{
    Coordinator, CredentialOptions, Credentials, Whereabouts, Worker, WorkerOptions,
};
use shardfeed_embedded::{default_budget_bytes, default_worker_socket};
use shardfeed_proto::{COORDINATOR_TIMEOUT, ErrorKind, WireError};
use shardfeed_socket::{Allow, ListenOptions};
use shardfeed_source::{CacheChoice, CacheOptions, DataRoots, LoadError, OpenLogs, SharedIndex};

use super::runtime::runtime;
use super::{Stop, config, manager, measures};
use crate::cluster::Client;
use crate::cluster::access::exchange;
use crate::cluster::secret::{Secret, warn_of_open_files};
use crate::error::Problem;
use crate::host::host_name;
use crate::output;
use crate::size::{Bytes, Space};

/// Interval of checks whether a temporary refusal has ended.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

const OPTIONS: &str = "\
FILE has the same options, under their long names and without the dashes:
  coordinator = \"10.0.0.7:7070\"  memory-budget = \"16GiB\"     # or a number, bytes
  allow-uid = [1000, 1001]

Examples:
  shardfeed worker start --coordinator 10.0.0.7:7070 --memory-budget 16GiB
  shardfeed worker start --config /etc/shardfeed/worker.toml";

/// Run a worker until SIGTERM or SIGINT
///
/// It reads, checks and batches for the trainers of its host, which find it by its socket. When its
/// coordinator knows it, it prints one line on stdout; logs go to stderr. A coordinator that does
/// not answer is waited for.
#[derive(Debug, Args)]
#[command(after_help = OPTIONS)]
pub(crate) struct WorkerStartArgs {
    /// TOML file with options, as below; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: WorkerConfig,
}

/// Options of a worker: flags, and kebab-case in TOML. Only `coordinator` is required.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(mut_args = |arg| config::with_variable(arg, "SHARDFEED_WORKER__"))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct WorkerConfig {
    /// Address of the coordinator, or several with commas, or @PATH of an endpoint file, for which
    /// the worker waits; required
    #[arg(long, value_name = "HOST:PORT", env = "SHARDFEED_COORDINATOR", hide_env_values = true)]
    pub(super) coordinator: Option<Whereabouts>,
    /// Folder with ca.crt, if coordinators have certificates, and with this worker's tls.crt and
    /// tls.key, unless it has a token
    #[arg(long, value_name = "DIR")]
    pub(super) tls: Option<PathBuf>,
    /// File with this worker's access token
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// File with a join token: exchanged once for an access token if the token file is missing
    #[arg(long, value_name = "FILE", requires = "token_file")]
    pub(super) join_token_file: Option<PathBuf>,
    /// Show health and metrics to other hosts without --tls
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(super) insecure: Option<bool>,
    /// Path of the socket for trainers [default: /run/shardfeed/worker.sock as root, else
    /// $XDG_RUNTIME_DIR/shardfeed/worker.sock]
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Name in the cluster, unique there [default: the host's name]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Memory for records and batches of all trainers [default: a quarter of the available memory]
    #[arg(long, value_name = "SIZE")]
    pub(super) memory_budget: Option<Bytes>,
    /// Computing threads [default: chosen automatically, up to the number of cores]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(super) threads: Option<NonZeroUsize>,
    /// Folder for cached indexes and data of files [default: SHARDFEED_CACHE_DIR, else
    /// ~/.cache/shardfeed]
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Space for cached bytes of remote files; shared by all workers of the host with the same
    /// folder [default: 0, nothing is cached]
    #[arg(long, value_name = "SIZE")]
    pub(super) cache_bytes: Option<Space>,
    /// Folder or URL of the index that keeps what was found in the files of datasets: the same for
    /// all workers of the cluster [default: none: the coordinators keep what was found]
    #[arg(long, value_name = "DIR|URL")]
    pub(super) index: Option<String>,
    /// Users whose trainers are served, besides the worker's own user and root; repeatable or with
    /// commas [default: all that the socket file's permissions admit: its owner and group]
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) allow_uid: Vec<u32>,
    /// Groups whose trainers are served; repeatable or with commas
    #[arg(long, value_name = "GID", value_delimiter = ',')]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) allow_gid: Vec<u32>,
    /// Group of the socket file [default: the worker's]
    #[arg(long, value_name = "GID")]
    pub(super) socket_gid: Option<u32>,
    /// Folder or URL prefix below which files are read for the cluster and for other users;
    /// repeatable or with commas [default: for the cluster anything, for another user what that
    /// user could open]
    #[arg(long, value_name = "DIR|URL", value_delimiter = ',')]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) data_root: Vec<String>,
    /// HTTP address for /livez, /readyz and /metrics; port 0 picks a free port [default: not
    /// served]
    #[arg(long, value_name = "IP:PORT")]
    pub(super) http: Option<SocketAddr>,
    /// Id of the only cluster to join [default: the first cluster that answers]
    #[arg(long, value_name = "ID")]
    pub(super) cluster_id: Option<String>,
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, &'static str> {
    text.parse().map_err(|_| "must be a whole number, at least 1")
}

pub(crate) fn start(WorkerStartArgs { config, flags }: &WorkerStartArgs) -> Result<()> {
    let config: WorkerConfig = config::read(config.as_deref(), flags)?;
    // One thread suffices: the runtime only handles signals.
    let runtime = runtime(Some(1))?;
    let stop = runtime.block_on(async { Stop::listen() })?;
    let started = begin(&config)?;
    let view = started.worker.view();
    let http = runtime.block_on(async {
        manager::watch({
            let view = view.clone();
            move || view.dead()
        });
        match config.http {
            Some(address) => measures::serve(address, view.clone()).await.map(Some),
            None => Ok(None),
        }
    })?;
    let waiting = runtime.spawn(manager::while_waiting(
        move || view.unready(),
        // The task ends with the process, or when the worker is ready.
        std::future::pending::<()>(),
    ));
    let Some(Serving { worker, mut ready }) = started.join(&stop)? else {
        return Ok(());
    };
    waiting.abort();
    if let Some(http) = http {
        ready += &format!(" http {http}");
    }
    let told = output::line(&ready);
    if told.is_ok() {
        manager::ready(&ready);
        runtime.block_on(stop.asked());
    }
    manager::stopping();
    drop(worker);
    tracing::info!("worker stopped");
    Ok(told?)
}

/// A worker that has joined the cluster.
pub(super) struct Serving {
    pub(super) worker: Worker,
    /// Line that announces it.
    pub(super) ready: String,
}

/// A worker that may not have joined the cluster yet.
struct Started {
    worker: Worker,
    name: String,
    socket: String,
    coordinator: String,
}

/// Starts a worker and waits until it has joined. `None`: it was asked to stop before.
pub(super) fn serve(config: &WorkerConfig, stop: &Stop) -> Result<Option<Serving>> {
    begin(config)?.join(stop)
}

fn begin(config: &WorkerConfig) -> Result<Started> {
    let options = options(config)?;
    let (name, socket) = (options.name.clone(), options.socket.display().to_string());
    let coordinator = options.coordinator.whereabouts().to_string();
    let worker = Worker::start(options)?;
    tracing::info!(worker = name, socket, coordinator, "worker started");
    Ok(Started { worker, name, socket, coordinator })
}

impl Started {
    fn join(self, stop: &Stop) -> Result<Option<Serving>> {
        let Self { worker, name, socket, coordinator } = self;
        loop {
            let joined = worker.session().id(&mut |_| !stop.is_asked());
            match joined {
                Ok(session) => {
                    let cluster = worker.session().coordinator().cluster_id();
                    tracing::info!(session, cluster, "cluster joined");
                    break;
                }
                Err(_) if stop.is_asked() => return Ok(None),
                Err(error) if is_final(&error) => return Err(refused(&coordinator, &error)),
                // Refused for now; the session retries in the background.
                Err(_) => std::thread::sleep(REFUSED_PAUSE),
            }
        }
        let ready = format!("worker ready: {name} socket {socket} coordinator {coordinator}");
        Ok(Some(Serving { worker, ready }))
    }
}

/// True if retrying is useless. A coordinator of another release is not final: it may be upgraded.
fn is_final(error: &WireError) -> bool {
    matches!(error.kind, ErrorKind::WrongCluster | ErrorKind::Invalid | ErrorKind::Denied)
}

/// Returns the worker's credentials. A join token is exchanged first, unless that was done before.
fn credentials(config: &WorkerConfig, place: &Whereabouts, name: &str) -> Result<Credentials> {
    let (tls, token_file) = (config.tls.clone(), config.token_file.clone());
    let shown = CredentialOptions { tls: tls.clone(), token_file: token_file.clone(), token: None };
    warn_of_open_files(&shown);
    if let (Some(join), Some(token)) = (&config.join_token_file, &token_file)
        && !token.exists()
    {
        let joining = CredentialOptions { tls, token_file: Some(join.clone()), token: None };
        let credentials = Credentials::read(joining)?;
        if !credentials.has_tls() {
            return Err(Problem::usage("a join token is shown inside TLS only")
                .hint("give --tls DIR with ca.crt of the cluster")
                .into());
        }
        let client = Client::new(place.clone(), COORDINATOR_TIMEOUT, credentials).patient();
        // The secret is on disk before the exchange: an interrupted start continues with it.
        let mut staged = token.clone().into_os_string();
        staged.push(".new");
        let staged = PathBuf::from(staged);
        let secret = match Secret::load(&staged) {
            Some(secret) => secret,
            None => {
                let secret = Secret::new();
                secret.save(&staged)?;
                secret
            }
        };
        exchange(&client, name, &secret)?;
        std::fs::rename(&staged, token)
            .with_context(|| format!("cannot write {}", token.display()))?;
        tracing::info!(file = %token.display(), "the join token was exchanged");
    }
    Ok(Credentials::read(shown)?)
}

/// Requires `tls` or `insecure` if the HTTP address can be reached by other hosts.
fn check_openness(config: &WorkerConfig) -> Result<()> {
    let open = config.http.filter(|address| !address.ip().to_canonical().is_loopback());
    match open.filter(|_| config.tls.is_none() && !config.insecure.unwrap_or_default()) {
        None => Ok(()),
        Some(address) => Err(Problem::usage(format!(
            "option `http` is {address}, where other hosts can look, and there are no certificates"
        ))
        .hint("set `tls`, or `insecure` if everybody on that network may look")
        .into()),
    }
}

fn refused(coordinator: &str, error: &WireError) -> anyhow::Error {
    let what = format!("the coordinator at {coordinator} refuses this worker");
    anyhow::Error::new(error.clone()).context(what)
}

/// Checks the options; accesses no folder and no network.
pub(super) fn check(config: &WorkerConfig) -> Result<Whereabouts> {
    let Some(place) = config.coordinator.clone() else {
        return Err(Problem::usage("the worker needs the address of its coordinator")
            .hint("give --coordinator HOST:PORT, SHARDFEED_COORDINATOR, or `coordinator` in --config FILE")
            .into());
    };
    check_openness(config)?;
    if config.join_token_file.is_some() && config.token_file.is_none() {
        return Err(Problem::usage(
            "option `join-token-file`: there is no file for the token that it is exchanged for",
        )
        .hint("set `token-file`, too")
        .into());
    }
    Ok(place)
}

/// Returns the index that an option names; makes its folder.
fn index_at(named: &str) -> Result<SharedIndex, LoadError> {
    let index = SharedIndex::parse(named)?.absolute()?;
    index.make()?;
    Ok(index)
}

pub(super) fn options(config: &WorkerConfig) -> Result<WorkerOptions> {
    let place = check(config)?;
    let host = host_name();
    let name = config.name.clone().unwrap_or_else(|| host.clone());
    let principal = format!("worker:{name}");
    let cluster_id = config.cluster_id.clone();
    let credentials = credentials(config, &place, &name)?;
    let coordinator =
        Coordinator::of(place, principal, COORDINATOR_TIMEOUT, cluster_id, credentials);
    let (uids, gids) = (config.allow_uid.clone(), config.allow_gid.clone());
    let allow = match uids.is_empty() && gids.is_empty() {
        true => Allow::FileMode,
        false => Allow::Only { uids, gids },
    };
    let data_roots = DataRoots::new(config.data_root.clone())
        .map_err(|error| Problem::usage(format!("option `data-root`: {error}")))?;
    let index = config.index.as_deref().map(index_at).transpose();
    let index = index.map_err(|error| Problem::usage(format!("option `index`: {error}")))?;
    Ok(WorkerOptions {
        data_roots,
        name,
        host,
        coordinator,
        socket: config.socket.clone().unwrap_or_else(default_worker_socket),
        listen: ListenOptions { gid: config.socket_gid, allow },
        memory_budget_bytes: config.memory_budget.map_or_else(default_budget_bytes, Bytes::get),
        threads: config.threads.map(NonZeroUsize::get),
        cache: CacheOptions {
            folder: config.cache_dir.clone().map_or(CacheChoice::Environment, CacheChoice::Folder),
            bytes: config.cache_bytes.map_or(0, Space::get),
            index,
            logs: Some(OpenLogs::default()),
        },
    })
}
