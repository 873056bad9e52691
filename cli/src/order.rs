//! The order of an epoch, from options with the same meaning as those of the Python loader.

pub(crate) mod batch;
pub(crate) mod plan;
mod record_ref;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use shardfeed_dataset_tools::files::DatasetArgs;
use shardfeed_embedded::{LoaderOptions, interleave_default};
use shardfeed_plan::{
    Cursor, DECODER_NONE, Digest, EpochPlan, JobIdentity, Line, LoaderState, Manifest, Mode,
    ORDER_VERSION, PlanError, RECORD_SPEC_FIELD, Records, Segment, Shuffle, Start, StateError,
    Tail, check_epoch,
};
use shardfeed_source::Dataset;

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
    #[arg(
        long,
        default_value_t = LoaderOptions::default().tail,
        value_parser = PossibleValuesParser::new(["drop", "pad", "uneven"])
            .try_map(|name| name.parse::<Tail>())
    )]
    tail: Tail,
    /// Maximum number of samples of the epoch
    #[arg(long, value_name = "SAMPLES", value_parser = parse_positive)]
    limit: Option<u64>,
    /// File with a loader's state_dict() as JSON to continue from
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// The order of an epoch.
pub(crate) struct Order {
    pub(crate) dataset: Dataset,
    pub(crate) cursor: Cursor,
    pub(crate) plan: EpochPlan,
    pub(crate) limit: Option<u64>,
}

impl OrderArgs {
    /// Indexes the files and computes the order.
    /// - `rank`: the rank that the result is for.
    pub(crate) fn order(&self, files: &DatasetArgs, rank: u64) -> anyhow::Result<Order> {
        let state = self.state.as_deref().map(read_state).transpose()?;
        let start = self.start(state.as_ref(), rank)?;
        check_start(&start, state.as_ref())?;
        let dataset = files.open()?;
        let identity = self.identity(dataset.manifest());
        let mut cursor = match &state {
            None => Cursor::new(identity, start)?,
            Some(state) => resume(identity, start, state)?,
        };
        if let Some(epoch) = self.epoch {
            cursor.set_epoch(epoch)?;
        }
        let plan = self.plan(&dataset, &cursor)?;
        Ok(Order { dataset, cursor, plan, limit: self.limit })
    }

    fn plan(&self, dataset: &Dataset, cursor: &Cursor) -> Result<EpochPlan, PlanError> {
        let shuffle = &cursor.identity().shuffle;
        let line = Line::new(&dataset.manifest().counts(), shuffle, cursor.epoch())?;
        EpochPlan::new(
            Arc::new(line),
            shuffle.clone(),
            cursor.epoch(),
            (self.tail, self.limit),
            cursor.segments(),
            cursor.start().world_size,
        )
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

    /// The job's identity as far as it determines the order: operators and decoder only concern the
    /// features.
    fn identity(&self, manifest: &Manifest) -> JobIdentity {
        let enabled = !self.no_shuffle;
        let shuffle = Shuffle {
            digest: manifest.order_digest(),
            seed: self.seed,
            enabled,
            window: self.shuffle_window,
            interleave: self.interleave.unwrap_or_else(|| interleave_default(enabled)),
            block_length: self.block_length,
        };
        JobIdentity {
            order: ORDER_VERSION,
            content: manifest.digest(),
            shuffle,
            lanes: 1, // The cursor sets it.
            tail: self.tail,
            mode: Mode::Deterministic,
            records: Records::RecordSpec(Digest::from_bytes([0; 32])),
            decoder: DECODER_NONE.into(),
        }
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
