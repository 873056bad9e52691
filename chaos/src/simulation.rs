//! Runs one seed: a cluster starts, works under faults, has all faults removed, and must recover.
//! Then all deliveries are counted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::{Mode, Tail};
use shardfeed_scheduler::{Phase, State};
use turmoil::{Builder, Sim};

use crate::breach::{Breach, Breaches};
use crate::dice::Dice;
use crate::invariants::Invariants;
use crate::nemesis::Nemesis;
use crate::oracle::{Counted, Oracle};
use crate::sim::{SimHost, SimTime};
use crate::trace::Trace;
use crate::world::admin::Admin;
use crate::world::catalog::{Catalog, JobFacts};
use crate::world::launcher::{Launcher, Moves};
use crate::world::mixture::SourceVersion;
use crate::world::node::{ELECTION_MAX_MS, Node, TTL_MS, address_of};
use crate::world::worker::WorkerHost;

/// Coordinators that form the cluster.
const FOUNDERS: usize = 3;
/// Spare machines that may replace them.
const SPARES: usize = 3;
/// Hosts with workers.
const HOSTS: usize = 4;
/// Simulated time per step, ms.
const TICK_MS: u64 = 2;
/// Intervals between inspections of the coordinators, and between deep inspections, ms.
const LOOK_MS: (u64, u64) = (10, 100);
/// Interval at which launchers check their runs, ms.
const LAUNCH_MS: u64 = 50;
/// Time limit for forming a cluster, indexing a dataset and starting a job without faults, ms.
const SET_UP_MS: u64 = 32_000;
/// Duration of the fault phase, ms.
const FAULTS_MS: u64 = 14_000;
/// Time limit for a leader after all faults are removed: three of the longest election timeouts.
const LEADER_MS: u64 = 3 * ELECTION_MAX_MS;
/// Time limit after that for serving all ranks: a session TTL and 1 s, plus the launcher's pauses.
const SERVED_MS: u64 = TTL_MS + 1_000 + 2_000;
/// Time limit after that for every job to finish an epoch, and for a pending membership change to
/// end.
const EPOCH_MS: u64 = 32_000;

/// Counters that are above 0 in a hundred seeds.
pub const COVERED: [&str; 7] = [
    "reshards",
    "samples-left-out",
    "left-out-listed",
    "source-epochs",
    "sources-listed",
    "mixtures",
    "other-mixtures",
];

/// Result of a seed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Hash of the trace.
    pub hash: String,
    /// First breach of an invariant.
    pub breach: Option<Breach>,
    /// Counters by name.
    pub totals: BTreeMap<String, u64>,
}

/// Kind of the deterministic jobs of a seed. Dynamic jobs are the same in all.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// They are mixtures with stages.
    mixes: bool,
    /// Their trainers leave out steps.
    skips: bool,
    /// Their ranks reshard.
    reshards: bool,
}

impl Kind {
    /// Returns the kind of a seed: half of them are jobs over one dataset without such steps.
    fn of(seed: u64) -> Self {
        let (mixes, skips) = (seed % 6 == 1 || seed % 6 == 5, seed % 6 == 4 || seed % 6 == 5);
        Self { mixes, skips, reshards: seed % 12 == 3 || seed % 24 == 5 }
    }
}

struct World<'a> {
    sim: Sim<'a>,
    time: SimTime,
    trace: Trace,
    breaches: Breaches,
    oracle: Rc<Oracle>,
    nodes: Vec<Rc<Node>>,
    hosts: Vec<Rc<WorkerHost>>,
    admin: Rc<Admin>,
    launchers: Vec<Launcher>,
    nemesis: Nemesis,
    invariants: Invariants,
}

/// Runs a seed.
/// - `is_shown`: write the trace to stderr.
pub fn run(seed: u64, is_shown: bool) -> Outcome {
    crate::sim::simulate(seed);
    let mut world = World::new(seed, is_shown);
    world.live();
    let counted = world.oracle.recount();
    world.outcome(counted)
}

impl World<'_> {
    fn new(seed: u64, is_shown: bool) -> Self {
        let time = SimTime::default();
        let (trace, breaches) = (Trace::new(time.clone(), is_shown), Breaches::default());
        let oracle = Oracle::new(breaches.clone(), time.clone());
        let dice = Dice::new(seed, 0);
        let mut sim = Builder::new()
            .rng_seed(seed)
            .tick_duration(Duration::from_millis(TICK_MS))
            .simulation_duration(Duration::from_secs(3600))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(6))
            .tcp_capacity(1 << 16)
            .build();
        let mut catalog = Catalog::new(&dice);
        let manifest = catalog.manifest();
        let kind = Kind::of(seed);
        let versions = SourceVersion::all(&Dice::new(seed, 700));
        if kind.mixes {
            let files = versions.iter().map(|of| (of.dataset.clone(), of.files.clone()));
            catalog.sources.extend(files);
        }
        let catalog = Rc::new(catalog);
        let planned = |name: &str, tail, seed| match kind.mixes {
            true => {
                let job = JobFacts::mixed(name, &versions, tail, seed);
                let variants = job.variants.as_ref().expect("it is a mixture");
                variants.change(&Dice::new(seed, 701), None, (0, 0));
                job
            }
            false => JobFacts::new(name, "images", &manifest, tail, seed),
        };
        let jobs = vec![
            planned("drop", Tail::Drop, seed),
            planned("pad", Tail::Pad, seed + 1),
            JobFacts::of(("uneven", "images"), &manifest, (Tail::Uneven, Mode::Dynamic), seed + 2),
            JobFacts::of(("shared", "images"), &manifest, (Tail::Uneven, Mode::Dynamic), seed + 3),
        ];
        let addresses: Vec<String> = (1..=FOUNDERS as u64).map(address_of).collect();
        let node = |index: usize| {
            let number = index as u64 + 1;
            let skew = dice.pick(0..1_000) as i64 - 500;
            let host = SimHost::new(time.clone(), Dice::new(seed, 100 + number), skew);
            let node = Node::new(number, host, (trace.clone(), breaches.clone()));
            if index < FOUNDERS {
                let peer = |number| format!("{number}={}", address_of(number));
                node.options.borrow_mut().peers = (1..=FOUNDERS as u64).map(peer).collect();
                node.is_wanted.set(true);
            }
            node
        };
        let nodes: Vec<Rc<Node>> = (0..FOUNDERS + SPARES).map(node).collect();
        let host = |index: usize| {
            Rc::new(WorkerHost {
                name: format!("host-{}", index + 1),
                coordinators: addresses.clone(),
                dice: Dice::new(seed, 200 + index as u64),
                oracle: Rc::clone(&oracle),
                breaches: breaches.clone(),
                trace: trace.clone(),
                catalog: Rc::clone(&catalog),
                jobs: jobs.clone(),
                orders: RefCell::default(),
                worker: RefCell::default(),
                serial: Cell::new(0),
                boots: Cell::new(0),
                nodes: nodes.clone(),
            })
        };
        let hosts: Vec<Rc<WorkerHost>> = (0..HOSTS).map(host).collect();
        let admin = Rc::new(Admin {
            coordinators: addresses,
            dice: Dice::new(seed, 300),
            oracle: Rc::clone(&oracle),
            breaches: breaches.clone(),
            trace: trace.clone(),
            jobs: jobs.clone(),
            errands: RefCell::default(),
            is_calm: Cell::new(true),
            busy: Cell::new(false),
            unclean: Cell::new(None),
            done: RefCell::default(),
            ready: Cell::new(0),
            more: RefCell::default(),
        });
        for node in &nodes {
            let node = Rc::clone(node);
            sim.host(node.name.clone(), move || ends(Rc::clone(&node).run()));
        }
        for host in &hosts {
            let host = Rc::clone(host);
            sim.host(host.name.clone(), move || ends(Rc::clone(&host).run()));
        }
        let person = Rc::clone(&admin);
        sim.host("admin", move || ends(Rc::clone(&person).run()));
        let launcher = |(index, job): (usize, Rc<JobFacts>)| {
            let is_deterministic = !job.identity.is_dynamic();
            let (skips, index) = (kind.skips && is_deterministic, index as u64);
            let reshards =
                (kind.reshards && is_deterministic).then(|| Dice::new(seed, 800 + index));
            let moves = Moves { skips, reshards };
            Launcher::new(job, (Dice::new(seed, 400 + index), moves), trace.clone())
        };
        let launchers = jobs.into_iter().enumerate().map(launcher).collect();
        let decides = (Dice::new(seed, 500), trace.clone());
        let nemesis =
            Nemesis::new(decides, nodes.clone(), hosts.clone(), (Rc::clone(&admin), FOUNDERS));
        let invariants = Invariants::new(breaches.clone(), Rc::clone(&oracle));
        Self {
            sim,
            time,
            trace,
            breaches,
            oracle,
            nodes,
            hosts,
            admin,
            launchers,
            nemesis,
            invariants,
        }
    }

    fn live(&mut self) {
        let stands = |world: &mut Self| world.launchers.iter().all(|launcher| launcher.epochs > 0);
        if !self.until(SET_UP_MS, false, stands) {
            return self.overdue("I16", "no epoch ended although nothing went wrong");
        }
        self.admin.is_calm.set(false);
        self.until(FAULTS_MS, true, |_| false);
        self.admin.is_calm.set(true);
        if self.breaches.first().is_some() {
            return;
        }
        self.nemesis.heal(&mut self.sim);
        let leads = |world: &mut Self| {
            let ready = |node: &Rc<Node>| {
                node.inspector.borrow().as_ref().is_some_and(|inspector| inspector.is_ready())
            };
            world.nodes.iter().any(ready)
        };
        if !self.until(LEADER_MS, false, leads) {
            return self.overdue("I16", "no leader answers after everything was mended");
        }
        self.trace.tell("a leader answers");
        let served = |world: &mut Self| {
            let known = |host: &Rc<WorkerHost>| {
                let session = host.worker.borrow().as_ref().and_then(|worker| worker.id());
                session.is_some_and(|session| world.leader_knows(session))
            };
            world.launchers.iter().all(Launcher::is_served) && world.hosts.iter().all(known)
        };
        if !self.until(SERVED_MS, false, served) {
            return self.overdue("I16", "not all ranks are served");
        }
        let epochs: Vec<u64> = self.launchers.iter().map(|launcher| launcher.epochs).collect();
        let ends = |world: &mut Self| {
            let mut now = world.launchers.iter().zip(&epochs);
            now.all(|(launcher, before)| launcher.epochs > *before) && !world.nemesis.is_changing()
        };
        if !self.until(EPOCH_MS, false, ends) {
            return self.overdue("I16", "no epoch ends, or a change of the members does not");
        }
        let found = |world: &mut Self| {
            let more = world.admin.more.borrow().clone();
            world.nodes.iter().any(|node| {
                let inspector = node.inspector.borrow();
                let ready = inspector.as_ref().filter(|inspector| inspector.is_ready());
                ready.is_some_and(|inspector| {
                    inspector.read(|state| more.iter().all(|name| is_ready(state, name)))
                })
            })
        };
        if !self.until(EPOCH_MS, false, found) {
            let more = self.admin.more.borrow().clone();
            let phases = self.nodes.iter().find_map(|node| {
                let inspector = node.inspector.borrow();
                let ready = inspector.as_ref().filter(|inspector| inspector.is_ready())?;
                Some(ready.read(|state| {
                    let open = more.iter().filter(|name| !is_ready(state, name));
                    let open = open.map(|name| format!("{name}: {:?}", state.dataset(name)));
                    open.collect::<Vec<_>>().join(", ")
                }))
            });
            return self.overdue("I16", &format!("a dataset is not indexed: {phases:?}"));
        }
        let level = |world: &mut Self| {
            let applied = |index: &usize| {
                let inspector = world.nodes[*index].inspector.borrow();
                inspector.as_ref().and_then(|inspector| inspector.status().applied)
            };
            let all: Vec<_> = world.nemesis.members.iter().map(applied).collect();
            let most = all.iter().flatten().max().copied().unwrap_or(0);
            all.iter().all(|applied| applied.is_some_and(|applied| applied + 5 >= most))
        };
        if !self.until(LEADER_MS, false, level) {
            self.overdue("I16", "a member does not catch up");
        }
    }

    /// Advances the simulation until `done` returns true.
    /// - Returns true if that happened within `ms`; false also after a breach.
    fn until(&mut self, ms: u64, faults: bool, done: impl Fn(&mut Self) -> bool) -> bool {
        let end = self.time.ms() + ms;
        while self.time.ms() < end {
            if let Err(error) = self.sim.step() {
                self.breaches.note("S1", format!("a machine died: {error}"));
            }
            let now = self.time.ms() + TICK_MS;
            self.time.set_ms(now);
            if now.is_multiple_of(LOOK_MS.0) {
                self.invariants.look(&self.nodes, now, now.is_multiple_of(LOOK_MS.1));
            }
            match faults {
                true => self.nemesis.tick(&mut self.sim, now),
                false => self.nemesis.follow_errands(&mut self.sim),
            }
            if now.is_multiple_of(LAUNCH_MS) {
                self.launch(now);
                if done(self) {
                    return true;
                }
            }
            if self.breaches.first().is_some() {
                return false;
            }
        }
        false
    }

    fn launch(&mut self, now: u64) {
        if self.admin.ready.get() < self.launchers.len() {
            return;
        }
        let reachable = |index| self.nemesis.is_reachable(&mut self.sim, index);
        let reached: Vec<bool> = (0..self.hosts.len()).map(reachable).collect();
        let hosts: Vec<_> = self.hosts.iter().cloned().zip(reached).collect();
        for launcher in &mut self.launchers {
            launcher.errs = !self.admin.is_calm.get();
            launcher.tick(now, &hosts);
        }
    }

    fn leader_knows(&self, session: u64) -> bool {
        self.nodes.iter().any(|node| {
            let inspector = node.inspector.borrow();
            let ready = inspector.as_ref().filter(|inspector| inspector.is_ready());
            ready.is_some_and(|inspector| inspector.read(|state| state.session(session).is_some()))
        })
    }

    fn overdue(&self, id: &'static str, what: &str) {
        let at = |node: &Rc<Node>| {
            let status = node.inspector.borrow().as_ref().map(|inspector| inspector.status());
            format!("{}: {status:?} {:?}", node.name, node.refused.borrow())
        };
        let wanted = self.nodes.iter().filter(|node| node.is_wanted.get());
        let nodes: Vec<_> = wanted.map(at).collect();
        self.breaches.note(id, format!("{what}; {}", nodes.join("; ")));
    }

    fn outcome(mut self, counted: Counted) -> Outcome {
        self.nemesis.count_disks();
        let mut totals: BTreeMap<String, u64> = BTreeMap::new();
        for (kind, times) in &self.nemesis.fired {
            totals.insert(format!("fault {kind}"), *times);
        }
        let holds = self.oracle.holds.counted();
        let clients = [self.oracle.skips.counted(), self.oracle.counted()];
        for (name, times) in holds.iter().chain(clients.iter().flatten()) {
            let is_fault = crate::nemesis::HOLDS.contains(name);
            totals.insert(if is_fault { format!("fault {name}") } else { (*name).into() }, *times);
        }
        let launched = |of: fn(&Launcher) -> u64| self.launchers.iter().map(of).sum::<u64>();
        let Counted { epochs, samples, steps, generations, shared_epochs, shared_samples, .. } =
            counted;
        let mixtures = |host: &Rc<WorkerHost>| {
            let variants = host.jobs.iter().filter_map(|job| job.variants.as_ref());
            variants.map(|variants| variants.count() as u64).sum()
        };
        for (name, number) in [
            ("epochs", epochs),
            ("samples", samples),
            ("steps", steps),
            ("generations", generations),
            ("samples-left-out", counted.left_out),
            ("source-epochs", counted.source_epochs),
            ("mixtures", self.hosts.first().map_or(0, mixtures)),
            ("dynamic-epochs", shared_epochs),
            ("dynamic-samples", shared_samples),
            ("grants", self.oracle.grants()),
            ("doubts-decided", self.oracle.lists.decisions()),
            ("resumes", launched(|launcher| launcher.resumes)),
            ("resizes", launched(|launcher| launcher.resized)),
            ("elections", self.invariants.elections()),
            ("hashes-compared", self.invariants.compared),
            ("logs-cut", self.invariants.cuts),
            ("snapshots-installed", self.invariants.jumps),
            ("simulated-ms", self.time.ms()),
        ] {
            totals.insert(name.to_owned(), number);
        }
        self.trace.tell(format!("{totals:?}"));
        Outcome { hash: self.trace.hash(), breach: self.breaches.first(), totals }
    }
}

async fn ends(software: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
    software.await;
    Ok(())
}

fn is_ready(state: &State, dataset: &str) -> bool {
    matches!(state.dataset(dataset).map(|dataset| &dataset.phase), Some(Phase::Ready(_)))
}
