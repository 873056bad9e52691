//! A rank's loader: its position, and the batches from there on.

mod entry;
mod held;
mod offer;

use std::sync::Arc;

use shardfeed_pipeline::{Account, Finding, Schema, finding};
use shardfeed_plan::{
    Cursor, Digest, EpochPlan, JobIdentity, LoaderState, Mode, Position, Segment, Start,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::{EncodedSpec, JobSpec, Plans, PrefetchStats, default_budget_bytes};
use shardfeed_source::{LoadError, OnProgress};
use uuid::Uuid;

use crate::contents::Contents;
use crate::course::{Course, course_at, plan_at};
use crate::ledger::Ledger;
use crate::link::exchange::Setting;
use crate::link::{self, Closed, Link, LinkReport};
use crate::mixture;
use crate::options::LoaderOptions;
use crate::pace::{Pace, us};
use crate::request::DatasetRequest;
use crate::reshard;
use crate::skipped::{SkipLog, SkippedRecord};
use crate::spec_in_state;
use crate::timeline::Timeline;
use entry::Entry;
use held::Held;

pub use held::{Commit, Offered};

/// Maximum bytes of a job's name, as for the coordinators.
const JOB_BYTES_MAX: usize = 200;

/// Loader of one rank's batches, epoch after epoch.
pub struct Loader {
    options: LoaderOptions,
    trainer: String,
    contents: Arc<Contents>,
    plans: Arc<Plans>,
    schema: Arc<Schema>,
    link: Box<dyn Link>,
    job: JobSpec,
    cursor: Cursor,
    /// Plan of the cursor's epoch, as far as it is known.
    course: Course,
    /// Way in which the rank joins a generation the next time that reading starts.
    entry: Entry,
    /// Of a dynamic job: position at which it left the last epoch that it read, until the
    /// coordinator knows it.
    left: Option<(u64, u64)>,
    /// True if nothing was consumed since the rank joined its generation.
    is_untouched: bool,
    /// Times that the rank joined again because it was superseded before it consumed anything.
    replaced: u32,
    /// Error with which another loader ended this rank, until a start elsewhere: a request to continue
    /// might be granted provisionally while no coordinator answers.
    superseded: Option<WireError>,
    ledger: Option<Ledger>,
    /// Generation whose `start` line is in the ledger; a restart after an error writes no second
    /// one.
    in_ledger: Option<u64>,
    /// First epoch from which on all sources of a mixture have their files, and the reason why one
    /// has none before; `None`: all have them.
    missing: Option<(u64, String)>,
    /// True if the files of a mixture's sources are kept for later starts.
    has_kept_files: bool,
    /// Batch that was offered and is not consumed yet.
    held: Option<Held>,
    offers: u64,
    handed_out: u64,
    skipped: SkipLog,
    pace: Pace,
    /// Last field: it is written on drop, after all others are dropped.
    timeline: Option<Timeline>,
}

#[derive(Clone, Debug)]
pub struct LoaderStats {
    /// Batches handed out.
    pub batches: u64,
    /// Statistics of the prefetcher, once it runs.
    pub prefetch: Option<PrefetchStats>,
    /// Bytes that the loader may use for records and prefetched batches.
    pub memory_budget_bytes: u64,
    /// Batches that were copied because the trainer holds many.
    pub copied_batches: u64,
    /// Corrupt records that were skipped.
    pub skipped: u64,
    /// Corrupt records skipped in the epoch read last, since the rank moved there.
    pub skipped_in_epoch: u64,
    /// Damaged files that are left out, entirely or in part.
    pub files_left_out: u64,
    /// Source of the batches: `in process`, `worker NAME`, `connecting`.
    pub source: String,
}

impl Loader {
    /// Finds and indexes the files and starts at the beginning of epoch 0.
    /// - `progress`: called while files are indexed or the loader waits; returning `false` cancels.
    ///
    /// # Errors  See [`LoadError`].
    pub fn open(options: LoaderOptions, progress: OnProgress<'_>) -> Result<Self, LoadError> {
        if options.limit == Some(0) {
            return Err(LoadError::Option("limit must be at least 1, or None for no limit".into()));
        }
        if options.mode == Mode::Dynamic {
            check_dynamic(&options)?;
        }
        if options.prefetch == Some(0) {
            return Err(LoadError::Option("prefetch must be at least 1".into()));
        }
        let schema = Arc::new(Schema::new(options.records.clone().unwrap_or_default())?);
        if schema.balance_window().is_some() && options.mode == Mode::Dynamic {
            return Err(LoadError::Option(
                "mode=\"dynamic\" has no steps that ranks share, which balance() needs; use \
                 mode=\"deterministic\""
                    .into(),
            ));
        }
        let record_spec = Arc::new(EncodedSpec::of(&schema)?);
        let requests = DatasetRequest::of(&options, &schema)?;
        let schemas = DatasetRequest::schemas(&requests, None)?;
        schemas.all().iter().try_for_each(|schema| schema.open_tables())?;
        let start = start(&options);
        // Numbers that make no valid plan are rejected before any file is scanned.
        let lanes = match options.mode {
            Mode::Deterministic => start.lanes.unwrap_or(start.world_size),
            Mode::Dynamic => 1,
        };
        Segment::start(lanes, start.batch_size, start.world_size)?;
        let ledger = Ledger::from_environment(options.rank, &options)?;
        let timeline = Timeline::from_environment(options.rank);
        let trainer = Uuid::new_v4().to_string();
        let with_samples = ledger.is_some() || options.parts;
        let setting = Setting {
            options: options.clone(),
            trainer: trainer.clone(),
            with_samples,
            requests: requests.clone(),
        };
        let (mut link, contents) = link::open(setting, progress)?;
        let schemas = DatasetRequest::schemas(&requests, contents.mixed.as_deref())?;
        let of_records = (record_spec.records(), schema.decoder());
        let identity = options.identity(&contents, of_records, lanes);
        let cursor = Cursor::new(identity, start)?;
        let plans = Arc::new(options.plans(&contents));
        let course = course_at(&plans, &cursor, contents.samples());
        let planned = course.as_ref().ok().and_then(Option::as_ref);
        let samples = planned.map_or_else(|| contents.samples(), |plan| plan.samples());
        let share = samples.div_ceil(options.world_size.max(1));
        // Damaged files that were left out may be the reason why there is no course.
        let skipped = SkipLog::new(options.corrupt_budget, share, &contents)?;
        let course = course?;
        let job = JobSpec {
            name: job_name(&options, &trainer, cursor.identity())?,
            dataset: contents.name.clone(),
            mixture: contents.mixed.as_ref().map(|mixed| Arc::new(mixed.of_job())),
            identity: cursor.identity().clone(),
            record_spec,
            schemas,
        };
        if !options.resumes {
            link.register(&job, progress)?;
        }
        let missing = contents.mixed.as_ref().and_then(|mixed| mixture::missing(mixed));
        Ok(Self {
            options,
            trainer,
            contents: Arc::new(contents),
            plans,
            schema,
            link,
            job,
            cursor,
            course,
            entry: Entry::Start,
            left: None,
            is_untouched: true,
            replaced: 0,
            superseded: None,
            ledger,
            in_ledger: None,
            missing,
            has_kept_files: false,
            held: None,
            offers: 0,
            handed_out: 0,
            skipped,
            pace: Pace::default(),
            timeline,
        })
    }

    fn course_at(&self, cursor: &Cursor) -> Result<Course, LoadError> {
        Ok(course_at(&self.plans, cursor, self.contents.samples())?)
    }

    /// Position of the loader.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// State of the loader's current position.
    pub fn state(&self) -> LoaderState {
        let mut state = self.cursor.state();
        if self.entry == Entry::Start {
            // Until a rank joins the cursor's generation, there is none but that of the loaded state.
            state.generation = state.generation.saturating_sub(1);
        }
        self.complete(state)
    }

    /// State of a position of this cursor.
    pub fn state_at(&self, position: &Position) -> LoaderState {
        self.complete(self.cursor.state_at(position))
    }

    fn complete(&self, state: LoaderState) -> LoaderState {
        let state = mixture::with_stages(state, self.contents.mixed.as_deref());
        spec_in_state::with_spec(state, &self.job.record_spec)
    }

    /// Samples of the current epoch; of a dynamic job those of the dataset.
    pub fn samples(&self) -> u64 {
        self.course.as_ref().map_or_else(|| self.contents.samples(), |plan| plan.samples())
    }

    /// Samples of the current epoch that no step delivers.
    pub fn dropped(&self) -> u64 {
        self.course.as_ref().map_or(0, |plan| plan.dropped())
    }

    /// Returns the plan of any epoch: of the current one with its history, of another from its
    /// beginning.
    ///
    /// A dynamic job has no order in advance; its plan is the one that a deterministic job would
    /// have.
    pub fn plan_of(&self, epoch: u64) -> Result<Arc<EpochPlan>, LoadError> {
        let mut cursor = self.cursor.clone();
        if epoch != cursor.epoch() {
            cursor.set_epoch(epoch)?;
        }
        Ok(plan_at(&self.plans, &cursor)?)
    }

    /// Steps of the whole epoch for this rank.
    ///
    /// `None` for a dynamic job, which knows the number only at the end of the epoch.
    pub fn steps(&self) -> Option<u64> {
        self.course.as_ref().map(|plan| plan.rank_steps(self.options.rank))
    }

    /// Schema that records are converted to.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    pub fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    pub fn job(&self) -> &str {
        &self.job.name
    }

    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// Stops prefetching and releases everything except batches in use.
    ///
    /// Afterwards the loader reports its last statistics, delivers nothing and cannot be moved.
    /// - `failure`: error that ends the trainer; `None` if it finished normally.
    pub fn close(&mut self, failure: Option<&str>) {
        let report = self.link.report();
        self.link.end(failure);
        (self.held, self.ledger) = (None, None);
        self.link = Box::new(Closed(report));
        self.timeline = None;
    }

    fn check_open(&self) -> Result<(), LoadError> {
        if self.link.is_closed() { Err(LoadError::Closed) } else { Ok(()) }
    }

    /// Moves to the beginning of `epoch`, except right after loading a state of that epoch.
    ///
    /// # Errors  The loader is closed; the epoch has no plan.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), LoadError> {
        self.check_open()?;
        let mut cursor = self.cursor.clone();
        if cursor.set_epoch(epoch)? {
            if cursor.identity().is_dynamic() && matches!(self.entry, Entry::Joined { .. }) {
                self.left.get_or_insert((self.cursor.epoch(), self.cursor.step()));
            }
            self.course = self.course_at(&cursor)?;
            self.link.stop();
            self.held = None;
            self.skipped.moved();
            if cursor.generation() != self.cursor.generation()
                && let Entry::Joined { generation } = self.entry
            {
                self.entry = Entry::Move { from: generation };
            }
        }
        self.cursor = cursor;
        Ok(())
    }

    /// Resumes from one state, or for `tail="uneven"` from the states of all ranks.
    /// - `replay_missing`: ranks without a state deliver their part of the segment again.
    ///
    /// # Errors  The states do not match the job; nothing is changed.
    pub fn load(
        &mut self,
        states: &[LoaderState],
        replay_missing: bool,
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError> {
        self.check_open()?;
        let identity = self.cursor.identity().clone();
        spec_in_state::check_states(states, &identity, &self.job.record_spec)?;
        mixture::check_stages(states, self.contents.mixed.as_deref())?;
        if identity.is_dynamic() {
            check_states(states, self.link.report().cluster_id.as_deref())?;
        }
        let start = start(&self.options);
        let cursor = match states {
            [state] if !(is_whole_world(state) || state.speaks_for.is_some() && replay_missing) => {
                Cursor::resume(identity, start, state)?
            }
            states => {
                let plans = &self.plans;
                let rank_steps = |epoch, segments: &[Segment], world_size| {
                    let plan = plans.plan(&identity, epoch, segments, world_size)?;
                    let first = plan.first_step();
                    Ok((0..world_size).map(|rank| plan.rank_steps(rank) - first).collect())
                };
                Cursor::resume_uneven(identity.clone(), start, states, replay_missing, rank_steps)?
            }
        };
        let course = self.course_at(&cursor)?;
        let identity = cursor.identity().clone();
        let mut job = JobSpec { identity, ..self.job.clone() };
        if job.identity != self.job.identity {
            // The state brings its own number of lanes, so the job is a different one.
            job.name = job_name(&self.options, &self.trainer, &job.identity)?;
        }
        self.link.register(&job, progress)?;
        if job.identity.is_dynamic() {
            // Registering the job made the cluster id known.
            check_states(states, self.link.report().cluster_id.as_deref())?;
        }
        self.job = job;
        // The same state may be loaded twice: each load starts a generation.
        self.start_at(cursor, course);
        Ok(())
    }

    /// Moves to a position where the rank joins a new generation.
    fn start_at(&mut self, cursor: Cursor, course: Course) {
        (self.cursor, self.course, self.held) = (cursor, course, None);
        self.skipped.moved();
        (self.entry, self.left, self.in_ledger) = (Entry::Start, None, None);
        (self.replaced, self.superseded) = (0, None);
    }

    /// Reshards the rest of the epoch, from `step` on, to `world_size` ranks.
    ///
    /// The survivors of a run call this, all with the same `step`, when some of its ranks are gone
    /// for good. The global batch is unchanged, so `batch_size` changes with the world size; the
    /// steps from `step` on are delivered again, in a new generation.
    /// - `step`: first step that some survivor has not consumed; not beyond this rank's own.
    /// - `rank`: `None` keeps the current rank.
    /// - Returns the batch size.
    ///
    /// # Errors  The numbers do not fit, or the coordinator is unreachable; the loader is
    /// unchanged.
    pub fn reshard(
        &mut self,
        step: u64,
        world_size: u64,
        rank: Option<u64>,
        progress: OnProgress<'_>,
    ) -> Result<u64, LoadError> {
        self.check_open()?;
        // Each call counts a generation, also before a start: all ranks call it equally often.
        let cursor = reshard::reshard(&self.cursor, step, world_size, rank)?;
        let start = *cursor.start();
        let course = self.course_at(&cursor)?;
        let ledger = match (&self.ledger, start.rank == self.options.rank) {
            (Some(_), false) => Some(Ledger::from_environment(start.rank, &self.options)?),
            _ => None,
        };
        self.link.register(&self.job, progress)?;
        self.link.set_part(&start);
        self.options.set_part(&start);
        self.ledger = ledger.unwrap_or_else(|| self.ledger.take());
        self.start_at(cursor, course);
        self.entry = Entry::Reshard;
        Ok(start.batch_size)
    }

    /// Leaves out the next steps of the epoch. All ranks call this at the same step.
    ///
    /// # Errors  The ranks have no equal steps, fewer steps are left, or the coordinator is
    /// unreachable; the loader is unchanged.
    pub fn skip(&mut self, steps: u64, progress: OnProgress<'_>) -> Result<(), LoadError> {
        self.check_open()?;
        let mut cursor = reshard::skip(&self.cursor, steps, self.steps())?;
        if !matches!(self.entry, Entry::Joined { .. }) {
            // No rank has joined the generation of the cursor, so it is not the parent.
            cursor.set_generation(self.cursor.generation());
        }
        let course = self.course_at(&cursor)?;
        self.link.register(&self.job, progress)?;
        self.start_at(cursor, course);
        Ok(())
    }

    /// Samples of the current epoch in steps that were left out.
    pub fn left_out(&self) -> u64 {
        self.cursor.left_out().samples(self.cursor.segments())
    }

    /// Resumes at the latest position that all ranks of the job reached, as the coordinator
    /// recorded it.
    ///
    /// Stays at the current position if the job has not started.
    ///
    /// # Errors  There is no coordinator; it has no such position; it is unreachable.
    pub fn load_latest(&mut self, progress: OnProgress<'_>) -> Result<(), LoadError> {
        match self.link.latest(&self.job, progress)? {
            Some(state) => self.load(&[state], false, progress),
            None => Ok(()),
        }
    }

    /// Digest of the plan; equal on all ranks that were started with the same options.
    pub fn plan_digest(&self) -> Digest {
        self.cursor.plan_digest(self.options.limit)
    }

    /// Returns corrupt records and files left out, each once; the first 1,000.
    pub fn skipped(&self) -> Vec<SkippedRecord> {
        self.skipped.listed().cloned().collect()
    }

    /// Returns the loader's bottleneck.
    pub fn why(&self) -> Finding {
        finding(&self.account())
    }

    /// Time breakdown of the loader; a worker's part is as of its last report.
    pub fn account(&self) -> Account {
        let account = self.link.report().stats.map(|stats| stats.account);
        self.here(account.unwrap_or_default())
    }

    /// Adds the trainer's waiting and idle time, which only this process knows exactly.
    fn here(&self, account: Account) -> Account {
        let (waiting, idle) = self.pace.stands();
        if self.handed_out == 0 && waiting.is_zero() {
            return account;
        }
        Account { idle_us: us(idle), waiting_us: Some(us(waiting)), ..account }
    }

    pub fn stats(&self) -> LoaderStats {
        let LinkReport { stats, copied, source, .. } = self.link.report();
        let prefetch = stats.map(|prefetch| {
            let account = self.here(prefetch.account);
            PrefetchStats { account, ..prefetch }
        });
        // A worker divides its own budget; the part of this rank is known once it reads.
        let granted = prefetch.as_ref().map(|prefetch| prefetch.budget_bytes);
        let asked = || self.options.memory_budget_bytes.unwrap_or_else(default_budget_bytes);
        let (skipped, skipped_in_epoch, files_left_out) = self.skipped.counts();
        LoaderStats {
            skipped,
            skipped_in_epoch,
            files_left_out,
            batches: self.handed_out,
            prefetch,
            memory_budget_bytes: granted.unwrap_or_else(asked),
            copied_batches: copied,
            source,
        }
    }
}

/// Rejects options that a dynamic job does not support.
fn check_dynamic(options: &LoaderOptions) -> Result<(), LoadError> {
    let refused = if options.mixture.is_some() {
        "mode=\"dynamic\" grants whole files, and a mixture delivers samples by weight; use \
         mode=\"deterministic\""
    } else if options.cluster.is_none() {
        "mode=\"dynamic\" needs a coordinator, which hands the samples out; pass \
         coordinator=\"host:port\", or use mode=\"deterministic\""
    } else if options.limit.is_some() {
        "limit= cuts the plan of an epoch, and mode=\"dynamic\" has none; leave it out"
    } else if options.lanes.is_some() {
        "lanes= are pieces of a planned epoch, and mode=\"dynamic\" plans none; leave it out"
    } else {
        return Ok(options.mode.check_tail(options.tail)?);
    };
    Err(LoadError::Option(refused.into()))
}

/// Rejects states of another cluster, and states of different epochs.
fn check_states(states: &[LoaderState], cluster: Option<&str>) -> Result<(), LoadError> {
    let refused = |message: String| Err(WireError::new(ErrorKind::State, message).into());
    for state in states {
        if let (Some(made), Some(ours)) = (state.cluster.as_deref(), cluster)
            && made != ours
        {
            return refused(format!(
                "the state is of a dynamic job of cluster {made}, and only that cluster knows \
                 which rank was granted which samples; this is cluster {ours}: use the coordinator \
                 of the other one, or start the epoch over with set_epoch({})",
                state.epoch
            ));
        }
    }
    let epochs = states.iter().map(|state| state.epoch);
    if let (Some(least), Some(most)) = (epochs.clone().min(), epochs.max())
        && least != most
    {
        return refused(format!(
            "a state is of epoch {least}, another of epoch {most}; save the states of all ranks of \
             a dynamic job at one moment, best after a barrier at the end of an epoch"
        ));
    }
    Ok(())
}

/// True if this single state of an uneven job covers all of its ranks.
fn is_whole_world(state: &LoaderState) -> bool {
    matches!(state.speaks_for, Some((_, 1)))
}

fn start(options: &LoaderOptions) -> Start {
    let LoaderOptions { lanes, batch_size, rank, world_size, .. } = *options;
    Start { lanes, batch_size, rank, world_size }
}

/// Name that the ranks of a job share: the one given, or one made of the run and the identity's
/// digest.
fn job_name(
    options: &LoaderOptions,
    trainer: &str,
    identity: &JobIdentity,
) -> Result<String, LoadError> {
    if let Some(name) = &options.job {
        if options.cluster.is_none() {
            check_alone(name)?;
        }
        return Ok(name.clone());
    }
    let Some(cluster) = &options.cluster else {
        return Ok("local".into());
    };
    let digest = identity.digest().to_string();
    match &cluster.run {
        Some(run) => Ok(format!("{run}-{}", &digest[..12])),
        None if options.world_size == 1 => Ok(format!("solo-{trainer}-{}", &digest[..12])),
        None => Err(LoadError::Option(format!(
            "the {} ranks must share a job: pass job= with the same name on every rank, or run= with \
             the same id; Slurm sets one, and torchrun if it is given --rdzv-id",
            options.world_size
        ))),
    }
}

/// Rejects a job name that no coordinator would accept; in a cluster the coordinators do.
fn check_alone(name: &str) -> Result<(), LoadError> {
    let reason = match name.len() {
        0 => "is empty".to_owned(),
        length if length > JOB_BYTES_MAX => {
            format!("has {length} bytes; at most {JOB_BYTES_MAX} are allowed")
        }
        _ if name.chars().any(char::is_control) => {
            format!("{name:?} has characters that cannot be printed")
        }
        _ => return Ok(()),
    };
    Err(LoadError::Option(format!("the job's name {reason}")))
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::{ORDER_VERSION, Shuffle, Tail};

    use super::*;

    fn states(epochs: &[(u64, &str)]) -> Vec<LoaderState> {
        let (order, content) = (ORDER_VERSION, Digest::from_bytes([7; 32]));
        let digest = Digest::from_bytes([8; 32]);
        let shuffle =
            Shuffle { digest, seed: 1, enabled: true, window: 8, interleave: 2, block_length: 1 };
        let (records, decoder) = (EncodedSpec::raw().records(), "none".to_owned());
        let (tail, mode) = (Tail::Uneven, Mode::Dynamic);
        let identity =
            JobIdentity { order, content, shuffle, lanes: 1, tail, mode, records, decoder };
        let start = Start { lanes: None, batch_size: 4, rank: 0, world_size: 2 };
        let state = |&(epoch, cluster): &(u64, &str)| {
            let mut cursor = Cursor::new(identity.clone(), start).unwrap();
            cursor.set_cluster(Some(cluster.to_owned()));
            cursor.set_epoch(epoch).unwrap();
            cursor.state()
        };
        epochs.iter().map(state).collect()
    }

    #[test]
    fn tokens_of_a_dynamic_job_are_of_one_epoch_of_this_cluster() {
        let refused = |of: &[(u64, &str)]| {
            let error = check_states(&states(of), Some("ours")).unwrap_err();
            assert!(matches!(&error, LoadError::Wire(error) if error.kind == ErrorKind::State));
            error.to_string()
        };
        let said = [refused(&[(3, "theirs")]), refused(&[(4, "ours"), (3, "ours")])];
        assert_eq!(
            said,
            [
                "the state is of a dynamic job of cluster theirs, and only that cluster knows \
                 which rank was granted which samples; this is cluster ours: use the coordinator \
                 of the other one, or start the epoch over with set_epoch(3)",
                "a state is of epoch 3, another of epoch 4; save the states of all ranks of a \
                 dynamic job at one moment, best after a barrier at the end of an epoch",
            ]
        );
        check_states(&states(&[(3, "ours"), (3, "ours")]), Some("ours")).unwrap();
    }
}
