//! The order of an epoch, from options with the same meaning as those of the Python loader.

mod balance;
pub(crate) mod batch;
mod find;
mod mixing;
pub(crate) mod plan;
mod record_ref;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use shardfeed_dataset_tools::files::{Sampled, SampledArgs, one_of};
use shardfeed_embedded::{Contents, EpochSamples, LoaderOptions, check_stages, spec_of};
use shardfeed_pipeline::Schema;
use shardfeed_plan::{
    BalancedPlan, Cursor, DECODER_NONE, Digest, EpochPlan, JobIdentity, LoaderState, Mode,
    Permutations, Placed, PlanError, Planned, Portion, RECORD_SPEC_FIELD, Records, Sample, Segment,
    Start, StateError, Tail, check_epoch,
};
use shardfeed_source::{Dataset, SourceVersion};

use crate::error::Problem;

/// Maximum number of samples of a global batch, far above use: bounds the memory of an answer.
const GLOBAL_BATCH_SHOWN_MAX: u64 = 1 << 24;

/// Maximum size of a file with a loader state, which has less than 1 KiB.
const TOKEN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Options that determine an order. Defaults are those of the Python loader.
#[derive(Debug, Args)]
#[command(next_help_heading = "Order, as a loader is given it")]
pub(crate) struct OrderArgs {
    /// Epoch, from 0 [default: 0, or the state's]
    #[arg(long, value_parser = parse_epoch)]
    pub(crate) epoch: Option<u64>,
    /// Seed of the order
    #[arg(long, default_value_t = LoaderOptions::default().seed)]
    seed: u64,
    /// Keep the order of the files
    #[arg(long)]
    no_shuffle: bool,
    /// Shuffle window: samples of a lane that are shuffled together
    #[arg(long, value_name = "SAMPLES", value_parser = parse_positive)]
    #[arg(default_value_t = LoaderOptions::default().shuffle_window)]
    shuffle_window: u64,
    /// Shards read in turn [default: 16, or 1 with --no-shuffle]
    #[arg(long, value_name = "SHARDS", value_parser = parse_positive)]
    interleave: Option<u64>,
    /// Consecutive samples read from a shard in its turn
    #[arg(long, value_name = "SAMPLES", value_parser = parse_positive)]
    #[arg(default_value_t = LoaderOptions::default().block_length)]
    block_length: u64,
    /// Lanes: equal parts of the epoch, each with its own shuffle [default: one per rank, or the
    /// state's]
    #[arg(long, value_parser = parse_positive)]
    lanes: Option<u64>,
    /// Samples per rank and step [default: 1, or as the state and --world-size determine]
    #[arg(long, value_name = "SAMPLES", value_parser = parse_positive)]
    batch_size: Option<u64>,
    /// Number of data-parallel ranks [default: 1]
    #[arg(long, value_name = "RANKS", value_parser = parse_positive)]
    world_size: Option<u64>,
    /// Policy for samples that do not fill the last step
    #[arg(long, default_value_t = LoaderOptions::default().tail)]
    #[arg(value_parser = one_of::<Tail>(&["drop", "pad", "uneven"]))]
    tail: Tail,
    /// Maximum number of samples of the epoch
    #[arg(long, value_name = "SAMPLES", value_parser = parse_positive)]
    limit: Option<u64>,
    /// File with a loader's state_dict() as JSON to continue from
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// Hint for a state of another job.
pub(crate) const OTHER_SOURCE: &str = "give the files and the options of the loader that made the \
     state; a source with filter, unbatch, pack, window or balance, and a mixture, are named with \
     --source";

pub(crate) struct Order {
    pub(crate) dataset: Dataset,
    /// The dataset, as a loader knows it.
    contents: Arc<Contents>,
    pub(crate) cursor: Cursor,
    pub(crate) plan: Arc<EpochPlan>,
    pub(crate) limit: Option<u64>,
    /// `None`: steps are not balanced.
    balance: Option<Balance>,
}

#[derive(Clone, Copy, Debug)]
struct Balance {
    /// Samples of a lane that are sorted together.
    window: u64,
    /// True if costs are float64, as bits.
    is_float: bool,
}

impl Balance {
    /// Returns the balanced steps of a record spec.
    fn of(schema: &Schema) -> Option<Self> {
        let is_float = schema.samples().is_some_and(|program| program.has_float_costs());
        schema.balance_window().map(|window| Self { window, is_float })
    }
}

type Costs = Box<dyn FnMut(Portion, Sample) -> u64 + Send>;

impl Order {
    /// Returns the rows of a batch, with shard ordinals among those of all sources.
    ///
    /// # Errors  As [`EpochPlan::batch`].
    fn batch(&self, step: u64, rank: u64) -> Result<Vec<Planned>, PlanError> {
        let rows = match self.balance {
            Some(Balance { window, .. }) => self.balanced(window)?.batch(step, rank)?,
            None => self.plan.batch(step, rank)?,
        };
        let samples = self.samples();
        let in_dataset =
            |row: Planned| Planned { sample: samples.in_dataset(row.portion, row.sample), ..row };
        Ok(rows.into_iter().map(in_dataset).collect())
    }

    /// Returns the position of a sample, and its row in the batch of its rank.
    /// - `sample`: with its shard ordinal in its source.
    ///
    /// # Errors  As [`EpochPlan::place`], except that samples of another epoch have none.
    fn place(
        &self,
        portion: Portion,
        sample: Sample,
    ) -> Result<Option<(Placed, Option<usize>)>, PlanError> {
        let mut balanced = self.balance.map(|balance| self.balanced(balance.window)).transpose()?;
        let placed = match &mut balanced {
            Some(plan) => plan.place_with(portion, sample, &mut Permutations::default()),
            None => self.plan.place(portion, sample),
        };
        let placed = match placed {
            Err(PlanError::NotInEpoch { .. }) => None,
            placed => placed?,
        };
        let row = |Placed { step, entry, rank }: &Placed| {
            let slots = match &mut balanced {
                Some(plan) => plan.slots(*step, *rank),
                None => self.plan.slots(*step, *rank),
            };
            slots.ok()?.iter().position(|slot| slot.entry == *entry)
        };
        Ok(placed.as_ref().map(row).zip(placed).map(|(row, placed)| (placed, row)))
    }

    /// Returns the shards of the epoch, with their ordinals among those of all sources.
    fn shards(&self) -> Vec<u32> {
        match (self.dataset.mixed(), self.plan.mixture()) {
            (Some(mixed), Some(epoch)) => {
                mixed.versions_of(epoch).into_iter().flat_map(SourceVersion::shards).collect()
            }
            _ => (0..self.dataset.files().len() as u32).collect(),
        }
    }

    fn samples(&self) -> EpochSamples {
        EpochSamples::of(&self.plan, &self.dataset)
    }

    /// Returns the costs of samples, whose shard ordinals are those in their sources.
    fn costs(&self) -> Costs {
        let maps = self.dataset.samples().map(Arc::clone);
        self.samples().costs(maps.expect("a record spec with `balance` makes samples"))
    }

    fn balanced(&self, window: u64) -> Result<BalancedPlan<Costs>, PlanError> {
        BalancedPlan::new(Arc::clone(&self.plan), window, self.costs())
    }

    /// Returns the steps whose samples are chosen together with those of a step.
    fn together(&self, step: u64) -> Result<Range<u64>, PlanError> {
        match self.balance {
            Some(Balance { window, .. }) => Ok(self.balanced(window)?.together(step)),
            None => Ok(step..step + 1),
        }
    }
}

impl OrderArgs {
    /// Indexes the files and computes the order.
    /// - `rank`: the rank that the result is for.
    pub(crate) fn order(&self, files: &SampledArgs, rank: u64) -> anyhow::Result<Order> {
        let state = self.state.as_deref().map(read_state).transpose()?;
        let start = self.start(state.as_ref(), rank)?;
        check_start(&start, state.as_ref())?;
        let Sampled { dataset, options } = files.open()?;
        let options = self.loader_options(options);
        let schema = Schema::new(options.records.clone().unwrap_or_default())?;
        let contents = Contents::of("", options.file_rules(), &dataset);
        // Operators and decoder concern only the features, not the order.
        let of_records = (Records::RecordSpec(Digest::from_bytes([0; 32])), DECODER_NONE);
        // The cursor sets the number of lanes.
        let identity = options.identity(&contents, of_records, 1);
        let mut cursor = match &state {
            None => Cursor::new(identity, start)?,
            Some(state) => {
                check_program(state, &schema)?;
                check_stages(std::slice::from_ref(state), dataset.mixed().map(|mixed| &**mixed))?;
                resume(identity, start, state)?
            }
        };
        if let Some(epoch) = self.epoch {
            cursor.set_epoch(epoch)?;
        }
        let (segments, world_size) = (cursor.segments(), cursor.start().world_size);
        let plans = options.plans(&contents);
        let plan = plans.plan(cursor.identity(), cursor.epoch(), segments, world_size)?;
        let (limit, balance) = (self.limit, Balance::of(&schema));
        Ok(Order { dataset, contents: Arc::new(contents), cursor, plan, limit, balance })
    }

    /// Returns the options of a loader of this order.
    fn loader_options(&self, options: LoaderOptions) -> LoaderOptions {
        LoaderOptions {
            seed: self.seed,
            shuffle: !self.no_shuffle,
            shuffle_window: self.shuffle_window,
            interleave: self.interleave,
            block_length: self.block_length,
            tail: self.tail,
            limit: self.limit,
            mode: Mode::Deterministic,
            ..options
        }
    }

    fn start(&self, state: Option<&LoaderState>, rank: u64) -> Result<Start, PlanError> {
        let defaults = LoaderOptions::default();
        // A state that speaks for one rank gives the same plan for all ranks.
        let speaks_for = state.and_then(|state| state.speaks_for);
        let world_size = self
            .world_size
            .or(speaks_for.map(|(_, world_size)| world_size))
            .unwrap_or(defaults.world_size);
        if rank >= world_size {
            return Err(PlanError::RankOutOfRange { rank, world_size });
        }
        let open = state.and_then(|state| state.segments.last());
        let batch_size = match (self.batch_size, open) {
            (Some(batch_size), _) => batch_size,
            (None, Some(open)) if open.global_batch.is_multiple_of(world_size) => {
                open.global_batch / world_size
            }
            (None, Some(open)) => {
                let global_batch = open.global_batch;
                return Err(PlanError::WorldDoesNotDivide { world_size, global_batch });
            }
            (None, None) => defaults.batch_size,
        };
        Ok(Start {
            lanes: self.lanes,
            batch_size,
            rank: speaks_for.map_or(rank, |(rank, _)| rank),
            world_size,
        })
    }
}

/// Parses an epoch's number for every `--epoch`.
pub(crate) fn parse_epoch(text: &str) -> Result<u64, String> {
    let epoch = text.parse::<u64>().map_err(|_| "must be a whole number below 2**48".to_owned())?;
    check_epoch(epoch).map_err(|error| error.to_string())?;
    Ok(epoch)
}

fn parse_positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a whole number, at least 1 and below 2^64".into()),
        Ok(number) => Ok(number),
    }
}

/// Rejects numbers that make no plan, or one too large to show, before anything is scanned.
fn check_start(start: &Start, state: Option<&LoaderState>) -> anyhow::Result<()> {
    let segments = state.map_or(&[][..], |state| &state.segments);
    let open_lanes = segments.last().map(|open| open.lanes);
    let lanes = start.lanes.or(open_lanes).unwrap_or(start.world_size);
    let first = Segment::start(lanes, start.batch_size, start.world_size)?;
    let batches = segments.iter().chain([&first]).map(|segment| segment.global_batch);
    match batches.max() {
        Some(batch) if batch > GLOBAL_BATCH_SHOWN_MAX => {
            Err(Problem::usage(format!("a global batch of {batch} samples is too large to show"))
                .hint(format!(
                    "--batch-size x --world-size may be {GLOBAL_BATCH_SHOWN_MAX} at most"
                ))
                .into())
        }
        _ => Ok(()),
    }
}

fn read_state(path: &Path) -> anyhow::Result<LoaderState> {
    let context = || format!("cannot read the state {}", path.display());
    let size = std::fs::metadata(path).with_context(context)?.len();
    if size > TOKEN_FILE_BYTES_MAX {
        let what = format!("{}: {size} bytes are too many for a state", path.display());
        let hint = "give a file that holds only the result of state_dict(), as JSON";
        return Err(Problem::failed(what).hint(hint).into());
    }
    let text = std::fs::read_to_string(path).with_context(context)?;
    LoaderState::from_json(&text).with_context(context)
}

/// Rejects a state of a job whose samples, or whose balanced steps, are made in another way. A
/// state of a job with a large record spec does not have it.
fn check_program(state: &LoaderState, ours: &Schema) -> anyhow::Result<()> {
    let Some(spec) = spec_of(state) else {
        return Ok(());
    };
    if Schema::new(spec)?.sample_spec() == ours.sample_spec() {
        return Ok(());
    }
    let what =
        "the state belongs to another job: its filter, unbatch, pack, window or balance differ";
    Err(Problem::failed(what).hint(OTHER_SOURCE).into())
}

/// Continues from a loader state if it is of this order.
///
/// The features are not known here and do not affect the order: a state that differs only in them
/// is accepted as a state of this job.
fn resume(identity: JobIdentity, start: Start, state: &LoaderState) -> Result<Cursor, StateError> {
    let mut ours = identity.clone();
    ours.lanes = state.lanes;
    let mut fields = state.differences(&ours);
    fields.retain(|difference| !matches!(difference.field.as_str(), RECORD_SPEC_FIELD | "decoder"));
    if !fields.is_empty() {
        return Err(StateError::OtherJob { fields });
    }
    let state = LoaderState { job: ours.digest(), ..state.clone() };
    Cursor::resume(identity, start, &state)
}
