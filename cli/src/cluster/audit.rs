//! `shardfeed audit`: lists requests for changes and refused requests of all nodes.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shardfeed_agent::Address;
use shardfeed_proto::coordinator::v1 as wire;

use super::{CallError, ClusterArgs};
use crate::duration;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{clock, known, text};
use crate::output::{self, Format, Report};

const EXAMPLES: &str = "\
Examples:
  shardfeed audit --since 1h
  shardfeed audit --refused
  shardfeed audit --principal admin:ada -o jsonl";

/// Number of entries requested from each node: the maximum that it returns.
const ENTRIES_MAX: u64 = 5_000;

/// List requests for changes, and refused requests
///
/// Each node writes the requests it received, and their callers, to its own files (the folder
/// `audit` in its data folder, lines of JSON, 160 MiB at most, 32 MiB of them for denied requests);
/// this command asks all nodes and puts the answers in order. The work of workers is not included:
/// `shardfeed events` and the histories show it. For admins.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AuditArgs {
    /// Show only entries newer than this: ms, s, min, h or d [default: the last 20 entries]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    since: Option<Duration>,
    /// Show only entries of this caller, as named in the list
    #[arg(long, value_name = "WHO")]
    principal: Option<String>,
    /// Show only refused requests
    #[arg(long)]
    refused: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct AuditReport {
    /// Entries, oldest first.
    entries: Vec<wire::AuditEntry>,
    /// Nodes that did not answer.
    missing: Vec<String>,
    /// True if there are earlier entries that are not included.
    more: bool,
}

pub(crate) fn run(args: &AuditArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let cluster = client.call(wire::GetClusterRequest::default())?;
    // Another node may answer later calls.
    let (nodes, mut missing) = nodes(cluster, &client.address());
    let now_ms = client.status()?.clock_ms;
    let request = wire::ListAuditRequest {
        context: None,
        since_ms: args.since.map_or(0, |since| now_ms.saturating_sub(duration::ms(since))),
        most: if args.since.is_some() { ENTRIES_MAX } else { output::ROWS_LISTED as u64 },
        principal: args.principal.clone().unwrap_or_default(),
        refused: args.refused,
    };
    let (mut entries, mut more) = (vec![], false);
    for (node, address) in nodes {
        match client.ask_at(&address, request.clone()) {
            Ok(told) => {
                more |= told.more;
                entries.extend(told.entries);
            }
            Err(CallError::Silent(_)) => missing.push(format!("{node} ({address})")),
            Err(refused) => return Err(refused.into()),
        }
    }
    entries.sort_by_key(|entry| entry.at_ms);
    if args.since.is_none() {
        let too_many = entries.len().saturating_sub(output::ROWS_LISTED);
        more |= too_many > 0;
        entries.drain(..too_many);
    }
    Ok(format.print(&AuditReport { entries, missing, more })?)
}

/// Returns the nodes with their addresses, and those that have no valid address.
/// - `answered`: address of the node that answered.
fn nodes(
    cluster: wire::GetClusterResponse,
    answered: &Address,
) -> (Vec<(u64, Address)>, Vec<String>) {
    let (mut nodes, mut missing) = (vec![], vec![]);
    for wire::Member { node, address, .. } in cluster.members {
        match address.parse() {
            _ if node == cluster.node => nodes.push((node, answered.clone())),
            Ok(address) => nodes.push((node, address)),
            Err(_) => missing.push(format!("{node} ({})", text(&address))),
        }
    }
    (nodes, missing)
}

fn columns() -> [Column<wire::AuditEntry>; 11] {
    [
        column("TIME", |entry| clock(entry.at_ms)),
        column("WHO", |entry| entry.principal.clone()),
        column("WHAT", |entry| entry.method.clone()),
        column("OF", |entry| text(&entry.object)),
        column("OUTCOME", |entry| entry.outcome.clone()),
        wide("WITH", |entry| text(&entry.detail)),
        wide("FROM", |entry| entry.remote.clone()),
        wide("SAYS", |entry| text(&entry.claimed)),
        wide(">NODE", |entry| entry.node.to_string()),
        wide(">INDEX", |entry| known(entry.index, |index| index.to_string())),
        wide("MESSAGE", |entry| text(&entry.message)),
    ]
}

impl Report for AuditReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("entries", "request_id"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        listing::write(out, "entries", &self.entries, &columns(), Shown { is_wide, all: true })?;
        if !output::has_headers() {
            return Ok(());
        }
        if self.more {
            writeln!(out, "there are earlier entries; --since sets the start")?;
        }
        match self.missing.is_empty() {
            true => Ok(()),
            false => {
                let missing = self.missing.join(", ");
                writeln!(out, "without the audit of node {}", output::printable(&missing))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_valid_address_is_missing() {
        let member = |node, address: &str| wire::Member {
            node,
            address: address.into(),
            ..wire::Member::default()
        };
        let members =
            vec![member(1, "a:7070"), member(2, ""), member(3, "no port"), member(4, "d:7070")];
        let cluster = wire::GetClusterResponse { node: 4, members, ..Default::default() };
        let address = |text: &str| text.parse::<Address>().unwrap();
        let (nodes, missing) = nodes(cluster, &address("127.0.0.1:9"));
        assert_eq!(nodes, [(1, address("a:7070")), (4, address("127.0.0.1:9"))]);
        assert_eq!(missing, ["2 (-)", "3 (no port)"]);
    }
}
