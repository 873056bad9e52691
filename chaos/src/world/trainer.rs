//! Trainer, modelled as a cursor: it receives its rank's batches of the plan, in step with the
//! other ranks, and saves its state regularly. Only an explicit answer stops it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::{
    Cursor, EpochPlan, Intent, LoaderState, PlanError, Planned, Sample, Segment, SkipCount, Start,
    StateError, Steps, Tail,
};
use shardfeed_proto::{ErrorKind, WireError, segments_from};
use tokio::time::sleep;

use crate::lists::Beginning;
use crate::oracle::Begin;
use crate::world::admin::register;
use crate::world::catalog::JobFacts;
use crate::world::mixture::Mix;
use crate::world::session::{Asked, Kept, Served, ServedState, Session};
use crate::world::worker::WorkerHost;

/// Steps between saved states.
const SAVE_EVERY: u64 = 5;

/// Polling interval of a waiting trainer.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(6);

/// Time limit for the answer to a start before it is repeated.
const START_PATIENCE: Duration = Duration::from_secs(4);

/// Maximum number of ranks of a run.
const RANKS_MAX: u64 = 4;

/// Maximum number of consecutive restarts without a consumed batch.
const REPLACED_MAX: u64 = 8;

/// One start of all ranks of a job.
#[derive(Debug)]
pub struct Run {
    /// Name of the run.
    pub name: String,
    /// Its job.
    pub job: Rc<JobFacts>,
    /// Number of ranks.
    pub world_size: u64,
    /// Mixture that it reads.
    pub mix: Mix,
    /// Numbers of consumed steps of the run after which its trainers leave out further ones, with
    /// the maximum number of these.
    pub skips: BTreeMap<u64, u64>,
    /// Numbers of consumed steps of the run after which its ranks reshard, with the number of ranks
    /// from then on.
    pub reshards: BTreeMap<u64, u64>,
    /// Trainers that continue after the reshard with which the run began, by their ranks there;
    /// `None`: it began otherwise.
    pub continuing: Option<BTreeMap<u64, String>>,
    /// State and trainer of each rank that waits for a reshard to another number of ranks.
    pub waiting: RefCell<BTreeMap<u64, (LoaderState, String)>>,
    /// States to start from: one for all ranks, or one of each rank.
    pub states: Vec<LoaderState>,
    /// Current state of each rank of a dynamic job.
    pub stands: RefCell<Vec<Option<LoaderState>>>,
    /// Steps that each rank consumed in this run.
    pub consumed: RefCell<Vec<u64>>,
    /// True if ranks are to end cleanly.
    pub is_over: Cell<bool>,
    /// True if the launcher cannot reach some of its ranks; these continue unaware of it.
    pub is_abandoned: Cell<bool>,
    /// Reason why it cannot continue.
    pub failed: RefCell<Option<String>>,
    /// States that some ranks saved, by steps of the run.
    pub saving: RefCell<BTreeMap<u64, BTreeMap<u64, LoaderState>>>,
    /// States that all ranks saved.
    pub saved: RefCell<Vec<(Mix, Vec<LoaderState>)>>,
    /// Number of ranks that have a generation.
    pub started: Cell<u64>,
    /// Epochs that the slowest rank finished in this run.
    pub epochs: Cell<u64>,
    /// Ranks whose trainers have ended or cannot be reached.
    pub gone: RefCell<BTreeSet<u64>>,
    /// Maximum number of corrupt records that a rank may skip per epoch.
    pub corrupt_budget: u64,
    /// True if a rank would have exceeded that number.
    pub is_over_budget: Cell<bool>,
}

impl Run {
    /// Returns the start of the generation of a dynamic job that this run opens.
    fn beginning(&self, parent: Option<u64>) -> Beginning {
        let mut stood = BTreeMap::new();
        for state in &self.states {
            let place = (state.epoch, state.step());
            match state.speaks_for {
                Some((rank, _)) => drop(stood.insert(rank, place)),
                None => stood.extend((0..RANKS_MAX).map(|rank| (rank, place))),
            }
        }
        Beginning { parent, stood, world_size: self.world_size }
    }

    /// True if this rank counts the epochs that the run finishes.
    pub fn counts_epochs(&self, rank: u64) -> bool {
        let gone = self.gone.borrow();
        (0..rank).all(|earlier| gone.contains(&earlier))
    }

    /// Saves the current states of all ranks if a run can start from them.
    pub fn save(&self) {
        let stands: Option<Vec<LoaderState>> = self.stands.borrow().iter().cloned().collect();
        let Some(states) = stands.filter(|_| self.job.identity.tail == Tail::Uneven) else {
            return;
        };
        let together = states.iter().all(|state| {
            (state.epoch, state.generation) == (states[0].epoch, states[0].generation)
        });
        if together && self.failed.borrow().is_none() {
            self.saved.borrow_mut().push((self.mix, states));
        }
    }
}

/// Resumes from one common state, or from the states of all ranks.
fn resume(job: &JobFacts, start: Start, states: &[LoaderState]) -> Result<Cursor, StateError> {
    let own = states.iter().find(|state| state.speaks_for == Some((start.rank, start.world_size)));
    match (states, own) {
        (_, Some(own)) => Cursor::resume(job.identity.clone(), start, own),
        ([state], None) if state.speaks_for.is_none() => {
            Cursor::resume(job.identity.clone(), start, state)
        }
        _ => {
            let none = |_, _: &[_], _| Err(PlanError::UnevenSteps);
            Cursor::resume_uneven(job.identity.clone(), start, states, false, none)
        }
    }
}

/// Rank of a run.
#[derive(Clone, Debug)]
pub struct Rank {
    /// Its run.
    pub run: Rc<Run>,
    /// Rank number.
    pub rank: u64,
    /// Duration of a step, ms.
    pub step_ms: u64,
    /// Mixture that it names; another one than the run's by mistake.
    pub mix: Mix,
}

/// Reason why a rank takes no more steps in its generation.
enum Stop {
    /// The run is over.
    End,
    /// All ranks leave out steps, and start again after them.
    Skip(Box<Cursor>),
    /// All ranks reshard to as many ranks as before.
    Reshard,
    /// All ranks reshard to another number of ranks; the launcher starts these.
    Wait,
}

/// Place of a start in the succession of generations.
#[derive(Clone, Copy, Debug)]
struct Succession {
    /// Generation that ends where the start begins.
    parent: Option<u64>,
    /// True for a reshard.
    is_reshard: bool,
    /// True for a rank that a reshard adds: its state is of the generation that follows.
    is_added: bool,
}

impl Succession {
    fn intent(self, epoch: u64, segments: Vec<Segment>) -> Intent {
        let Self { parent, is_reshard, is_added } = self;
        let state_generation = if is_added { parent.map(|parent| parent + 1) } else { parent };
        Intent::Start { state_generation, epoch, segments, is_reshard: is_reshard && !is_added }
    }
}

impl Rank {
    /// Trains until the run is over.
    pub async fn train(self, host: Rc<WorkerHost>) {
        let _watched = Watched(Rc::clone(&self.run), self.rank);
        if let Err(error) = self.try_train(&host).await {
            let why = format!("rank {}: {error}", self.rank);
            host.trace.tell(format!("{} {} failed: {why}", self.run.job.name, self.run.name));
            self.run.failed.borrow_mut().get_or_insert(why);
        }
    }

    async fn try_train(&self, host: &Rc<WorkerHost>) -> Result<(), WireError> {
        let Run { job, states, world_size, .. } = &*self.run;
        let start = Start {
            lanes: Some(job.identity.lanes),
            batch_size: job.global_batch / world_size,
            rank: self.rank,
            world_size: *world_size,
        };
        let refused = |error: String| WireError::new(ErrorKind::State, error);
        let mut cursor = match states.as_slice() {
            [] => Cursor::new(job.identity.clone(), start).map_err(|e| refused(e.to_string()))?,
            states => resume(job, start, states).map_err(|error| refused(error.to_string()))?,
        };
        let mut asked = Asked {
            mixture: vec![],
            left_out: cursor.left_out().clone(),
            job: job.name.clone(),
            run: self.run.name.clone(),
            rank: self.rank,
            world_size: *world_size,
            trainer: host.dice.id(),
        };
        let continuing = self.run.continuing.as_ref();
        let trainer = continuing.and_then(|trainers| trainers.get(&self.rank));
        let mut succession = Succession {
            parent: states.iter().map(|state| state.generation).max(),
            is_reshard: continuing.is_some(),
            is_added: continuing.is_some() && trainer.is_none(),
        };
        if let Some(trainer) = trainer {
            asked.trainer.clone_from(trainer);
        }
        let (mut replaced, mut moves, mut left_at) = (0, 0_u64, None);
        while replaced < REPLACED_MAX {
            let Some((session, serial, served)) =
                self.start(host, &mut asked, (&mut cursor, succession)).await?
            else {
                return Ok(());
            };
            let mut seat = Seat {
                session,
                serial,
                served,
                own: None,
                began: None,
                count: SkipCount::new(0),
                budget: format!("{} {:?} {moves}", asked.trainer, succession.parent),
                skipped: vec![],
            };
            let ended = match job.identity.is_dynamic() {
                true => self.take_steps(host, &mut cursor, &mut seat).await.map(|()| Stop::End),
                false => self.steps(host, &mut cursor, (&mut seat, left_at)).await,
            };
            match ended {
                Err(error) if error.kind == ErrorKind::Superseded && seat.is_untouched(&cursor) => {
                    replaced += 1;
                }
                Err(error) => return Err(error),
                Ok(Stop::Wait) => {
                    let waits = (cursor.state(), asked.trainer.clone());
                    self.run.waiting.borrow_mut().insert(self.rank, waits);
                    return Ok(());
                }
                Ok(stop @ (Stop::Skip(_) | Stop::Reshard)) => {
                    left_at = Some(self.count());
                    let (parent, is_added) = (Some(cursor.generation()), false);
                    let is_reshard = matches!(stop, Stop::Reshard);
                    succession = Succession { parent, is_reshard, is_added };
                    cursor = match stop {
                        Stop::Skip(next) => *next,
                        _ => resume(job, start, &[cursor.state()])
                            .map_err(|error| refused(error.to_string()))?,
                    };
                    asked.left_out = cursor.left_out().clone();
                    (moves, replaced) = (moves + 1, 0);
                }
                Ok(Stop::End) => {
                    if host.dice.chance(70) {
                        seat.session.end_rank(&seat.served).await;
                    }
                    return Ok(());
                }
            }
        }
        Err(WireError::new(ErrorKind::Superseded, "others start again and again"))
    }

    /// Waits for admission to a generation; `None` if the run ended first.
    async fn start(
        &self,
        host: &Rc<WorkerHost>,
        asked: &mut Asked,
        (cursor, succession): (&mut Cursor, Succession),
    ) -> Result<Option<(Rc<Session>, u64, Rc<Served>)>, WireError> {
        let (epoch, segments) = (cursor.epoch(), cursor.segments().to_vec());
        let intent = succession.intent(epoch, segments.clone());
        let started = loop {
            if self.run.is_over.get() {
                return Ok(None);
            }
            let worker = host.worker.borrow().clone();
            let Some((session, id)) =
                worker.and_then(|worker| Some((worker.clone(), worker.id()?)))
            else {
                sleep(LOOK_EVERY).await;
                continue;
            };
            let serial = host.serial.get();
            if self.mix.is_some() {
                let request = self.run.job.registration(self.mix);
                match register(&session.cluster, request).await {
                    Ok(mixture) => asked.mixture = mixture,
                    Err(error) if matches!(error.kind, ErrorKind::Retry | ErrorKind::Storage) => {
                        sleep(LOOK_EVERY).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let is_dynamic = self.run.job.identity.is_dynamic();
            let other = session.other(asked).filter(|_| !is_dynamic);
            let place = (&intent, None, other.as_ref());
            match session.start_rank(id, asked, place, START_PATIENCE).await {
                Ok(started) => {
                    other.iter().for_each(|other| session.replace(other));
                    break (session, id, serial, started);
                }
                Err(error) if error.kind == ErrorKind::Fenced => session.forget(id),
                Err(error) if matches!(error.kind, ErrorKind::Retry | ErrorKind::Storage) => {}
                Err(error) => {
                    if error.message.contains(" has mixture=") {
                        host.oracle.count("other-mixtures");
                    }
                    return Err(error);
                }
            }
            sleep(LOOK_EVERY).await;
        };
        let (session, id, serial, started) = started;
        let said = segments_from(started.segments.clone()).unwrap_or_default();
        let same = match self.run.job.identity.tail {
            // Other ranks may have taken a different number of steps.
            Tail::Uneven => said.len() == segments.len(),
            Tail::Drop | Tail::Pad => said == segments,
        };
        host.breaches.check(started.epoch == epoch && same, "I8", || {
            format!(
                "{} asked for {epoch} {segments:?} and got {} {said:?}",
                asked.job, started.epoch
            )
        });
        cursor.set_generation(started.generation);
        if self.run.job.identity.is_dynamic() {
            let begin = self.run.beginning(succession.parent);
            host.oracle.lists.begins(&self.run.job, started.generation, &begin);
        } else {
            let (world_size, mix) = (asked.world_size, self.mix);
            let left_out = cursor.left_out().clone();
            let begin = Begin { epoch, segments, world_size, mix, left_out };
            let generation = (started.generation, succession.parent);
            host.oracle.begins(&self.run.job, generation, (&begin, succession.is_reshard));
        }
        self.run.started.set(self.run.started.get() + 1);
        // A late answer may be for a session that has ended since, and its lease with it.
        let same = session.id() == Some(id);
        let state = ServedState {
            generation: started.generation,
            fencing: if same { started.fencing } else { 0 },
            epoch,
            step: cursor.step(),
            verdict: None,
            left: None,
        };
        let (asked, state) = (asked.clone(), RefCell::new(state));
        let (is_revoked, is_paused) = (Cell::new(false), Cell::new(false));
        let served = Rc::new(Served { asked, state, is_revoked, is_paused });
        session.serve(Rc::clone(&served));
        Ok(Some((session, serial, served)))
    }

    async fn steps(
        &self,
        host: &Rc<WorkerHost>,
        cursor: &mut Cursor,
        (seat, left_at): (&mut Seat, Option<u64>),
    ) -> Result<Stop, WireError> {
        let Run { job, .. } = &*self.run;
        let mut plan: Option<Rc<EpochPlan>> = None;
        seat.began = Some((cursor.epoch(), cursor.step()));
        loop {
            if self.run.is_over.get() {
                return Ok(Stop::End);
            }
            // No rank asks for a batch between the step before and this one: none learns that the
            // first rank that leaves out steps superseded its generation.
            if !self.run.is_abandoned.get() && left_at != Some(self.count()) && self.may_step() {
                let at = self.count();
                if let Some(steps) = self.run.skips.get(&at)
                    && let Some(next) = self.after_skip(cursor, *steps)
                {
                    return Ok(Stop::Skip(Box::new(next)));
                }
                match self.run.reshards.get(&at) {
                    Some(size) if *size == self.run.world_size => return Ok(Stop::Reshard),
                    Some(_) => return Ok(Stop::Wait),
                    None => {}
                }
            }
            if let Some(verdict) = seat.served.state.borrow().verdict.clone() {
                return Err(verdict);
            }
            if seat.own.is_none() && host.serial.get() != seat.serial {
                seat.move_in_process(host, self);
            }
            if !self.may_step() || seat.served.is_paused.get() {
                sleep(LOOK_EVERY).await;
                continue;
            }
            let at = (cursor.epoch(), cursor.step());
            if plan.as_ref().is_none_or(|plan| plan.epoch() != at.0) {
                let made = job.plan((self.mix, at.0), cursor.segments(), self.run.world_size);
                let made =
                    made.map_err(|error| WireError::new(ErrorKind::State, error.to_string()));
                plan = Some(Rc::new(made?));
            }
            let plan = plan.as_ref().expect("made just before");
            let rows = plan.batch(at.1, self.rank);
            let rows = rows.map_err(|error| WireError::new(ErrorKind::State, error.to_string()))?;
            let valid = rows.iter().filter(|row| row.valid);
            let named = |row: &Planned| job.named((self.mix, at.0), row.portion, row.sample);
            self.admit(host, seat, at.0, &job.corrupt_in(self.mix, valid.map(named)))?;
            let who = (cursor.generation(), self.rank, self.run.world_size);
            host.oracle.delivered(&job.name, who, at, rows);
            cursor.advance(plan.rank_steps(self.rank));
            {
                let mut state = seat.served.state.borrow_mut();
                (state.epoch, state.step) = (cursor.epoch(), cursor.step());
            }
            self.consumed(host, cursor);
            sleep(Duration::from_millis(self.step_ms)).await;
        }
    }

    /// Returns the position after so many further steps of the epoch were left out; at least one
    /// step remains. `None`: no more can be.
    fn after_skip(&self, cursor: &Cursor, steps: u64) -> Option<Cursor> {
        let (mut state, step) = (cursor.state(), cursor.step());
        let left = self.run.job.steps(self.mix, cursor.epoch()).saturating_sub(step);
        let steps = steps.min(left.saturating_sub(1));
        let open = state.segments.last_mut().filter(|_| steps > 0)?;
        open.steps = Steps::All(open.steps.most() + steps);
        state.left_out.add(step, step + steps);
        Cursor::resume(cursor.identity().clone(), *cursor.start(), &state).ok()
    }

    /// Returns the number of steps that the rank consumed in its run.
    fn count(&self) -> u64 {
        self.run.consumed.borrow()[self.rank as usize]
    }

    /// Removes the corrupt records of a batch, or fails if they exceed the budget.
    pub(super) fn admit(
        &self,
        host: &WorkerHost,
        seat: &mut Seat,
        epoch: u64,
        corrupt: &[Sample],
    ) -> Result<(), WireError> {
        let (trainer, more) = (&seat.budget, corrupt.len() as u64);
        let allowed = self.run.corrupt_budget;
        if let Err(all) = seat.count.admit(epoch, more, allowed) {
            host.oracle.skips.refused(trainer, epoch, more, allowed);
            self.run.is_over_budget.set(true);
            let message = format!("{all} corrupt records, and {allowed} are allowed");
            return Err(WireError::new(ErrorKind::Corrupt, message));
        }
        seat.count.add(epoch, more);
        host.oracle.skips.handed_out(trainer, epoch, more, allowed);
        seat.skipped.extend(corrupt);
        seat.session.tell_skipped(&self.run.job, self.mix, corrupt);
        Ok(())
    }

    /// Returns true if no other rank is behind: ranks that reduce gradients together advance in
    /// step.
    fn may_step(&self) -> bool {
        let consumed = self.run.consumed.borrow();
        self.run.is_abandoned.get()
            || consumed[self.rank as usize] <= consumed.iter().copied().min().unwrap_or(0)
    }

    pub(super) fn consumed(&self, host: &WorkerHost, cursor: &Cursor) {
        let count = {
            let mut consumed = self.run.consumed.borrow_mut();
            let count = &mut consumed[self.rank as usize];
            *count += 1;
            *count
        };
        if cursor.step() == 0 && self.rank == 0 && !self.run.job.identity.is_dynamic() {
            self.run.epochs.set(self.run.epochs.get() + 1);
        }
        // Ranks that the launcher gave up do not reshard together any more: their states differ.
        let saves = count.is_multiple_of(SAVE_EVERY) && !self.run.is_abandoned.get();
        if !saves || self.run.job.identity.tail == Tail::Uneven {
            return;
        }
        let mut saving = self.run.saving.borrow_mut();
        let states = saving.entry(count).or_default();
        states.insert(self.rank, cursor.state());
        if states.len() as u64 == self.run.world_size {
            host.oracle.saved(&self.run.job.name, states);
            self.run.saved.borrow_mut().push((self.run.mix, vec![cursor.state()]));
            saving.remove(&count);
        }
    }
}

/// Marks the run as failed when a trainer ends, so that the launcher notices at once.
struct Watched(Rc<Run>, u64);

impl Drop for Watched {
    fn drop(&mut self) {
        if self.0.waiting.borrow().contains_key(&self.1) {
            return;
        }
        self.0.gone.borrow_mut().insert(self.1);
        self.0.failed.borrow_mut().get_or_insert_with(|| "a trainer is gone".into());
    }
}

/// Worker that serves a rank.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) session: Rc<Session>,
    /// Start count of the host's worker.
    pub(super) serial: u64,
    pub(super) served: Rc<Served>,
    /// Worker in the trainer's own process.
    pub(super) own: Option<Kept>,
    began: Option<(u64, u64)>,
    count: SkipCount,
    /// Name of its budget of corrupt records, which begins again at each move of the trainer.
    budget: String,
    /// Corrupt records that the trainer encountered; a worker that takes over reports them again.
    skipped: Vec<Sample>,
}

impl Drop for Seat {
    /// Lets the worker notice that its trainer is gone.
    fn drop(&mut self) {
        self.session.unserve(&self.served);
    }
}

impl Seat {
    fn is_untouched(&self, cursor: &Cursor) -> bool {
        self.began == Some((cursor.epoch(), cursor.step()))
    }

    /// Moves the work of the lost host worker into the trainer's own process; no request is needed.
    pub(super) fn move_in_process(&mut self, host: &Rc<WorkerHost>, rank: &Rank) {
        let (job, mix, rank) = (&rank.run.job, rank.mix, rank.rank);
        let name = format!("{}-trainer-{rank}-{}", host.name, host.dice.pick(0..1 << 30));
        host.trace.tell(format!("{name} takes over"));
        let kept = host.session(name, true);
        kept.session.tell_skipped(job, mix, &self.skipped);
        self.served.is_paused.set(false);
        self.served.state.borrow_mut().fencing = 0;
        self.session.unserve(&self.served);
        self.session = Rc::clone(&kept.session);
        self.session.serve(Rc::clone(&self.served));
        self.own = Some(kept);
    }
}
