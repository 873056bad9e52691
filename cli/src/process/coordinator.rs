//! `shardfeed coordinator`: the process that decides who reads what.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Running};

use super::{Stop, config, runtime};
use crate::error::Problem;
use crate::output;

const ABOUT: &str = "\
Run a coordinator until SIGTERM or SIGINT

It decides which rank reads what, and keeps that in its data folder: start it with the same folder again \
and it goes on where it was. When it serves, it prints one line on stdout; logs go to stderr.";

const OPTIONS: &str = "\
Options in FILE, with their defaults:
  data-dir = \"DIR\"                      # log, snapshots, chunks; required
  listen = \"127.0.0.1:7070\"             # gRPC; port 0 takes a free one
  http = \"127.0.0.1:7071\"               # /livez, /readyz, /metrics; port 0 takes a free one
  node-id = 1                           # this node's number in its cluster, kept from the first start on
  peers = []                            # [\"1=HOST:PORT\", ...]: the 3 or 5 nodes that found a cluster
  join = []                             # [\"HOST:PORT\", ...]: nodes of a cluster to be added to
  peer-heartbeat-ms = 100               # how often the leader tells the other nodes that it is there, ms
  election-min-ms = 300                 # without it for so long, a node wants to lead, ms: at least
  election-max-ms = 600                 # and at most
  snapshot-every = 10000                # log entries between two snapshots
  cluster-name = \"shardfeed\"            # kept from the first start on
  session-ttl-ms = 10000                # a worker that is silent for so long is gone, ms
  heartbeat-ms = 2000                   # how often workers speak, ms; a third of it at most
  unreferenced-bytes-max = 4294967296   # chunks that no dataset refers to, bytes

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
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: CoordinatorFlags,
}

/// Options of [`CoordinatorOptions`] as flags.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
struct CoordinatorFlags {
    /// Folder for all that outlives the process; made if it is missing
    #[arg(long = "data", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address for workers and people, gRPC; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Address for health and metrics, HTTP; port 0 takes a free one [default: 127.0.0.1:7071]
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// This node's number in its cluster, kept from the first start on [default: 1]
    #[arg(long, value_name = "NODE")]
    node_id: Option<u64>,
    /// Where workers, people and other nodes reach this one [default: what --peers says, else --listen]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// The 3 or 5 nodes that found a cluster, this one among them: 1=HOST:PORT,2=HOST:PORT,...
    #[arg(long, value_name = "NODE=HOST:PORT", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<String>,
    /// Nodes of a cluster to be added to; `cluster add` there lets this one in
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', conflicts_with = "peers")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    join: Vec<String>,
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
            let running = tokio::select! {
                running = Coordinator::start(options) => running?,
                () = stop.asked() => return Ok(()),
            };
            let told = output::line(&ready(&running));
            if told.is_ok() {
                stop.asked().await;
            }
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
