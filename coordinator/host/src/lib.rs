//! What a coordinator needs of the machine it runs on: a clock, randomness, connections, a disk, and
//! threads for what blocks. A process stands on [`RealHost`]; a simulation brings a host whose time is
//! virtual, whose network can be cut and whose disk can lose what was not synced.
//!
//! Whatever is not asked of a [`Host`] a simulation cannot decide, so `raft` and `server` ask for nothing
//! elsewhere: no `SystemTime`, no std `Instant`, no random ids, no sockets, no files, no threads. Sleeping
//! is tokio's, whose time a simulation owns anyway.
#![forbid(unsafe_code)]

mod disk;
mod net;
mod real;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;
use uuid::Uuid;

pub use disk::{Disk, DiskFile, DiskLock, RealDisk};
pub use net::{ByteStream, Listener};
pub use real::RealHost;

/// The machine under a coordinator.
pub trait Host: Debug + Send + Sync + 'static {
    /// The monotonic clock. No decision about safety may depend on it.
    fn now(&self) -> Instant;

    /// The wall clock, Unix ms. For people and for commands, never for leases.
    fn wall_ms(&self) -> u64;

    /// 64 random bits.
    fn random(&self) -> u64;

    /// Time that the machine was suspended since it started, which [`Host::now`] does not count.
    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    /// Connects to `address`, `host:port`.
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;

    /// Listens on `address`; port 0 takes a free one.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;

    /// The disk that holds `folder`, which is made if it is missing.
    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>>;

    /// How many files this process may have open, connections among them.
    fn open_files_max(&self) -> u64 {
        u64::MAX
    }

    /// What the process uses of its machine, as lines of a page /metrics; empty where nobody would ask.
    fn process_page(&self) -> String {
        String::new()
    }

    /// Whether what blocks gets a thread of its own. A simulation has none: it runs inline there.
    fn has_threads(&self) -> bool;
}

/// A random UUID, version 4.
pub fn uuid(host: &dyn Host) -> Uuid {
    let (high, low) = (u128::from(host.random()), u128::from(host.random()));
    uuid::Builder::from_random_bytes((high << 64 | low).to_be_bytes()).into_uuid()
}

/// Runs what blocks, or computes for long, beside the async threads.
///
/// # Errors  It panicked, or the runtime is going down.
pub async fn blocking<T: Send + 'static>(
    host: &dyn Host,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    if host.has_threads() {
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
    } else {
        Ok(work())
    }
}
