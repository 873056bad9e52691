//! A disk that fails under the log: nothing is acknowledged any more, and the reason is reported.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use expect_test::expect;
use futures::future::BoxFuture;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions};
use shardfeed_host::{ByteStream, Disk, DiskFile, DiskLock, Host, Listener, RealDisk, RealHost};
use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::*;

use crate::fixture::{clients, context, eventually, options, refused};
use crate::http::page;
use crate::worker::{beat, join};

/// Faults of a disk, which a test sets.
#[derive(Debug, Default)]
struct Faults {
    /// Writes and syncs fail.
    full: AtomicBool,
    /// Time that a sync of a file takes.
    sync_ms: AtomicU64,
}

#[derive(Debug)]
struct FaultyDisk {
    disk: RealDisk,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct FaultyFile {
    file: Box<dyn DiskFile>,
    faults: Arc<Faults>,
}

/// A host whose disk has faults in one folder.
#[derive(Debug)]
struct FaultyHost {
    folder: &'static str,
    faults: Arc<Faults>,
}

impl Host for FaultyHost {
    fn now(&self) -> tokio::time::Instant {
        RealHost.now()
    }

    fn wall_ms(&self) -> u64 {
        RealHost.wall_ms()
    }

    fn random(&self) -> u64 {
        RealHost.random()
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        RealHost.connect(address)
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        RealHost.listen(address)
    }

    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        let disk = RealDisk::new(folder)?;
        Ok(match folder.ends_with(self.folder) {
            true => Arc::new(FaultyDisk { disk, faults: Arc::clone(&self.faults) }),
            false => Arc::new(disk),
        })
    }

    fn has_threads(&self) -> bool {
        true
    }
}

fn check(faults: &Faults) -> io::Result<()> {
    match faults.full.load(Ordering::SeqCst) {
        true => Err(io::ErrorKind::StorageFull.into()),
        false => Ok(()),
    }
}

impl Disk for FaultyDisk {
    fn lock(&self) -> io::Result<DiskLock> {
        self.disk.lock()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(name)?;
        Ok(Box::new(FaultyFile { file, faults: Arc::clone(&self.faults) }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        check(&self.faults)?;
        self.disk.write(name, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check(&self.faults)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn path_text(&self, name: &str) -> String {
        self.disk.path_text(name)
    }
}

impl DiskFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check(&self.faults)?;
        self.file.write_at(offset, bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        check(&self.faults)?;
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        check(&self.faults)?;
        std::thread::sleep(Duration::from_millis(self.faults.sync_ms.load(Ordering::SeqCst)));
        self.file.sync()
    }
}

fn add(name: &str) -> AddDatasetRequest {
    let (name, patterns) = (name.into(), vec!["/a".into()]);
    AddDatasetRequest { context: context(), name, patterns, ..AddDatasetRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_acknowledging_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let host = FaultyHost { folder: "raft", faults: Arc::clone(&faults) };
    let options = options(folder.path());
    let running = Coordinator::start_on(Arc::new(host), options.clone()).await.unwrap();
    let (mut worker, mut admin) = clients(running.grpc_address()).await;
    let session = join(&mut worker, "w0").await.session;
    faults.full.store(true, Ordering::SeqCst);
    for name in ["a", "b"] {
        let (kind, message) = refused(admin.add_dataset(add(name)).await);
        assert_eq!(kind, ErrorKind::Storage, "{message}");
        assert!(message.contains("restart"), "{message}");
    }
    let (code, reason) = page(running.http_address().unwrap(), "/readyz").await;
    assert_eq!(code, 503);
    expect![[r#"
        the coordinator cannot continue with its log and has stopped: the log could not be written: the log's database: no storage space; if its disk is the cause, free space or repair it, then restart the node; everything acknowledged before is kept
    "#]].assert_eq(&reason);
    // Only a restart helps.
    let (code, reason) = page(running.http_address().unwrap(), "/livez").await;
    assert!(code == 503 && reason.contains("restart the node"), "{code} {reason}");
    let (_, metrics) = page(running.http_address().unwrap(), "/metrics").await;
    assert!(metrics.contains("shardfeed_coordinator_storage_failed 1\n"), "{metrics}");
    let lost = beat(&mut worker, session, vec![]).await.unwrap_err();
    assert_eq!(refused::<()>(Err(lost)).0, ErrorKind::Storage);
    let status = GetStatusRequest { context: context() };
    admin.get_status(status).await.unwrap();
    running.stop().await;

    // The disk is repaired: acknowledged data is there, and nothing else.
    let running = Coordinator::start(options).await.unwrap();
    let (mut worker, mut admin) = clients(running.grpc_address()).await;
    beat(&mut worker, session, vec![]).await.unwrap();
    let list = ListDatasetsRequest { context: context() };
    assert!(admin.list_datasets(list).await.unwrap().into_inner().datasets.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_cannot_be_stored_turns_readiness_red_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let host = FaultyHost { folder: "chunks", faults: Arc::clone(&faults) };
    let running = Coordinator::start_on(Arc::new(host), options(folder.path())).await.unwrap();
    let http = running.http_address().unwrap();
    let (mut worker, _) = clients(running.grpc_address()).await;
    faults.full.store(true, Ordering::SeqCst);
    let put = || PutChunkRequest { context: context(), content: b"chunk".to_vec() };
    let (kind, message) = refused(worker.put_chunk(put()).await);
    assert_eq!(kind, ErrorKind::Storage, "{message}");
    let (code, reason) = page(http, "/readyz").await;
    assert_eq!(code, 503);
    // It checks again periodically, each time with a new file.
    let (before, after) = reason.split_once(folder.path().to_str().unwrap()).unwrap();
    let (file, after) = after.split_once(": ").unwrap();
    assert!(file.starts_with("/chunks/"), "{file}");
    let reason = format!("{before}FILE: {after}");
    expect![[r#"
        chunks cannot be stored: FILE: no storage space; check the disk of the coordinator, its free space and the permissions
    "#]].assert_eq(&reason);
    let (_, metrics) = page(http, "/metrics").await;
    assert!(metrics.contains("shardfeed_coordinator_chunks_failed 1\n"), "{metrics}");
    // Calls that need no chunk still succeed.
    join(&mut worker, "w0").await;
    faults.full.store(false, Ordering::SeqCst);
    // No call puts a chunk: the periodic check notices it.
    eventually("it is ready again", || async {
        (page(http, "/readyz").await.0 == 200).then_some(())
    })
    .await;
    worker.put_chunk(put()).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_has_no_room_turns_readiness_red() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let options = CoordinatorOptions { unreferenced_bytes_max: 16 << 20, ..options };
    let running = Coordinator::start(options).await.unwrap();
    let http = running.http_address().unwrap();
    let (mut worker, _) = clients(running.grpc_address()).await;
    assert_eq!(page(http, "/readyz").await.0, 200);
    let mut put_all = 0_u8;
    let message = loop {
        let content = vec![put_all; 1 << 20];
        let put = PutChunkRequest { context: context(), content };
        match worker.put_chunk(put).await {
            Ok(_) => put_all += 1,
            Err(status) => break refused::<()>(Err(status)).1,
        }
    };
    assert!(put_all >= 15, "{put_all}: {message}");
    let (code, reason) = page(http, "/readyz").await;
    assert_eq!(code, 503);
    assert!(reason.starts_with("chunks cannot be stored: "), "{reason}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_ends_while_the_coordinator_stops_is_audited() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let host = FaultyHost { folder: "raft", faults: Arc::clone(&faults) };
    let running = Coordinator::start_on(Arc::new(host), options(folder.path())).await.unwrap();
    let http = running.http_address().unwrap();
    let (_, mut admin) = clients(running.grpc_address()).await;
    faults.sync_ms.store(500, Ordering::SeqCst);
    let adding = tokio::spawn(async move { admin.add_dataset(add("slow")).await });
    eventually("the call waits for the disk", || async {
        let (_, metrics) = page(http, "/metrics").await;
        metrics.contains("shardfeed_coordinator_proposals_pending 1\n").then_some(())
    })
    .await;
    running.stop().await;
    adding.await.unwrap().unwrap();
    let audit = std::fs::read_to_string(folder.path().join("audit/audit-000001.jsonl")).unwrap();
    assert!(audit.contains("\"slow\"") && audit.contains("\"DONE\""), "{audit}");
}
