//! `shardfeed config`: the options of a process and their origins.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;
use shardfeed_coordinator::CoordinatorOptions;
use shardfeed_embedded::{default_budget_bytes, default_worker_socket};
use toml::{Table, Value};

use super::config;
use super::coordinator::CoordinatorFlags;
use super::worker::{self, WorkerConfig};
use crate::error::Problem;
use crate::host::host_name;
use crate::output::listing::{self, Shown, column, wide};
use crate::output::{self, Format, Report};

const EXAMPLES: &str = "\
Examples:
  shardfeed config validate coordinator /etc/shardfeed/coordinator.toml
  shardfeed config show worker /etc/shardfeed/worker.toml --origin";

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check an options file and the environment as `start` would
    ///
    /// It touches no folder and no network. An error names its option, or its line.
    #[command(after_help = EXAMPLES)]
    Validate(FileArgs),
    /// Show all options of a process
    ///
    /// The environment (SHARDFEED_COORDINATOR__LISTEN, SHARDFEED_WORKER__NAME, ...) wins over FILE,
    /// and both over the defaults; flags of `start` win over all of them. Lists are written with
    /// commas there.
    #[command(after_help = EXAMPLES)]
    Show {
        #[command(flatten)]
        of: FileArgs,
        /// Show the origin of each value: default, file or environment
        #[arg(long)]
        origin: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Process {
    Coordinator,
    Worker,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// Process that the options are for
    #[arg(value_enum)]
    process: Process,
    /// TOML file, as for `start --config`; without it only the environment is read
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct OptionsReport {
    /// Options, ordered by name.
    options: Vec<OptionReport>,
    #[serde(skip)]
    shows_origin: bool,
}

#[derive(Debug, Serialize)]
struct OptionReport {
    /// Name in the file.
    option: String,
    /// Value; `null`: the option has none, and `default` describes its effect.
    value: Option<Value>,
    /// `default`, `file` or `environment`.
    origin: &'static str,
    /// Description of the effect of an option without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<&'static str>,
}

impl ConfigCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Validate(args) => validate(args, format),
            Self::Show { of, origin } => Ok(format.print(&show(of, *origin)?)?),
        }
    }
}

fn validate(args: &FileArgs, format: Format) -> anyhow::Result<()> {
    let file = args.file.as_deref();
    let process = match args.process {
        Process::Coordinator => {
            let options: CoordinatorOptions =
                config::read(file, &environment::<CoordinatorFlags>()?)?;
            options.validate().map_err(|error| {
                Problem::usage(match file {
                    Some(file) => format!("{}: {error}", file.display()),
                    None => error.to_string(),
                })
            })?;
            "coordinator"
        }
        Process::Worker => {
            worker::check(&config::read(file, &environment::<WorkerConfig>()?)?)?;
            "worker"
        }
    };
    let file = file.map(|file| file.display().to_string());
    let of = file.as_deref().unwrap_or("the environment");
    let text = format!("{}: valid options of a {process}\n", output::printable(of));
    Ok(format.print_brief(json!({ "process": process, "file": file, "is_valid": true }), text)?)
}

/// Reads the flags of a process from the environment.
fn environment<T: Args + FromArgMatches>() -> anyhow::Result<T> {
    let refused = |error: clap::Error| {
        let said = error.to_string();
        let said = said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Problem::usage(format!("in the environment: {said}"))
            .hint("`shardfeed config show --help` says how the variables are named")
    };
    let command = T::augment_args(Command::new("shardfeed")).no_binary_name(true);
    let matches = command.try_get_matches_from(std::iter::empty::<&str>()).map_err(refused)?;
    Ok(T::from_arg_matches(&matches).map_err(refused)?)
}

fn show(of: &FileArgs, shows_origin: bool) -> anyhow::Result<OptionsReport> {
    let file = of.file.as_deref();
    let given = file.map(config::load).transpose()?.unwrap_or_default();
    let (defaults, others, said) = match of.process {
        Process::Coordinator => {
            let said = Table::try_from(environment::<CoordinatorFlags>()?)?;
            let mut whole = Table::try_from(CoordinatorOptions::new(""))?;
            let defaults = whole.clone();
            whole.extend(given.clone());
            // Rejects an invalid value or name.
            config::typed::<CoordinatorOptions>(file, whole)?;
            (defaults, &COORDINATOR_OTHERS[..], said)
        }
        Process::Worker => {
            let said = Table::try_from(environment::<WorkerConfig>()?)?;
            config::typed::<WorkerConfig>(file, given.clone())?;
            (worker_defaults(), &WORKER_OTHERS[..], said)
        }
    };
    let names = defaults.keys().map(String::as_str).chain(others.iter().map(|(name, _)| *name));
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let option = |name: &str| {
        let found = [
            ("environment", said.get(name)),
            ("file", given.get(name)),
            ("default", defaults.get(name)),
        ];
        let found = found.into_iter().find_map(|(origin, value)| Some((origin, value?.clone())));
        let (origin, value) = found.unzip();
        let instead = others.iter().find(|(other, _)| *other == name).map(|(_, text)| *text);
        let default = instead.filter(|_| value.is_none());
        let origin = origin.unwrap_or("default");
        OptionReport { option: name.to_owned(), value, origin, default }
    };
    let options = names.into_iter().map(option).collect();
    Ok(OptionsReport { options, shows_origin })
}

/// Options without a default value, and the effect if they are not set.
pub(super) const COORDINATOR_OTHERS: [(&str, &str); 3] = [
    ("advertise", "the address in `peers`, else `listen`"),
    ("endpoint-file", "none is written"),
    ("tls", "none: callers are not authenticated"),
];

pub(super) const WORKER_OTHERS: [(&str, &str); 10] = [
    ("coordinator", "required"),
    ("threads", "chosen automatically, within the cores"),
    ("cache-dir", "SHARDFEED_CACHE_DIR, else ~/.cache/shardfeed"),
    ("index", "none: the coordinators keep what was found"),
    ("socket-gid", "the worker's"),
    ("http", "none is served"),
    ("cluster-id", "the one that answers first"),
    ("tls", "none: the coordinators have no certificates"),
    ("token-file", "none is shown"),
    ("join-token-file", "none is exchanged"),
];

pub(super) fn worker_defaults() -> Table {
    let number = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    Table::from_iter([
        ("socket".to_owned(), Value::String(default_worker_socket().display().to_string())),
        ("name".to_owned(), Value::String(host_name())),
        ("memory-budget".to_owned(), number(default_budget_bytes())),
        ("cache-bytes".to_owned(), number(0)),
        ("allow-uid".to_owned(), Value::Array(vec![])),
        ("allow-gid".to_owned(), Value::Array(vec![])),
        ("data-root".to_owned(), Value::Array(vec![])),
        ("insecure".to_owned(), Value::Boolean(false)),
    ])
}

impl Report for OptionsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("options", "option"));

    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let columns = [
            column("OPTION", |of: &OptionReport| of.option.clone()),
            column("VALUE", |of| match (&of.value, of.default) {
                (Some(value), _) => serde_json::to_string(value).unwrap_or_default(),
                (None, text) => format!("({})", text.unwrap_or("none")),
            }),
            wide("ORIGIN", |of| of.origin.to_owned()),
        ];
        let shown = Shown { is_wide: self.shows_origin, all: true };
        listing::write(out, "options", &self.options, &columns, shown)
    }
}
