//! `shardfeed`, the command line: inspects, verifies and writes datasets, shows plans and batches,
//! runs the processes of a cluster, and manages a cluster.
//!
//! It must never compute an order itself: it asks `shardfeed-plan`, as trainers do, or a
//! coordinator. Results go to stdout, all else to stderr; [`error::Exit`] lists the exit codes.
#![forbid(unsafe_code)]

mod error;
mod output;

mod duration;
mod host;
mod size;

mod cluster;
mod process;

mod dataset;

mod order;

mod bench;
mod doctor;
mod health;
mod trace;

mod worker;

mod shell;
mod tls;
mod top;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::output::Format;

const AFTER_HELP: &str = "\
Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or damage found, 2 wrong usage, 3 not found, \
4 denied, 5 conflict, 6 no coordinator answers or leads, 7 not in time.
SHARDFEED_CACHE_DIR is the folder for indexes (`off`: none), SHARDFEED_SAMPLES_MEMORY the \
maximum bytes of sample maps in memory (the rest is in a file in TMPDIR), SHARDFEED_LOG the log filter (for \
example `debug`), SHARDFEED_LOG_FORMAT the log format (`text` or `json`), SHARDFEED_PYTHON the \
Python interpreter for --source, SHARDFEED_COORDINATOR \
the coordinator addresses, with commas. With NO_COLOR nothing is coloured.";

/// Inspect, check and write TFRecord datasets, and run and manage a cluster
#[derive(Debug, Parser)]
#[command(name = "shardfeed", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Cli {
    /// Output format: table and wide (more columns) for people; json (one document), jsonl (one
    /// line per item) and name (names only) for programs, with all fields under stable names
    #[arg(short, long, global = true, value_enum, default_value_t)]
    #[arg(value_name = "FORMAT", display_order = 900)]
    output: Format,
    /// Omit the header line of tables
    #[arg(long, global = true, display_order = 901)]
    no_headers: bool,
    /// Refresh a read-only view every 2 s until Ctrl-C
    #[arg(short, long, global = true, display_order = 902)]
    watch: bool,
    #[command(subcommand)]
    noun: Noun,
}

#[derive(Debug, Subcommand)]
enum Noun {
    /// Inspect, verify, write and manage datasets
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// Show the plan of an epoch
    #[command(subcommand)]
    Plan(order::plan::PlanCommand),
    /// Show the records of a batch, or the batch of a record
    #[command(subcommand)]
    Batch(order::batch::BatchCommand),
    /// Manage jobs of the cluster and show their generations
    #[command(subcommand)]
    Job(cluster::job::JobCommand),
    /// Show the progress of a job's epochs and the ranks they wait for
    #[command(subcommand)]
    Epoch(cluster::epoch::EpochCommand),
    /// Show the location of an epoch's shards
    #[command(subcommand)]
    Shard(cluster::shard::ShardCommand),
    /// Show the worker and the progress of each rank of a job
    #[command(subcommand)]
    Rank(cluster::rank::RankCommand),
    /// Run and manage workers, which read for the trainers of a host
    #[command(subcommand)]
    Worker(worker::WorkerCommand),
    /// Run coordinators, which assign the work
    #[command(subcommand)]
    Coordinator(process::CoordinatorCommand),
    /// Manage the coordinators of a cluster: leader, members, backups
    #[command(subcommand)]
    Cluster(cluster::member::MemberCommand),
    Events(cluster::events::EventsArgs),
    /// Manage access tokens for people, programs and workers
    #[command(subcommand)]
    Access(cluster::access::AccessCommand),
    Audit(cluster::audit::AuditArgs),
    /// Manage certificates, and an authority that signs them
    #[command(subcommand)]
    Tls(tls::TlsCommand),
    /// Manage named clusters
    #[command(subcommand)]
    Context(cluster::context::ContextCommand),
    Why(cluster::why::WhyArgs),
    Bench(bench::BenchArgs),
    Trace(trace::TraceArgs),
    Doctor(doctor::DoctorArgs),
    Health(health::HealthArgs),
    /// Show and check the options of coordinators and workers
    #[command(subcommand)]
    Config(process::ConfigCommand),
    #[command(subcommand)]
    Wait(cluster::wait::WaitCommand),
    /// Write the shell completion script
    #[command(after_help = shell::COMPLETION_EXAMPLES)]
    Completion {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write manual pages
    #[command(after_help = shell::MAN_EXAMPLES)]
    Man {
        /// Existing folder to write the pages to, one for each command
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    Top(top::TopArgs),
    /// Show the cluster as a whole
    Status(cluster::ClusterArgs),
    Up(process::UpArgs),
}

impl Noun {
    /// True if the command shows current state and changes nothing.
    fn is_view(&self) -> bool {
        use cluster::{access::AccessCommand, context::ContextCommand};
        use cluster::{epoch::EpochCommand, job::JobCommand, member::MemberCommand};
        use dataset::DatasetCommand as Dataset;
        use order::{batch::BatchCommand, plan::PlanCommand};
        use worker::WorkerCommand;
        match self {
            Self::Dataset(command) => matches!(command, Dataset::List { .. } | Dataset::Show(_)),
            Self::Job(command) => matches!(command, JobCommand::List { .. } | JobCommand::Show(_)),
            Self::Epoch(EpochCommand::List { .. } | EpochCommand::Show { .. }) => true,
            Self::Shard(_) | Self::Rank(_) | Self::Why(_) | Self::Status(_) => true,
            Self::Health(_) | Self::Audit(_) => true,
            Self::Plan(PlanCommand::Show { .. }) | Self::Batch(BatchCommand::Show(_)) => true,
            Self::Access(command) => {
                matches!(command, AccessCommand::List { .. } | AccessCommand::Whoami(_))
            }
            Self::Context(command) => matches!(command, ContextCommand::List),
            Self::Worker(command) => {
                matches!(command, WorkerCommand::List { .. } | WorkerCommand::Show(_))
            }
            Self::Events(args) => !args.follow,
            Self::Cluster(command) => matches!(command, MemberCommand::Status(_)),
            _ => false,
        }
    }

    fn log_filter(&self) -> &'static str {
        match self {
            Self::Up(_) => LOG_OF_UP,
            Self::Coordinator(_) | Self::Worker(worker::WorkerCommand::Start(_)) => LOG_OF_PROCESS,
            _ => LOG_OF_COMMAND,
        }
    }
}

/// Log filter of processes: messages for later analysis.
const LOG_OF_PROCESS: &str = "info,openraft=error";

/// Log filter of a first try, to keep the printed instructions readable.
const LOG_OF_UP: &str = "warn,openraft=error";

/// Log filter of commands: only messages that are not reported otherwise.
const LOG_OF_COMMAND: &str = "warn";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return error::refuse(&error),
    };
    let logging = shardfeed_telemetry::init(cli.noun.log_filter());
    if cli.no_headers {
        output::without_headers();
    }
    let ran = logging.map_err(Into::into).and_then(|()| match cli.watch {
        true => watch::run_again(&cli),
        false => run(&cli),
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error::report(&error),
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.noun {
        Noun::Dataset(command) => command.run(cli.output),
        Noun::Plan(command) => command.run(cli.output),
        Noun::Batch(command) => command.run(cli.output),
        Noun::Job(command) => command.run(cli.output),
        Noun::Epoch(command) => command.run(cli.output),
        Noun::Shard(command) => command.run(cli.output),
        Noun::Rank(command) => command.run(cli.output),
        Noun::Worker(command) => command.run(cli.output),
        Noun::Coordinator(command) => command.run(),
        Noun::Cluster(command) => command.run(cli.output),
        Noun::Events(args) => cluster::events::run(args, cli.output),
        Noun::Access(command) => command.run(cli.output),
        Noun::Audit(args) => cluster::audit::run(args, cli.output),
        Noun::Tls(command) => command.run(cli.output),
        Noun::Context(command) => command.run(cli.output),
        Noun::Why(args) => cluster::why::run(args, cli.output),
        Noun::Bench(args) => bench::run(args, cli.output),
        Noun::Trace(args) => trace::run(args, cli.output),
        Noun::Doctor(args) => doctor::run(args, cli.output),
        Noun::Health(args) => health::run(args, cli.output),
        Noun::Config(command) => command.run(cli.output),
        Noun::Wait(command) => command.run(cli.output),
        Noun::Completion { shell } => shell::completion(*shell),
        Noun::Man { folder } => shell::man(folder),
        Noun::Top(args) => top::run(args),
        Noun::Status(args) => cluster::status::run(args, cli.output),
        Noun::Up(args) => process::up(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_shows_may_be_watched() {
        let is_view = |line: &str| {
            let words = ["shardfeed"].into_iter().chain(line.split(' '));
            Cli::try_parse_from(words).unwrap().noun.is_view()
        };
        for line in [
            "access list",
            "access whoami",
            "audit",
            "batch show a --step 0",
            "batch show --job j --step 0",
            "cluster status",
            "context list",
            "dataset list",
            "dataset show d",
            "epoch list --job j",
            "epoch show --job j",
            "events",
            "health",
            "job list",
            "job show j",
            "plan show a",
            "rank list --job j",
            "shard history --job j 0",
            "shard list --job j",
            "status",
            "why j",
            "worker list",
            "worker show w",
        ] {
            assert!(is_view(line), "{line}");
        }
        for line in [
            "access revoke 0",
            "context use c",
            "dataset add d a",
            "events -f",
            "job pause j",
            "job remove j --yes",
            "top",
            "wait leader",
            "worker cordon w",
            "worker drain w",
        ] {
            assert!(!is_view(line), "{line}");
        }
    }
}
