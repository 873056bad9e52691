//! A rank's loader: where it stands, and the batches from there on.

mod offer;

use std::sync::Arc;
use std::time::Duration;

use shardfeed_agent::{
    Account, Dataset, EncodedSpec, Finding, LoadError, OpenProgress, Plans, PrefetchStats,
    ScanProgress, default_budget_bytes, finding,
};
use shardfeed_pipeline::Schema;
use shardfeed_plan::{
    Cursor, Digest, EpochPlan, Intent, JobIdentity, Mode, Position, Segment, Shuffle, Start, Token,
};
use shardfeed_proto::{ErrorKind, WireError};
use uuid::Uuid;

use crate::contents::Contents;
use crate::course::Course;
use crate::ledger::Ledger;
use crate::link::{Cluster, ControlOf, Here, Job, Link, Opened, Place, Progress, Setting};
use crate::options::{LoaderOptions, interleave_default};
use crate::pace::Pace;
use crate::redeal;
use crate::skipped::{SkipLog, SkippedRecord};
use crate::spec_in_state;
use crate::timeline::Timeline;
pub(crate) use offer::Head;
use offer::Held;
pub use offer::{Commit, Next, Offer, Offered};

/// One rank's batches, epoch after epoch.
pub struct Loader {
    options: LoaderOptions,
    trainer: String,
    contents: Arc<Contents>,
    plans: Arc<Plans>,
    schema: Arc<Schema>,
    link: Link,
    job: Job,
    cursor: Cursor,
    /// What is known of the cursor's epoch.
    course: Course,
    /// How the rank takes its place the next time that reading starts.
    entry: Entry,
    /// Nothing was consumed since the rank took its place.
    is_untouched: bool,
    /// Times that it took another place because of that.
    replaced: u32,
    ledger: Option<Ledger>,
    /// Generation whose beginning stands in the ledger; starting again after an error is no new one.
    in_ledger: Option<u64>,
    /// The batch in hand, not consumed yet.
    held: Option<Held>,
    /// Batches that were offered.
    offers: u64,
    handed_out: u64,
    skipped: SkipLog,
    pace: Pace,
    /// Last, as it is written when everything else is gone.
    timeline: Option<Timeline>,
}

/// How a rank takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// A start where the cursor stands.
    Start,
    /// A move of its own from this generation to where the cursor stands.
    Move { from: u64 },
    /// It has its place in this generation.
    Joined { generation: u64 },
}

/// What a loader holds and has done.
#[derive(Clone, Debug)]
pub struct LoaderStats {
    /// Batches handed out.
    pub batches: u64,
    /// Of the prefetcher, once it runs.
    pub prefetch: Option<PrefetchStats>,
    /// Bytes that the loader may use for records and batches ahead.
    pub memory_budget_bytes: u64,
    /// Batches that were copied because the trainer holds on to many.
    pub copied_batches: u64,
    /// Corrupt records that were skipped.
    pub skipped: u64,
    /// Of these, in the epoch that was read last, since the rank went there.
    pub skipped_in_epoch: u64,
    /// Damaged files that are left out, whole or in part.
    pub files_left_out: u64,
    /// Where batches come from: `in process`, `worker NAME`, `connecting`.
    pub source: String,
}

impl Loader {
    /// Finds and indexes the files and stands at the beginning of epoch 0.
    /// - `control_of`: makes the control of a loader without a cluster.
    /// - `progress`: called while files are indexed or somebody is waited for; returning `false`
    ///   gives up.
    ///
    /// # Errors  See [`LoadError`].
    pub fn open(
        options: LoaderOptions,
        control_of: ControlOf,
        progress: &mut dyn FnMut(&OpenProgress) -> bool,
    ) -> Result<Self, LoadError> {
        if options.limit == Some(0) {
            return Err(LoadError::Option("limit must be at least 1, or None for no limit".into()));
        }
        if options.mode == Mode::Dynamic {
            check_dynamic(&options)?;
        }
        if options.prefetch == Some(0) {
            return Err(LoadError::Option("prefetch must be at least 1".into()));
        }
        let schema = match options.records.clone() {
            None => Schema::raw(),
            Some(spec) => Schema::new(spec)?,
        };
        let record_spec = Arc::new(EncodedSpec::of(&schema)?);
        schema.open_tables()?;
        let start = start(&options);
        // Numbers that make no plan are refused before anything is scanned.
        let lanes = match options.mode {
            Mode::Deterministic => start.lanes.unwrap_or(start.world_size),
            Mode::Dynamic => 1,
        };
        Segment::start(lanes, start.batch_size, start.world_size)?;
        let ledger = Ledger::from_environment(options.rank)?;
        let timeline = Timeline::from_environment(options.rank);
        let trainer = Uuid::new_v4().to_string();
        let with_samples = ledger.is_some();
        let setting = Setting { options: options.clone(), trainer: trainer.clone(), with_samples };
        let (mut link, contents) = open_link(setting, control_of, progress)?;
        let share = contents.records().div_ceil(options.world_size.max(1));
        let skipped = SkipLog::new(options.corrupt_budget, share, &contents)?;
        let identity = identity(&options, &contents, (&schema, &*record_spec), lanes);
        let cursor = Cursor::new(identity, start)?;
        let plans = Arc::new(Plans::new(contents.counts(), (options.tail, options.limit)));
        let course = Course::at(&plans, &cursor, contents.records())?;
        let schema = Arc::new(schema);
        let job = Job {
            name: job_name(&options, &trainer, cursor.identity())?,
            identity: cursor.identity().clone(),
            schema: Arc::clone(&schema),
            record_spec,
        };
        link.register(&job, progress)?;
        let contents = Arc::new(contents);
        let (entry, in_ledger, handed_out) = (Entry::Start, None, 0);
        let (is_untouched, replaced) = (true, 0);
        Ok(Self {
            options,
            trainer,
            contents,
            plans,
            schema,
            link,
            job,
            cursor,
            course,
            entry,
            is_untouched,
            replaced,
            ledger,
            in_ledger,
            held: None,
            offers: 0,
            handed_out,
            skipped,
            pace: Pace::default(),
            timeline,
        })
    }

    fn course_at(&self, cursor: &Cursor) -> Result<Course, LoadError> {
        Ok(Course::at(&self.plans, cursor, self.contents.records())?)
    }

    /// Where the loader stands.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The token of where it stands.
    pub fn token(&self) -> Token {
        spec_in_state::with_spec(self.cursor.token(), &self.job.record_spec)
    }

    /// The token of a position of this cursor.
    pub fn token_at(&self, position: &Position) -> Token {
        spec_in_state::with_spec(self.cursor.token_at(position), &self.job.record_spec)
    }

    /// Samples of the epoch that it stands in that no step delivers.
    pub fn dropped(&self) -> u64 {
        self.course.dropped()
    }

    /// The plan of any epoch: of the current one with its history, of another from its beginning. As
    /// if it were planned, for a dynamic job, whose order nobody knows beforehand.
    pub fn plan_of(&self, epoch: u64) -> Result<Arc<EpochPlan>, LoadError> {
        let mut cursor = self.cursor.clone();
        if epoch != cursor.epoch() {
            cursor.set_epoch(epoch)?;
        }
        Ok(plan_at(&self.plans, &cursor)?)
    }

    /// Steps of the whole epoch for this rank; `None` for a dynamic job, which knows them at the epoch's
    /// end.
    pub fn steps(&self) -> Option<u64> {
        self.course.steps(self.options.rank)
    }

    /// What becomes of a record.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The dataset, as a trainer knows it.
    pub fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    /// Name of the job.
    pub fn job(&self) -> &str {
        &self.job.name
    }

    /// What it was told.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// Stops reading ahead, and lets go of everything but batches that are in use. What the loader says of
    /// itself stays as it was; it delivers nothing and moves nowhere any more.
    /// - `failure`: the error that ends the trainer; `None`: it is done.
    pub fn close(&mut self, failure: Option<&str>) {
        self.link.end(failure);
        (self.held, self.ledger) = (None, None);
        self.link.close();
        self.timeline = None;
    }

    fn check_open(&self) -> Result<(), LoadError> {
        if self.link.is_closed() { Err(LoadError::Closed) } else { Ok(()) }
    }

    /// Moves to the beginning of `epoch`, except right after loading a token of it.
    ///
    /// # Errors  It is closed; the epoch has no plan.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), LoadError> {
        self.check_open()?;
        let mut cursor = self.cursor.clone();
        if cursor.set_epoch(epoch)? {
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

    /// Goes on from one token, or for `tail="uneven"` from the tokens of all ranks.
    /// - `replay_missing`: ranks without a token deliver their part of the segment again.
    ///
    /// # Errors  The tokens do not fit; nothing is changed.
    pub fn load(
        &mut self,
        tokens: &[Token],
        replay_missing: bool,
        progress: &mut dyn FnMut(&OpenProgress) -> bool,
    ) -> Result<(), LoadError> {
        self.check_open()?;
        let identity = self.cursor.identity().clone();
        spec_in_state::check_tokens(tokens, &identity, &self.job.record_spec)?;
        if identity.is_dynamic() {
            check_tokens(tokens, self.link.cluster_id().as_deref())?;
        }
        let start = start(&self.options);
        let cursor = match tokens {
            [token] if !(is_whole_world(token) || token.speaks_for.is_some() && replay_missing) => {
                Cursor::resume(identity, start, token)?
            }
            tokens => {
                let plans = &self.plans;
                let rank_steps = |epoch, segments: &[Segment], world_size| {
                    let plan = plans.plan(&identity, epoch, segments, world_size)?;
                    let first = plan.first_step();
                    Ok((0..world_size).map(|rank| plan.rank_steps(rank) - first).collect())
                };
                Cursor::resume_uneven(identity.clone(), start, tokens, replay_missing, rank_steps)?
            }
        };
        let course = self.course_at(&cursor)?;
        let identity = cursor.identity().clone();
        let job = Job { identity, ..self.job.clone() };
        let name = match job.identity == self.job.identity {
            true => job.name.clone(),
            // The token brings lanes of its own.
            false => job_name(&self.options, &self.trainer, &job.identity)?,
        };
        let job = Job { name, ..job };
        self.link.register(&job, progress)?;
        if job.identity.is_dynamic() {
            // Now it is known which cluster this is.
            check_tokens(tokens, self.link.cluster_id().as_deref())?;
        }
        (self.cursor, self.course, self.job) = (cursor, course, job);
        self.held = None;
        self.skipped.moved();
        // The same token may be loaded twice: that is a generation each time.
        (self.entry, self.in_ledger) = (Entry::Start, None);
        Ok(())
    }

    /// Deals the rest of the epoch anew, from `step` on, to `world_size` ranks: what the survivors of a
    /// run do, all with the same `step`, when some of its ranks are gone for good. The global batch
    /// stays, so `batch_size` changes with the world size; the steps from `step` on are delivered
    /// again, in a new generation.
    /// - `step`: first step that some survivor has not consumed; not beyond this rank's own.
    /// - `rank`: `None`: the one it had.
    /// - Returns the batch size.
    ///
    /// # Errors  The numbers do not fit, or nobody answers; the loader is unchanged.
    pub fn redeal(
        &mut self,
        step: u64,
        world_size: u64,
        rank: Option<u64>,
        progress: &mut dyn FnMut(&OpenProgress) -> bool,
    ) -> Result<u64, LoadError> {
        self.check_open()?;
        let (cursor, deal) = redeal::redeal(&self.cursor, step, world_size, rank)?;
        let course = self.course_at(&cursor)?;
        let ledger = match (&self.ledger, deal.rank == self.options.rank) {
            (Some(_), false) => Some(Ledger::from_environment(deal.rank)?),
            _ => None,
        };
        self.link.register(&self.job, progress)?;
        self.link.deal(deal);
        deal.apply(&mut self.options);
        (self.cursor, self.course) = (cursor, course);
        self.held = None;
        self.skipped.moved();
        self.ledger = ledger.unwrap_or_else(|| self.ledger.take());
        (self.entry, self.in_ledger, self.replaced) = (Entry::Start, None, 0);
        Ok(deal.batch_size)
    }

    /// Goes on where all ranks of the job stand, as the coordinator knows; at the beginning if the
    /// job has not started.
    ///
    /// # Errors  There is no coordinator; the job has no such place; nobody answers.
    pub fn load_latest(
        &mut self,
        progress: &mut dyn FnMut(&OpenProgress) -> bool,
    ) -> Result<(), LoadError> {
        match self.link.latest(&self.job, progress)? {
            Some(token) => self.load(&[token], false, progress),
            None => Ok(()),
        }
    }

    /// Equal on all ranks that were started alike.
    pub fn plan_digest(&self) -> Digest {
        self.cursor.plan_digest(self.options.limit)
    }

    /// What was skipped, each corrupt record and each file that is left out once; the first thousand.
    pub fn skipped(&self) -> Vec<SkippedRecord> {
        self.skipped.listed().cloned().collect()
    }

    /// What limits it.
    pub fn why(&self) -> Finding {
        finding(&self.account())
    }

    /// Where its time went; of a worker as it told last.
    pub fn account(&self) -> Account {
        self.link
            .stats()
            .map_or_else(|| self.here(Account::default()), |stats| self.here(stats.account))
    }

    /// An account with what is known best here: whether the trainer waits.
    fn here(&self, account: Account) -> Account {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (waiting, idle) = self.pace.stands();
        if self.handed_out == 0 && waiting.is_zero() {
            return account;
        }
        Account { idle_us: us(idle), waiting_us: Some(us(waiting)), ..account }
    }

    /// What it holds and has done.
    pub fn stats(&self) -> LoaderStats {
        let prefetch = self.link.stats().map(|prefetch| {
            let account = self.here(prefetch.account);
            PrefetchStats { account, ..prefetch }
        });
        // A worker divides its own budget; what this rank got of it is known once it reads.
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
            copied_batches: self.link.copied(),
            source: self.link.source(),
        }
    }
}

/// Refuses what a dynamic job cannot have.
fn check_dynamic(options: &LoaderOptions) -> Result<(), LoadError> {
    let refused = if options.cluster.is_none() {
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

/// Refuses tokens that the lists of this cluster say nothing about.
fn check_tokens(tokens: &[Token], cluster: Option<&str>) -> Result<(), LoadError> {
    let refused = |message: String| Err(WireError::new(ErrorKind::Token, message).into());
    for token in tokens {
        if let (Some(made), Some(ours)) = (token.cluster.as_deref(), cluster)
            && made != ours
        {
            return refused(format!(
                "the token is of a dynamic job of cluster {made}, and only that one knows who was \
                 granted what; this is cluster {ours}: use the coordinator of the other one, or start \
                 the epoch anew with set_epoch({})",
                token.epoch
            ));
        }
    }
    let epochs = tokens.iter().map(|token| token.epoch);
    if let (Some(least), Some(most)) = (epochs.clone().min(), epochs.max())
        && least != most
    {
        return refused(format!(
            "a token is of epoch {least}, another of epoch {most}; save the tokens of all ranks of a \
             dynamic job at one moment, best after a barrier at the end of an epoch"
        ));
    }
    Ok(())
}

/// Whether one token of an uneven job speaks for all of its ranks.
fn is_whole_world(token: &Token) -> bool {
    matches!(token.speaks_for, Some((_, 1)))
}

fn start(options: &LoaderOptions) -> Start {
    let LoaderOptions { lanes, batch_size, rank, world_size, .. } = *options;
    Start { lanes, batch_size, rank, world_size }
}

fn open_link(
    setting: Setting,
    control_of: ControlOf,
    progress: Progress<'_>,
) -> Result<Opened, LoadError> {
    if setting.options.cluster.is_some() {
        let (cluster, contents) = Cluster::open(setting, progress)?;
        return Ok((Link::Cluster(Box::new(cluster)), contents));
    }
    let options = &setting.options;
    if let Some(name) = &options.dataset {
        let message = format!("dataset={name:?} is known to a coordinator only; pass coordinator=");
        return Err(LoadError::Option(message));
    }
    let mut scanning = |scan: ScanProgress| progress(&OpenProgress { note: String::new(), scan });
    let dataset =
        Dataset::open(&options.files, options.file_rules(), &options.cache, &mut scanning)?;
    let contents = Contents::of("", options.file_rules(), &dataset);
    let here = Here::embedded(setting, control_of, Arc::new(dataset));
    Ok((Link::Here(Box::new(here)), contents))
}

fn identity(
    options: &LoaderOptions,
    contents: &Contents,
    (schema, record_spec): (&Schema, &EncodedSpec),
    lanes: u64,
) -> JobIdentity {
    JobIdentity {
        shuffle: Shuffle {
            content: contents.digest,
            seed: options.seed,
            enabled: options.shuffle,
            window: options.shuffle_window,
            interleave: options.interleave.unwrap_or_else(|| interleave_default(options.shuffle)),
            block_length: options.block_length,
        },
        lanes,
        tail: options.tail,
        mode: options.mode,
        records: record_spec.records(),
        decoder: schema.decoder().to_owned(),
    }
}

/// The name that a job's ranks share: theirs, or of their run and what they read.
fn job_name(
    options: &LoaderOptions,
    trainer: &str,
    identity: &JobIdentity,
) -> Result<String, LoadError> {
    if let Some(name) = &options.job {
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

/// The plan of the cursor's epoch.
fn plan_at(plans: &Plans, cursor: &Cursor) -> Result<Arc<EpochPlan>, shardfeed_plan::PlanError> {
    let world_size = cursor.start().world_size;
    plans.plan(cursor.identity(), cursor.epoch(), cursor.segments(), world_size)
}

/// Where reading starts, `in_hand` batches after the cursor.
fn place(
    cursor: &Cursor,
    plans: &Plans,
    rank: u64,
    entry: Entry,
    in_hand: usize,
) -> Result<Place, LoadError> {
    let (epoch, step) = (cursor.epoch(), cursor.step());
    let segments = cursor.segments().to_vec();
    let intent = match entry {
        Entry::Start => {
            // A generation is one more than that of the token that it began with.
            let token_generation = cursor.generation().checked_sub(1);
            Intent::Start { token_generation, epoch, segments }
        }
        Entry::Move { from } => Intent::Move { from, epoch, segments },
        Entry::Joined { generation } => Intent::Reconnect { generation, epoch, step },
    };
    let mut ahead = cursor.clone();
    if cursor.identity().is_dynamic() {
        debug_assert_eq!(in_hand, 0, "what was granted is not carried over");
        return Ok(Place { intent, epoch, segments: cursor.segments().to_vec(), step });
    }
    for _ in 0..in_hand {
        let steps = plan_at(plans, &ahead)?.rank_steps(rank);
        ahead.advance(steps);
    }
    let (epoch, step) = (ahead.epoch(), ahead.step());
    Ok(Place { intent, epoch, segments: ahead.segments().to_vec(), step })
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::Tail;

    use super::*;

    fn tokens(epochs: &[(u64, &str)]) -> Vec<Token> {
        let content = Digest::from_bytes([7; 32]);
        let shuffle =
            Shuffle { content, seed: 1, enabled: true, window: 8, interleave: 2, block_length: 1 };
        let (records, decoder) = (EncodedSpec::raw().records(), "none".to_owned());
        let (tail, mode) = (Tail::Uneven, Mode::Dynamic);
        let identity = JobIdentity { shuffle, lanes: 1, tail, mode, records, decoder };
        let start = Start { lanes: None, batch_size: 4, rank: 0, world_size: 2 };
        let token = |&(epoch, cluster): &(u64, &str)| {
            let mut cursor = Cursor::new(identity.clone(), start).unwrap();
            cursor.set_cluster(Some(cluster.to_owned()));
            cursor.set_epoch(epoch).unwrap();
            cursor.token()
        };
        epochs.iter().map(token).collect()
    }

    #[test]
    fn tokens_of_a_dynamic_job_are_of_one_epoch_of_this_cluster() {
        let refused = |of: &[(u64, &str)]| {
            let error = check_tokens(&tokens(of), Some("ours")).unwrap_err();
            assert!(matches!(&error, LoadError::Wire(error) if error.kind == ErrorKind::Token));
            error.to_string()
        };
        let said = [refused(&[(3, "theirs")]), refused(&[(4, "ours"), (3, "ours")])];
        assert_eq!(
            said,
            [
                "the token is of a dynamic job of cluster theirs, and only that one knows who was \
                 granted what; this is cluster ours: use the coordinator of the other one, or \
                 start the epoch anew with set_epoch(3)",
                "a token is of epoch 3, another of epoch 4; save the tokens of all ranks of a \
                 dynamic job at one moment, best after a barrier at the end of an epoch",
            ]
        );
        check_tokens(&tokens(&[(3, "ours"), (3, "ours")]), Some("ours")).unwrap();
    }
}
