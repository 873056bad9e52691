//! An operator at the command line: creates datasets and jobs, changes the membership, and reads
//! the state of jobs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::{Digest, LoaderState};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};
use tokio::time::sleep;

use crate::breach::Breaches;
use crate::dice::Dice;
use crate::oracle::{Begin, Oracle};
use crate::trace::Trace;
use crate::world::catalog::{JobFacts, ROOT};
use crate::world::client::{Call, Cluster, Kind};

/// Maximum time that the operator waits for an answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// End of the error message for a node whose directory holds files of an earlier attempt to add it.
const UNCLEAN: &str = "has a history already; empty its directory first";

/// Percentage of job inspections that also read its epochs and whether it is paused or cancelled.
const LOOK_CLOSER_PERCENT: u64 = 30;

/// Number of datasets that are created beside that of the jobs.
const MORE_MAX: u64 = 6;

/// Errand of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Add a node.
    Add(u64, String),
    /// Remove a node.
    Remove(u64),
    /// Transfer the leadership.
    Transfer(Option<u64>),
}

/// Operator at a host.
#[derive(Debug)]
pub struct Admin {
    /// Addresses of the coordinators.
    pub coordinators: Vec<String>,
    /// Random numbers.
    pub dice: Dice,
    /// Client observations.
    pub oracle: Rc<Oracle>,
    /// Breaches of invariants.
    pub breaches: Breaches,
    /// Trace of the run.
    pub trace: Trace,
    /// Jobs to create.
    pub jobs: Vec<Rc<JobFacts>>,
    /// Pending errands.
    pub errands: RefCell<VecDeque<Errand>>,
    /// True while no faults are injected; then no job is paused or cancelled either.
    pub is_calm: Cell<bool>,
    /// True while an errand is in progress.
    pub busy: Cell<bool>,
    /// Node that cannot be added until its directory is emptied, because an earlier attempt left
    /// files there.
    pub unclean: Cell<Option<u64>>,
    /// Errands that are done.
    pub done: RefCell<Vec<Errand>>,
    /// Number of jobs that are created.
    pub ready: Cell<usize>,
    /// Datasets that were created beside that of the jobs.
    pub more: RefCell<Vec<String>>,
}

impl Admin {
    /// Creates the jobs, then executes errands.
    pub async fn run(self: Rc<Self>) {
        let (dice, oracle) = (self.dice.clone(), Rc::clone(&self.oracle));
        let addresses = self.coordinators.clone();
        let cluster = Cluster::new(addresses, "cli:person@host".into(), dice, oracle);
        let asking = Rc::clone(&cluster);
        for job in self.jobs.iter().skip(self.ready.get()) {
            while let Err(error) = self.set_up(&cluster, job).await {
                if error.kind != ErrorKind::Retry {
                    self.trace.tell(format!("{} is not set up yet: {error}", job.name));
                }
                sleep(Duration::from_millis(100)).await;
            }
            self.ready.set(self.ready.get() + 1);
            self.trace.tell(format!("{} is set up", job.name));
        }
        let eyes = (self.dice.clone(), Rc::clone(&self.oracle), self.breaches.clone());
        tokio::task::spawn_local(look(self.jobs.clone(), Rc::clone(&cluster), eyes));
        tokio::task::spawn_local(Rc::clone(&self).add_more(Rc::clone(&asking)));
        tokio::task::spawn_local(Rc::clone(&self).operate(asking));
        loop {
            let errand = self.errands.borrow_mut().pop_front();
            if let Some(errand) = errand {
                self.busy.set(true);
                let answer = self.run_errand(&cluster, &errand).await;
                let said = answer.as_ref().map_or_else(ToString::to_string, |()| "done".into());
                self.trace.tell(format!("errand {errand:?}: {said}"));
                match (answer, &errand) {
                    (Ok(()), _) => self.done.borrow_mut().push(errand),
                    (Err(error), Errand::Add(node, _)) if error.message.ends_with(UNCLEAN) => {
                        self.unclean.set(Some(*node));
                    }
                    (Err(_), _) => {}
                }
                self.busy.set(false);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn set_up(&self, cluster: &Rc<Cluster>, job: &JobFacts) -> Result<(), WireError> {
        for (dataset, content) in job.datasets() {
            self.index(cluster, &dataset, content).await?;
        }
        let request = job.registration(job.variants.as_ref().map(|_| 0));
        register(cluster, request).await.map(|_| ())
    }

    /// Adds a dataset and waits until it is ready.
    async fn index(
        &self,
        cluster: &Rc<Cluster>,
        dataset: &str,
        content: Digest,
    ) -> Result<(), WireError> {
        add(cluster, dataset).await?;
        let dataset = dataset.to_owned();
        let call: Call<wire::GetDatasetResponse> = Rc::new(move |mut clients, context| {
            let request = wire::GetDatasetRequest { context, name: dataset.clone() };
            Box::pin(async move { clients.admin.get_dataset(request).await })
        });
        let found = cluster.call((Kind::Looks, PATIENCE), call).await?.dataset.unwrap_or_default();
        match found.state() {
            wire::DatasetState::Ready => {}
            wire::DatasetState::Failed => {
                let failure = WireError::from_message(found.failure);
                self.breaches.note("I5", format!("the dataset failed: {failure}"));
                return Err(failure);
            }
            _ => return Err(WireError::new(ErrorKind::Retry, "the dataset is not ready")),
        }
        self.breaches.check(found.content == content.as_bytes(), "I8", || {
            format!("the dataset is put together as {:?}", found.content)
        });
        Ok(())
    }

    /// Creates more datasets at random intervals; their files are copies of the first one's.
    async fn add_more(self: Rc<Self>, cluster: Rc<Cluster>) {
        for number in 1..=MORE_MAX {
            sleep(Duration::from_millis(self.dice.pick(1_000..3_500))).await;
            let name = format!("more-{number}");
            self.more.borrow_mut().push(name.clone());
            while add(&cluster, &name).await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    async fn run_errand(&self, cluster: &Rc<Cluster>, errand: &Errand) -> Result<(), WireError> {
        let kind = (Kind::Looks, PATIENCE);
        match errand.clone() {
            Errand::Add(node, address) => {
                let call: Call<wire::AddMemberResponse> = Rc::new(move |mut clients, context| {
                    let request =
                        wire::AddMemberRequest { context, node, address: address.clone() };
                    Box::pin(async move { clients.admin.add_member(request).await })
                });
                cluster.call(kind, call).await.map(|_| ())
            }
            Errand::Remove(node) => {
                let call: Call<wire::RemoveMemberResponse> =
                    Rc::new(move |mut clients, context| {
                        let request = wire::RemoveMemberRequest { context, node };
                        Box::pin(async move { clients.admin.remove_member(request).await })
                    });
                cluster.call(kind, call).await.map(|_| ())
            }
            Errand::Transfer(to) => {
                let call: Call<wire::TransferLeaderResponse> =
                    Rc::new(move |mut clients, context| {
                        let request = wire::TransferLeaderRequest { context, to };
                        Box::pin(async move { clients.admin.transfer_leader(request).await })
                    });
                cluster.call(kind, call).await.map(|_| ())
            }
        }
    }
}

async fn add(cluster: &Rc<Cluster>, dataset: &str) -> Result<(), WireError> {
    let (dataset, patterns) = (dataset.to_owned(), vec![format!("{ROOT}/{dataset}/*.tfrecord")]);
    let call: Call<wire::AddDatasetResponse> = Rc::new(move |mut clients, context| {
        let (name, patterns, compression) = (dataset.clone(), patterns.clone(), String::new());
        let request = wire::AddDatasetRequest {
            context,
            name,
            patterns,
            compression,
            corrupt: String::new(),
            listing: None,
            program: vec![],
        };
        Box::pin(async move { clients.admin.add_dataset(request).await })
    });
    cluster.call((Kind::Changes, PATIENCE), call).await.map(|_| ())
}

/// Registers a job.
/// - Returns the digest of its mixture; empty if it has none.
pub async fn register(
    cluster: &Rc<Cluster>,
    request: wire::RegisterJobRequest,
) -> Result<Vec<u8>, WireError> {
    let call: Call<wire::RegisterJobResponse> = Rc::new(move |mut clients, context| {
        let request = wire::RegisterJobRequest { context, ..request.clone() };
        Box::pin(async move { clients.worker.register_job(request).await })
    });
    let answer = cluster.call((Kind::Changes, PATIENCE), call).await?;
    match answer.missing.is_empty() {
        true => Ok(answer.mixture),
        // A leader was elected meanwhile and lacks the chunk.
        false => Err(WireError::new(ErrorKind::Retry, "the record spec is missing")),
    }
}

/// Repeatedly reads each job's latest state and its pauses; later reads must never be older.
pub async fn look(
    jobs: Vec<Rc<JobFacts>>,
    cluster: Rc<Cluster>,
    (dice, oracle, breaches): (Dice, Rc<Oracle>, Breaches),
) {
    loop {
        sleep(Duration::from_millis(dice.pick(100..600))).await;
        for job in &jobs {
            if dice.chance(LOOK_CLOSER_PERCENT) {
                look_at_hold(job, &cluster, &oracle).await;
                look_at_skips(job, &cluster, (&dice, &oracle)).await;
            }
            let name = job.name.clone();
            let call: Call<wire::LatestStateResponse> = Rc::new(move |mut clients, context| {
                let request = wire::LatestStateRequest { context, job: name.clone() };
                Box::pin(async move { clients.worker.latest_state(request).await })
            });
            let before = oracle.reads_latest(&job.name);
            let Ok(answer) = cluster.once(&cluster.id(), &call).await else { continue };
            match answer.state.map(|state| LoaderState::from_json(&state)) {
                Some(Ok(state)) => oracle.latest(&job.name, &state, before),
                Some(Err(error)) => breaches.note("I15", format!("no state: {error}")),
                None => breaches.check(before.is_none(), "I15", || {
                    format!("{} has no latest state any more", job.name)
                }),
            }
        }
    }
}

async fn look_at_hold(job: &JobFacts, cluster: &Rc<Cluster>, oracle: &Oracle) {
    let name = job.name.clone();
    let call: Call<wire::GetJobResponse> = Rc::new(move |mut clients, context| {
        let request = wire::GetJobRequest { context, job: name.clone() };
        Box::pin(async move { clients.admin.get_job(request).await })
    });
    let sent = oracle.holds.sends(&job.name);
    let answer = cluster.once(&cluster.id(), &call).await;
    if let Ok(wire::GetJobResponse { job: Some(found), .. }) = answer {
        oracle.holds.read(sent, found.held.as_ref());
    }
}

/// Reads one random epoch of the known ones.
async fn look_at_skips(
    job: &JobFacts,
    cluster: &Rc<Cluster>,
    (dice, oracle): (&Dice, &Rc<Oracle>),
) {
    let ask = async |epoch: Option<u64>| {
        let name = job.name.clone();
        let call: Call<wire::ListEpochsResponse> = Rc::new(move |mut clients, context| {
            let request = wire::ListEpochsRequest { context, job: name.clone(), epoch };
            Box::pin(async move { clients.admin.list_epochs(request).await })
        });
        cluster.once(&cluster.id(), &call).await.map_or(vec![], |answer| answer.epochs)
    };
    let Some(epoch) = dice.one(&ask(None).await).map(|epoch| epoch.epoch) else {
        return;
    };
    let known = oracle.skips.asks();
    for epoch in ask(Some(epoch)).await {
        let begin = match job.identity.is_dynamic() {
            true => Some(Begin::default()),
            false => oracle.begin_of(&job.name, epoch.generation),
        };
        if let Some(begin) = begin {
            oracle.skips.listed(job, &begin, &known, &epoch);
        }
    }
}
