//! `shardfeed coordinator`: the process that decides who reads what.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Running};

use super::{Stop, config, manager, runtime};
use crate::error::Problem;
use crate::output;

/// Where help lists what few people change.
const TUNING: &str = "Tuning";

const ABOUT: &str = "\
Run a coordinator until SIGTERM or SIGINT

It decides which rank reads what, and keeps that in its data folder: start it with the same folder again \
and it goes on where it was. When it serves, it prints one line on stdout; logs go to stderr.";

const OPTIONS: &str = "\
Options in FILE, with their defaults:
  data-dir = \"DIR\"             # log, snapshots, chunks; required
  listen = \"127.0.0.1:7070\"    # gRPC; port 0 takes a free one
  http = \"127.0.0.1:7071\"      # /livez, /readyz, /metrics; likewise
  node-id = 1                  # this node's number, kept from the first start on
  peers = []                   # [\"1=HOST:PORT\", ...]: 3 or 5 found a cluster
  join = []                    # [\"HOST:PORT\", ...]: a cluster to be added to
  peer-heartbeat-ms = 100      # how often the leader tells others of itself, ms
  election-min-ms = 300        # without it for so long, a node wants to lead,
  election-max-ms = 600        # ms: at least, and at most
  snapshot-every = 10000       # log entries between two snapshots
  cluster-name = \"shardfeed\"   # kept from the first start on
  session-ttl-ms = 10000       # a worker that is silent for so long is gone, ms
  heartbeat-ms = 2000          # how often workers speak, ms; a third of it at most
  unreferenced-bytes-max = 4294967296   # chunks of no dataset, bytes

and, if other nodes, workers and people do not reach it at what `peers` or `listen` says:
advertise = \"HOST:PORT\"

Examples:
  shardfeed coordinator start --data /var/lib/shardfeed --listen 0.0.0.0:7070
  shardfeed coordinator start --config /etc/shardfeed/coordinator.toml
  shardfeed coordinator start --data DIR --listen 0.0.0.0:7070 --node-id 1 \\
      --peers 1=head-1:7070,2=head-2:7070,3=head-3:7070      # the same on 2 and 3, with their numbers";

/// What can be done with a coordinator.
#[derive(Debug, Subcommand)]
pub(crate) enum CoordinatorCommand {
    /// Run a coordinator until SIGTERM or SIGINT
    #[command(long_about = ABOUT)]
    Start(StartArgs),
}

/// Arguments of `coordinator start`.
#[derive(Debug, Args)]
#[command(after_help = OPTIONS)]
pub(crate) struct StartArgs {
    /// TOML file with options, listed below; flags win over it
    #[arg(long, value_name = "FILE")]
    #[arg(env = "SHARDFEED_COORDINATOR__CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: CoordinatorFlags,
}

/// Options of [`CoordinatorOptions`] as flags.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct CoordinatorFlags {
    /// Folder for all that outlives the process; made if it is missing
    #[arg(long = "data", value_name = "DIR")]
    #[arg(env = "SHARDFEED_COORDINATOR__DATA_DIR", hide_env_values = true)]
    data_dir: Option<PathBuf>,
    /// Address for workers and people, gRPC; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    #[arg(env = "SHARDFEED_COORDINATOR__LISTEN", hide_env_values = true)]
    listen: Option<SocketAddr>,
    /// Address for health and metrics, HTTP; port 0 takes a free one [default: 127.0.0.1:7071]
    #[arg(long, value_name = "IP:PORT")]
    #[arg(env = "SHARDFEED_COORDINATOR__HTTP", hide_env_values = true)]
    http: Option<SocketAddr>,
    /// This node's number in its cluster, kept from the first start on [default: 1]
    #[arg(long, value_name = "NODE")]
    #[arg(env = "SHARDFEED_COORDINATOR__NODE_ID", hide_env_values = true)]
    node_id: Option<u64>,
    /// Where workers, people and other nodes reach this one [default: what --peers says, else --listen]
    #[arg(long, value_name = "HOST:PORT")]
    #[arg(env = "SHARDFEED_COORDINATOR__ADVERTISE", hide_env_values = true)]
    advertise: Option<String>,
    /// The 3 or 5 nodes that found a cluster, this one among them: 1=HOST:PORT,2=HOST:PORT,...
    #[arg(long, value_name = "NODE=HOST:PORT", value_delimiter = ',')]
    #[arg(env = "SHARDFEED_COORDINATOR__PEERS", hide_env_values = true)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<String>,
    /// Nodes of a cluster to be added to; `cluster add` there lets this one in
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', conflicts_with = "peers")]
    #[arg(env = "SHARDFEED_COORDINATOR__JOIN", hide_env_values = true)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    join: Vec<String>,
    /// How often the leader tells the other nodes that it is there, ms [default: 100]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__PEER_HEARTBEAT_MS", hide_env_values = true)]
    peer_heartbeat_ms: Option<u64>,
    /// Without the leader for so long at least, a node wants to lead, ms [default: 300]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__ELECTION_MIN_MS", hide_env_values = true)]
    election_min_ms: Option<u64>,
    /// And for so long at most, ms [default: 600]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__ELECTION_MAX_MS", hide_env_values = true)]
    election_max_ms: Option<u64>,
    /// Log entries between two snapshots [default: 10000]
    #[arg(long, value_name = "N", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__SNAPSHOT_EVERY", hide_env_values = true)]
    snapshot_every: Option<u64>,
    /// Name of the cluster, kept from the first start on [default: shardfeed]
    #[arg(long, value_name = "NAME", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__CLUSTER_NAME", hide_env_values = true)]
    cluster_name: Option<String>,
    /// A worker that is silent for so long is gone, ms [default: 10000]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__SESSION_TTL_MS", hide_env_values = true)]
    session_ttl_ms: Option<u64>,
    /// How often workers speak, ms; a third of that at most [default: 2000]
    #[arg(long, value_name = "MS", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__HEARTBEAT_MS", hide_env_values = true)]
    heartbeat_ms: Option<u64>,
    /// Chunks that no dataset refers to, bytes at most [default: 4294967296]
    #[arg(long, value_name = "BYTES", help_heading = TUNING)]
    #[arg(env = "SHARDFEED_COORDINATOR__UNREFERENCED_BYTES_MAX", hide_env_values = true)]
    unreferenced_bytes_max: Option<u64>,
}

impl CoordinatorCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::Start(StartArgs { config, flags }) = self;
        if config.is_none() && flags.data_dir.is_none() {
            return Err(Problem::usage("the coordinator needs a folder for its data")
                .hint("give --data DIR, or --config FILE with data-dir = \"DIR\"")
                .into());
        }
        let options: CoordinatorOptions = config::read(config.as_deref(), flags)?;
        let runtime = runtime(None)?;
        runtime.block_on(async {
            let stop = Stop::listen()?;
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
            let line = ready(&running);
            let told = output::line(&line);
            if told.is_ok() {
                manager::ready(&line);
                stop.asked().await;
            }
            manager::stopping();
            running.stop().await;
            Ok(told?)
        })
    }
}

/// What is said of a coordinator that serves.
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
    fn the_help_lists_every_option_with_its_default() {
        let listed = OPTIONS.lines().skip(1).take_while(|line| !line.is_empty());
        let listed: toml::Table = listed.collect::<Vec<_>>().join("\n").parse().unwrap();
        let defaults = toml::Table::try_from(CoordinatorOptions::new("DIR")).unwrap();
        assert_eq!(listed, defaults);
        // It has no default of its own.
        assert!(OPTIONS.contains("\nadvertise = \"HOST:PORT\""));
    }
}
