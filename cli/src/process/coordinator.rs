//! `shardfeed coordinator`: the process that assigns the work.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use shardfeed_agent::CredentialOptions;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Running};

use super::endpoint::EndpointFile;
use super::runtime::runtime;
use super::{Stop, config, manager};
use crate::cluster::secret::warn_of_open_files;
use crate::error::Problem;
use crate::output;

/// Help heading of rarely changed options.
const TUNING: &str = "Tuning";

const OPTIONS: &str = "\
FILE has the same options by their long names, without the first dashes; --data is `data-dir`:
  data-dir = \"/var/lib/shardfeed\"
  listen = \"0.0.0.0:7070\"
  tls = \"/etc/shardfeed/tls\"
  peers = [\"1=head-1:7070\", \"2=head-2:7070\", \"3=head-3:7070\"]

Examples:
  shardfeed coordinator start --data /var/lib/shardfeed --listen 0.0.0.0:7070 --tls /etc/shardfeed/tls
  shardfeed coordinator start --config /etc/shardfeed/coordinator.toml
  shardfeed coordinator start --data DIR --listen 10.0.0.7:0 --tls TLS --endpoint-file /shared/cluster.json
  shardfeed coordinator start --data DIR --listen 0.0.0.0:7070 --tls /etc/shardfeed/tls --node-id 1 \\
      --peers 1=head-1:7070,2=head-2:7070,3=head-3:7070      # the same on 2 and 3, with their numbers";

#[derive(Debug, Subcommand)]
pub(crate) enum CoordinatorCommand {
    /// Run a coordinator until SIGTERM or SIGINT
    ///
    /// It assigns the work to ranks, and keeps the assignments in its data folder: a start with the
    /// same folder continues from there. When it serves, it prints one line on stdout; logs go to
    /// stderr.
    #[command(after_help = OPTIONS)]
    Start {
        /// TOML file with options, as below; flags override it
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        flags: CoordinatorFlags,
    },
}

/// Options of [`CoordinatorOptions`] as flags.
#[derive(Debug, Args, Serialize)]
#[command(mut_args = |arg| config::with_variable(arg, "SHARDFEED_COORDINATOR__"))]
#[serde(rename_all = "kebab-case")]
pub(crate) struct CoordinatorFlags {
    /// Folder for all persistent data; created if it is missing
    #[arg(long = "data", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// gRPC address for workers and people; port 0 picks a free port [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// HTTP address for health and metrics; port 0 picks a free port [default: 127.0.0.1:7071]
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// Folder with this node's certificates (ca.crt, tls.crt, tls.key); enables authentication of
    /// callers
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Listen beyond this host without certificates: every caller has all permissions
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    insecure: Option<bool>,
    /// Number of this node in its cluster, kept from the first start on [default: 1]
    #[arg(long, value_name = "NODE")]
    node_id: Option<u64>,
    /// Address at which workers, people and other nodes reach this node [default: its address in
    /// --peers, else --listen]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// The 3 or 5 nodes that found a cluster, the same list on all: 1=HOST:PORT,2=HOST:PORT,...
    #[arg(long, value_name = "NODE=HOST:PORT", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<String>,
    /// Nodes of an existing cluster to join; `cluster add` there admits this node. With --peers, a
    /// founder also joins an existing cluster
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    join: Vec<String>,
    /// File in which to publish the cluster's addresses while serving, on a filesystem that others
    /// see; used as --coordinator @PATH [default: no file]
    #[arg(long, value_name = "PATH")]
    endpoint_file: Option<PathBuf>,
    /// Interval of the leader's heartbeats to other nodes, ms [default: 100]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    peer_heartbeat_ms: Option<u64>,
    /// Minimum time without a leader before a node starts an election, ms [default: 300]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    election_min_ms: Option<u64>,
    /// Maximum time without a leader before a node starts an election, ms [default: 600]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    election_max_ms: Option<u64>,
    /// Log entries between two snapshots [default: 10000]
    #[arg(long, value_name = "N", help_heading = TUNING)]
    snapshot_every: Option<u64>,
    /// Name of the cluster, kept from the first start on [default: shardfeed]
    #[arg(long, value_name = "NAME", help_heading = TUNING)]
    cluster_name: Option<String>,
    /// Time without a heartbeat after which a worker's session expires, ms [default: 10000]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    session_ttl_ms: Option<u64>,
    /// Interval of worker heartbeats, ms; at most a third of session-ttl-ms [default: 2000]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    heartbeat_ms: Option<u64>,
    /// Maximum size of chunks that no dataset refers to, bytes [default: 4294967296]
    #[arg(long, value_name = "BYTES", help_heading = TUNING)]
    unreferenced_bytes_max: Option<u64>,
}

impl CoordinatorCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::Start { config, flags } = self;
        if config.is_none() && flags.data_dir.is_none() {
            return Err(Problem::usage("the coordinator needs a folder for its data")
                .hint("give --data DIR, or --config FILE with data-dir = \"DIR\"")
                .into());
        }
        let options: CoordinatorOptions = config::read(config.as_deref(), flags)?;
        let own = CredentialOptions { tls: options.tls.clone(), ..CredentialOptions::default() };
        warn_of_open_files(&own);
        let file = options.endpoint_file.clone().map(EndpointFile::new);
        let runtime = runtime(None)?;
        runtime.block_on(async {
            let stop = Stop::listen()?;
            raise_files();
            let starting = Coordinator::listen(options).await?;
            let health = starting.health();
            manager::watch({
                let health = health.clone();
                move || health.dead()
            });
            let running = tokio::select! {
                running = manager::while_waiting(|| health.unready(), starting.open()) => running?,
                () = stop.asked() => return Ok(()),
            };
            let served = serve(&running, file.as_ref(), &stop).await;
            manager::stopping();
            if let Some(file) = &file {
                file.remove(&running).await;
            }
            running.stop().await;
            served
        })
    }
}

/// Raises the limit of open files to the maximum for this process: each connection needs one.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "cannot open more files than the system allows by default");
        }
    }
}

/// Announces that the coordinator serves, and returns when it is asked to stop.
async fn serve(running: &Running, file: Option<&EndpointFile>, stop: &Stop) -> anyhow::Result<()> {
    if let Some(file) = file {
        file.write(running).await?;
    }
    let line = ready(running);
    output::line(&line)?;
    manager::ready(&line);
    let keep = async {
        match file {
            Some(file) => file.keep(running).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.asked() => Ok(()),
        () = keep => Ok(()),
    }
}

/// Returns the line that announces a serving coordinator.
pub(super) fn ready(running: &Running) -> String {
    let (grpc, cluster) = (running.grpc_address(), running.cluster_id());
    let http = running.http_address();
    let http = http.map_or_else(|| "off".to_owned(), |address| address.to_string());
    format!("coordinator ready: grpc {grpc} http {http} cluster {cluster}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_shows_a_valid_file() {
        let file = OPTIONS.lines().skip(1).take_while(|line| !line.is_empty());
        let file = file.collect::<Vec<_>>().join("\n");
        let options: CoordinatorOptions = toml::from_str(&file).unwrap();
        assert_eq!(options.validate(), Ok(()));
    }
}
