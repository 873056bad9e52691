//! `shardfeed cluster`: the coordinators of a cluster and their leader.

mod snapshot;

use std::io::{self, Write};

use clap::Subcommand;
use serde::Serialize;
use shardfeed_agent::Address;
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::{CallError, Client, ClusterArgs, Confirm};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{known, number, text, time, yes};
use crate::output::{self, Format, Report};
use snapshot::SnapshotCommand;

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Show the coordinators: the leader, and the lag of the others
    ///
    /// One coordinator that answers is enough. With `-o wide` and `-o json` each one is also asked
    /// for its own view.
    Status(ClusterArgs),
    /// Add a coordinator, which must be running with --join
    ///
    /// It gets the log first, and has a vote once it has it. Its number must never have been used
    /// in this cluster.
    Add {
        /// Number of the new coordinator
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        /// Address at which the others and the workers reach it
        #[arg(value_name = "HOST:PORT")]
        address: Address,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Remove a coordinator permanently
    ///
    /// Its number is never used again. Remove one that is dead before another is added in its
    /// place.
    Remove {
        /// Number of the coordinator
        node: u64,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Transfer leadership to another coordinator without a gap
    TransferLeader {
        /// Number of the next leader [default: the most up-to-date coordinator]
        node: Option<u64>,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Save or restore a backup of the cluster
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
}

#[derive(Debug, Serialize)]
struct MembersReport {
    #[serde(flatten)]
    seen: wire::GetClusterResponse,
    /// Coordinators, ordered by number.
    members: Vec<MemberReport>,
}

#[derive(Debug, Serialize)]
struct MemberReport {
    #[serde(flatten)]
    member: wire::Member,
    /// Log entries that it lacks; `null`: not known.
    lag: Option<u64>,
    /// Its own view; `null` if it was not asked.
    view: Option<ViewReport>,
}

#[derive(Debug, Default, Serialize)]
struct ViewReport {
    /// Reason why it did not answer; `null` if it did.
    silence: Option<String>,
    /// Node number of the leader, as far as it knows.
    leader: Option<u64>,
    term: Option<u64>,
    /// Last log index that it knows to be committed.
    committed_index: Option<u64>,
    /// Hash of the state, in hex: equal on all coordinators with the same log.
    state_hash: Option<String>,
}

/// Returns the cluster as one of its coordinators sees it, if possible the leader.
fn get(client: &Client) -> Result<wire::GetClusterResponse, CallError> {
    let seen = client.call(wire::GetClusterRequest::default())?;
    let leader = seen.leader.filter(|leader| *leader != seen.node);
    let leader = leader.and_then(|leader| seen.members.iter().find(|m| m.node == leader));
    // The leader knows more; if it does not answer, the first answer is used.
    match leader.map(|leader| get_at(client, leader)) {
        Some(Ok(led)) => Ok(led),
        Some(Err(_)) | None => Ok(seen),
    }
}

fn get_at(client: &Client, member: &wire::Member) -> Result<wire::GetClusterResponse, String> {
    let address: Address = member.address.parse()?;
    let seen = client.ask_at(&address, wire::GetClusterRequest::default());
    seen.map_err(|error| error.to_string())
}

impl MemberCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let context = None;
        let client = match self {
            Self::Status(cluster) => cluster.client()?,
            Self::Add { node, address, cluster } => {
                let (client, node, address) = (cluster.client()?, *node, address.to_string());
                client.call(wire::AddMemberRequest { context, node, address })?;
                client
            }
            Self::Remove { node, confirm, cluster } => {
                let (client, node) = (cluster.client()?, *node);
                confirm.check(&format!("coordinator {node} would be removed"))?;
                client.call(wire::RemoveMemberRequest { context, node })?;
                client
            }
            Self::TransferLeader { node, cluster } => {
                let client = cluster.client()?;
                client.call(wire::TransferLeaderRequest { context, to: *node })?;
                client
            }
            Self::Snapshot(command) => return snapshot::run(command, format),
        };
        print(&client, format)
    }
}

fn print(client: &Client, format: Format) -> anyhow::Result<()> {
    let mut seen = get(client)?;
    let members = std::mem::take(&mut seen.members);
    // In parallel: each coordinator that is down takes its whole timeout.
    let views: Vec<_> = std::thread::scope(|scope| {
        let ask = |member| scope.spawn(move || get_at(client, member));
        let asked: Vec<_> = match format {
            Format::Table => vec![],
            _ => members.iter().map(ask).collect(),
        };
        let joined = asked.into_iter().map(|view| view.join());
        joined.map(|view| view.unwrap_or_else(|_| Err("asking failed".into()))).collect()
    });
    let views = views.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
    let members = members.into_iter().zip(views).map(|(member, view)| MemberReport {
        lag: member.matched.map(|matched| seen.committed.saturating_sub(matched)),
        view: view.map(|view| ViewReport::new(member.node, view)),
        member,
    });
    Ok(format.print(&MembersReport { members: members.collect(), seen })?)
}

impl ViewReport {
    fn new(node: u64, view: Result<wire::GetClusterResponse, String>) -> Self {
        let view = match view {
            Ok(view) => view,
            Err(silence) => return Self { silence: Some(silence), ..Self::default() },
        };
        let own = view.members.into_iter().find(|member| member.node == node);
        Self {
            silence: None,
            leader: view.leader,
            term: Some(view.term),
            committed_index: Some(view.committed),
            state_hash: own.map(|own| own.state_hash).filter(|hash| !hash.is_empty()),
        }
    }
}

fn view(of: &MemberReport, said: impl Fn(&ViewReport) -> String) -> String {
    known(of.view.as_ref(), said)
}

fn columns() -> [Column<MemberReport>; 10] {
    [
        column(">NODE", |of| of.member.node.to_string()),
        column("ADDRESS", |of| text(&of.member.address)),
        column("ROLE", |of| of.member.role().word()),
        column(">MATCHED", |of| number(of.member.matched)),
        column(">LAG", |of| number(of.lag)),
        column(">HEARD", |of| time(of.member.heard_ms)),
        wide("ANSWERS", |of| view(of, |view| view.silence.clone().unwrap_or_else(|| yes(true)))),
        wide(">SEES LEADER", |of| view(of, |view| number(view.leader))),
        wide(">TERM", |of| view(of, |view| number(view.term))),
        wide("STATE HASH", |of| view(of, |view| known(view.state_hash.clone(), |hash| hash))),
    ]
}

impl Report for MembersReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("members", "node"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let Self { seen, members } = self;
        let facts = [
            ("cluster", format!("{} ({})", seen.cluster_name, seen.cluster_id)),
            ("leader", number(seen.leader)),
            ("term", seen.term.to_string()),
            ("committed index", output::count(seen.committed)),
            ("seen by", format!("coordinator {}", seen.node)),
        ];
        output::write_facts(out, &facts)?;
        writeln!(out)?;
        listing::write(out, "coordinators", members, &columns(), Shown { is_wide, all: true })
    }
}
