//! A coordinator on a simulated machine: the real one, started and started again.

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

/// The port of all coordinators.
pub const PORT: u16 = 7070;

/// A worker's session lives so long, ms.
pub const TTL_MS: u64 = 1_500;

/// The longest a follower waits before it campaigns, ms.
pub const ELECTION_MAX_MS: u64 = 600;

/// A machine for a coordinator.
#[derive(Debug)]
pub struct Node {
    /// Its number in the cluster.
    pub number: u64,
    /// Its name in the network.
    pub name: String,
    /// The machine.
    pub host: SimHost,
    /// How its coordinator is set up.
    pub options: RefCell<CoordinatorOptions>,
    /// Whether a coordinator shall run there.
    pub is_wanted: Cell<bool>,
    /// A look inside, while one runs and is a member.
    pub inspector: RefCell<Option<Inspector>>,
    /// Counts crashes.
    pub crashes: Cell<u64>,
    /// Why it does not run.
    pub refused: RefCell<Option<String>>,
    trace: Trace,
    breaches: Breaches,
}

impl Node {
    /// A machine on which nothing runs yet.
    pub fn new(number: u64, host: SimHost, (trace, breaches): (Trace, Breaches)) -> Rc<Self> {
        let name = name_of(number);
        let options = CoordinatorOptions {
            listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            http: None,
            // Simulated machines have no certificates; coordinators refuse such addresses otherwise.
            insecure: true,
            node_id: number,
            advertise: Some(address_of(number)),
            session_ttl_ms: TTL_MS,
            heartbeat_ms: TTL_MS / 4,
            election_max_ms: ELECTION_MAX_MS,
            // Few enough that every run sees snapshots, cut logs and nodes that need a snapshot.
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

    /// Runs a coordinator while one is wanted, until the machine dies.
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
                // It is dropped with the machine.
                pending::<()>().await;
                drop(running);
            }
            Err(error) => {
                let chain = chain_of(&error);
                // Power cuts are no damage: only a disk that fails is a reason not to start, or a machine
                // that has just lost its power.
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

/// A coordinator's name in the network.
pub fn name_of(number: u64) -> String {
    format!("coord-{number}")
}

/// A coordinator's address.
pub fn address_of(number: u64) -> String {
    format!("{}:{PORT}", name_of(number))
}
