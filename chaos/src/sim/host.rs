//! Host of a simulated coordinator: turmoil's network, tokio's virtual time, a wall clock that may
//! be wrong, seeded randomness, disks that lose unsynced data, no threads.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use shardfeed_host::{ByteStream, Disk, Host, Listener};
use tokio::time::Instant;
use turmoil::net::{TcpListener, TcpStream};

use crate::dice::Dice;
use crate::sim::SimDisks;

/// Initial value of the simulated wall clocks, Unix ms: 2030.
pub const BEGIN_MS: u64 = 1_893_456_000_000;

/// Simulation time, shared by all hosts and by its clones.
#[derive(Clone, Debug, Default)]
pub struct SimTime(Arc<AtomicU64>);

impl SimTime {
    /// Returns the milliseconds since the simulation began.
    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the time; only the simulation loop calls it.
    pub fn set_ms(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
        super::process::set_ms(ms);
    }
}

/// A simulated machine; clones refer to the same machine.
#[derive(Clone, Debug)]
pub struct SimHost {
    time: SimTime,
    dice: Dice,
    disks: SimDisks,
    /// Error of its wall clock, ms.
    skew_ms: Arc<AtomicI64>,
}

impl SimHost {
    /// Returns a machine with empty disks.
    /// - `skew_ms`: error of its wall clock.
    pub fn new(time: SimTime, dice: Dice, skew_ms: i64) -> Self {
        let disks = SimDisks::new(dice.clone());
        Self { time, dice, disks, skew_ms: Arc::new(AtomicI64::new(skew_ms)) }
    }

    /// Returns the disks of the machine.
    pub fn disks(&self) -> &SimDisks {
        &self.disks
    }

    /// Sets the error of the wall clock to `to_ms`.
    pub fn jump(&self, to_ms: i64) {
        self.skew_ms.store(to_ms, Ordering::Relaxed);
    }
}

impl Host for SimHost {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_ms(&self) -> u64 {
        (BEGIN_MS + self.time.ms()).saturating_add_signed(self.skew_ms.load(Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        self.dice.bits()
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let address = address.to_owned();
        async move {
            let stream = TcpStream::connect(address).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        }
        .boxed()
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(SimListener(listener)) as Box<dyn Listener>)
        }
        .boxed()
    }

    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.disks.open(folder)))
    }

    fn has_threads(&self) -> bool {
        false
    }
}

struct SimListener(TcpListener);

impl fmt::Debug for SimListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimListener").field(&self.0.local_addr()).finish()
    }
}

impl Listener for SimListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>> {
        async move {
            let (stream, peer) = self.0.accept().await?;
            Ok((Box::new(stream) as Box<dyn ByteStream>, peer))
        }
        .boxed()
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
