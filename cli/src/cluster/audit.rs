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
use crate::output::words::{NONE, clock};
use crate::output::{self, Format, Report};

pub(crate) const ABOUT: &str = "\
Show requests for changes, refused requests, and their callers

Each node writes the requests it received to its own files (the folder `audit` in its data folder, \
lines of JSON, 160 MiB at most, 32 MiB of them for denied requests); this command asks all nodes \
and puts the answers in order. The work of workers is not included: `shardfeed events` and the \
histories show it. For admins.";

const EXAMPLES: &str = "\
Examples:
  shardfeed audit --since 1h
  shardfeed audit --refused
  shardfeed audit --principal admin:ada -o jsonl";

/// Number of entries requested from each node: the maximum that it returns.
const ENTRIES_MAX: u64 = 5_000;

/// Arguments of `audit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AuditArgs {
    /// Show only entries newer than this: min, h or d [default: the last 20 entries]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_long)]
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

/// Entries, oldest first.
#[derive(Debug, Serialize)]
struct AuditReport {
    entries: Vec<EntryReport>,
    /// Nodes that did not answer.
    missing: Vec<String>,
    /// True if there are earlier entries that are not included.
    more: bool,
}

/// An audit entry.
#[derive(Debug, Serialize)]
struct EntryReport {
    /// Time by the node's clock, Unix ms.
    at_ms: u64,
    node: u64,
    principal: String,
    /// Identity that the caller claimed, in addition to the principal.
    claimed: Option<String>,
    role: Option<String>,
    remote: String,
    method: String,
    object: Option<String>,
    /// Parameters of the action, as `name=value`.
    detail: Option<String>,
    /// `DONE`, or the kind of the error.
    outcome: String,
    message: Option<String>,
    request_id: Option<String>,
    /// Index of the change in the coordinators' log.
    index: Option<u64>,
}

/// Runs `audit`.
pub(crate) fn run(args: &AuditArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let cluster = client.call(|mut admin, context| async move {
        admin.get_cluster(wire::GetClusterRequest { context }).await
    })?;
    let status = client.call(|mut admin, context| async move {
        admin.get_status(wire::GetStatusRequest { context }).await
    })?;
    let ago = args.since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let request = wire::ListAuditRequest {
        context: None,
        since_ms: ago.map_or(0, |ago| status.clock_ms.saturating_sub(ago)),
        most: if args.since.is_some() { ENTRIES_MAX } else { output::ROWS_LISTED as u64 },
        principal: args.principal.clone().unwrap_or_default(),
        refused: args.refused,
    };
    let (mut entries, mut missing, mut more) = (vec![], vec![], false);
    for member in cluster.members {
        let here = client.address();
        let address = match member.node == cluster.node {
            true => here,
            false => match member.address.parse::<Address>() {
                Ok(address) => address,
                Err(_) => continue,
            },
        };
        let request = request.clone();
        let told = client.ask_at(&address, |mut admin, context| async move {
            admin.list_audit(wire::ListAuditRequest { context, ..request }).await
        });
        match told {
            Ok(told) => {
                more |= told.more;
                entries.extend(told.entries.into_iter().map(EntryReport::new));
            }
            Err(CallError::Silent(_)) => missing.push(format!("{} ({address})", member.node)),
            Err(refused) => return Err(refused.into()),
        }
    }
    entries.sort_by_key(|entry: &EntryReport| entry.at_ms);
    if args.since.is_none() {
        let too_many = entries.len().saturating_sub(output::ROWS_LISTED);
        more |= too_many > 0;
        entries.drain(..too_many);
    }
    Ok(format.print(&AuditReport { entries, missing, more })?)
}

impl EntryReport {
    fn new(entry: wire::AuditEntry) -> Self {
        let known = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            at_ms: entry.at_ms,
            node: entry.node,
            principal: entry.principal,
            claimed: known(entry.claimed),
            role: known(entry.role),
            remote: entry.remote,
            method: entry.method,
            object: known(entry.object),
            detail: known(entry.detail),
            outcome: entry.outcome,
            message: known(entry.message),
            request_id: known(entry.request_id),
            index: entry.index,
        }
    }
}

fn columns() -> Vec<Column<EntryReport>> {
    vec![
        column("TIME", |entry| clock(entry.at_ms)),
        column("WHO", |entry| entry.principal.clone()),
        column("WHAT", |entry| entry.method.clone()),
        column("OF", |entry| entry.object.clone().unwrap_or_else(|| NONE.into())),
        column("OUTCOME", |entry| entry.outcome.clone()),
        wide("WITH", |entry| entry.detail.clone().unwrap_or_else(|| NONE.into())),
        wide("FROM", |entry| entry.remote.clone()),
        wide("SAYS", |entry| entry.claimed.clone().unwrap_or_else(|| NONE.into())),
        wide(">NODE", |entry| entry.node.to_string()),
        wide(">INDEX", |entry| entry.index.map_or(NONE.into(), |index| index.to_string())),
        wide("MESSAGE", |entry| entry.message.clone().unwrap_or_else(|| NONE.into())),
    ]
}

impl AuditReport {
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
            false => writeln!(out, "without the audit of node {}", self.missing.join(", ")),
        }
    }
}

impl Report for AuditReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("entries", "request_id"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
