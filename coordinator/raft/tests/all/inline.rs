//! The same nodes on a host without threads, as in a simulation: everything in one thread.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use shardfeed_host::{ByteStream, Disk, Host, Listener, RealHost};
use tokio::time::Instant;

use crate::common::FaultyDisk;
use crate::common::cluster::Cluster;
use crate::common::eventually;

#[derive(Debug, Default)]
struct Threadless {
    drawn: AtomicU64,
    disks: std::sync::Mutex<std::collections::BTreeMap<std::path::PathBuf, FaultyDisk>>,
}

impl Host for Threadless {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn random(&self) -> u64 {
        self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        RealHost.connect(address)
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        RealHost.listen(address)
    }

    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        let mut disks = self.disks.lock().unwrap();
        Ok(Arc::new(disks.entry(folder.to_owned()).or_default().clone()))
    }

    fn has_threads(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn three_nodes_live_in_one_thread() {
    let mut cluster = Cluster::new();
    cluster.host = Arc::new(Threadless::default());
    cluster.base.snapshot_every = 50;
    cluster.found(3).await;
    let load = cluster.load(4);
    let leader = cluster.leader().await;
    eventually("some are applied", || cluster.nodes[&leader].status().applied > Some(200)).await;
    cluster.kill(leader).await;
    load.now(&cluster);
    let next = cluster.leader().await;
    let before = cluster.nodes[&next].status().applied;
    eventually("more are applied", || {
        cluster.nodes[&next].status().applied > before.map(|index| index + 200)
    })
    .await;
    cluster.restart(leader).await;
    load.now(&cluster);
    let acknowledged = load.stop().await;
    assert!(!acknowledged.is_empty());
    cluster.agree(&acknowledged).await;
    cluster.shutdown().await;
}
