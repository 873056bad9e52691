//! Replacement of a lost worker: the same worker if it comes back, else this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_source::{Dataset, LoadError, ScanProgress};

use super::{Cluster, Connected, Phase, RETURN_WAIT, Way};
use crate::link::connect::{Unavailable, default_worker_socket, greet_for};
use crate::link::exchange::{Job, Progress, waiting};
use crate::link::in_process::{InProcess, cluster_of, in_background, session};
use crate::link::worker::Lost;

/// This process replaces a worker that was lost this many times in a row without serving a batch.
const LOST_MAX: u32 = 2;

impl Cluster {
    pub(super) fn lost(&mut self, lost: Lost) -> Result<(), LoadError> {
        match lost {
            Lost::Gone(reason) => {
                self.lose(&reason);
                Ok(())
            }
            Lost::Failed(error) => Err(error),
        }
    }

    /// Replaces a worker that no longer serves this rank, by this process and without looking for
    /// another.
    pub(super) fn replace_worker(&mut self, reason: &str) -> Result<(), LoadError> {
        if !cluster_of(&self.setting).fallback {
            self.lose(reason);
            return Ok(());
        }
        tracing::warn!("{reason}; reading in this process");
        self.connection += 1;
        self.forget_granted();
        self.way = Way::Opening(self.open_in_background()?);
        Ok(())
    }

    /// Handles the loss of the worker: received batches stay valid, except those of a dynamic job.
    pub(super) fn lose(&mut self, reason: &str) {
        match self.is_dynamic() {
            true => tracing::warn!("{reason}; looking for a worker"),
            false => {
                tracing::warn!("{reason}; batches in hand are delivered, looking for a worker");
            }
        }
        self.connection += 1;
        self.forget_granted();
        let (times, since) = self.fruitless.unwrap_or((0, Instant::now()));
        self.fruitless = Some((times + 1, since));
        let cluster = cluster_of(&self.setting);
        if cluster.fallback
            && times + 1 >= LOST_MAX
            && let Ok(opening) = self.open_in_background()
        {
            tracing::warn!(
                "the worker was lost again before its first batch; reading in this process"
            );
            self.way = Way::Opening(opening);
            return;
        }
        if !cluster.fallback && since.elapsed() >= cluster.timeout {
            self.fruitless = None;
            let waited_s = since.elapsed().as_secs_f64();
            let message = format!("the worker sent no batch in {waited_s:.1} s: {reason}");
            self.failure = Some(WireError::new(ErrorKind::Unreachable, message).into());
        }
        let patience = if cluster.fallback { RETURN_WAIT } else { cluster.timeout };
        let path = self.worker.clone().unwrap_or_else(default_worker_socket);
        let job = self.job.clone();
        self.way = match self.connect_in_background(path, job, patience) {
            Ok(connecting) => Way::Connecting(connecting),
            Err(error) => {
                let (sender, receiver) = sync_channel(1);
                let _ = sender.send(Err(Unavailable::Refused(error)));
                Way::Connecting(receiver)
            }
        };
    }

    pub(super) fn connect_in_background(
        &self,
        path: PathBuf,
        job: Option<Job>,
        patience: Duration,
    ) -> Result<Receiver<Connected>, LoadError> {
        let setting = self.setting.clone();
        let expected = self.contents.digest;
        in_background("shardfeed-connect", move || {
            let greeted = greet_for(&setting, &path, job.as_ref(), patience, &mut |_| true);
            let (link, contents) = greeted?;
            if contents.digest != expected {
                let message = "the files are not those that this loader was made for; create the loader again";
                let error = WireError::new(ErrorKind::Changed, message);
                return Err(Unavailable::Refused(error.into()));
            }
            Ok(link)
        })
    }

    /// Waits until a worker is connected or this process reads in its place.
    pub(super) fn settle(&mut self, progress: Progress<'_>) -> Result<(), LoadError> {
        while matches!(self.way, Way::Connecting(_) | Way::Opening(_)) {
            self.advance(Duration::from_millis(50))?;
            if !waiting(progress)("") {
                return Err(LoadError::Interrupted);
            }
        }
        Ok(())
    }

    /// Makes progress towards having a worker again; returns false if `timeout` passed without any.
    pub(super) fn advance(&mut self, timeout: Duration) -> Result<bool, LoadError> {
        let next = match &self.way {
            Way::Connecting(result) => match result.recv_timeout(timeout) {
                Ok(Ok(link)) => {
                    tracing::info!(worker = link.name(), "connected to a worker again");
                    Way::Worker(Box::new(link), Phase::Idle)
                }
                Ok(Err(Unavailable::Absent(reason) | Unavailable::Cordoned(reason)))
                    if cluster_of(&self.setting).fallback =>
                {
                    tracing::warn!("{reason}; reading in this process");
                    Way::Opening(self.open_in_background()?)
                }
                Ok(Err(error)) => {
                    // The next call tries again.
                    let error = error.into_error();
                    self.lose(&error.to_string());
                    self.failure = None;
                    return Err(error);
                }
                Err(_) => return Ok(false),
            },
            Way::Opening(result) => match result.recv_timeout(timeout) {
                Ok(Ok(mut here)) => {
                    here.here.took_over();
                    if let Some(job) = &self.job {
                        // The worker that found them may have died before it reported them.
                        here.here.control().report_skipped(&job.name, self.met.make_contiguous());
                    }
                    Way::Here(Box::new(here))
                }
                Ok(Err(error)) => {
                    self.lose("no worker in this process");
                    return Err(error);
                }
                Err(_) => return Ok(false),
            },
            Way::Worker(..) | Way::Here(_) => return Ok(true),
        };
        self.way = next;
        Ok(true)
    }

    /// Takes the worker's place without a request to the coordinator: files and job are known.
    pub(super) fn open_in_background(
        &self,
    ) -> Result<Receiver<Result<InProcess, LoadError>>, LoadError> {
        let (setting, contents, job) =
            (self.setting.clone(), self.contents.clone(), self.job.clone());
        in_background("shardfeed-open", move || {
            let paths = contents.shards.iter().map(|shard| shard.path.clone()).collect();
            let root = PathBuf::from(&contents.root);
            let cache = setting.options.cache.clone();
            let rules = contents.rules;
            let dataset =
                Dataset::open_paths(root, paths, rules, &cache, &mut |_: ScanProgress| true)?;
            if dataset.manifest().digest() != contents.digest {
                let message = format!(
                    "{}: the files are not those that this loader was made for; create it again",
                    contents.root
                );
                return Err(WireError::new(ErrorKind::Changed, message).into());
            }
            let session = session(&setting)?;
            let dataset = (contents.name.clone(), Arc::new(dataset));
            let mut opened = InProcess::new(setting, session, None, dataset);
            if let Some(job) = &job {
                opened.here.take_job(job);
            }
            Ok(opened)
        })
    }
}
