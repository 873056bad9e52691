//! A worker in the trainer's own process, used when no other worker serves it.

use std::sync::Arc;

use shardfeed_source::{Dataset, LoadError, OpenSource};

use crate::cluster_port::{InProcessWorker, Joined, JoinedDataset};
use crate::contents::Contents;
use crate::link::exchange::{Progress, Setting};
use crate::link::in_process_link::InProcessLink;
use crate::mixture;
use crate::options::ClusterOptions;
use crate::request::DatasetRequest;

/// A worker in the trainer's process.
pub(crate) struct InProcess {
    /// Dropped before `worker`: it releases the rank's lease in the worker's session.
    pub(crate) link: InProcessLink,
    pub(crate) worker: Box<dyn InProcessWorker>,
}

impl InProcess {
    /// Reads an opened dataset as `worker`.
    /// - `dataset`: its name in the cluster, and its contents.
    pub(crate) fn new(
        setting: Setting,
        worker: Box<dyn InProcessWorker>,
        dataset: (String, Arc<Dataset>),
    ) -> Self {
        let link = InProcessLink::in_cluster(setting, worker.control(), dataset);
        Self { link, worker }
    }
}

pub(crate) fn cluster_of(setting: &Setting) -> &ClusterOptions {
    setting.options.cluster.as_ref().expect("made for a cluster")
}

/// Becomes a worker: registers the datasets and scans for them, as any other worker does.
pub(crate) fn open_here(
    setting: &Setting,
    progress: Progress<'_>,
) -> Result<(InProcess, Contents), LoadError> {
    let port = cluster_of(setting).port;
    let options = &setting.options;
    let Joined { worker, datasets } =
        port.open(options, &setting.requests, &setting.trainer, progress)?;
    let (mut name, mut rules) = (String::new(), options.file_rules());
    let dataset = match &options.mixture {
        Some(mixture) => {
            let opened = setting.requests.iter().zip(datasets);
            let source = |(request, opened): (&DatasetRequest, JoinedDataset)| OpenSource {
                name: request.source.clone(),
                dataset_name: opened.name,
                rules: opened.rules,
                record_spec: request.record_spec_digest(),
                dataset: Arc::unwrap_or_clone(opened.dataset),
                missing: opened.missing,
            };
            Arc::new(mixture::joined(Some(mixture), opened.map(source).collect())?)
        }
        None => {
            let [opened] = <[_; 1]>::try_from(datasets).map_err(|_| LoadError::ReaderLost)?;
            (name, rules) = (opened.name, opened.rules);
            opened.dataset
        }
    };
    let contents = Contents::of(&name, rules, &dataset);
    Ok((InProcess::new(setting.clone(), worker, (name, dataset)), contents))
}
