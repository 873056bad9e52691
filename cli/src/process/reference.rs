//! Checks that docs/CONFIG.md and docs/METRICS.md match the options' structs and the metrics pages.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, Args, Command};
use expect_test::expect_file;
use shardfeed_coordinator::CoordinatorOptions;
use toml::{Table, Value};

use super::coordinator::CoordinatorFlags;
use super::measures;
use super::settings::{COORDINATOR_OTHERS, WORKER_OTHERS, worker_defaults};
use super::worker::WorkerConfig;

const CONFIG_HEAD: &str = "\
# Options

Every option of `coordinator start` and `worker start`: its name in the TOML file, its flag, its variable, its type there and its default. Made from the \
options' own definitions by `UPDATE_EXPECT=1 cargo test -p shardfeed reference`, and tested to be current. [OPERATIONS.md](OPERATIONS.md) says which of \
file, variable and flag wins; [deploy/config](../deploy/config) has the files to start from, with more words.

In a file lists are `[\"a\", \"b\"]`; in variables and flags they have commas. Sizes are bytes, or texts such as `\"16GiB\"`.
";

const METRICS_HEAD: &str = "\
# Metrics

Every metric of the pages `/metrics`, as they call them: made by `UPDATE_EXPECT=1 cargo test -p shardfeed reference`, and tested to be current. \
[OPERATIONS.md](OPERATIONS.md) says which to look at first, and [deploy/monitoring](../deploy/monitoring) has alerts and a dashboard.

A counter goes up from 0 at the start of its process; a histogram is `_bucket` (by `le`, seconds), `_sum` and `_count`; info is 1, with what it says in labels. \
Labels never name a shard, a file or a request.

The first number to look at is how long trainers wait: at a worker `shardfeed_trainer_wait_seconds_total`, at the leader `shardfeed_job_rank_wait_seconds_total`, \
which continues when the worker is gone. Only the leader exports lines of jobs and their ranks, for jobs that run: 64 jobs and 2,048 ranks at most; further ones \
are counted.
";

/// Returns the TOML type of an option.
fn type_of(arg: &Arg) -> &'static str {
    let name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
    let (one, list) = match name.unwrap_or_default() {
        "MS" | "N" | "BYTES" | "NODE" | "UID" | "GID" => ("integer", "list of integers"),
        "SIZE" => ("size", "list of sizes"),
        "BOOL" => ("boolean", "list of booleans"),
        "DIR" | "DIR|URL" | "FILE" | "PATH" | "IP:PORT" | "HOST:PORT" | "NODE=HOST:PORT"
        | "NAME" | "ID" => ("string", "list of strings"),
        other => panic!("say here what type {other} is"),
    };
    // The worker's `coordinator` may also be a text with commas.
    if arg.get_value_delimiter().is_some() { list } else { one }
}

/// Splits an option's help into its description and its default.
fn words_of(arg: &Arg) -> (String, Option<String>) {
    let help = arg.get_long_help().or(arg.get_help()).expect("every option has help").to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    match help.split_once(" [default: ") {
        Some((what, default)) => {
            (what.to_owned(), Some(default.strip_suffix(']').unwrap().to_owned()))
        }
        None => (help, None),
    }
}

/// Returns a table row for each option.
/// - `defaults`: defaults that are values.
/// - `others`: descriptions for options without a default value.
fn options<T: Args>(defaults: &Table, others: &[(&str, &str)], host: &[&str]) -> String {
    let command = T::augment_args(Command::new("shardfeed"));
    let mut rows = String::new();
    let mut named = BTreeSet::new();
    for arg in command.get_arguments() {
        let option = arg.get_id().as_str().replace('_', "-");
        let flag = arg.get_long().expect("every option is a flag");
        let variable = arg.get_env().expect("every option is a variable").to_str().unwrap();
        let (what, said) = words_of(arg);
        let other = others.iter().find(|(name, _)| *name == option).map(|(_, text)| *text);
        let default = match (defaults.get(&option), other, &said) {
            (Some(_), _, Some(said)) if host.contains(&option.as_str()) => said.clone(),
            (Some(Value::Array(list)), ..) if list.is_empty() => "none".to_owned(),
            (Some(Value::String(text)), ..) => format!("`{text}`"),
            (Some(value), ..) => format!("`{value}`"),
            (None, Some(text), _) => text.to_owned(),
            (None, None, _) => panic!("{option} has no default and nothing in its place"),
        };
        let value = match defaults.get(&option) {
            Some(Value::Integer(number)) => Some(number.to_string()),
            Some(Value::String(text)) => Some(text.clone()),
            _ => None,
        };
        if let (Some(value), Some(said)) = (value, &said) {
            let is_right = host.contains(&option.as_str()) || said.starts_with(&value);
            assert!(is_right, "{option}: the help says {said}, it is {value}");
        }
        rows += &format!(
            "| `{option}` | {} | {default} | `--{flag}`, `{variable}` | {what} |\n",
            type_of(arg)
        );
        named.insert(option);
    }
    let known = defaults.keys().cloned().chain(others.iter().map(|(name, _)| (*name).to_owned()));
    assert_eq!(known.collect::<BTreeSet<_>>(), named);
    format!(
        "| option | type | default | flag, variable | is |\n| --- | --- | --- | --- | --- |\n{rows}"
    )
}

#[test]
fn of_options_is_current() {
    let folder = [("data-dir", "required")];
    let mut defaults = Table::try_from(CoordinatorOptions::new("")).unwrap();
    defaults.remove("data-dir");
    let others = [&COORDINATOR_OTHERS[..], &folder].concat();
    let coordinator = options::<CoordinatorFlags>(&defaults, &others, &[]);
    let of_host = ["socket", "name", "memory-budget"];
    let worker = options::<WorkerConfig>(&worker_defaults(), &WORKER_OTHERS, &of_host);
    let text = format!("{CONFIG_HEAD}\n## Coordinator\n\n{coordinator}\n## Worker\n\n{worker}");
    expect_file!["../../../docs/CONFIG.md"].assert_eq(&text);
}

/// One metric of a page.
#[derive(Default)]
struct Metric {
    help: String,
    kind: String,
    unit: String,
    labels: BTreeSet<String>,
}

/// Parses the metrics of a page in OpenMetrics format, by their Prometheus names.
fn metrics(page: &str) -> BTreeMap<String, Metric> {
    let mut found: BTreeMap<String, Metric> = BTreeMap::new();
    for line in page.lines() {
        if let Some(said) = line.strip_prefix("# ") {
            let mut words = said.splitn(3, ' ');
            let (word, name) = (words.next().unwrap_or_default(), words.next());
            let Some(metric) = name.map(|name| found.entry(name.to_owned()).or_default()) else {
                continue;
            };
            let rest = words.next().unwrap_or_default().to_owned();
            match word {
                "HELP" => metric.help = rest.trim_end_matches('.').to_owned(),
                "TYPE" => metric.kind = rest,
                "UNIT" => metric.unit = rest,
                other => panic!("{other} is new in a page of metrics"),
            }
            continue;
        }
        let Some((start, rest)) = line.split_once('{') else { continue };
        let known = |suffix: &&str| {
            let name = start.strip_suffix(*suffix)?;
            found.contains_key(name).then(|| name.to_owned())
        };
        let suffixes = ["", "_total", "_bucket", "_sum", "_count", "_info"];
        let name = suffixes.iter().find_map(known).expect("its type was said before");
        let metric = found.get_mut(&name).unwrap();
        let labels = rest.rsplit_once('}').unwrap().0.split("\",");
        let names = labels.filter_map(|label| label.split_once('=')).map(|(name, _)| name);
        metric.labels.extend(names.filter(|name| *name != "le").map(ToOwned::to_owned));
    }
    let named = |(name, metric): (String, Metric)| {
        let name = match metric.kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name,
        };
        (name, metric)
    };
    found.into_iter().map(named).collect()
}

/// Prefixes of the names that are listed first, in this order: the trainers' waits before all
/// others.
const FIRST: [&str; 10] = [
    "shardfeed_trainer_wait",
    "shardfeed_trainer_work",
    "shardfeed_trainer_",
    "shardfeed_worker_",
    "shardfeed_job_rank_wait",
    "shardfeed_job_rank_work",
    "shardfeed_job_rank_",
    "shardfeed_job_",
    "shardfeed_jobs",
    "shardfeed_coordinator_",
];

fn table(page: &str) -> String {
    let mut text =
        "| metric | type | labels | unit | is |\n| --- | --- | --- | --- | --- |\n".to_owned();
    let mut rows: Vec<_> = metrics(page).into_iter().collect();
    // The sort is stable.
    rows.sort_by_key(|(name, _)| {
        let place = FIRST.iter().position(|begins| name.starts_with(begins));
        place.unwrap_or(FIRST.len())
    });
    for (name, Metric { help, kind, unit, labels }) in rows {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        text += &format!("| `{name}` | {kind} | {} | {unit} | {help} |\n", labels.join(", "));
    }
    text
}

#[test]
fn of_metrics_is_current() {
    let coordinator = table(&shardfeed_coordinator::metrics_example());
    let worker = table(&measures::text(&measures::tests::report()));
    let first = |table: &str| table.lines().nth(2).unwrap_or_default().to_owned();
    assert!(first(&worker).starts_with("| `shardfeed_trainer_wait_seconds_total` |"), "{worker}");
    let begins = "| `shardfeed_job_rank_wait_seconds_total` |";
    assert!(first(&coordinator).starts_with(begins), "{coordinator}");
    for name in ["coordinator_request_seconds", "coordinator_members", "job_epoch_shards"] {
        assert!(coordinator.contains(&format!("| `shardfeed_{name}` |")), "{coordinator}");
    }
    for name in ["trainer_wait_seconds_total", "worker_session_age_seconds", "worker_build_info"] {
        assert!(worker.contains(&format!("| `shardfeed_{name}` |")), "{worker}");
    }
    let text = format!("{METRICS_HEAD}\n## Worker\n\n{worker}\n## Coordinator\n\n{coordinator}");
    expect_file!["../../../docs/METRICS.md"].assert_eq(&text);
}
