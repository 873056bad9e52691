//! Native half of Python's `Loader`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat};
use shardfeed_cluster::GrpcCluster;
use shardfeed_device::Device;
use shardfeed_embedded::{
    CacheChoice, CacheOptions, ClusterOptions, CorruptBudget, DoubtPolicy, GrantStats, LoadError,
    Loader, LoaderOptions, OpenProgress, PrefetchStats, ScanStage, SkippedRecord, SourceVersion,
    What,
};
use shardfeed_pipeline::{ColumnKind, Reading};
use shardfeed_plan::{Corrupt, LoaderState, Mode, Tail};
use shardfeed_tfrecord::CompressionChoice;

use crate::batch::NativeBatch;
use crate::changes::{Changes, Made};
use crate::device::{self, Ahead, device_error};
use crate::epoch::Turn;
use crate::errors::{config_error, load_error, named};
use crate::mixture::{mixture_options, shared_index};
use crate::spec::{operators, record_spec};

/// A column for Python: name, kind, dtype, shape, and the row length of each split of a ragged
/// column; `None`: rows differ.
type ColumnTuple = (String, &'static str, &'static str, Vec<usize>, Vec<Option<usize>>);

/// Skipped data: file, offset, ordinal, reason, kind.
type SkippedTuple = (String, u64, u64, String, &'static str);

#[pyfunction]
pub(crate) fn default_budget_bytes() -> u64 {
    shardfeed_embedded::default_budget_bytes()
}

/// One rank's loader. Every call releases the GIL before it locks the loader.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeLoader {
    /// `None` only while it is dropped.
    loader: Arc<Mutex<Option<Loader>>>,
    /// The thread that takes the next batch, and the batch in hand.
    pub(crate) turn: Turn,
    /// Device for the batches, if not on the host.
    pub(crate) device: Option<Device>,
    /// Columns that the device changes.
    pub(crate) made: Arc<Made>,
    pub(crate) with_provenance: bool,
    process: u32,
}

impl NativeLoader {
    fn lock(&self) -> MutexGuard<'_, Option<Loader>> {
        // A loader whose method panicked keeps its previous position.
        self.loader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rejects calls in a forked child.
    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let message = "this loader was made in another process: its threads do not survive a fork; make \
                       the loader after forking (torch's DataLoader: num_workers=0)";
        Err(named(py, "ShardfeedError", message))
    }

    /// Runs `call` on the loader without the GIL.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Loader) -> Result<T, LoadError> + Send,
    ) -> PyResult<T> {
        self.check_process(py)?;
        let result = py.detach(|| self.lock().as_mut().map(call));
        match result {
            Some(result) => result.map_err(|error| load_error(py, &error)),
            None => Err(named(py, "ShardfeedError", "the loader was closed")),
        }
    }

    /// As [`NativeLoader::with`], for long operations: shows progress, and stops on a signal.
    fn watched<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Loader, Watch<'_>) -> Result<T, LoadError> + Send,
    ) -> PyResult<T> {
        self.check_process(py)?;
        let result = watched(py, false, |progress| {
            let mut loader = self.lock();
            match loader.as_mut() {
                Some(loader) => call(loader, progress).map(Some),
                None => Ok(None),
            }
        })?;
        result.ok_or_else(|| named(py, "ShardfeedError", "the loader was closed"))
    }
}

/// Called during a long operation; returning false stops it.
type Watch<'a> = &'a mut dyn FnMut(&OpenProgress) -> bool;

/// Runs a long operation without the GIL; shows progress, and stops on a signal.
/// - `apart`: warns when samples are counted, because each host counts them.
fn watched<T: Send>(
    py: Python<'_>,
    apart: bool,
    call: impl FnOnce(Watch<'_>) -> Result<T, LoadError> + Send,
) -> PyResult<T> {
    let mut interrupt = None;
    let mut bar = ScanBar::new(apart);
    let mut progress = |state: &OpenProgress| match bar
        .show(state)
        .and_then(|()| Python::attach(|py| py.check_signals()))
    {
        Ok(()) => true,
        Err(error) => {
            interrupt = Some(error);
            false
        }
    };
    let result = py.detach(|| call(&mut progress));
    bar.clear();
    match interrupt {
        Some(error) => Err(error),
        None => result.map_err(|error| load_error(py, &error)),
    }
}

#[pymethods]
impl NativeLoader {
    /// Opens a loader from a dict of options.
    #[staticmethod]
    fn open(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let ordinal: Option<usize> = optional(options, "device")?;
        let on_device = match optional(options, "device_operators")? {
            Some(text) => operators(py, "device_operators", text)?,
            None => vec![],
        };
        let apart = optional(options, "counts_apart")?.unwrap_or_default();
        let options = loader_options(py, options)?;
        // The source of a row is found by its shard.
        let with_provenance = options.parts || options.mixture.is_some();
        // Fails before reading: without a device the reads would be useless.
        let device = py.detach(|| ordinal.map(Device::open).transpose());
        let device = device.map_err(|error| device_error(py, &error))?;
        let loader = watched(py, apart, |progress| shardfeed_embedded::open(options, progress))?;
        let (columns, rows) = (loader.schema().columns(), loader.options().batch_size);
        let Changes { changes, made } =
            Changes::of(&on_device, columns, rows).map_err(config_error(py))?;
        let loader = Arc::new(Mutex::new(Some(loader)));
        if let Some(device) = &device {
            if !changes.is_empty() {
                let changed = py.detach(|| device.change(changes));
                changed.map_err(|error| device_error(py, &error))?;
            }
            device.follow(Box::new(Ahead(Arc::downgrade(&loader))));
        }
        let made = Arc::new(made);
        let (turn, process) = (Turn::default(), std::process::id());
        Ok(Self { loader, turn, device, made, with_provenance, process })
    }

    /// Columns in the order of a batch, as they are at the batches' location.
    fn columns(&self, py: Python<'_>) -> PyResult<Vec<ColumnTuple>> {
        let (mut columns, lengths) = self.with(py, |loader| {
            let schema = loader.schema();
            Ok((schema.columns().to_vec(), schema.row_lengths()))
        })?;
        for (place, kind) in &*self.made {
            columns[*place].1 = kind.clone();
        }
        Ok(columns.iter().zip(lengths).map(column_tuple).collect())
    }

    /// Steps of the whole epoch for this rank, if known.
    fn steps(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |loader| Ok(loader.steps()))
    }

    /// Epoch, step and generation of the next batch.
    fn cursor(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        self.with(py, |loader| {
            let cursor = loader.cursor();
            Ok((cursor.epoch(), cursor.step(), cursor.generation()))
        })
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| loader.set_epoch(epoch))
    }

    /// Moves to the beginning of `epoch`, also right after loading a state of it.
    fn restart(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| {
            // The first call right after loading a state keeps its step.
            loader.set_epoch(epoch)?;
            loader.set_epoch(epoch)
        })
    }

    /// Reshards the rest of the epoch from `step`; returns the rank and the batch size.
    #[pyo3(signature = (step, world_size, rank))]
    fn reshard(
        &self,
        py: Python<'_>,
        step: u64,
        world_size: u64,
        rank: Option<u64>,
    ) -> PyResult<(u64, u64)> {
        self.watched(py, |loader, progress| {
            let batch_size = loader.reshard(step, world_size, rank, progress)?;
            Ok((loader.options().rank, batch_size))
        })
    }

    /// Leaves out the next steps of the epoch.
    fn skip(&self, py: Python<'_>, steps: u64) -> PyResult<()> {
        self.watched(py, |loader, progress| loader.skip(steps, progress))
    }

    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.state().to_json()))
    }

    fn state_after(&self, py: Python<'_>, batch: &Bound<'_, NativeBatch>) -> PyResult<String> {
        let after = batch.get().after.clone();
        self.with(py, |loader| Ok(loader.state_at(&after).to_json()))
    }

    /// Resumes from one state, or from those of all ranks.
    fn load(&self, py: Python<'_>, states: Vec<String>, replay_missing: bool) -> PyResult<()> {
        self.watched(py, |loader, progress| {
            let states = states
                .iter()
                .map(|text| LoaderState::from_json(text))
                .collect::<Result<Vec<_>, _>>()?;
            loader.load(&states, replay_missing, progress)
        })
    }

    /// Resumes at the positions of all ranks of the job, as known to the coordinator.
    fn load_latest(&self, py: Python<'_>) -> PyResult<()> {
        self.watched(py, |loader, progress| loader.load_latest(progress))
    }

    fn job(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.job().to_owned()))
    }

    fn plan_digest(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.plan_digest().to_string()))
    }

    /// Paths of the shards relative to the dataset, in manifest order, and the dataset's folder.
    fn shards(&self, py: Python<'_>) -> PyResult<(Vec<String>, String)> {
        self.with(py, |loader| {
            let contents = loader.contents();
            let paths = contents.shards.iter().map(|shard| shard.path.clone());
            Ok((paths.collect(), contents.root.clone()))
        })
    }

    /// Versions of the sources of a mixture: name, ordinal of the first shard, number of records.
    fn sources(&self, py: Python<'_>) -> PyResult<Vec<(String, u32, u64)>> {
        self.with(py, |loader| {
            let contents = loader.contents();
            let versions = contents.mixed.as_ref().map_or(&[][..], |mixed| &mixed.versions);
            let version = |version: &SourceVersion| {
                let first = version.first_shard as usize;
                let shards = &contents.shards[first..first + version.order.counts().len()];
                let records = shards.iter().map(|shard| shard.records).sum();
                (version.order.name().to_owned(), version.first_shard, records)
            };
            Ok(versions.iter().map(version).collect())
        })
    }

    /// Records of the dataset, samples of it (of a mixture: of this epoch), samples of this epoch
    /// that no step delivers, and those of steps that were left out.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        self.with(py, |loader| {
            let records = loader.contents().records();
            Ok((records, loader.samples(), loader.dropped(), loader.left_out()))
        })
    }

    /// Skipped data: file, offset, ordinal, reason, and part of the file.
    fn skipped(&self, py: Python<'_>) -> PyResult<Vec<SkippedTuple>> {
        let skipped = self.with(py, |loader| Ok(loader.skipped()))?;
        let tuple = |one: SkippedRecord| {
            let what = match one.what {
                What::Record => "record",
                What::Rest => "rest",
                What::File => "file",
            };
            (one.file, one.offset, one.ordinal, one.reason, what)
        };
        Ok(skipped.into_iter().map(tuple).collect())
    }

    /// Returns counters and settings of the loader, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, |loader| Ok(loader.stats()))?;
        let dict = PyDict::new(py);
        dict.set_item("batches", stats.batches)?;
        dict.set_item("memory_budget_bytes", stats.memory_budget_bytes)?;
        dict.set_item("copied_batches", stats.copied_batches)?;
        dict.set_item("skipped", stats.skipped)?;
        dict.set_item("skipped_in_epoch", stats.skipped_in_epoch)?;
        dict.set_item("files_left_out", stats.files_left_out)?;
        dict.set_item("source", stats.source)?;
        if let Some(device) = &self.device {
            device::set_stats(&dict, device)?;
        }
        if let Some(prefetch) = stats.prefetch {
            set_prefetch_stats(&dict, &prefetch)?;
        }
        Ok(dict)
    }

    /// Returns the loader's bottleneck, as JSON and as a sentence.
    fn why(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let finding = self.with(py, |loader| Ok(loader.why()))?;
        let text = serde_json::to_string(&finding).expect("a finding is plain data");
        Ok((text, finding.sentence()))
    }

    /// Stops reading ahead and releases everything but batches in use; later queries return the
    /// last values.
    /// - `failure`: the error that ended the training; `None`: it completed.
    #[pyo3(signature = (failure = None))]
    fn close(&self, py: Python<'_>, failure: Option<&str>) {
        if self.process != std::process::id() {
            // After a fork the loader's lock may be held by a thread that does not exist here.
            return;
        }
        py.detach(|| {
            let mut loader = self.lock();
            if let Some(device) = &self.device {
                device.close();
            }
            if let Some(loader) = loader.as_mut() {
                loader.close(failure);
            }
        });
        self.turn.forget();
    }
}

impl Drop for NativeLoader {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // After a fork the reading threads do not exist here, so they cannot be joined.
            if let Ok(mut loader) = self.loader.try_lock() {
                std::mem::forget(loader.take());
            }
        } else if let Some(device) = &self.device {
            device.close();
        }
    }
}

fn set_prefetch_stats(dict: &Bound<'_, PyDict>, stats: &PrefetchStats) -> PyResult<()> {
    dict.set_item("ready", stats.ready)?;
    dict.set_item("in_work", stats.in_work)?;
    dict.set_item("prefetch", stats.prefetch)?;
    let reading = match stats.reading {
        None => "starting",
        Some(Reading::Hold { .. }) => "hold",
        Some(Reading::Locate) => "locate",
    };
    dict.set_item("reading", reading)?;
    if let Some(Reading::Hold { chunk_bytes, .. }) = stats.reading {
        dict.set_item("chunk_bytes", chunk_bytes)?;
    }
    dict.set_item("read_bytes", stats.read_bytes)?;
    dict.set_item("reinflated_bytes", stats.reinflated_bytes)?;
    if let Some(remote) = stats.remote {
        dict.set_item("store_requests", remote.requests)?;
        dict.set_item("store_retries", remote.retries)?;
        dict.set_item("store_bytes", remote.bytes)?;
        dict.set_item("cached_bytes", remote.cached_bytes)?;
    }
    if let Some(GrantStats { granted, lookahead, horizon_waits }) = stats.granted {
        dict.set_item("granted", granted)?;
        dict.set_item("lookahead", lookahead)?;
        dict.set_item("horizon_waits", horizon_waits)?;
    }
    dict.set_item("slots", stats.slots.slots)?;
    dict.set_item("slots_in_use", stats.slots.in_use)?;
    dict.set_item("slot_bytes", stats.slots.bytes)?;
    dict.set_item("slots_mapped_total", stats.slots.mapped_total)?;
    dict.set_item("suspect_images", stats.account.since_start.suspect_images)?;
    dict.set_item("wait_seconds", stats.waited.as_secs_f64())?;
    let account = serde_json::to_string(&stats.account).expect("an account is plain data");
    dict.set_item("account", account)
}

fn column_tuple(
    ((name, kind), lengths): (&(Arc<str>, ColumnKind), Vec<Option<usize>>),
) -> ColumnTuple {
    let (what, shape) = match kind {
        ColumnKind::Dense { shape, .. } => ("dense", shape),
        ColumnKind::Padded { shape, .. } => ("padded", shape),
        ColumnKind::Ragged { shape, .. } => ("ragged", shape),
        ColumnKind::Sparse { size, .. } => ("sparse", size),
    };
    (name.to_string(), what, kind.dtype().name(), shape.clone(), lengths)
}

fn loader_options(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<LoaderOptions> {
    let get = |name: &str| option(options, name);
    let tail: String = get("tail")?.extract()?;
    let mode: String = get("mode")?.extract()?;
    let compression: String = get("compression")?.extract()?;
    let corrupt: String = get("corrupt")?.extract()?;
    Ok(LoaderOptions {
        files: get("files")?.extract()?,
        mixture: mixture_options(py, options)?,
        dataset: get("dataset")?.extract()?,
        index: shared_index(py, optional(options, "index")?)?,
        cluster: cluster_options(&get)?,
        compression: compression.parse::<CompressionChoice>().map_err(config_error(py))?,
        corrupt: corrupt.parse::<Corrupt>().map_err(config_error(py))?,
        corrupt_budget: match get("corrupt_budget")? {
            budget if budget.is_none() => CorruptBudget::Usual,
            budget if budget.is_instance_of::<PyFloat>() => CorruptBudget::Part(budget.extract()?),
            budget => CorruptBudget::Records(budget.extract()?),
        },
        records: record_spec(py, &get)?,
        batch_size: get("batch_size")?.extract()?,
        seed: get("seed")?.extract()?,
        shuffle: get("shuffle")?.extract()?,
        shuffle_window: get("shuffle_window")?.extract()?,
        interleave: get("interleave")?.extract()?,
        block_length: get("block_length")?.extract()?,
        lanes: get("lanes")?.extract()?,
        tail: tail.parse::<Tail>().map_err(config_error(py))?,
        mode: mode.parse::<Mode>().map_err(config_error(py))?,
        limit: get("limit")?.extract()?,
        rank: get("rank")?.extract()?,
        world_size: get("world_size")?.extract()?,
        replica: get("replica")?.extract()?,
        job: get("job")?.extract()?,
        prefetch: get("prefetch")?.extract()?,
        memory_budget_bytes: get("memory_budget")?.extract()?,
        cache: CacheOptions {
            folder: match get("cache_dir")?.extract()? {
                Some(folder) => CacheChoice::Folder(folder),
                None => CacheChoice::Environment,
            },
            bytes: get("cache_bytes")?.extract()?,
            // Each source names its own.
            index: None,
            logs: None,
        },
        doubt: DoubtPolicy {
            is_drop: get("in_doubt")?.extract::<String>()? == "drop",
            grace: Duration::from_secs_f64(get("in_doubt_grace")?.extract()?),
        },
        parts: optional(options, "provenance")?.unwrap_or(false),
        resumes: optional(options, "resumes")?.unwrap_or(false),
    })
}

pub(crate) fn option<'py>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    options.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

/// Returns an option that loaders on the host omit.
fn optional<'py, T: for<'a> FromPyObject<'a, 'py>>(
    options: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<Option<T>> {
    let Some(value) = options.get_item(name)?.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    value.extract().map(Some).map_err(Into::into)
}

/// Returns the cluster options, if the loader has a cluster.
fn cluster_options<'py>(
    get: &impl Fn(&str) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Option<ClusterOptions>> {
    let Some(coordinator) = get("coordinator")?.extract::<Option<String>>()? else {
        return Ok(None);
    };
    Ok(Some(ClusterOptions {
        worker: get("worker")?.extract()?,
        fallback: get("fallback")?.extract()?,
        timeout: Duration::from_secs_f64(get("timeout")?.extract()?),
        run: get("run")?.extract()?,
        ranks_on_host: get("ranks_on_host")?.extract()?,
        ..ClusterOptions::new(coordinator, &GrpcCluster)
    }))
}

/// Shorter indexing shows nothing.
const BAR_AFTER: Duration = Duration::from_millis(700);

const COUNTED_APART: &str = "the ranks are on several hosts, and each host reads all files to count \
    their samples, unless they share cache_dir; sf.source(..., index=FOLDER or URL) shares the \
    counts, as `shardfeed dataset index` writes them, and so does coordinator=";

/// A progress bar on a terminal while files are indexed, or another process is awaited.
struct ScanBar {
    /// True until it warned that each host counts samples.
    apart: bool,
    begun: Instant,
    bar: Option<ProgressBar>,
    /// Reason for waiting that was logged, for users without a bar.
    told: String,
}

impl ScanBar {
    fn new(apart: bool) -> Self {
        Self { apart, begun: Instant::now(), bar: None, told: String::new() }
    }

    /// # Errors  That of a signal, raised while Python's logging ran.
    fn show(&mut self, progress: &OpenProgress) -> PyResult<()> {
        let (note, state) = (&progress.note, &progress.scan);
        let is_waiting = !note.is_empty() && self.begun.elapsed() >= BAR_AFTER;
        if is_waiting && self.told.is_empty() {
            self.told.clone_from(note);
            warn(&format!("{note}; waiting"))?;
        }
        // Without a cluster, only files that are to be read have bytes.
        if self.apart && state.bytes_total > 0 {
            self.apart = false;
            warn(COUNTED_APART)?;
        }
        if state.stage == ScanStage::Done || self.begun.elapsed() < BAR_AFTER {
            return Ok(());
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "shardfeed: {wide_msg} {bar:20} {bytes}/{total_bytes} {eta}",
            );
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(Some(0), target);
            bar.set_style(style.expect("the template is right"));
            bar
        });
        bar.set_length(state.bytes_total);
        bar.set_position(state.bytes);
        bar.set_message(match state.stage {
            _ if !note.is_empty() => format!("{note}; waiting"),
            ScanStage::Waiting => {
                "another process reads these files to index or count them, waiting".to_owned()
            }
            ScanStage::Listing if state.files > 0 => {
                format!("looking at files, {} done", state.files)
            }
            ScanStage::Listing => "listing the files".to_owned(),
            ScanStage::Counting => {
                format!("counting samples of {}/{} files", state.files, state.files_total)
            }
            _ => format!("indexing {}/{} files", state.files, state.files_total),
        });
        Ok(())
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Warns through Python's logging.
///
/// # Errors  `KeyboardInterrupt` and similar, which Python raises in the next code it runs: here.
fn warn(text: &str) -> PyResult<()> {
    Python::attach(|py| {
        let logger = py.import("logging")?.call_method1("getLogger", ("shardfeed",))?;
        let told = logger.call_method1("warning", (text,));
        match told {
            // A failing log handler must not end the wait.
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyException>(py) => Ok(()),
            told => told.map(drop),
        }
    })
}
