//! Replacement of a lost worker: the same worker if it comes back, else this process.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use shardfeed_plan::ContentDigest;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::JobSpec;
use shardfeed_source::{
    Dataset, FileRules, LoadError, OnProgress, OpenProgress, SampleMaps, ScanProgress,
    SourceVersion, waiting,
};

use super::machine::Input;
use super::{Attempt, Backend, Cluster};
use crate::contents::Contents;
use crate::link::connect::greet_for;
use crate::link::exchange::{Setting, in_background};
use crate::link::in_process_link::InProcessLink;
use crate::link::outcome::Unavailable;
use crate::link::worker::WorkerLink;
use crate::mixture;
use crate::request::DatasetRequest;

impl Cluster {
    pub(super) fn connect_in_background(
        &self,
        path: PathBuf,
        job: Option<JobSpec>,
        patience: Duration,
    ) -> Attempt<WorkerLink, Unavailable> {
        let setting = self.setting.clone();
        let expected = self.contents.digest;
        let is_dynamic = job.as_ref().is_none_or(|job| job.identity.is_dynamic());
        let may_replace = setting.cluster().fallback && !is_dynamic;
        in_background("shardfeed-connect", move || {
            let (begun, mut note) = (Instant::now(), String::new());
            // A worker that waits for a coordinator is replaced: this process needs none.
            let mut go_on = |progress: &OpenProgress| {
                note.clone_from(&progress.note);
                note.is_empty() || !may_replace || begun.elapsed() < patience
            };
            let (link, contents) =
                match greet_for(&setting, &path, job.as_ref(), patience, &mut go_on) {
                    Err(Unavailable::Refused(LoadError::Interrupted)) => {
                        return Err(Unavailable::Absent(note));
                    }
                    greeted => greeted?,
                };
            if contents.digest != expected {
                let message = "the files are not those that this loader was made for; create the loader again";
                let error = WireError::new(ErrorKind::Changed, message);
                return Err(Unavailable::Refused(error.into()));
            }
            Ok(link)
        })
    }

    /// Waits until a worker is connected or this process reads in its place.
    pub(super) fn settle(&mut self, progress: OnProgress<'_>) -> Result<(), LoadError> {
        while matches!(self.backend, Backend::Connecting(_) | Backend::Opening(_)) {
            self.advance(Duration::from_millis(50))?;
            if !waiting(progress)("") {
                return Err(LoadError::Interrupted);
            }
        }
        Ok(())
    }

    /// Makes progress towards having a worker again; returns false if `timeout` passed without any.
    pub(super) fn advance(&mut self, timeout: Duration) -> Result<bool, LoadError> {
        let input = match &self.backend {
            Backend::Connecting(attempt) => match attempt.recv_timeout(timeout) {
                Ok(Ok(link)) => {
                    tracing::info!(worker = link.name, "connected to a worker again");
                    self.backend = Backend::Worker(Box::new(link));
                    Input::Connected
                }
                Ok(Err(unavailable)) => Input::NotConnected(unavailable),
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => {
                    Input::NotConnected(LoadError::ReaderLost.into())
                }
            },
            Backend::Opening(attempt) => match attempt.recv_timeout(timeout) {
                Ok(Ok(mut in_process)) => {
                    in_process.took_over = true;
                    self.backend = Backend::InProcess(Box::new(in_process), None);
                    Input::Opened
                }
                Ok(Err(error)) => Input::NotOpened(error),
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => Input::NotOpened(LoadError::ReaderLost),
            },
            Backend::Worker(_) | Backend::InProcess(..) => return Ok(true),
        };
        self.apply(input)?;
        Ok(true)
    }

    /// Takes the worker's place without a request to the coordinator: files and job are known.
    pub(super) fn open_in_background(&self) -> Attempt<InProcessLink, LoadError> {
        let (setting, contents, job) =
            (self.setting.clone(), self.contents.clone(), self.job.clone());
        in_background("shardfeed-open", move || {
            let dataset = open_again(&setting, &contents)?;
            let worker = setting.cluster().port.join(&setting.options, &setting.trainer)?;
            let mut opened = InProcessLink::in_cluster(setting, worker, Arc::new(dataset));
            if let Some(job) = &job {
                opened.take_job(job);
            }
            Ok(opened)
        })
    }
}

/// Opens the files of a loader again.
///
/// # Errors  They have changed, or cannot be read.
fn open_again(setting: &Setting, contents: &Contents) -> Result<Dataset, LoadError> {
    let whole = 0..contents.shards.len();
    let Some(mixed) = &contents.mixed else {
        let root = PathBuf::from(&contents.root);
        let place = (root, whole, contents.digest);
        return open_part((setting, &setting.requests[0]), contents, contents.rules, place, false);
    };
    let source = |(version, request): (&SourceVersion, &DatasetRequest)| {
        let shards = version.shards();
        let range = shards.start as usize..shards.end as usize;
        let place = (version.root.clone(), range, version.content);
        let (rules, mut missing) = (version.rules, version.missing.clone());
        let open =
            |place, is_missing| open_part((setting, request), contents, rules, place, is_missing);
        let dataset = match open(place.clone(), missing.is_some()) {
            // They may have been removed after its last stage.
            Err(error) if request.ends && error.is_missing_file() => {
                missing = Some(error.to_string());
                open(place, true)?
            }
            opened => opened?,
        };
        Ok(request.opened((version.dataset.clone(), rules), dataset, missing))
    };
    let sources = mixed.versions.iter().zip(&setting.requests).map(source);
    let sources = sources.collect::<Result<_, LoadError>>()?;
    mixture::joined(setting.options.mixture.as_ref(), sources)
}

/// Opens the files of one of a loader's datasets again.
/// - `place`: folder or URL of its files, its shards among the loader's, and its content digest.
/// - `is_missing`: its files are gone, so that no epoch reads it.
fn open_part(
    (setting, request): (&Setting, &DatasetRequest),
    contents: &Contents,
    rules: FileRules,
    (root, shards, content): (PathBuf, Range<usize>, ContentDigest),
    is_missing: bool,
) -> Result<Dataset, LoadError> {
    let rows = contents.shards[shards.clone()].iter();
    let (cache, place) = (&setting.options.cache, root.display().to_string());
    let mut dataset = match is_missing {
        true => {
            let rows: Vec<_> = rows.map(|shard| (shard.path.clone(), shard.records)).collect();
            Dataset::of_missing(root, &rows, (rules, cache))?
        }
        false => {
            let paths = rows.map(|shard| shard.path.clone()).collect();
            Dataset::open_paths(root, paths, rules, cache, &mut |_: ScanProgress| true)?
        }
    };
    if let (Some(program), Some(maps)) = (&request.program, &contents.samples) {
        let maps = match shards.len() == contents.shards.len() {
            true => Arc::clone(maps),
            false => Arc::new(SampleMaps::new(maps.maps()[shards].to_vec(), vec![], 0)),
        };
        dataset = dataset.with_maps(&program.program, maps)?;
    }
    if !is_missing && dataset.content() != content {
        let message = format!(
            "{place}: the files are not those that this loader was made for; create it again"
        );
        return Err(WireError::new(ErrorKind::Changed, message).into());
    }
    Ok(dataset)
}
