//! Host with a worker and its trainers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::Digest;
use shardfeed_proto::chunk::{EntriesChunk, ListedFile, ListingChunk};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::scan_task::{List, Scan, Work};
use shardfeed_proto::{ErrorKind, WireError};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::breach::Breaches;
use crate::dice::Dice;
use crate::oracle::Oracle;
use crate::trace::Trace;
use crate::world::admin::look;
use crate::world::catalog::{Catalog, JobFacts, PART_FILES, ROOT};
use crate::world::client::{Call, Cluster, Kind};
use crate::world::node::Node;
use crate::world::session::{Kept, Session};
use crate::world::trainer::Rank;

/// Interval at which a host checks for orders.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time limit for the answers of a scan; after it the scan is repeated.
const SCAN_PATIENCE: Duration = Duration::from_secs(20);

/// Maximum number of times that a missing chunk is uploaded again.
const PUTS_MAX: usize = 50;

/// Order from a launcher or from the fault injector to a host.
#[derive(Debug)]
pub enum Order {
    /// Start a trainer.
    Train(Rank),
    /// Kill all trainers of a job.
    KillTrainers(String),
    /// Kill the worker's process and restart it after this time.
    KillWorker(Duration),
}

/// A running host; clones of the handle refer to the same host.
#[derive(Debug)]
pub struct WorkerHost {
    /// Name of the host.
    pub name: String,
    /// Addresses of coordinators that it starts with.
    pub coordinators: Vec<String>,
    /// Random numbers.
    pub dice: Dice,
    /// Client observations.
    pub oracle: Rc<Oracle>,
    /// Breaches of invariants.
    pub breaches: Breaches,
    /// Trace of the run.
    pub trace: Trace,
    /// Files that the host can read.
    pub catalog: Rc<Catalog>,
    /// Jobs whose state it reads.
    pub jobs: Vec<Rc<JobFacts>>,
    /// Pending orders.
    pub orders: RefCell<VecDeque<Order>>,
    /// Session of its worker, while one runs.
    pub worker: RefCell<Option<Rc<Session>>>,
    /// Number of starts and kills of the worker.
    pub serial: Cell<u64>,
    /// Number of starts and crashes of the host.
    pub boots: Cell<u64>,
    /// Machines of the coordinators, to inspect their disks.
    pub nodes: Vec<Rc<Node>>,
}

impl WorkerHost {
    /// Starts a separate session for a process of this host.
    pub fn session(&self, name: String, in_process: bool) -> Kept {
        let principal = format!("worker:{name}");
        let (dice, oracle) = (self.dice.clone(), Rc::clone(&self.oracle));
        let cluster = Cluster::new(self.coordinators.clone(), principal, dice, oracle);
        let seen = (Rc::clone(&self.oracle), self.trace.clone());
        Session::start(cluster, (name, self.name.clone(), in_process), seen)
    }

    /// Runs until the host dies.
    pub async fn run(self: Rc<Self>) {
        self.boots.set(self.boots.get() + 1);
        let (dice, oracle) = (self.dice.clone(), Rc::clone(&self.oracle));
        let principal = format!("cli:somebody@{}", self.name);
        let asking = Cluster::new(self.coordinators.clone(), principal, dice, oracle);
        let eyes = (self.dice.clone(), Rc::clone(&self.oracle), self.breaches.clone());
        tokio::task::spawn_local(look(self.jobs.clone(), asking, eyes));
        let mut trainers: BTreeMap<String, JoinSet<()>> = BTreeMap::new();
        let mut worker = Some(self.start_worker());
        let mut back_at = None;
        loop {
            let order = self.orders.borrow_mut().pop_front();
            match order {
                Some(Order::Train(rank)) => {
                    let job = rank.run.job.name.clone();
                    trainers.entry(job).or_default().spawn_local(rank.train(Rc::clone(&self)));
                    continue;
                }
                Some(Order::KillTrainers(job)) => {
                    trainers.remove(&job);
                }
                Some(Order::KillWorker(pause)) => {
                    worker = None;
                    *self.worker.borrow_mut() = None;
                    self.serial.set(self.serial.get() + 1);
                    back_at = Some(tokio::time::Instant::now() + pause);
                }
                None => {}
            }
            for ranks in trainers.values_mut() {
                while ranks.try_join_next().is_some() {}
            }
            if back_at.is_some_and(|at| at <= tokio::time::Instant::now()) {
                back_at = None;
                worker = Some(self.start_worker());
            }
            // The worker's session and tasks end when this is dropped.
            let _alive = &worker;
            sleep(LOOK_EVERY).await;
        }
    }

    fn start_worker(self: &Rc<Self>) -> (Kept, JoinSet<()>) {
        self.serial.set(self.serial.get() + 1);
        let kept = self.session(self.name.clone(), false);
        *self.worker.borrow_mut() = Some(Rc::clone(&kept.session));
        let mut tasks = JoinSet::new();
        tasks.spawn_local(Rc::clone(self).scan(Rc::clone(&kept.session)));
        (kept, tasks)
    }

    /// Takes and executes scan tasks as long as there are any.
    async fn scan(self: Rc<Self>, session: Rc<Session>) {
        loop {
            sleep(LOOK_EVERY).await;
            if !session.take_has_scans() {
                continue;
            }
            let Some(id) = session.id() else { continue };
            let call: Call<wire::ClaimScansResponse> = Rc::new(move |mut clients, context| {
                let request = wire::ClaimScansRequest { context, session: id, most: 2 };
                Box::pin(async move { clients.worker.claim_scans(request).await })
            });
            let patience = (Kind::Changes, SCAN_PATIENCE);
            let Ok(taken) = session.cluster.call(patience, call).await else { continue };
            for task in taken.tasks {
                session.look_for_scans();
                let dataset = task.dataset.clone();
                let mut found = self.work(&session.cluster, id, task.clone()).await;
                for _ in 0..PUTS_MAX {
                    // A leader was elected since, and no node that it reaches has the chunk.
                    let Some(ErrorKind::NotFound) = found.as_ref().err().map(|error| error.kind)
                    else {
                        break;
                    };
                    sleep(LOOK_EVERY).await;
                    found = self.work(&session.cluster, id, task.clone()).await;
                }
                if let Err(error) = found {
                    self.trace.tell(format!("{}: scan of {dataset}: {error}", self.name));
                    if error.kind == ErrorKind::Fenced {
                        session.forget(id);
                    }
                }
            }
        }
    }

    async fn work(
        &self,
        cluster: &Rc<Cluster>,
        session: u64,
        task: wire::ScanTask,
    ) -> Result<(), WireError> {
        let wire::ScanTask { dataset, fencing, work, .. } = task;
        match work {
            Some(Work::List(List { .. })) => {
                let mut parts = vec![];
                let files = self.catalog.of(&dataset);
                for files in files.chunks(PART_FILES) {
                    let listed = files.iter().map(|file| {
                        let (path, size) = (file.path.clone(), file.size_bytes);
                        ListedFile { path, size, etag: None, changed_ns: None }
                    });
                    let chunk = ListingChunk::new(listed.collect()).encode();
                    let chunk = self.put(cluster, chunk.expect("the files are in order")).await?;
                    let bytes = files.iter().map(|file| file.size_bytes).sum();
                    let files = files.len() as u64;
                    parts.push(wire::report_listing_request::Part { chunk, files, bytes });
                }
                let report = wire::ReportListingRequest {
                    context: None,
                    session,
                    dataset,
                    fencing,
                    root: ROOT.into(),
                    parts,
                };
                let call: Call<wire::ReportListingResponse> =
                    Rc::new(move |mut clients, context| {
                        let report = wire::ReportListingRequest { context, ..report.clone() };
                        Box::pin(async move { clients.worker.report_listing(report).await })
                    });
                cluster.call((Kind::Looks, SCAN_PATIENCE), call).await.map(|_| ())
            }
            Some(Work::Scan(Scan { part, chunk, .. })) => {
                let listed = self.get(cluster, chunk).await?;
                let listing = ListingChunk::decode(&listed)
                    .map_err(|error| WireError::new(ErrorKind::Invalid, error.to_string()))?;
                let files = self.catalog.of(&dataset);
                let found = listing.files.iter().filter_map(|listed| {
                    files.iter().find(|file| file.path == listed.path).cloned()
                });
                let entries = EntriesChunk::new(found.collect());
                let records = entries.samples();
                let chunk = entries.encode().expect("the entries are good");
                let chunk = self.put(cluster, chunk).await?;
                let report = wire::ReportScanRequest {
                    context: None,
                    session,
                    dataset,
                    fencing,
                    part,
                    chunk,
                    records,
                    maps: vec![],
                };
                let call: Call<wire::ReportScanResponse> = Rc::new(move |mut clients, context| {
                    let report = wire::ReportScanRequest { context, ..report.clone() };
                    Box::pin(async move { clients.worker.report_scan(report).await })
                });
                cluster.call((Kind::Looks, SCAN_PATIENCE), call).await.map(|_| ())
            }
            None => Ok(()),
        }
    }

    async fn put(&self, cluster: &Rc<Cluster>, content: Vec<u8>) -> Result<Vec<u8>, WireError> {
        let digest = Digest::of_parts([content.as_slice()]);
        let call: Call<wire::PutChunkResponse> = Rc::new(move |mut clients, context| {
            let request = wire::PutChunkRequest { context, content: content.clone() };
            Box::pin(async move { clients.worker.put_chunk(request).await })
        });
        let stored = cluster.call((Kind::Looks, SCAN_PATIENCE), call).await?;
        self.breaches.check(stored.digest == digest.as_bytes(), "I5", || {
            format!("chunk {digest} was stored as another one")
        });
        let holders = self.nodes.iter().filter(|node| node.host.disks().holds(&digest.to_string()));
        let holders = holders.count();
        self.breaches.check(holders >= 2, "I5", || {
            format!("chunk {digest} was acknowledged and is on {holders} disks")
        });
        Ok(stored.digest)
    }

    async fn get(&self, cluster: &Rc<Cluster>, digest: Vec<u8>) -> Result<Vec<u8>, WireError> {
        let name = digest.clone();
        let call: Call<wire::GetChunkResponse> = Rc::new(move |mut clients, context| {
            let request = wire::GetChunkRequest { context, digest: name.clone() };
            Box::pin(async move { clients.worker.get_chunk(request).await })
        });
        let content = cluster.call((Kind::Looks, SCAN_PATIENCE), call).await;
        if let Err(error) = &content
            && matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt)
        {
            self.breaches.note("I5", format!("an acknowledged chunk is gone: {error}"));
        }
        Ok(content?.content)
    }
}
