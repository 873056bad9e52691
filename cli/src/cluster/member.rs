//! `shardfeed cluster`: the coordinators of a cluster and their leader.

mod snapshot;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_agent::Address;
use shardfeed_proto::coordinator::v1 as wire;

use super::confirm::Confirm;
use super::{CallError, Client, ClusterArgs};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, number, text, time, word};
use crate::output::{self, Format, Report};
use snapshot::SnapshotCommand;

/// Subcommands of `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Show the coordinators: the leader, and the lag of the others
    #[command(long_about = STATUS_ABOUT)]
    Status(MemberStatusArgs),
    /// Add a coordinator, which must be running with --join
    #[command(long_about = ADD_ABOUT)]
    Add(MemberAddArgs),
    /// Remove a coordinator permanently
    #[command(long_about = REMOVE_ABOUT)]
    Remove(MemberRemoveArgs),
    /// Transfer leadership to another coordinator without a gap
    TransferLeader(TransferArgs),
    /// Save or restore a backup of the cluster
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
}

const STATUS_ABOUT: &str = "\
Show the coordinators: the leader, and how far the others are behind

One coordinator that answers is enough. With `-o wide` and `-o json` each one is also asked for its own view.";

const ADD_ABOUT: &str = "\
Add a coordinator, which must be running with --join

It gets the log first, and has a vote once it has it. Its number must never have been used in this cluster.";

const REMOVE_ABOUT: &str = "\
Remove a coordinator for good

Its number is never used again. Remove one that is dead before another is added in its place.";

/// Arguments of `cluster status`.
#[derive(Debug, Args)]
pub(crate) struct MemberStatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `cluster add`.
#[derive(Debug, Args)]
pub(crate) struct MemberAddArgs {
    /// Number of the new coordinator
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    node: u64,
    /// Address at which the others and the workers reach it
    #[arg(value_name = "HOST:PORT")]
    address: Address,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `cluster remove`.
#[derive(Debug, Args)]
pub(crate) struct MemberRemoveArgs {
    /// Number of the coordinator
    node: u64,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `cluster transfer-leader`.
#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// Number of the next leader [default: the most up-to-date coordinator]
    node: Option<u64>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The coordinators of a cluster.
#[derive(Debug, Serialize)]
struct MembersReport {
    cluster_id: String,
    cluster_name: String,
    /// `null`: there is no leader, as far as the answering coordinator knows.
    leader: Option<u64>,
    term: u64,
    /// Index of the last log entry that a majority has.
    committed_index: u64,
    /// Coordinator that answered.
    seen_by: u64,
    members: Vec<MemberReport>,
}

/// A coordinator.
#[derive(Debug, Serialize)]
struct MemberReport {
    node: u64,
    address: String,
    /// `leader`, `voter` or `learner`.
    role: String,
    /// Last log index that it is known to have; `null` unless the leader answered.
    matched_index: Option<u64>,
    /// Number of log entries that it lacks.
    lag: Option<u64>,
    /// Time since its last message to the leader.
    heard_ms: Option<u64>,
    /// Its own view; `null` if it was not asked.
    view: Option<ViewReport>,
}

/// A coordinator's own view.
#[derive(Debug, Serialize)]
struct ViewReport {
    /// Reason why it did not answer; `null` if it did.
    silence: Option<String>,
    leader: Option<u64>,
    term: Option<u64>,
    committed_index: Option<u64>,
    /// Hash of the state, in hex: equal on all coordinators with the same log.
    state_hash: Option<String>,
}

/// Returns the cluster as one of its coordinators sees it, if possible the leader.
fn get(client: &Client) -> Result<wire::GetClusterResponse, CallError> {
    let seen = client.call(|mut admin, context| async move {
        admin.get_cluster(wire::GetClusterRequest { context }).await
    })?;
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
    let seen = client.ask_at(&address, |mut admin, context| async move {
        admin.get_cluster(wire::GetClusterRequest { context }).await
    });
    seen.map_err(|error| error.to_string())
}

impl MemberCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Status(args) => print(&args.cluster.client()?, format),
            Self::Add(args) => {
                let (client, node) = (args.cluster.client()?, args.node);
                let address = args.address.to_string();
                client.call(|mut admin, context| async move {
                    admin.add_member(wire::AddMemberRequest { context, node, address }).await
                })?;
                print(&client, format)
            }
            Self::Remove(args) => {
                let (client, node) = (args.cluster.client()?, args.node);
                args.confirm.check(&format!("coordinator {node} would be removed"))?;
                client.call(|mut admin, context| async move {
                    admin.remove_member(wire::RemoveMemberRequest { context, node }).await
                })?;
                print(&client, format)
            }
            Self::TransferLeader(args) => {
                let (client, to) = (args.cluster.client()?, args.node);
                client.call(|mut admin, context| async move {
                    admin.transfer_leader(wire::TransferLeaderRequest { context, to }).await
                })?;
                print(&client, format)
            }
            Self::Snapshot(command) => snapshot::run(command, format),
        }
    }
}

fn print(client: &Client, format: Format) -> anyhow::Result<()> {
    let seen = get(client)?;
    let mut report = MembersReport::new(&seen);
    if format != Format::Table {
        // In parallel: each coordinator that is down takes its whole timeout.
        let views: Vec<_> = std::thread::scope(|scope| {
            let ask = |member| scope.spawn(move || get_at(client, member));
            let asked: Vec<_> = seen.members.iter().map(ask).collect();
            let joined = asked.into_iter().map(|view| view.join());
            joined.map(|view| view.unwrap_or_else(|_| Err("asking failed".into()))).collect()
        });
        for (member, view) in report.members.iter_mut().zip(views) {
            member.view = Some(ViewReport::new(member.node, view));
        }
    }
    Ok(format.print(&report)?)
}

impl MembersReport {
    fn new(seen: &wire::GetClusterResponse) -> Self {
        let member = |member: &wire::Member| MemberReport {
            node: member.node,
            address: member.address.clone(),
            role: word(member.role().as_str_name(), "MEMBER_ROLE_"),
            matched_index: member.matched,
            lag: member.matched.map(|matched| seen.committed.saturating_sub(matched)),
            heard_ms: member.heard_ms,
            view: None,
        };
        Self {
            cluster_id: seen.cluster_id.clone(),
            cluster_name: seen.cluster_name.clone(),
            leader: seen.leader,
            term: seen.term,
            committed_index: seen.committed,
            seen_by: seen.node,
            members: seen.members.iter().map(member).collect(),
        }
    }

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        output::write_facts(
            out,
            &[
                ("cluster", format!("{} ({})", self.cluster_name, self.cluster_id)),
                ("leader", number(self.leader)),
                ("term", self.term.to_string()),
                ("committed index", output::count(self.committed_index)),
                ("seen by", format!("coordinator {}", self.seen_by)),
            ],
        )?;
        writeln!(out)?;
        let shown = Shown { is_wide, all: true };
        listing::write(out, "coordinators", &self.members, &columns(), shown)
    }
}

impl ViewReport {
    fn new(node: u64, view: Result<wire::GetClusterResponse, String>) -> Self {
        match view {
            Err(silence) => Self {
                silence: Some(silence),
                leader: None,
                term: None,
                committed_index: None,
                state_hash: None,
            },
            Ok(view) => {
                let own = view.members.into_iter().find(|member| member.node == node);
                let hash = own.map(|own| own.state_hash).filter(|hash| !hash.is_empty());
                Self {
                    silence: None,
                    leader: view.leader,
                    term: Some(view.term),
                    committed_index: Some(view.committed),
                    state_hash: hash,
                }
            }
        }
    }
}

fn view(member: &MemberReport, said: impl Fn(&ViewReport) -> String) -> String {
    member.view.as_ref().map_or_else(|| NONE.into(), said)
}

fn columns() -> [Column<MemberReport>; 10] {
    [
        column(">NODE", |member| member.node.to_string()),
        column("ADDRESS", |member| text(&member.address)),
        column("ROLE", |member| member.role.clone()),
        column(">MATCHED", |member| number(member.matched_index)),
        column(">LAG", |member| number(member.lag)),
        column(">HEARD", |member| time(member.heard_ms)),
        wide("ANSWERS", |member| {
            view(member, |view| view.silence.clone().unwrap_or_else(|| "yes".into()))
        }),
        wide(">SEES LEADER", |member| view(member, |view| number(view.leader))),
        wide(">TERM", |member| view(member, |view| number(view.term))),
        wide("STATE HASH", |member| {
            view(member, |view| text(view.state_hash.as_deref().unwrap_or_default()))
        }),
    ]
}

impl Report for MembersReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("members", "node"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
