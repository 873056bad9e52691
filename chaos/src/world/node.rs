//! Coordinator on a simulated machine: the real coordinator, started and restarted.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Inspector};
use tokio::time::sleep;

use crate::breach::Breaches;
use crate::sim::{DiskFaults, SimHost};
use crate::trace::Trace;

/// Port of all coordinators.
pub const PORT: u16 = 7070;

/// TTL of a worker's session, ms.
pub const TTL_MS: u64 = 1_500;

/// Longest time that a follower waits before it campaigns, ms.
pub const ELECTION_MAX_MS: u64 = 600;

/// Machine for a coordinator.
#[derive(Debug)]
pub struct Node {
    /// Node number in the cluster.
    pub number: u64,
    /// Host name in the network.
    pub name: String,
    /// Simulated machine.
    pub host: SimHost,
    /// Options of its coordinator.
    pub options: RefCell<CoordinatorOptions>,
    /// True if a coordinator is to run there.
    pub is_wanted: Cell<bool>,
    /// Inspector of the coordinator, while one runs and is a member.
    pub inspector: RefCell<Option<Inspector>>,
    /// Number of crashes.
    pub crashes: Cell<u64>,
    /// Reason why the coordinator did not start.
    pub refused: RefCell<Option<String>>,
    trace: Trace,
    breaches: Breaches,
}

impl Node {
    /// Returns a machine on which nothing runs yet.
    pub fn new(number: u64, host: SimHost, (trace, breaches): (Trace, Breaches)) -> Rc<Self> {
        let name = name_of(number);
        let options = CoordinatorOptions {
            listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            http: None,
            // Simulated machines have no certificates; coordinators reject such addresses
            // otherwise.
            insecure: true,
            node_id: number,
            advertise: Some(address_of(number)),
            session_ttl_ms: TTL_MS,
            heartbeat_ms: TTL_MS / 4,
            election_max_ms: ELECTION_MAX_MS,
            // Low enough for every run to see snapshots, truncated logs and nodes that need a
            // snapshot.
            snapshot_every: 40,
            ..CoordinatorOptions::new("/var/lib/shardfeed")
        };
        Rc::new(Self {
            number,
            name,
            host,
            options: RefCell::new(options),
            is_wanted: Cell::new(false),
            inspector: RefCell::default(),
            crashes: Cell::new(0),
            refused: RefCell::default(),
            trace,
            breaches,
        })
    }

    /// Waits until a coordinator is wanted, then runs it until the machine dies.
    pub async fn run(self: Rc<Self>) {
        while !self.is_wanted.get() {
            sleep(Duration::from_millis(10)).await;
        }
        *self.refused.borrow_mut() = None;
        let options = self.options.borrow().clone();
        match Coordinator::start_on(Arc::new(self.host.clone()), options).await {
            Ok(running) => {
                *self.inspector.borrow_mut() = Some(running.inspector());
                self.trace.tell(format!("{} runs", self.name));
                // Dropped when the machine dies.
                pending::<()>().await;
                drop(running);
            }
            Err(error) => {
                let chain = chain_of(&error);
                // A power cut is no damage: only a failing disk, or a machine that has just lost
                // power, is a reason not to start.
                let disks = self.host.disks();
                let reason = disks.faults() != DiskFaults::default() || disks.is_dark();
                self.breaches.check(reason, "I5", || format!("{}: {chain}", self.name));
                self.trace.tell(format!("{} does not start: {chain}", self.name));
                *self.refused.borrow_mut() = Some(chain);
                pending::<()>().await;
            }
        }
    }
}

fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Returns a coordinator's host name.
pub fn name_of(number: u64) -> String {
    format!("coord-{number}")
}

/// Returns a coordinator's address.
pub fn address_of(number: u64) -> String {
    format!("{}:{PORT}", name_of(number))
}
