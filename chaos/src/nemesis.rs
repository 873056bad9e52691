//! Fault injection: the seed determines the kind, time and duration of each fault; a fault is
//! counted only once it has taken effect.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use turmoil::Sim;

use crate::dice::Dice;
use crate::sim::DiskFaults;
use crate::trace::Trace;
use crate::world::admin::{Admin, Errand};
use crate::world::node::{ELECTION_MAX_MS, Node, TTL_MS, address_of};
use crate::world::worker::{Order, WorkerHost};

/// Maximum number of simultaneous faults.
const AT_ONCE: usize = 2;

/// Maximum jump of a wall clock, ms: longer than any retention time of the product.
const JUMP_MS_MAX: u64 = 7_200_000;

/// Latency of links between coordinators while workers are late, ms.
///
/// Committing the end of a session takes a round trip. It must stay short enough for the leader to
/// hear from a majority within an election timeout.
const LATE_DELAY_MS: Range<u64> = 80..180;

/// Maximum number of writes and syncs before a machine loses power: a few log commits.
const FUSE_WRITES_MAX: u64 = 60;

/// Link between two hosts, by name; the lesser name comes first.
type Link = (String, String);

/// Kinds of faults.
pub const KINDS: [&str; 23] = [
    "partition-leader",
    "partition-leader-with-hosts",
    "partition-random",
    "partition-bridge",
    "partition-one-way",
    "kill-leader",
    "kill-random",
    "power-one",
    "power-all",
    "power-in-write",
    "all-down",
    "pause-leader",
    "delay",
    "disk-full",
    "disk-error",
    "clock-jump",
    "transfer-leader",
    "replace-member",
    "worker-kill",
    "worker-pause",
    "workers-late",
    "host-crash",
    "trainers-kill",
];

/// Changes that operators request.
pub const HOLDS: [&str; 2] = ["job-pause", "job-cancel"];

/// Effects of power cuts on disks.
pub const LOSSES: [&str; 2] = ["lost-write", "torn-write"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cut {
    /// Messages are delayed.
    Held,
    /// Messages from the first host to the second are lost.
    Forth,
    /// Messages from the second host to the first are lost.
    Back,
    /// All messages are lost.
    Both,
}

#[derive(Debug, Default)]
struct Active {
    until_ms: u64,
    links: BTreeMap<Link, Cut>,
    /// Links with added latency.
    slow: Vec<Link>,
    /// Coordinators that restart when the fault ends.
    down: Vec<usize>,
    /// Hosts of workers that restart when the fault ends.
    hosts_down: Vec<usize>,
    /// Coordinator whose disk is repaired when the fault ends.
    disk: Option<usize>,
    /// Coordinators that lose power during a write, if they write enough.
    fuses: Vec<usize>,
}

/// Fault injector.
#[derive(Debug)]
pub struct Nemesis {
    dice: Dice,
    trace: Trace,
    nodes: Vec<Rc<Node>>,
    hosts: Vec<Rc<WorkerHost>>,
    admin: Rc<Admin>,
    active: Vec<Active>,
    applied: BTreeMap<Link, Cut>,
    next_ms: u64,
    next_spare: usize,
    founders: usize,
    /// Node that is being removed and the node that replaces it.
    leaving: Option<(usize, usize)>,
    /// Nodes that are members, as far as is known.
    pub members: Vec<usize>,
    /// Number of faults that took effect, by kind.
    pub fired: BTreeMap<&'static str, u64>,
}

impl Nemesis {
    /// Returns an injector that injects no faults before the first tick.
    pub fn new(
        (dice, trace): (Dice, Trace),
        nodes: Vec<Rc<Node>>,
        hosts: Vec<Rc<WorkerHost>>,
        (admin, founders): (Rc<Admin>, usize),
    ) -> Self {
        Self {
            dice,
            trace,
            nodes,
            hosts,
            admin,
            active: vec![],
            applied: BTreeMap::new(),
            next_ms: 0,
            next_spare: founders,
            founders,
            leaving: None,
            members: (0..founders).collect(),
            fired: BTreeMap::new(),
        }
    }

    /// Returns true if the launchers can reach a host; they run on the operators' machine.
    pub fn is_reachable(&self, sim: &mut Sim<'_>, host: usize) -> bool {
        let name = &self.hosts[host].name;
        !self.applied.contains_key(&link("admin", name)) && sim.is_host_running(name.as_str())
    }

    /// Ends the faults that have expired and starts new ones at random times.
    pub fn tick(&mut self, sim: &mut Sim<'_>, now_ms: u64) {
        self.end(sim, |active| active.until_ms <= now_ms);
        self.follow_errands(sim);
        if now_ms >= self.next_ms && self.active.len() < AT_ONCE {
            self.next_ms = now_ms + self.dice.pick(200..1_400);
            let kind = *self.dice.one(&KINDS).expect("there are kinds");
            if let Some(active) = self.begin(sim, kind, now_ms) {
                self.trace.tell(format!("nemesis: {kind} until {}", active.until_ms));
                self.active.push(active);
                self.apply_links(sim);
            }
        }
    }

    /// Ends all faults.
    pub fn heal(&mut self, sim: &mut Sim<'_>) {
        self.trace.tell("nemesis: everything is mended");
        self.end(sim, |_| true);
        for index in 0..self.nodes.len() {
            self.mend_disk(sim, index);
        }
    }

    /// Returns the node that leads in the highest term.
    pub fn leader(&self) -> Option<usize> {
        let leads = |index: &usize| {
            let inspector = self.nodes[*index].inspector.borrow();
            let status = inspector.as_ref()?.status();
            status.is_leader.then_some((status.term, *index))
        };
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        all.iter().filter_map(leads).max().map(|(_, index)| index)
    }

    fn count(&mut self, kind: &'static str) {
        *self.fired.entry(kind).or_default() += 1;
    }

    fn end(&mut self, sim: &mut Sim<'_>, over: impl Fn(&Active) -> bool) {
        self.follow_fuses(sim);
        let (ended, active): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.active).into_iter().partition(over);
        self.active = active;
        if ended.is_empty() {
            return;
        }
        for Active { slow, down, hosts_down, disk, fuses, .. } in ended {
            for index in fuses {
                self.nodes[index].host.disks().put_out();
            }
            for (a, b) in slow {
                sim.set_link_latency(a.as_str(), b.as_str(), Duration::from_millis(3));
            }
            if let Some(index) = disk {
                self.mend_disk(sim, index);
            }
            for index in down {
                self.boot(sim, index);
            }
            for index in hosts_down {
                sim.bounce(self.hosts[index].name.as_str());
            }
        }
        self.apply_links(sim);
    }

    fn mend_disk(&mut self, sim: &mut Sim<'_>, index: usize) {
        let node = Rc::clone(&self.nodes[index]);
        node.host.disks().set_faults(DiskFaults::default());
        let fatal = node.inspector.borrow().as_ref().is_some_and(|i| i.status().fatal.is_some());
        if fatal || node.refused.borrow().is_some() {
            self.trace.tell(format!("{} is started again, its disk is mended", node.name));
            self.boot(sim, index);
        }
    }

    /// Marks coordinators that lost power during a write as down.
    fn follow_fuses(&mut self, sim: &mut Sim<'_>) {
        for at in 0..self.active.len() {
            let dark = |index: &usize| self.nodes[*index].host.disks().is_dark();
            let (dark, fuses) =
                std::mem::take(&mut self.active[at].fuses).into_iter().partition(dark);
            self.active[at].fuses = fuses;
            self.active[at].down.extend(&dark);
            for index in dark {
                self.trace.tell(format!("{} lost its power in a write", self.nodes[index].name));
                self.crash(sim, index, None);
                self.count("power-in-write");
            }
        }
    }

    /// Starts a coordinator; restarts it if it runs.
    fn boot(&mut self, sim: &mut Sim<'_>, index: usize) {
        self.crash(sim, index, None);
        sim.bounce(self.nodes[index].name.as_str());
    }

    /// Crashes a coordinator.
    /// - `power`: if set, the machine loses power and unsynced data may be lost; the value says
    ///   whether blocks may tear.
    fn crash(&mut self, sim: &mut Sim<'_>, index: usize, power: Option<bool>) {
        let node = &self.nodes[index];
        sim.crash(node.name.as_str());
        *node.inspector.borrow_mut() = None;
        node.crashes.set(node.crashes.get() + 1);
        match power {
            Some(tears) => node.host.disks().cut_power(tears),
            None => node.host.disks().kill(),
        }
    }

    fn running(&self) -> Vec<usize> {
        let runs = |index: &usize| self.nodes[*index].inspector.borrow().is_some();
        self.members.iter().copied().filter(runs).collect()
    }

    fn everyone(&self) -> Vec<String> {
        let nodes = self.nodes.iter().map(|node| node.name.clone());
        let hosts = self.hosts.iter().map(|host| host.name.clone());
        nodes.chain(hosts).chain(["admin".to_owned()]).collect()
    }

    /// Returns the links from the given hosts to all others.
    fn around(&self, names: &[String], cut: Cut) -> BTreeMap<Link, Cut> {
        let mut links = BTreeMap::new();
        for name in names {
            for other in self.everyone().iter().filter(|other| !names.contains(other)) {
                links.insert(link(name, other), cut);
            }
        }
        links
    }

    fn begin(&mut self, sim: &mut Sim<'_>, kind: &'static str, now_ms: u64) -> Option<Active> {
        let until_ms = now_ms + self.dice.pick(300..2_200);
        let mut active = Active { until_ms, ..Active::default() };
        let running = self.running();
        let name = |index: usize| self.nodes[index].name.clone();
        let some = self.dice.one(&running).copied();
        match kind {
            "partition-leader" => active.links = self.around(&[name(self.leader()?)], Cut::Both),
            "partition-leader-with-hosts" => {
                // The other side elects a leader and expires sessions, while workers on this side
                // still ask the old leader.
                let names: Vec<_> = self.hosts.iter().map(|host| host.name.clone()).collect();
                let mut side: Vec<_> = names.into_iter().filter(|_| self.dice.chance(50)).collect();
                side.push(name(self.leader()?));
                active.until_ms += ELECTION_MAX_MS + TTL_MS;
                active.links = self.around(&side, Cut::Both);
            }
            "partition-random" => {
                // Some coordinators and some hosts are on one side.
                let all = self.everyone();
                let side: Vec<_> = all.into_iter().filter(|_| self.dice.chance(35)).collect();
                active.links = self.around(&side, Cut::Both);
                if active.links.is_empty() {
                    return None;
                }
            }
            "partition-bridge" => {
                // Two coordinators cannot reach each other; the third reaches both.
                let (a, b) = (some?, self.dice.one(&running).copied()?);
                if a == b {
                    return None;
                }
                active.links.insert(link(&name(a), &name(b)), Cut::Both);
            }
            "partition-one-way" => {
                let from = name(some?);
                for other in self.everyone().into_iter().filter(|other| *other != from) {
                    let cut = if from < other { Cut::Forth } else { Cut::Back };
                    active.links.insert(link(&from, &other), cut);
                }
            }
            "pause-leader" => active.links = self.around(&[name(self.leader()?)], Cut::Held),
            "delay" => {
                let slow = name(some?);
                let by = Duration::from_millis(self.dice.pick(20..250));
                let others = self.everyone().into_iter().filter(|other| *other != slow);
                active.slow = slow_down(sim, by, others.map(|other| (slow.clone(), other)));
            }
            "kill-leader" => active.down = vec![self.leader()?],
            "kill-random" | "power-one" => active.down = vec![some?],
            "power-all" | "all-down" => {
                if running.is_empty() {
                    return None;
                }
                active.down.clone_from(&running);
            }
            "power-in-write" => {
                let all = self.dice.chance(25);
                active.fuses = if all { running } else { vec![some?] };
                for index in &active.fuses {
                    let (writes, tears) =
                        (self.dice.pick(0..FUSE_WRITES_MAX), self.dice.chance(70));
                    self.nodes[*index].host.disks().light_fuse(writes, tears);
                }
            }
            "disk-full" | "disk-error" => {
                let index = some?;
                let (is_full, errors_percent) = (kind == "disk-full", self.dice.pick(5..60));
                let errors_percent = if is_full { 0 } else { errors_percent };
                let faults = DiskFaults { is_full, errors_percent };
                self.nodes[index].host.disks().set_faults(faults);
                active.disk = Some(index);
            }
            "clock-jump" => {
                // Answers are remembered for a limited time by the wall clock. After a longer jump
                // they are forgotten, and a request that is sent again is executed again.
                let by = self.dice.pick(1..JUMP_MS_MAX) as i64;
                let by = if self.dice.chance(50) { by } else { -by };
                self.nodes[some?].host.jump(by);
            }
            "transfer-leader" => {
                let to = some.map(|index| self.nodes[index].number);
                return self.errand(Errand::Transfer(to.filter(|_| self.dice.chance(50))));
            }
            "replace-member" => return self.replace(sim),
            "workers-late" => {
                // Their messages arrive at about the time at which the ends of their sessions are
                // proposed; committing these takes longer.
                let leader = name(self.leader()?);
                let nodes: Vec<_> = self.nodes.iter().map(|node| node.name.clone()).collect();
                let hosts = self.hosts.iter().map(|host| &host.name);
                let held = hosts.flat_map(|host| nodes.iter().map(|node| link(host, node)));
                active.links = held.map(|link| (link, Cut::Held)).collect();
                active.until_ms = now_ms + TTL_MS - TTL_MS / 8 + self.dice.pick(0..TTL_MS / 4);
                let by = Duration::from_millis(self.dice.pick(LATE_DELAY_MS));
                let others = nodes.iter().filter(|other| **other != leader);
                let slow = others.map(|other| (leader.clone(), other.clone()));
                let slow = slow_down(sim, by, slow);
                let until_ms = active.until_ms + TTL_MS / 2;
                // No other fault may delay them further or cause the leader to be replaced.
                self.next_ms = until_ms;
                self.active.push(Active { until_ms, slow, ..Active::default() });
            }
            "worker-kill" | "trainers-kill" | "host-crash" | "worker-pause" => {
                return self.hurt_host(sim, kind, active);
            }
            _ => return None,
        }
        for index in active.down.clone() {
            let tears = kind.starts_with("power").then(|| self.dice.chance(50));
            self.crash(sim, index, tears);
            self.nodes[index].host.disks().set_faults(DiskFaults::default());
        }
        // Disk faults count when a write encounters them.
        if active.disk.is_none() && active.fuses.is_empty() {
            self.count(kind);
        }
        Some(active)
    }

    fn hurt_host(
        &mut self,
        sim: &mut Sim<'_>,
        kind: &'static str,
        mut active: Active,
    ) -> Option<Active> {
        let at = self.dice.pick(0..self.hosts.len() as u64) as usize;
        let host = Rc::clone(&self.hosts[at]);
        if !sim.is_host_running(host.name.as_str()) {
            return None;
        }
        match kind {
            "worker-kill" => {
                let pause = Duration::from_millis(self.dice.pick(50..2 * TTL_MS));
                host.orders.borrow_mut().push_back(Order::KillWorker(pause));
            }
            "trainers-kill" => {
                let job = self.dice.one(&self.admin.jobs).expect("there are jobs").name.clone();
                host.orders.borrow_mut().push_back(Order::KillTrainers(job));
            }
            "host-crash" => {
                sim.crash(host.name.as_str());
                host.orders.borrow_mut().clear();
                *host.worker.borrow_mut() = None;
                host.boots.set(host.boots.get() + 1);
                active.hosts_down = vec![at];
            }
            _ => {
                // Longer than a session TTL.
                active.until_ms += TTL_MS;
                active.links = self.around(std::slice::from_ref(&host.name), Cut::Held);
            }
        }
        self.count(kind);
        Some(active)
    }

    fn errand(&self, errand: Errand) -> Option<Active> {
        let idle = !self.admin.busy.get() && self.admin.errands.borrow().is_empty();
        if idle {
            self.trace.tell(format!("nemesis: {errand:?}"));
            self.admin.errands.borrow_mut().push_back(errand);
        }
        None
    }

    /// Replaces a member by an unused node; counted when both the addition and the removal are
    /// done.
    fn replace(&mut self, sim: &mut Sim<'_>) -> Option<Active> {
        if self.leaving.is_some() || self.next_spare >= self.nodes.len() {
            return None;
        }
        let (leaves, comes) = (*self.dice.one(&self.members)?, self.next_spare);
        // Processes that start know the founders' addresses, so one founder stays, as an operator
        // would ensure.
        let is_founder = |index: &usize| *index < self.founders;
        let founders = self.members.iter().copied().filter(is_founder);
        if founders.eq([leaves]) {
            return None;
        }
        self.next_spare += 1;
        self.leaving = Some((leaves, comes));
        let node = Rc::clone(&self.nodes[comes]);
        let join = self.members.iter().map(|index| address_of(self.nodes[*index].number));
        node.options.borrow_mut().join = join.collect();
        node.is_wanted.set(true);
        let _ = sim;
        let add = Errand::Add(node.number, address_of(node.number));
        let remove = Errand::Remove(self.nodes[leaves].number);
        let mut errands = self.admin.errands.borrow_mut();
        self.trace.tell(format!("nemesis: {add:?}, {remove:?}"));
        errands.extend([add, remove]);
        None
    }

    /// Processes the results of errands; a failed errand is retried.
    pub fn follow_errands(&mut self, sim: &mut Sim<'_>) {
        let done: Vec<Errand> = std::mem::take(&mut *self.admin.done.borrow_mut());
        for errand in done {
            match errand {
                Errand::Transfer(_) => self.count("transfer-leader"),
                Errand::Add(number, _) => self.members.push(number as usize - 1),
                Errand::Remove(number) => {
                    let index = number as usize - 1;
                    self.members.retain(|member| *member != index);
                    self.nodes[index].is_wanted.set(false);
                    for active in &mut self.active {
                        active.down.retain(|down| *down != index);
                        active.disk = active.disk.filter(|disk| *disk != index);
                        active.fuses.retain(|fuse| *fuse != index);
                    }
                    if sim.is_host_running(self.nodes[index].name.as_str()) {
                        self.crash(sim, index, None);
                    }
                }
            }
        }
        if let Some(number) = self.admin.unclean.take() {
            let index = number as usize - 1;
            self.crash(sim, index, None);
            self.nodes[index].host.disks().wipe();
            self.boot(sim, index);
        }
        let Some((leaves, comes)) = self.leaving else {
            return;
        };
        let (has_come, has_left) = (self.members.contains(&comes), !self.members.contains(&leaves));
        if has_come && has_left {
            self.leaving = None;
            return self.count("replace-member");
        }
        if !self.admin.busy.get() && self.admin.errands.borrow().is_empty() {
            let (number, leaves) = (self.nodes[comes].number, self.nodes[leaves].number);
            let next = match has_come {
                false => Errand::Add(number, address_of(number)),
                true => Errand::Remove(leaves),
            };
            self.admin.errands.borrow_mut().push_back(next);
        }
    }

    /// Returns true while a membership change is in progress.
    pub fn is_changing(&self) -> bool {
        self.leaving.is_some() || self.admin.busy.get()
    }

    /// Applies the link states of all active faults to the network.
    fn apply_links(&mut self, sim: &mut Sim<'_>) {
        let mut wanted: BTreeMap<Link, Cut> = BTreeMap::new();
        for (link, cut) in self.active.iter().flat_map(|active| &active.links) {
            let now = wanted.entry(link.clone()).or_insert(*cut);
            *now = if *now == *cut { *cut } else { Cut::Both };
        }
        for (link @ (a, b), cut) in &self.applied {
            if wanted.get(link) != Some(cut) {
                sim.release(a.as_str(), b.as_str());
                sim.repair(a.as_str(), b.as_str());
            }
        }
        for (link @ (a, b), cut) in &wanted {
            if self.applied.get(link) == Some(cut) {
                continue;
            }
            let (a, b) = (a.as_str(), b.as_str());
            match cut {
                Cut::Held => sim.hold(a, b),
                Cut::Forth => sim.partition_oneway(a, b),
                Cut::Back => sim.partition_oneway(b, a),
                Cut::Both => sim.partition(a, b),
            }
        }
        self.applied = wanted;
    }

    /// Adds the disks' fault counters.
    pub fn count_disks(&mut self) {
        let all = self.nodes.iter().map(|node| node.host.disks().fired());
        let (full, errors, lost, torn) = all.fold((0, 0, 0, 0), |sum, fired| {
            (sum.0 + fired.full, sum.1 + fired.errors, sum.2 + fired.lost, sum.3 + fired.torn)
        });
        for (kind, times) in [
            ("disk-full", full),
            ("disk-error", errors),
            ("lost-write", lost),
            ("torn-write", torn),
        ] {
            self.fired.insert(kind, times);
        }
    }
}

/// Sets the latency of links.
/// - Returns the links.
fn slow_down(sim: &mut Sim<'_>, by: Duration, links: impl Iterator<Item = Link>) -> Vec<Link> {
    links.inspect(|(a, b)| sim.set_link_latency(a.as_str(), b.as_str(), by)).collect()
}

fn link(a: &str, b: &str) -> Link {
    if a < b { (a.into(), b.into()) } else { (b.into(), a.into()) }
}
