//! Launcher of a job: starts its ranks, detects lost ranks, and restarts all of them from the last
//! state that all ranks saved, with as many ranks as the hosts allow.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use shardfeed_plan::LoaderState;

use crate::dice::Dice;
use crate::trace::Trace;
use crate::world::catalog::JobFacts;
use crate::world::mixture::Mix;
use crate::world::trainer::{Rank, Run};
use crate::world::worker::{Order, WorkerHost};

/// Time without a step after which a run is restarted, ms.
const STUCK_MS: u64 = 6_000;

/// Time for which a launcher leaves a loss of a dynamic job alone, as launchers without restarts
/// do: longer than it takes to consume the rest of an epoch, and the grace.
const LEFT_ALONE_MS: std::ops::Range<u64> = 5_000..11_000;

/// Numbers of ranks; each divides the global batch.
const SIZES: [u64; 3] = [1, 2, 4];

/// Hosts, and whether the launcher can reach each of them.
pub type Hosts = [(Rc<WorkerHost>, bool)];

/// Moves of a job's trainers within an epoch.
#[derive(Debug)]
pub struct Moves {
    /// They leave out steps.
    pub skips: bool,
    /// They reshard, as these dice decide.
    pub reshards: Option<Dice>,
}

/// Launcher of one job.
#[derive(Debug)]
pub struct Launcher {
    job: Rc<JobFacts>,
    dice: Dice,
    trace: Trace,
    run: Option<Started>,
    /// Last states that all ranks saved, with the mixture of their run.
    saved: Vec<(Mix, Vec<LoaderState>)>,
    moves: Moves,
    /// True while a rank may name another mixture than the others by mistake.
    pub errs: bool,
    runs: u64,
    begin_at_ms: u64,
    last_size: u64,
    /// Maximum number of corrupt records that a rank may skip per epoch; raised when it was
    /// exceeded.
    corrupt_budget: u64,
    /// Number of starts from a state.
    pub resumes: u64,
    /// Number of starts with a different number of ranks than before.
    pub resized: u64,
    /// Number of epochs that all runs together finished.
    pub epochs: u64,
}

#[derive(Debug)]
struct Started {
    run: Rc<Run>,
    /// Host of each rank, and the boot count of that host.
    places: Vec<(usize, u64)>,
    progress: (u64, u64),
    seen_epochs: u64,
    /// Of a dynamic job: time for which the other ranks go on after a loss, ms; 0: not at all.
    left_alone_ms: u64,
    /// Time at which the run ends because of a loss.
    ends_at_ms: Option<u64>,
}

impl Launcher {
    /// Returns a launcher that starts its job at the first tick.
    pub fn new(job: Rc<JobFacts>, (dice, moves): (Dice, Moves), trace: Trace) -> Self {
        Self {
            moves,
            errs: false,
            job,
            dice,
            trace,
            run: None,
            saved: vec![],
            runs: 0,
            begin_at_ms: 0,
            last_size: 0,
            corrupt_budget: 1,
            resumes: 0,
            resized: 0,
            epochs: 0,
        }
    }

    /// Returns the current run, if any.
    pub fn run(&self) -> Option<&Rc<Run>> {
        self.run.as_ref().map(|started| &started.run)
    }

    /// Returns true if all ranks of the run have a generation.
    pub fn is_served(&self) -> bool {
        self.run().is_some_and(|run| run.started.get() >= run.world_size)
    }

    /// Checks the run; starts, stops or restarts it.
    pub fn tick(&mut self, now_ms: u64, hosts: &Hosts) {
        if let Some(started) = &mut self.run {
            let run = &started.run;
            run.save();
            self.saved.append(&mut run.saved.borrow_mut());
            let steps = run.consumed.borrow().iter().sum();
            if steps != started.progress.0 {
                started.progress = (steps, now_ms);
            }
            self.epochs += run.epochs.get() - started.seen_epochs;
            started.seen_epochs = run.epochs.get();
            let is_lost = |(host, boot): &(usize, u64)| {
                let (host, reachable) = &hosts[*host];
                !reachable || host.boots.get() != *boot
            };
            let lost = started.places.iter().find(|place| is_lost(place));
            if lost.is_none() && run.waiting.borrow().len() as u64 == run.world_size {
                return self.reshard(now_ms, hosts);
            }
            let failed = run.failed.borrow().clone();
            let stuck = now_ms - started.progress.1 > STUCK_MS;
            let why = match (failed, lost) {
                (Some(why), _) => why,
                (None, Some((host, _))) => format!("{} is gone", hosts[*host].0.name),
                (None, None) if stuck => "no step for long".to_owned(),
                (None, None) => match started.ends_at_ms {
                    Some(at) if now_ms >= at => "a rank was gone".to_owned(),
                    _ => return,
                },
            };
            if started.left_alone_ms > 0 && run.started.get() >= run.world_size {
                let gone = (0..).zip(&started.places).filter(|(_, place)| is_lost(place));
                run.gone.borrow_mut().extend(gone.map(|(rank, _)| rank));
                let at = *started.ends_at_ms.get_or_insert_with(|| {
                    self.trace.tell(format!("{} goes on although {why}", self.job.name));
                    now_ms + started.left_alone_ms
                });
                if now_ms < at && (run.gone.borrow().len() as u64) < run.world_size {
                    run.failed.borrow_mut().take();
                    return;
                }
            }
            self.stop(now_ms, hosts, &why);
        }
        if self.run.is_none() && now_ms >= self.begin_at_ms {
            self.start(now_ms, hosts);
        }
    }

    /// Ends the run. Reachable trainers end; the others continue and must be fenced.
    pub fn stop(&mut self, now_ms: u64, hosts: &Hosts, why: &str) {
        let Some(started) = self.run.take() else {
            return;
        };
        let job = &self.job.name;
        self.trace.tell(format!("{job} {} is stopped: {why}", started.run.name));
        self.corrupt_budget <<= u32::from(started.run.is_over_budget.get());
        let reachable = |(host, _): &&(usize, u64)| hosts[*host].1;
        let whole = started.places.iter().all(|place| reachable(&place));
        let forgets = self.moves.reshards.as_ref().is_some_and(|dice| dice.chance(30));
        if forgets {
            // Its trainers go on beside those of the next run.
            started.run.is_abandoned.set(true);
        } else if self.dice.chance(40) && whole {
            started.run.is_over.set(true);
        } else {
            started.run.is_abandoned.set(!whole);
            for (host, _) in started.places.iter().filter(reachable) {
                hosts[*host].0.orders.borrow_mut().push_back(Order::KillTrainers(job.clone()));
            }
        }
        self.begin_at_ms = now_ms + self.dice.pick(50..800);
    }

    fn start(&mut self, now_ms: u64, hosts: &Hosts) {
        if !hosts.iter().any(|(_, reachable)| *reachable) {
            return;
        }
        let world_size = *self.dice.one(&SIZES).expect("there are sizes");
        // Mostly the last state, sometimes an older one, as operators do.
        let saved = self.saved.len();
        let back = if saved == 0 || self.dice.chance(85) {
            1
        } else {
            1 + self.dice.pick(0..saved.min(4) as u64)
        };
        let states = saved.checked_sub(back as usize).and_then(|at| self.saved.get(at));
        let (before, states) = states.cloned().unwrap_or_default();
        let (mix, mistaken) = self.mixtures(before, &states);
        self.runs += 1;
        self.resumes += u64::from(!states.is_empty());
        self.resized += u64::from(!states.is_empty() && self.last_size != world_size);
        self.last_size = world_size;
        let is_dynamic = self.job.identity.is_dynamic();
        let left_alone_ms = match is_dynamic && self.dice.chance(60) {
            true => self.dice.pick(LEFT_ALONE_MS),
            false => 0,
        };
        let name = format!("run-{}", self.runs);
        let run = self.run_of(name, (world_size, mix), (states, None));
        self.launch(now_ms, hosts, (&run, &[]), mistaken);
        if let Some(started) = &mut self.run {
            started.left_alone_ms = left_alone_ms;
        }
    }

    /// Starts the ranks of a run again after all of them left it for a reshard to another number.
    fn reshard(&mut self, now_ms: u64, hosts: &Hosts) {
        let Some(Started { run: before, places, .. }) = self.run.take() else {
            return;
        };
        let mut waiting = before.waiting.take();
        let size = before.reshards[&before.consumed.borrow()[0]];
        let states = waiting.first_key_value().map(|(_, (state, _))| state.clone());
        waiting.retain(|rank, _| *rank < size);
        let trainers = waiting.into_iter().map(|(rank, (_, trainer))| (rank, trainer)).collect();
        let start = (states.into_iter().collect(), Some(trainers));
        let run = self.run_of(before.name.clone(), (size, before.mix), start);
        self.last_size = size;
        let kept = places.len().min(size as usize);
        self.launch(now_ms, hosts, (&run, &places[..kept]), None);
    }

    /// - `continuing`: trainers of a reshard, by their ranks.
    fn run_of(
        &self,
        name: String,
        (world_size, mix): (u64, Mix),
        (states, continuing): (Vec<LoaderState>, Option<BTreeMap<u64, String>>),
    ) -> Rc<Run> {
        let skips = self.skips();
        Rc::new(Run {
            name,
            job: Rc::clone(&self.job),
            world_size,
            mix,
            skips,
            reshards: self.reshards(),
            continuing,
            waiting: RefCell::default(),
            consumed: RefCell::new(vec![0; world_size as usize]),
            is_over: Cell::new(false),
            is_abandoned: Cell::new(false),
            failed: RefCell::default(),
            saving: RefCell::new(BTreeMap::new()),
            saved: RefCell::default(),
            started: Cell::new(0),
            epochs: Cell::new(0),
            gone: RefCell::default(),
            corrupt_budget: self.corrupt_budget,
            is_over_budget: Cell::new(false),
            stands: RefCell::new(vec![None; world_size as usize]),
            states,
        })
    }

    /// Starts the trainers of a run.
    /// - `kept`: places of the first ranks; the others get new ones.
    /// - `mistaken`: mixture that one rank names by mistake.
    fn launch(
        &mut self,
        now_ms: u64,
        hosts: &Hosts,
        (run, kept): (&Rc<Run>, &[(usize, u64)]),
        mistaken: Mix,
    ) {
        let (world_size, mix, is_dynamic) =
            (run.world_size, run.mix, self.job.identity.is_dynamic());
        let up: Vec<usize> = (0..hosts.len()).filter(|at| hosts[*at].1).collect();
        let place = |state: &LoaderState| (state.generation, state.epoch, state.step());
        let at: Vec<_> = run.states.iter().map(place).collect();
        let job = &self.job.name;
        self.trace.tell(format!("{job} {} starts on {world_size} ranks from {at:?}", run.name));
        let mut places = vec![];
        let shift = self.dice.pick(0..up.len() as u64) as usize;
        for rank in 0..world_size {
            let at = match kept.get(rank as usize) {
                Some((at, _)) => *at,
                None => up[(rank as usize + shift) % up.len()],
            };
            let host = &hosts[at].0;
            // Step times of dynamic jobs differ between ranks; the slowest rank alone finishes an
            // epoch within EPOCH_MS.
            let step_ms = match is_dynamic {
                true if self.dice.chance(15) => self.dice.pick(100..150),
                true => self.dice.pick(40..100),
                false => self.dice.pick(15..40),
            };
            let mix = mistaken.filter(|_| rank + 1 == world_size && rank > 0).or(mix);
            let rank = Rank { run: Rc::clone(run), rank, step_ms, mix };
            host.orders.borrow_mut().push_back(Order::Train(rank));
            places.push((at, host.boots.get()));
        }
        let progress = (0, now_ms);
        let (run, seen_epochs, left_alone_ms, ends_at_ms) = (Rc::clone(run), 0, 0, None);
        self.run = Some(Started { run, places, progress, seen_epochs, left_alone_ms, ends_at_ms });
    }

    /// Returns the mixture of a run that starts from states of another one, and of the rank that
    /// names another mixture by mistake, if one does.
    fn mixtures(&self, before: Mix, states: &[LoaderState]) -> (Mix, Mix) {
        let Some(variants) = &self.job.variants else {
            return (None, None);
        };
        let at = states.first().map_or((0, 0), |state| (state.epoch, state.step()));
        let change = || variants.change(&self.dice, before, at);
        let mix = match before {
            Some(before) if self.dice.chance(50) => before,
            _ => change(),
        };
        let mistaken = (self.errs && self.dice.chance(20)).then(change);
        (Some(mix), mistaken)
    }

    /// Returns steps that the trainers of a run leave out.
    fn skips(&self) -> BTreeMap<u64, u64> {
        let mut skips = BTreeMap::new();
        if self.moves.skips && self.dice.chance(70) {
            for _ in 0..self.dice.pick(1..4) {
                skips.insert(self.dice.pick(1..50), self.dice.pick(1..8));
            }
        }
        skips
    }

    /// Returns the reshards of a run.
    fn reshards(&self) -> BTreeMap<u64, u64> {
        let mut reshards = BTreeMap::new();
        if let Some(dice) = &self.moves.reshards
            && dice.chance(80)
        {
            for _ in 0..dice.pick(1..4) {
                let size = dice.one(&SIZES).expect("there are sizes");
                reshards.insert(dice.pick(1..40), *size);
            }
        }
        reshards
    }
}
