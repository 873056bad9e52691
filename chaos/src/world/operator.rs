//! Operator who pauses, cancels and resumes jobs at random times.

use std::rc::Rc;
use std::time::Duration;

use shardfeed_proto::coordinator::v1 as wire;
use tokio::time::sleep;

use crate::holds::Held;
use crate::world::admin::Admin;
use crate::world::client::{Call, Cluster, Kind};

/// Time limit for an answer; an operator who pauses a job waits for the result.
const PATIENCE: Duration = Duration::from_secs(3600);

impl Admin {
    /// Pauses or cancels one job after the other while faults are injected; at the end all jobs are
    /// resumed.
    pub(super) async fn operate(self: Rc<Self>, cluster: Rc<Cluster>) {
        loop {
            sleep(Duration::from_millis(self.dice.pick(300..1_800))).await;
            if self.is_calm.get() {
                continue;
            }
            let job = self.dice.one(&self.jobs).expect("there are jobs");
            let (is_dynamic, job) = (job.identity.is_dynamic(), job.name.clone());
            if is_dynamic && self.dice.chance(50) {
                self.declare_gone(&cluster, &job).await;
                continue;
            }
            let first = match self.dice.chance(65) {
                true => wire::Hold::Paused,
                false => wire::Hold::Cancelled,
            };
            self.hold(&cluster, &job, first).await;
            self.wait_while_faulty(self.dice.pick(100..3_000)).await;
            // A paused job may be cancelled; a cancelled one cannot be paused.
            if self.dice.chance(30) && !self.is_calm.get() {
                let second = match (first, self.dice.chance(70)) {
                    (wire::Hold::Paused, true) => wire::Hold::Cancelled,
                    _ => wire::Hold::Paused,
                };
                self.hold(&cluster, &job, second).await;
                self.wait_while_faulty(self.dice.pick(100..1_000)).await;
            }
            self.hold(&cluster, &job, wire::Hold::None).await;
        }
    }

    async fn wait_while_faulty(&self, ms: u64) {
        for _ in 0..ms / 20 {
            if !self.is_calm.get() {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Declares a rank's trainer gone, which may be wrong; mostly this is rejected.
    async fn declare_gone(&self, cluster: &Rc<Cluster>, job: &str) {
        let (name, rank) = (job.to_owned(), self.dice.pick(0..4));
        // Mostly the one that an operator would see without a worker.
        let lost = self.oracle.lists.last_unserved(job).filter(|_| self.dice.chance(80));
        let rank = lost.unwrap_or(rank);
        self.oracle.lists.declares_gone(job, rank);
        let call: Call<wire::DeclareGoneResponse> = Rc::new(move |mut clients, context| {
            let request = wire::DeclareGoneRequest { context, job: name.clone(), rank };
            Box::pin(async move { clients.admin.declare_gone(request).await })
        });
        let answer = cluster.call((Kind::Changes, PATIENCE), call).await;
        let samples = answer.as_ref().map_or(0, |done| done.samples);
        self.oracle.lists.declared_gone(job, rank, samples, self.trace.ms());
        let said = answer.map_or_else(|error| error.to_string(), |_| samples.to_string());
        self.trace.tell(format!("operator: {job} rank {rank} is gone: {said}"));
    }

    async fn hold(&self, cluster: &Rc<Cluster>, job: &str, hold: wire::Hold) {
        let reason = format!("reason {}", self.dice.pick(0..1 << 20));
        let held = (hold != wire::Hold::None).then(|| Held { hold, reason: reason.clone() });
        self.trace.tell(format!("operator: {job} {}", hold.as_str_name()));
        let name = job.to_owned();
        let call: Call<wire::HoldJobResponse> = Rc::new(move |mut clients, context| {
            let (job, reason) = (name.clone(), reason.clone());
            let request = wire::HoldJobRequest { context, job, hold: hold.into(), reason };
            Box::pin(async move { clients.admin.hold_job(request).await })
        });
        self.oracle.holds.says(job);
        let answer = cluster.call((Kind::Changes, PATIENCE), call).await.map(|_| ());
        let said = answer.as_ref().map_or_else(ToString::to_string, |()| "done".into());
        self.trace.tell(format!("operator: {job} {}: {said}", hold.as_str_name()));
        self.oracle.holds.said(job, held, &answer);
    }
}
