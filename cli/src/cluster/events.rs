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
use crate::output::words::{NONE, clock};
use crate::output::{self, Format, Report};

pub(crate) const ABOUT: &str = "\
Show what happened: workers that came and went, datasets, jobs, generations, ranks that moved

The coordinators keep the last 10,000 events, on every node the same. Times are UTC, by the \
leader's clock. Grants to ranks of dynamic jobs are too many for this list: `shardfeed shard \
history` shows the returned ones.";

const EXAMPLES: &str = "\
Examples:
  shardfeed events --since 1h
  shardfeed events -f --job resnet
  shardfeed events --kind worker_ended,ranks_unserved -o wide
  shardfeed events --all -o jsonl | jq -r 'select(.kind == \"dataset_failed\") | .text'";

/// Polling interval of `-f`.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArgs {
    /// Keep printing new events until Ctrl-C
    #[arg(short, long)]
    follow: bool,
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
    /// Show only events newer than this
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    since: Option<Duration>,
    /// Show all events that are kept, not only the last 20
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Events, oldest first.
#[derive(Debug, Serialize)]
struct EventsReport {
    events: Vec<EventReport>,
    /// Number of older matching events that are not shown.
    #[serde(skip)]
    left_out: usize,
}

/// An event.
#[derive(Debug, Serialize)]
struct EventReport {
    /// Number of the event: counts up from 1.
    number: u64,
    /// Index of the command in the coordinators' log.
    index: u64,
    /// Time, Unix ms.
    at_ms: u64,
    kind: String,
    /// Principal that proposed the command.
    principal: String,
    text: String,
    job: Option<String>,
    worker: Option<String>,
    dataset: Option<String>,
    generation: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<u64>,
    epoch: Option<u64>,
    step: Option<u64>,
}

impl EventReport {
    fn new(event: wire::Event) -> Self {
        let known = |name: String| Some(name).filter(|name| !name.is_empty());
        Self {
            number: event.number,
            index: event.index,
            at_ms: event.at_ms,
            kind: event.kind,
            principal: event.principal,
            text: event.text,
            job: known(event.job),
            worker: known(event.worker),
            dataset: known(event.dataset),
            generation: event.generation,
            ranks: event.ranks,
            epoch: event.epoch,
            step: event.step,
        }
    }
}

impl EventsArgs {
    /// True if it keeps printing new events.
    pub(crate) fn follows(&self) -> bool {
        self.follow
    }

    /// Returns the matching events after `number`, and the number of the last event of all.
    fn after(&self, client: &Client, number: u64) -> anyhow::Result<(Vec<EventReport>, u64)> {
        let (mut events, mut last) = (vec![], number);
        loop {
            let (more, to) = self.page(client, last)?;
            // An answer is bounded: only an empty one is the end.
            if to == last {
                return Ok((events, last));
            }
            events.extend(more);
            last = to;
        }
    }

    /// Requests one page of events.
    fn page(&self, client: &Client, number: u64) -> anyhow::Result<(Vec<EventReport>, u64)> {
        let request = wire::ListEventsRequest {
            context: None,
            after: number,
            most: 0,
            job: self.job.clone().unwrap_or_default(),
            worker: self.worker.clone().unwrap_or_default(),
            dataset: self.dataset.clone().unwrap_or_default(),
        };
        let answer = client.call(|mut admin, context| async move {
            admin.list_events(wire::ListEventsRequest { context, ..request }).await
        })?;
        let is_meant =
            |event: &wire::Event| self.kind.is_empty() || self.kind.contains(&event.kind);
        let events = answer.events.into_iter().filter(is_meant).map(EventReport::new);
        Ok((events.collect(), answer.last.max(number)))
    }
}

/// Runs `events`.
pub(crate) fn run(args: &EventsArgs, format: Format) -> anyhow::Result<()> {
    if args.follow && format == Format::Json {
        return Err(Problem::usage("-f has no end, so it cannot be one JSON document")
            .hint("use -o jsonl")
            .into());
    }
    let client = args.cluster.client()?;
    let (mut events, mut last) = args.after(&client, 0)?;
    if let Some(since) = args.since {
        let status = client.call(|mut admin, context| async move {
            admin.get_status(wire::GetStatusRequest { context }).await
        })?;
        let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let from = status.clock_ms.saturating_sub(since);
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
        client.pause(LOOK_EVERY);
        let (events, now) = args.after(&client, last)?;
        last = now;
        if !events.is_empty() {
            format.print(&EventsReport { events, left_out: 0 })?;
        }
    }
}

fn columns() -> Vec<Column<EventReport>> {
    vec![
        column("TIME", |event| clock(event.at_ms)),
        column("KIND", |event| event.kind.clone()),
        column("EVENT", |event| event.text.clone()),
        wide("BY", |event| event.principal.clone()),
        wide(">NUMBER", |event| event.number.to_string()),
        wide(">GENERATION", |event| event.generation.map_or(NONE.into(), |n| n.to_string())),
    ]
}

impl EventsReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let shown = Shown { is_wide, all: true };
        listing::write(out, "events", &self.events, &columns(), shown)?;
        if self.left_out > 0 && output::has_headers() {
            let earlier = output::counted(self.left_out as u64, "earlier event");
            writeln!(out, "{earlier} not shown; --all shows them")?;
        }
        Ok(())
    }
}

impl Report for EventsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("events", "number"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
