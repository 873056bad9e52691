//! Collects the data of one screen from the coordinators.

use std::time::Instant;

use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::{Client, epoch, job, why, worker};

/// Maximum number of jobs whose epochs are requested: more than fit on a screen.
const JOBS_MAX: usize = 40;

/// Number of requested cells of the map: more than fit on a screen.
const CELLS: u64 = 2_000;

/// Number of requested events, likewise.
const EVENTS: u64 = 60;

/// A snapshot of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) taken: Instant,
    /// Time by the coordinators' clock, Unix ms.
    pub(super) clock_ms: u64,
    pub(super) address: String,
    pub(super) status: wire::GetStatusResponse,
    pub(super) workers: Vec<wire::Worker>,
    /// Jobs, running ones first.
    pub(super) jobs: Vec<Job>,
    pub(super) at: Option<usize>,
    pub(super) ranks: Vec<wire::Rank>,
    pub(super) map: Option<wire::GetEpochMapResponse>,
    pub(super) events: Vec<wire::Event>,
    /// Diagnosis of what limits the selected job.
    pub(super) verdict: String,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) job: wire::Job,
    pub(super) epoch: Option<wire::Epoch>,
}

impl Job {
    pub(super) fn is_running(&self) -> bool {
        self.job.phase() == wire::JobPhase::Running
    }
}

impl Scene {
    pub(super) fn chosen(&self) -> Option<&str> {
        self.at.map(|at| self.jobs[at].job.name.as_str())
    }

    /// Returns the job `by` lines below the selected one.
    pub(super) fn next_job(&self, by: isize) -> Option<String> {
        let last = self.jobs.len().checked_sub(1)?;
        let at = self.at.unwrap_or(0).saturating_add_signed(by).min(last);
        Some(self.jobs[at].job.name.clone())
    }

    /// Selects another job; its shards and ranks come with the next snapshot.
    pub(super) fn choose(&mut self, name: Option<&str>) {
        let at = self.jobs.iter().position(|job| Some(job.job.name.as_str()) == name);
        if at != self.at {
            self.at = at;
            self.ranks.clear();
            (self.map, self.verdict) = (None, String::new());
        }
    }
}

/// Collects a snapshot.
/// - `chosen`: name of the job to select; `None`: the first running job.
pub(super) fn gather(client: &Client, chosen: Option<&str>) -> anyhow::Result<Scene> {
    let status = client.status()?;
    let address = client.address().to_string();
    let workers = worker::list(client, false)?;
    let mut jobs: Vec<Job> =
        job::list(client)?.into_iter().map(|job| Job { job, epoch: None }).collect();
    jobs.sort_by_key(|job| (!job.is_running(), job.job.generation.is_none(), job.job.age_ms));
    for job in jobs.iter_mut().filter(|job| job.job.generation.is_some()).take(JOBS_MAX) {
        job.epoch = current_epoch(client, &job.job)?;
    }
    let at = match chosen {
        Some(name) => {
            let at = jobs.iter().position(|job| job.job.name == name);
            Some(at.ok_or_else(|| job::missing(client, name))?)
        }
        None => (!jobs.is_empty()).then_some(0),
    };
    let events = client.call(wire::ListEventsRequest { most: EVENTS, ..Default::default() })?;
    let clock_ms = status.clock_ms;
    let mut scene = Scene {
        taken: Instant::now(),
        clock_ms,
        address,
        status,
        workers,
        jobs,
        at,
        ranks: vec![],
        map: None,
        events: events.events,
        verdict: String::new(),
    };
    if let Some(at) = at {
        look_at(client, &mut scene, at)?;
    }
    Ok(scene)
}

/// Collects the ranks and shards of the selected job.
fn look_at(client: &Client, scene: &mut Scene, at: usize) -> anyhow::Result<()> {
    let known = &scene.jobs[at].job;
    let name = known.name.clone();
    if known.generation.is_none() {
        scene.verdict = format!("job `{name}` has not started");
        return Ok(());
    }
    let (answer, held) = why::ask(client, &name)?;
    scene.verdict = why::verdict(&name, &answer, held, scene.jobs[at].epoch.as_ref());
    scene.ranks = answer;
    let request = wire::GetEpochMapRequest { context: None, job: name, epoch: None, cells: CELLS };
    scene.map = Some(client.call(request)?);
    Ok(())
}

/// Returns the epoch of the slowest rank.
fn current_epoch(client: &Client, of: &wire::Job) -> anyhow::Result<Option<wire::Epoch>> {
    let epoch = of.generation.as_ref().and_then(|now| now.cursor_epoch);
    Ok(epoch::list(client, &of.name, epoch)?.into_iter().last())
}
