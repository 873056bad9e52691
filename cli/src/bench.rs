//! `shardfeed bench`: measures how fast a job or files can be read by a trainer that does nothing.

use std::io::{self, Write};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use shardfeed_dataset_tools::files::{POLICIES, one_of};
use shardfeed_embedded::{
    Account, Delivery, EncodedSpec, Finding, LoadError, Loader, LoaderOptions, finding, trace,
    use_threads,
};
use shardfeed_plan::{Corrupt, JobIdentity, Mode};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::identity_from;

use crate::cluster::{Client, ClusterArgs, dataset, job};
use crate::duration;
use crate::error::Problem;
use crate::order::parse_epoch;
use crate::output::{self, Format, Report};
use crate::size::Bytes;

/// Timeout of one wait for a batch, after which the elapsed time is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

const MEMORY_EVERY: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
Examples:
  shardfeed bench digits
  shardfeed bench --files 'train/*.tfrecord' --batch-size 256 --duration 30s
  shardfeed bench digits --threads 2 --trace timeline.json";

/// Measure how fast a job or files can be read
///
/// It replaces the trainer by one that only takes batches, and reports the speed. It reads in this
/// process, on this host's cores, from files that this host can open: one rank of the job's own
/// order, with its features and operators, from the beginning of an epoch. Only the definition of
/// the job is requested from the coordinator, so running ranks are affected only by the load on
/// processors and storage. A dynamic job is read as if its order were fixed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Name of the job
    #[arg(value_name = "JOB", required_unless_present = "files", conflicts_with = "files")]
    job: Option<String>,
    /// TFRecord files to read instead of a job: paths, or quoted globs; repeatable
    #[arg(long, value_name = "FILES")]
    files: Vec<String>,
    /// Time to read after the first batch
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    duration: Duration,
    /// Maximum number of batches to read
    #[arg(long, value_name = "N")]
    batches: Option<NonZeroU64>,
    /// Rank of the job to read
    #[arg(long, default_value_t = 0)]
    rank: u64,
    /// First epoch
    #[arg(long, default_value_t = 0, value_parser = parse_epoch)]
    epoch: u64,
    /// Samples per batch [default: the job's, else 32]
    #[arg(long, value_name = "SAMPLES")]
    batch_size: Option<NonZeroU64>,
    /// Policy for corrupt records: `error`, `skip-record` or `skip-file` [default: the policy of
    /// the job's dataset; the policies of its ranks are not known]
    #[arg(long, value_name = "POLICY", hide_possible_values = true)]
    #[arg(value_parser = one_of::<Corrupt>(POLICIES))]
    corrupt: Option<Corrupt>,
    /// Maximum number of batches ahead [default: chosen automatically]
    #[arg(long, value_name = "BATCHES")]
    prefetch: Option<NonZeroUsize>,
    /// Memory for records and batches ahead [default: a quarter of the available memory]
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<Bytes>,
    /// Computing threads [default: chosen automatically]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Path on this host of a table that the job looks up; repeatable
    #[arg(long, value_name = "FILE", requires = "job")]
    table: Vec<String>,
    /// Write a timeline for Perfetto to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct BenchReport {
    /// Name of the job, or the files.
    what: String,
    rank: u64,
    world_size: u64,
    batch_size: u64,
    /// Batches that the rank took.
    batches: u64,
    /// Samples of these batches.
    samples: u64,
    /// `error`, `skip-record` or `skip-file`.
    corrupt: String,
    /// Corrupt records that were skipped.
    skipped: u64,
    /// Time from the first batch to the last.
    seconds: f64,
    samples_per_second: f64,
    /// Bytes of batches.
    batch_bytes_per_second: f64,
    /// Bytes of files.
    stored_bytes_per_second: f64,
    /// Processor time of this process.
    cpu_seconds_per_1000_samples: f64,
    /// Time to list and index the files.
    open_seconds: f64,
    /// Time from then to the first batch.
    first_batch_seconds: f64,
    /// Maximum of this process's anonymous and shared memory, measured 50 times per second.
    memory_peak_bytes: u64,
    /// Memory for records and batches.
    memory_budget_bytes: u64,
    finding: Finding,
    account: Account,
}

pub(crate) fn run(args: &BenchArgs, format: Format) -> anyhow::Result<()> {
    use_threads(args.threads.map(NonZeroUsize::get));
    let (what, mut options) = match &args.job {
        Some(job) => (job.clone(), of_job(args, job)?),
        None => (args.files.join(" "), of_files(args)),
    };
    options.prefetch = args.prefetch.map(NonZeroUsize::get);
    options.memory_budget_bytes = args.memory_budget.map(Bytes::get);
    options.corrupt = args.corrupt.unwrap_or(options.corrupt);
    if args.trace.is_some() {
        trace::start();
    }
    let report = read(args, what, options).map_err(|error| explain_corrupt(args, error))?;
    if let Some(file) = &args.trace {
        let written = trace::write(file, "shardfeed bench");
        written.with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(format.print(&report)?)
}

/// Explains an error about a corrupt record: only the job's ranks know whether they skip it.
fn explain_corrupt(args: &BenchArgs, error: anyhow::Error) -> anyhow::Error {
    let (Some(job), None) = (&args.job, args.corrupt) else {
        return error;
    };
    let what = match error.downcast_ref::<LoadError>() {
        Some(LoadError::Corrupt { read }) => read.to_string(),
        Some(record @ LoadError::Record { .. }) => record.to_string(),
        _ => return error,
    };
    let hint = format!(
        "the dataset of `{job}` does not skip corrupt records; if its ranks do: bench --corrupt \
         skip-record"
    );
    Problem::failed(what).hint(hint).into()
}

fn of_files(args: &BenchArgs) -> LoaderOptions {
    LoaderOptions {
        files: args.files.clone(),
        batch_size: args.batch_size.map_or(32, NonZeroU64::get),
        rank: args.rank,
        world_size: args.rank + 1,
        ..LoaderOptions::default()
    }
}

/// Returns the loader options of the job's ranks, as far as the coordinator knows them.
fn of_job(args: &BenchArgs, name: &str) -> anyhow::Result<LoaderOptions> {
    let client = args.cluster.client()?;
    let wire::GetJobResponse { job, record_spec } = job::get(&client, name)?;
    let job = job.unwrap_or_default();
    let identity = identity_from(job.identity)?;
    if job.mixture.is_some() {
        let what = format!("job `{name}` reads a mixture, and a bench reads one dataset");
        let hint = "give the files of one of its sources with --files";
        return Err(Problem::failed(what).hint(hint).into());
    }
    let dataset = dataset::get(&client, &job.dataset)?;
    let files = match dataset.patterns.is_empty() {
        // The dataset was registered by its files.
        true => files(&client, name, &dataset.root)?,
        false => dataset.patterns.clone(),
    };
    let mut records = EncodedSpec::decode(&record_spec).map_err(|error| {
        let what = format!("job `{name}`: the coordinator's record spec cannot be used: {error}");
        Problem::failed(what).hint("use the version of shardfeed that its ranks use")
    })?;
    for table in &args.table {
        if !records.use_table(table).map_err(LoadError::from)? {
            let what = format!("job `{name}` looks nothing up in {table}");
            let hint = "its table was another one, or had other content";
            return Err(Problem::failed(what).hint(hint).into());
        }
    }
    let generation = job.generation.unwrap_or_default();
    let world_size = generation.world_size.max(1);
    if args.rank >= world_size {
        let what =
            format!("--rank {} is not below job `{name}`'s world size of {world_size}", args.rank);
        return Err(Problem::usage(what).hint("ranks count from 0").into());
    }
    let batch_size = match (args.batch_size, generation.global_batch) {
        (Some(batch_size), _) => batch_size.get(),
        (None, 0) => 32,
        (None, global_batch) => (global_batch / world_size).max(1),
    };
    let is_dynamic = identity.mode == Mode::Dynamic;
    let JobIdentity { shuffle, lanes, tail, .. } = identity;
    // Lanes that do not fit another batch size are replaced by the default: the cost is the same.
    let fits = !is_dynamic && (batch_size * world_size).is_multiple_of(lanes);
    Ok(LoaderOptions {
        files,
        compression: dataset.compression.parse().unwrap_or(LoaderOptions::default().compression),
        // The same files are left out as for the job, so that the order is the job's.
        corrupt: dataset.corrupt.parse().unwrap_or(LoaderOptions::default().corrupt),
        records: Some(records),
        batch_size,
        seed: shuffle.seed,
        shuffle: shuffle.enabled,
        shuffle_window: shuffle.window,
        interleave: Some(shuffle.interleave),
        block_length: shuffle.block_length,
        lanes: fits.then_some(lanes),
        tail,
        limit: generation.limit,
        rank: args.rank,
        world_size,
        ..LoaderOptions::default()
    })
}

/// Returns the paths of the shards that a job reads.
fn files(client: &Client, job: &str, root: &str) -> anyhow::Result<Vec<String>> {
    let request = wire::ListShardsRequest { job: job.to_owned(), ..Default::default() };
    let shards = client.stream(request)?.into_iter().flat_map(|answer| answer.shards);
    let root = root.trim_end_matches('/');
    Ok(shards.map(|shard| format!("{root}/{}", shard.path)).collect())
}

fn read(args: &BenchArgs, what: String, options: LoaderOptions) -> anyhow::Result<BenchReport> {
    let (rank, world_size, batch_size) = (options.rank, options.world_size, options.batch_size);
    let corrupt = options.corrupt.to_string();
    let begun = Instant::now();
    let mut loader = shardfeed_embedded::open(options, &mut |_| true)?;
    if loader.steps() == Some(0) {
        let what = format!("an epoch has no batch of {batch_size} for {world_size} rank(s)");
        return Err(Problem::failed(what).hint("use a smaller --batch-size").into());
    }
    loader.set_epoch(args.epoch)?;
    let open_seconds = begun.elapsed().as_secs_f64();
    let mut memory = Memory::default();
    let started = Instant::now();
    take(&mut loader, &mut memory)?;
    let first_batch_seconds = started.elapsed().as_secs_f64();
    let (measured, cpu_seconds, before) = (Instant::now(), cpu_seconds(), loader.account());
    let (mut batches, mut samples, mut bytes) = (0, 0, 0);
    let most = args.batches.map_or(u64::MAX, NonZeroU64::get);
    while batches < most && measured.elapsed() < args.duration {
        let (rows, size) = take(&mut loader, &mut memory)?;
        (batches, samples, bytes) = (batches + 1, samples + rows, bytes + size);
    }
    let seconds = measured.elapsed().as_secs_f64();
    let (stats, account) = (loader.stats(), loader.account());
    let per_second = |count: u64| count as f64 / seconds;
    let stored = account.since_start.stored_bytes - before.since_start.stored_bytes;
    Ok(BenchReport {
        what,
        rank,
        world_size,
        batch_size,
        batches,
        samples,
        corrupt,
        skipped: stats.skipped,
        seconds,
        samples_per_second: per_second(samples),
        batch_bytes_per_second: per_second(bytes),
        stored_bytes_per_second: per_second(stored),
        cpu_seconds_per_1000_samples: (self::cpu_seconds() - cpu_seconds) * 1e3
            / samples.max(1) as f64,
        open_seconds,
        first_batch_seconds,
        memory_peak_bytes: memory.peak_bytes,
        memory_budget_bytes: stats.memory_budget_bytes,
        finding: finding(&account),
        account,
    })
}

/// Waits for the next batch of any epoch; returns its samples and bytes.
fn take(loader: &mut Loader, memory: &mut Memory) -> anyhow::Result<(u64, u64)> {
    loop {
        let next = loader.next(LOOK_EVERY)?;
        memory.look();
        if let Delivery::Batch(delivered) = next {
            let batch = &delivered.batch;
            return Ok((batch.rows as u64, batch.slot.size_bytes() as u64));
        }
    }
}

/// CPU time of this process, s.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[derive(Debug, Default)]
struct Memory {
    peak_bytes: u64,
    looked: Option<Instant>,
}

impl Memory {
    fn look(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < MEMORY_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.trim().strip_suffix("kB"));
            number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
        };
        self.peak_bytes = self.peak_bytes.max((kib("RssAnon:") + kib("RssShmem:")) << 10);
    }
}

impl BenchReport {
    fn corrupt_records(&self) -> String {
        match self.corrupt.as_str() {
            "error" => "an error".into(),
            policy => format!("{policy}, {} skipped", output::count(self.skipped)),
        }
    }
}

impl Report for BenchReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let speed = |bytes: f64| format!("{}/s", output::size(bytes as u64));
        let seconds = |seconds: f64| format!("{seconds:.3} s");
        let processor_time = format!("{:.4} s per 1000 samples", self.cpu_seconds_per_1000_samples);
        let facts = [
            ("bench of", self.what.clone()),
            ("rank", format!("{} of {}", self.rank, output::count(self.world_size))),
            ("batches", format!("{} of {}", output::count(self.batches), self.batch_size)),
            ("corrupt records", self.corrupt_records()),
            ("time", seconds(self.seconds)),
            ("samples per second", output::count(self.samples_per_second as u64)),
            ("of batches", speed(self.batch_bytes_per_second)),
            ("of shards", speed(self.stored_bytes_per_second)),
            ("processor time", processor_time),
            ("listing and indexing", seconds(self.open_seconds)),
            ("first batch after", seconds(self.first_batch_seconds)),
            ("memory at most", output::size(self.memory_peak_bytes)),
            ("memory budget", output::size(self.memory_budget_bytes)),
        ];
        output::write_facts(out, &facts)?;
        writeln!(out, "\n{}", self.finding.sentence())
    }
}
