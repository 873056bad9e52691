//! Interface between a coordinator and its machine: a clock, randomness, connections, a disk, and
//! threads for blocking work. A process uses [`RealHost`]; a simulation provides a host with
//! virtual time, a network that can be cut and a disk that can lose unsynced data.
//!
//! A simulation controls only what passes through a [`Host`], so `raft` and `server` use nothing
//! else: no `SystemTime`, no std `Instant`, no random ids, no sockets, no files, no threads.
//! Sleeping uses tokio, whose time a simulation controls anyway.
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
    /// Reads the monotonic clock. No decision about safety may depend on it.
    fn now(&self) -> Instant;

    /// Reads the wall clock, Unix ms. For display and for commands, never for leases.
    fn wall_ms(&self) -> u64;

    fn random(&self) -> u64;

    /// Returns the time that the machine was suspended since its start; [`Host::now`] excludes it.
    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    /// Connects to `address`, `host:port`.
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;

    /// Listens on `address`; port 0 selects a free port.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;

    /// Returns the disk that holds `folder`, which is created if it is missing.
    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>>;

    /// Maximum number of files, connections included, that this process may have open.
    fn open_files_max(&self) -> u64 {
        u64::MAX
    }

    /// Returns the process's resource usage as lines of a page /metrics; empty if not supported.
    fn process_page(&self) -> String {
        String::new()
    }

    /// True if blocking work gets its own thread. A simulation has no threads and runs it inline.
    fn has_threads(&self) -> bool;
}

pub fn uuid(host: &dyn Host) -> Uuid {
    let (high, low) = (u128::from(host.random()), u128::from(host.random()));
    uuid::Builder::from_random_bytes((high << 64 | low).to_be_bytes()).into_uuid()
}

/// Runs blocking or long-running work outside the async threads; inline without threads.
///
/// # Errors  The work panicked, or the runtime is shutting down.
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
