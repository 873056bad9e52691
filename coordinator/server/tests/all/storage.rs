//! A disk that fails under the log: nothing is acknowledged any more, and the reason is reported.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expect_test::expect;
use futures::future::BoxFuture;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions};
use shardfeed_host::{ByteStream, Disk, DiskFile, DiskLock, Host, Listener, RealDisk, RealHost};
use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::*;

use crate::fixture::{clients, context, eventually, options, refused};
use crate::http::page;
use crate::worker::{beat, join};

/// A disk whose writes and syncs fail once it is full.
#[derive(Debug)]
struct Full {
    disk: RealDisk,
    full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct FullFile {
    file: Box<dyn DiskFile>,
    full: Arc<AtomicBool>,
}

/// A host whose disk is full in one folder, once `full` is set.
#[derive(Debug)]
struct FullHost {
    folder: &'static str,
    full: Arc<AtomicBool>,
}

impl Host for FullHost {
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
            true => Arc::new(Full { disk, full: Arc::clone(&self.full) }),
            false => Arc::new(disk),
        })
    }

    fn has_threads(&self) -> bool {
        true
    }
}

fn check(full: &AtomicBool) -> io::Result<()> {
    match full.load(Ordering::SeqCst) {
        true => Err(io::ErrorKind::StorageFull.into()),
        false => Ok(()),
    }
}

impl Disk for Full {
    fn lock(&self) -> io::Result<DiskLock> {
        self.disk.lock()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(name)?;
        Ok(Box::new(FullFile { file, full: Arc::clone(&self.full) }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        check(&self.full)?;
        self.disk.write(name, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check(&self.full)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn path_text(&self, name: &str) -> String {
        self.disk.path_text(name)
    }
}

impl DiskFile for FullFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check(&self.full)?;
        self.file.write_at(offset, bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        check(&self.full)?;
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        check(&self.full)?;
        self.file.sync()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_acknowledging_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let host = FullHost { folder: "raft", full: Arc::clone(&full) };
    let options = options(folder.path());
    let running = Coordinator::start_on(Arc::new(host), options.clone()).await.unwrap();
    let (mut worker, mut admin) = clients(running.grpc_address()).await;
    let session = join(&mut worker, "w0").await.session;
    full.store(true, Ordering::SeqCst);
    let add = |name: &str| AddDatasetRequest {
        context: context(),
        name: name.into(),
        patterns: vec!["/a".into()],
        compression: String::new(),
        corrupt: String::new(),
        listing: None,
        program: vec![],
    };
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
    let full = Arc::new(AtomicBool::new(false));
    let host = FullHost { folder: "chunks", full: Arc::clone(&full) };
    let running = Coordinator::start_on(Arc::new(host), options(folder.path())).await.unwrap();
    let http = running.http_address().unwrap();
    let (mut worker, _) = clients(running.grpc_address()).await;
    full.store(true, Ordering::SeqCst);
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
    full.store(false, Ordering::SeqCst);
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
