//! The thread that follows the plan.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{
    Assembler, DrawKey, DrawSource, MemoryError, Need, Reading, ShardSchemas, reading as choose,
};
use shardfeed_plan::{EpochPlan, MixtureEpoch, Shuffle};
use shardfeed_source::{Dataset, DatasetFile, LoadError, SourceVersion};
use shardfeed_tfrecord::Compression;

use crate::assignment::{Assignment, PrefetchOptions};
use crate::epoch_samples::EpochSamples;
use crate::mend::Order;
use crate::meter::Doing;
use crate::records::balanced::Balancing;
use crate::records::gather::{Gathered, Item};
use crate::records::reader::PlanReader;
use crate::records::stream::StreamTools;
use crate::sequence::{BatchSequence, Ticket};
use crate::threads::computing;
use crate::tuning::{PREFETCH_MOST, PREFETCH_START};
use crate::work::BatchWork;

/// Divisor of the memory budget that limits images of later batches.
const IMAGES_PART: u64 = 4;

/// State of the thread that follows the plan.
pub(crate) struct Planner {
    pub(crate) options: PrefetchOptions,
    pub(crate) assembler: Assembler,
    pub(crate) shared: Arc<BatchSequence>,
    pub(crate) tools: StreamTools,
    /// Order of the epoch being read, if corrupt records are substituted.
    pub(crate) order: Option<Order>,
}

/// Returns the key for the draws of random operators of an epoch.
/// - `sources`: of a mixture.
pub(crate) fn draw_key(shuffle: &Shuffle, epoch: u64, sources: &[&SourceVersion]) -> DrawKey {
    let key = |version: &&SourceVersion| DrawSource {
        digest: version.order.order_digest(),
        number: version.order.operator_key(),
        first_shard: version.first_shard,
    };
    let sources = sources.iter().map(key).collect();
    DrawKey { digest: shuffle.digest, seed: shuffle.seed, epoch, sources }
}

/// True if samples are held until others have arrived.
pub(crate) fn has_window(shuffle: &Shuffle) -> bool {
    shuffle.enabled && shuffle.window > 1
}

/// Parameters of an epoch that determine how it is read.
pub(crate) struct Shape {
    /// Samples of a full batch.
    pub(crate) rows: u64,
    /// Lanes that are read concurrently.
    pub(crate) lanes: u64,
    /// Samples of the longest of them.
    pub(crate) lane_samples: u64,
    pub(crate) shuffle: Shuffle,
    /// Sources of a mixture; 0: one dataset.
    pub(crate) sources: u64,
    /// Shards of its sources.
    pub(crate) shards: Vec<u32>,
    /// Mean bytes of a record, rounded up.
    pub(crate) record_bytes: u64,
    /// True if the epoch was cut into segments.
    pub(crate) is_cut: bool,
}

impl Shape {
    fn of(plan: &EpochPlan, rank: u64, dataset: &Dataset, sources: &[&SourceVersion]) -> Self {
        Self {
            rows: plan.rows(),
            lanes: plan.rank_lanes(rank),
            lane_samples: plan.samples().div_ceil(plan.lanes()),
            shuffle: plan.shuffle().clone(),
            is_cut: plan.first_step() > 0,
            sources: sources.len() as u64,
            shards: match sources.is_empty() {
                true => (0..dataset.files().len() as u32).collect(),
                false => sources.iter().flat_map(|version| version.shards()).collect(),
            },
            record_bytes: match plan.mixture() {
                None => dataset.record_bytes_mean(),
                Some(mixture) => mixed_record_bytes(dataset, mixture, sources),
            },
        }
    }
}

/// Returns the mean bytes of a record of a mixture epoch, rounded up.
fn mixed_record_bytes(
    dataset: &Dataset,
    mixture: &MixtureEpoch,
    sources: &[&SourceVersion],
) -> u64 {
    let bytes = |(version, count): (&&SourceVersion, u64)| {
        u128::from(dataset.record_bytes_mean_of(version.shards())) * u128::from(count)
    };
    let sum: u128 = sources.iter().zip(mixture.counts()).map(bytes).sum();
    sum.div_ceil(u128::from(mixture.samples())) as u64
}

/// Returns the mean bytes of a row in its slot.
pub fn slot_row_bytes(dataset: &Dataset, schemas: &ShardSchemas) -> u64 {
    row_bytes(schemas, dataset.record_bytes_mean())
}

fn row_bytes(schemas: &ShardSchemas, record_bytes: u64) -> u64 {
    (schemas.fixed_row_bytes() as u64).max(record_bytes) + 17
}

impl Planner {
    pub(crate) fn run(mut self, assignment: &Assignment) {
        let followed = catch_unwind(AssertUnwindSafe(|| match assignment.identity.is_dynamic() {
            false => self.follow(assignment),
            true => self.follow_grants(assignment),
        }));
        // An error outside of any batch takes the place of the next one.
        let error = followed.unwrap_or(Err(LoadError::ReaderLost)).err();
        let mut state = self.shared.state.lock();
        let place = state.started;
        if error.is_some() {
            state.started += 1;
        }
        drop(state);
        if let Some(error) = error {
            self.shared.finish(place, Err(error));
        }
        // Resources for reading are released before the end is reported.
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.state.lock().planner_ended = true;
        shared.ready.notify_all();
    }

    /// Follows the plan, epoch by epoch and step by step, until stopped.
    fn follow(&mut self, assignment: &Assignment) -> Result<(), LoadError> {
        let (mut epoch, mut step) = (self.options.epoch, self.options.step);
        loop {
            let plan = assignment.plan(epoch)?;
            let steps = plan.rank_steps(self.options.rank);
            if steps == 0 {
                // The other epochs of a job or of a stage have none either.
                let Some(next) = self.options.dataset.mixed().and_then(|m| m.stage_after(epoch))
                else {
                    return Ok(());
                };
                (epoch, step) = (next, 0);
                continue;
            }
            let (rank, dataset) = (self.options.rank, Arc::clone(&self.options.dataset));
            let sources = match (dataset.mixed(), plan.mixture()) {
                (Some(mixed), Some(mixture)) => mixed.versions_of(mixture),
                _ => vec![],
            };
            self.tools.samples = EpochSamples::of_sources(&plan, &sources);
            let (reading, keeps_passed) =
                self.reading(&Shape::of(&plan, rank, &dataset, &sources))?;
            self.reads(Order::Planned(Arc::clone(&plan)));
            let draw = draw_key(plan.shuffle(), epoch, &sources);
            let balance = self.options.schemas.first().balance_window();
            let balance = balance.map(|window| Balancing { window, keeps_passed });
            let tools = self.tools.clone();
            let mut reader = PlanReader::new(Arc::clone(&plan), rank, reading, balance, tools)?;
            // Without a window nothing needs filling: the first batch is like the others.
            let mut is_filling = !has_window(plan.shuffle()) && balance.is_none();
            while step < steps {
                let meter = &self.shared.counters.meter;
                let Some(ticket) = meter.during(Doing::Room, || self.shared.begin()) else {
                    return Ok(());
                };
                let doing = if is_filling { Doing::Gather } else { Doing::Fill };
                is_filling = true;
                match meter.during(doing, || reader.rows(step)) {
                    Ok(rows) => self.assemble(ticket, (draw.clone(), step), rows),
                    Err(error) => {
                        ticket.finish(Err(error));
                        return Ok(());
                    }
                }
                step += 1;
            }
            (epoch, step) = (epoch.saturating_add(1), 0);
        }
    }

    /// Sets the order of the epoch that is read from here on.
    pub(crate) fn reads(&mut self, order: Order) {
        self.order = self.options.corrupt.skips().then_some(order);
    }

    /// Chooses how to read this epoch's lanes, and the number of batches ahead, within the budget.
    ///
    /// Returns the reading mode, and true if rows that balanced steps pass are kept.
    pub(crate) fn reading(&self, shape: &Shape) -> Result<(Reading, bool), LoadError> {
        let PrefetchOptions { dataset, schemas, budget_bytes, prefetch, .. } = &self.options;
        let Shape {
            rows,
            lanes,
            lane_samples,
            ref shuffle,
            sources,
            ref shards,
            record_bytes,
            is_cut,
        } = *shape;
        let files = || shards.iter().map(|shard| &dataset.files()[*shard as usize]);
        let (compressed, remote) = (
            files().any(|file| file.compression != Compression::None),
            files().any(DatasetFile::is_remote),
        );
        let stream_bytes: u64 = files().map(DatasetFile::stream_bytes).sum();
        // The reader holds a whole record in every mode.
        let largest = files().max_by_key(|file| file.record_bytes_max);
        if let Some(file) = largest.filter(|file| file.record_bytes_max > *budget_bytes) {
            let (file, record_bytes) = (file.path.display().to_string(), file.record_bytes_max);
            return Err(MemoryError::RecordTooLarge {
                file,
                record_bytes,
                budget_bytes: *budget_bytes,
            }
            .into());
        }
        // A batch needs its slot and, while it is assembled, the records that it is made of.
        let row_bytes = row_bytes(schemas, record_bytes);
        let batch_bytes = rows.saturating_mul(row_bytes + record_bytes).max(1);
        let fits_in = |budget_bytes: u64| {
            usize::try_from(budget_bytes / 2 / batch_bytes).unwrap_or(usize::MAX)
        };
        let (fits, asked) = (fits_in(*budget_bytes), prefetch.unwrap_or(PREFETCH_START));
        let start = asked.min(fits).max(1);
        let mut shape = Need {
            lanes,
            lane_samples,
            window: if shuffle.enabled { shuffle.window } else { 1 },
            balance: schemas.first().balance_window().unwrap_or(0),
            // Each source of a mixture has at least one split in turn.
            interleave: (shuffle.interleave + sources).min(files().count() as u64),
            sources,
            record_bytes,
            window_record_bytes: record_bytes,
            straight: self.assembler.is_straight(),
            compressed,
            remote,
            // The records of two blocks, and the packs of three.
            block_bytes: shards
                .iter()
                .filter_map(|shard| Some(dataset.samples()?.maps()[*shard as usize].block_bytes()))
                .max()
                .map_or(0, |bytes| bytes.saturating_mul(3)),
            shard_bytes: stream_bytes.div_ceil(files().count().max(1) as u64),
            // A chunk has at least one record; two are held while the rows of one are samples.
            split_bytes: match dataset.samples() {
                Some(maps) if maps.has_rows() => record_bytes.saturating_mul(2),
                _ => 0,
            },
            batch_bytes: 0,
            budget_bytes: *budget_bytes,
        };
        let together = dataset.record_bytes_together(shards, shape.held());
        // A source of a mixture may be repeated, so that it has more of a window than of the files.
        shape.window_record_bytes = if sources > 0 { together.max(record_bytes) } else { together };
        let made_bytes = schemas.made_bytes(*budget_bytes);
        let with = |shape: Need, balance: u64, prefetch: usize| Need {
            batch_bytes: batch_bytes.saturating_mul(prefetch as u64).saturating_add(made_bytes),
            balance,
            ..shape
        };
        let is_like =
            |one: &Reading, other: &Reading| mem::discriminant(one) == mem::discriminant(other);
        // Images for rows of all held records, or of some, take memory that is left beside them.
        let whole = choose(&with(shape, shape.balance, start)).map_err(|error| {
            error.with_budget(|budget_bytes| {
                let start = asked.min(fits_in(budget_bytes)).max(1);
                let batches = batch_bytes.saturating_mul(start as u64);
                let batch_bytes = batches.saturating_add(schemas.made_bytes(budget_bytes));
                choose(&Need { batch_bytes, budget_bytes, ..shape })
            })
        })?;
        let without = |images: u64| Need { budget_bytes: budget_bytes - images, ..shape };
        let most_bytes = self.assembler.image_row_bytes().saturating_mul(shape.held());
        let most_bytes = most_bytes.min(budget_bytes / IMAGES_PART);
        let fits_images = |bytes: &u64| {
            let rest = choose(&with(without(*bytes), shape.balance, start));
            whole != Reading::Locate && rest.is_ok_and(|rest| is_like(&rest, &whole))
        };
        let images_bytes = (0..4).map(|halved| most_bytes >> halved).find(fits_images);
        let images_bytes = images_bytes.unwrap_or(0);
        self.assembler.bound_images(images_bytes, shape.held() / rows.max(1) + 16);
        let shape = without(images_bytes);
        let need_with = |balance: u64, prefetch: usize| with(shape, balance, prefetch);
        let reading = choose(&need_with(shape.balance, start))?;
        // Rows that are passed are at most one window more, and must not change the reading mode.
        let with_passed = shape.balance + shape.balance.div_ceil(2);
        let kept = choose(&need_with(with_passed, start))
            .ok()
            .filter(|kept| is_like(kept, &reading) && is_cut && shape.balance > 0);
        let (reading, keeps_passed) = (kept.unwrap_or(reading), kept.is_some());
        let balance = if keeps_passed { with_passed } else { shape.balance };
        let shape = Need { balance, ..shape };
        let need = |prefetch: usize| need_with(balance, prefetch);
        // More batches ahead must not change the reading mode.
        let is_same = |prefetch: &usize| choose(&need(*prefetch)) == Ok(reading);
        let most = (start..=fits.min(PREFETCH_MOST)).rev().find(is_same).unwrap_or(start);
        // Batches may be larger than the mean, if the allowance does not change the reading mode.
        let roomy = Need { batch_bytes: budget_bytes / 2, ..shape };
        let batches_bytes = match choose(&roomy) == Ok(reading) {
            true => roomy.batch_bytes,
            // A slot is larger than a small batch.
            false => {
                let bytes = usize::try_from(rows.saturating_mul(row_bytes)).unwrap_or(usize::MAX);
                let slots = (SlotPool::slot_bytes(bytes) as u64).saturating_mul(most as u64);
                let slots = slots.saturating_add(made_bytes).min(roomy.batch_bytes);
                need(most).batch_bytes.max(slots)
            }
        };
        let least_bytes = shape.least_bytes(reading).saturating_add(made_bytes);
        schemas.bound_made(made_bytes);
        let shared = &self.shared;
        shared.tuning.fit_prefetch(most);
        let meter = &shared.counters.meter;
        shared.tuning.tell(meter);
        let chosen = shared.tuning.choice().0.prefetch as usize;
        let prefetch = if prefetch.is_some() { start } else { chosen };
        let cached = dataset.is_cached();
        let by_place = reading == Reading::Locate && !shape.is_straight();
        let held = Reading::Hold { chunk_bytes: 0, primed_max: 0 };
        let hold_bytes = shape.least_bytes(held).saturating_add(need(start).batch_bytes);
        meter.set_up(|setup| {
            (setup.prefetch, setup.prefetch_asked) = (prefetch as u64, asked as u64);
            (setup.budget_bytes, setup.compressed) = (*budget_bytes, compressed);
            (setup.remote, setup.cached) = (remote, cached);
            (setup.by_place, setup.hold_bytes) = (by_place, hold_bytes);
        });
        let mut state = shared.state.lock();
        if state.reading != Some(reading) {
            tracing::debug!(?reading, prefetch, budget_bytes, "reading within the memory budget");
            if by_place {
                tracing::warn!(
                    rank = self.options.rank,
                    budget_bytes,
                    hold_bytes,
                    "the shuffle windows do not fit into the memory budget: records are read one by one, \
                     which is slower; raise memory_budget= to hold_bytes, or use a smaller \
                     shuffle_window= or balance(window=)"
                );
            }
        }
        state.reading = Some(reading);
        state.prefetch = prefetch;
        state.budget.bound(*budget_bytes, least_bytes, batches_bytes - made_bytes);
        state.budget.set_apart(images_bytes);
        self.options.slots.bound(state.budget.pool_bytes());
        Ok((reading, keeps_passed))
    }

    /// Reads rows known only by position, then assembles on the computing threads.
    pub(crate) fn assemble(
        &self,
        ticket: Ticket,
        (draw, step): (DrawKey, u64),
        gathered: Gathered,
    ) {
        let by_place = gathered.rows.iter().any(|row| matches!(row.item, Item::Place(_)));
        let work = BatchWork {
            assembler: self.assembler.clone(),
            tools: self.tools.clone(),
            order: self.order.clone(),
            ticket,
            draw,
            step,
            has_read_again: false,
            skipped: None,
        };
        if by_place {
            self.tools.io.spawn(move || work.read_placed(gathered));
        } else {
            computing().spawn(move || work.run(gathered));
        }
    }
}
