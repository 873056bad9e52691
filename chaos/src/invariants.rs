//! Invariants of the coordinators' internal state, checked at every inspection.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use shardfeed_coordinator::Inspector;
use shardfeed_raft::Status;
use shardfeed_scheduler::{EndReason, EventKind, Hold};

use crate::breach::Breaches;
use crate::lists::Decision;
use crate::oracle::Oracle;
use crate::world::node::{Node, TTL_MS};

/// Precision of the observed times, ms.
const SLACK_MS: u64 = 40;

/// Maximum bytes on one node's disks, after minutes at a few changes per second.
const DISK_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of log entries that a node keeps beyond the snapshots that truncate its log.
const LOG_ENTRIES_MAX: u64 = 400;

/// Job, generation and rank.
type RankKey = (String, u64, u64);

/// Observations of the coordinators, compared from one inspection to the next.
#[derive(Debug)]
pub struct Invariants {
    breaches: Breaches,
    oracle: Rc<Oracle>,
    /// Observed leaders, as (term, node).
    ///
    /// A term may have several leaders. Each is elected by a majority and outranks those of the
    /// term with lower node numbers, so (term, node) increases.
    leaders: BTreeSet<(u64, u64)>,
    /// Highest index that any node was observed to have committed.
    committed: u64,
    /// Hash of the state at each index, from the first node observed there.
    hashes: BTreeMap<u64, [u8; 32]>,
    /// Last status of each node, with its crash count at that time.
    last: BTreeMap<u64, (u64, Status)>,
    applied: u64,
    /// Number of the last event that was checked.
    event: u64,
    ranks: BTreeMap<RankKey, RankSeen>,
    /// Times of the first and last inspection at which a node answered as leader, by term and node.
    offices: BTreeMap<(u64, u64), (u64, u64)>,
    /// Highest id of a session that was observed to have expired.
    expired: u64,
    /// Number of comparisons of two nodes at the same index.
    pub compared: u64,
    /// Number of snapshots that were sent to nodes because the log no longer held the entries they
    /// lacked.
    pub jumps: u64,
    /// Number of observed log truncations.
    pub cuts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankSeen {
    cursor: (u64, u64),
    /// Highest fencing token that was observed.
    fencing: u64,
    /// Fencing token of its current lease; 0: no lease.
    lease: u64,
    superseded: bool,
    /// True if its job is cancelled.
    cancelled: bool,
}

impl Invariants {
    /// Returns a checker without any observations.
    pub fn new(breaches: Breaches, oracle: Rc<Oracle>) -> Self {
        Self {
            breaches,
            oracle,
            leaders: BTreeSet::new(),
            committed: 0,
            hashes: BTreeMap::new(),
            last: BTreeMap::new(),
            applied: 0,
            event: 0,
            ranks: BTreeMap::new(),
            offices: BTreeMap::new(),
            expired: 0,
            compared: 0,
            jumps: 0,
            cuts: 0,
        }
    }

    /// Returns the number of leaders that were elected.
    pub fn elections(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// Checks the nodes that run.
    /// - `deep`: also run the expensive checks.
    pub fn look(&mut self, nodes: &[Rc<Node>], now_ms: u64, deep: bool) {
        let mut furthest: Option<(u64, Inspector)> = None;
        let mut committed = self.committed;
        for node in nodes {
            let inspector = node.inspector.borrow().clone();
            let Some(inspector) = inspector else {
                self.last.remove(&node.number);
                continue;
            };
            let status = inspector.status();
            self.look_at(node, &status);
            if inspector.is_ready() {
                let office = self.offices.entry((status.term, node.number));
                office.or_insert((now_ms, now_ms)).1 = now_ms;
            }
            let applied = status.applied.unwrap_or(0);
            if furthest.as_ref().is_none_or(|(most, _)| *most < applied) {
                furthest = Some((applied, inspector.clone()));
            }
            if deep {
                self.look_inside(node, &inspector);
            }
            committed = committed.max(status.committed.unwrap_or(0));
            self.last.insert(node.number, (node.crashes.get(), status));
        }
        self.committed = committed;
        if let Some((applied, inspector)) = furthest.filter(|(applied, _)| *applied > self.applied)
        {
            self.applied = applied;
            self.look_at_ranks(&inspector, now_ms);
            self.look_at_decisions(&inspector, now_ms);
            self.look_at_sessions(&inspector, now_ms);
        }
    }

    fn look_at(&mut self, node: &Node, status: &Status) {
        let Status { term, is_leader, last, committed, applied, snapshot, purged, .. } = status;
        let office = (*term, node.number);
        let outranks = self.leaders.last().is_none_or(|last| *last < office);
        // A leader that is already outranked when first observed may lack entries that its
        // successor committed.
        if *is_leader && self.leaders.insert(office) && outranks {
            self.breaches.check(last.unwrap_or(0) >= self.committed, "I14", || {
                let committed = self.committed;
                format!(
                    "{} leads and lacks entry {committed}, which is committed: {status:?}",
                    node.name
                )
            });
        }
        let in_order = purged <= snapshot && snapshot <= applied && applied <= committed;
        self.breaches.check(in_order && committed <= last, "I14", || {
            format!("{} is at {status:?}", node.name)
        });
        let kept = last.unwrap_or(0) - purged.unwrap_or(0);
        self.breaches.check(kept <= LOG_ENTRIES_MAX, "I17", || {
            format!("the log of {} holds {kept} entries: {status:?}", node.name)
        });
        let crashes = node.crashes.get();
        let last_seen = self.last.get(&node.number).filter(|(at, _)| *at == crashes);
        if let Some((_, before)) = last_seen {
            let grows = before.term <= *term
                && before.applied <= *applied
                && before.committed <= *committed
                && before.purged <= *purged
                && before.snapshot <= *snapshot;
            self.breaches.check(grows, "I14", || {
                format!("{} went from {before:?} back to {status:?}", node.name)
            });
            self.cuts += u64::from(before.purged < *purged);
            let jumped = snapshot.unwrap_or(0) > before.applied.unwrap_or(0) + 1;
            self.jumps += u64::from(before.snapshot < *snapshot && jumped);
        }
    }

    fn look_inside(&mut self, node: &Node, inspector: &Inspector) {
        if let Err(breach) = inspector.read(shardfeed_scheduler::State::check) {
            self.breaches.note("S1", format!("{}: {breach}", node.name));
        }
        let (index, hash) = inspector.state_hash();
        if index > 0 {
            if let Some(first) = self.hashes.get(&index) {
                self.compared += 1;
                self.breaches.check(*first == hash, "I13", || {
                    format!("{} has another state at index {index} than others", node.name)
                });
            }
            self.hashes.insert(index, hash);
        }
        let bytes = node.host.disks().bytes();
        self.breaches.check(bytes <= DISK_BYTES_MAX, "I17", || {
            format!("the disks of {} hold {bytes} bytes", node.name)
        });
    }

    /// Checks that after a failover every session is granted its whole TTL again.
    fn look_at_sessions(&mut self, inspector: &Inspector, now_ms: u64) {
        let expired = inspector.read(|state| {
            let ended = state.ended_sessions().filter(|s| s.reason == EndReason::Expired);
            ended.map(|ended| ended.id).max()
        });
        let Some(session) = expired.filter(|session| *session > self.expired) else {
            return;
        };
        self.expired = session;
        // The leader that proposed the expiry had led for a whole TTL by then. Proposals that a
        // former leader left behind are decided before the next leader answers.
        let in_time = |(since, until): &(u64, u64)| {
            let mut later = self.offices.values().filter(|(other, _)| other > since);
            since + TTL_MS <= until + SLACK_MS && later.all(|(other, _)| other + SLACK_MS >= now_ms)
        };
        self.breaches.check(self.offices.values().any(in_time), "I10", || {
            format!("session {session} expired although no node led for a whole ttl")
        });
    }

    /// Passes the policy's decisions about in-doubt samples to the oracle.
    fn look_at_decisions(&mut self, inspector: &Inspector, now_ms: u64) {
        let after = self.event;
        let events: Vec<_> = inspector.read(|state| state.events_after(after).cloned().collect());
        for event in events {
            self.event = event.number;
            if let EventKind::DoubtDecided { job, generation, rank, epoch, samples, is_dropped } =
                event.what
            {
                let decision = Decision { rank, epoch, samples, is_dropped };
                self.oracle.lists.decided((&job, generation), &decision, now_ms);
            }
        }
    }

    /// Checks that cursors only increase, only as far as the lease holder reported, and that
    /// superseded generations do not change.
    fn look_at_ranks(&mut self, inspector: &Inspector, now_ms: u64) {
        let seen = inspector.read(|state| {
            let mut seen = vec![];
            for job in state.jobs() {
                for (number, generation) in &job.generations {
                    for (rank, known) in &generation.ranks {
                        let key = (job.name.clone(), *number, *rank);
                        let cursor = (known.cursor.epoch, known.cursor.step);
                        let fencing = known.lease.as_ref().map_or(0, |lease| lease.fencing);
                        let superseded = generation.superseded_by.is_some();
                        let lease = fencing;
                        let cancelled =
                            job.held.as_ref().is_some_and(|held| held.hold == Hold::Cancelled);
                        let rank = RankSeen { cursor, fencing, lease, superseded, cancelled };
                        seen.push((key, rank));
                    }
                }
            }
            seen
        });
        for (key, mut now) in seen {
            if let Some(before) = self.ranks.get(&key) {
                now.fencing = now.fencing.max(before.fencing);
                if before.lease != 0 && before.lease != now.lease {
                    let (job, generation, rank) = key.clone();
                    self.oracle.lists.unserved((&job, generation), rank, now_ms);
                    let lease = (job, generation, rank, before.lease);
                    match now.cancelled {
                        true => self.oracle.lists.lease_cancelled(lease, before.cursor),
                        false => self.oracle.lists.lease_ended(lease, before.cursor),
                    }
                }
                self.breaches.check(now.cursor >= before.cursor, "I6", || {
                    format!("the cursor of {key:?} went from {before:?} to {now:?}")
                });
                let moved = now.cursor != before.cursor;
                self.breaches.check(!moved || !before.superseded, "I3", || {
                    format!("{key:?} was superseded and moved from {before:?} to {now:?}")
                });
                let told = self.oracle.told_since(&key, before.fencing);
                self.breaches.check(!moved || told >= Some(now.cursor), "I3", || {
                    format!("{key:?} moved from {before:?} to {now:?}, but {told:?} was reported")
                });
                self.breaches.check(!before.superseded || now.superseded, "I6", || {
                    format!("{key:?} is no longer superseded")
                });
            }
            self.ranks.insert(key, now);
        }
    }
}
