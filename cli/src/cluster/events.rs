//! `shardfeed events`: lists events of the cluster.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::{Client, ClusterArgs};
use crate::duration;
use crate::error::Problem;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{clock, known};
use crate::output::{self, Format, Report};

const EXAMPLES: &str = "\
Examples:
  shardfeed events --since 1h
  shardfeed events -f --job resnet
  shardfeed events --kind worker_ended,ranks_unserved -o wide
  shardfeed events --all -o jsonl | jq -r 'select(.kind == \"dataset_failed\") | .text'";

/// Polling interval of `-f`.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// List events of workers, datasets, jobs, generations and ranks
///
/// The coordinators keep the last 10,000 events, on every node the same. Times are UTC, by the
/// leader's clock. Grants to ranks of dynamic jobs are too many for this list: `shardfeed shard
/// history` shows the returned ones.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArgs {
    /// Keep printing new events until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only events of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Show only events of this worker
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Show only events of this dataset
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Show only events of this kind; repeatable or with commas
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Show only events newer than this: ms, s, min, h or d
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    since: Option<Duration>,
    /// Show all events that are kept, not only the last 20
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct EventsReport {
    /// Events, oldest first.
    events: Vec<wire::Event>,
    /// Number of older matching events that are not shown.
    #[serde(skip)]
    left_out: usize,
}

impl EventsArgs {
    /// Returns the matching events after `number`, and the number of the last event of all.
    fn after(&self, client: &Client, number: u64) -> anyhow::Result<(Vec<wire::Event>, u64)> {
        let mut request = wire::ListEventsRequest {
            context: None,
            after: number,
            most: 0,
            job: self.job.clone().unwrap_or_default(),
            worker: self.worker.clone().unwrap_or_default(),
            dataset: self.dataset.clone().unwrap_or_default(),
        };
        let mut events = client.call(request.clone())?;
        let mut found = Vec::new();
        // An answer is bounded: only an empty one is the end.
        while events.last > request.after {
            request.after = events.last;
            found.append(&mut events.events);
            events = client.call(request.clone())?;
        }
        found.retain(|event| self.kind.is_empty() || self.kind.contains(&event.kind));
        Ok((found, request.after))
    }
}

pub(crate) fn run(args: &EventsArgs, format: Format) -> anyhow::Result<()> {
    if args.follow && format == Format::Json {
        return Err(Problem::usage("-f has no end, so it cannot be one JSON document")
            .hint("use -o jsonl")
            .into());
    }
    let client = args.cluster.client()?;
    let (mut events, mut last) = args.after(&client, 0)?;
    if let Some(since) = args.since {
        let from = client.status()?.clock_ms.saturating_sub(duration::ms(since));
        events.retain(|event| event.at_ms >= from);
    }
    let is_for_people = matches!(format, Format::Table | Format::Wide);
    let is_bounded = is_for_people && !args.all && args.since.is_none();
    let shown = if is_bounded { output::ROWS_LISTED } else { events.len() };
    let left_out = events.len().saturating_sub(shown);
    events.drain(..left_out);
    if !args.follow || !events.is_empty() {
        format.print(&EventsReport { events, left_out })?;
    }
    if !args.follow {
        return Ok(());
    }
    output::without_headers();
    let client = client.patient();
    loop {
        std::thread::sleep(LOOK_EVERY);
        let (events, now) = args.after(&client, last)?;
        last = now;
        if !events.is_empty() {
            format.print(&EventsReport { events, left_out: 0 })?;
        }
    }
}

fn columns() -> [Column<wire::Event>; 6] {
    [
        column("TIME", |event| clock(event.at_ms)),
        column("KIND", |event| event.kind.clone()),
        column("EVENT", |event| event.text.clone()),
        wide("BY", |event| event.principal.clone()),
        wide(">NUMBER", |event| event.number.to_string()),
        wide(">GENERATION", |event| known(event.generation, |number| number.to_string())),
    ]
}

impl Report for EventsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("events", "number"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        listing::write(out, "events", &self.events, &columns(), Shown { is_wide, all: true })?;
        if self.left_out > 0 && output::has_headers() {
            let earlier = output::counted(self.left_out as u64, "earlier event");
            writeln!(out, "{earlier} not shown; --all shows them")?;
        }
        Ok(())
    }
}
