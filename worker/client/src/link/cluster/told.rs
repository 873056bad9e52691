//! Statistics and descriptions of a link.

use shardfeed_reader::PrefetchStats;

use super::{Backend, Cluster};
use crate::link::received::prefetch_stats;

impl Cluster {
    pub(crate) fn stats(&self) -> Option<PrefetchStats> {
        match &self.backend {
            Backend::InProcess(in_process, _) => in_process.link.stats(),
            Backend::Worker(link) => {
                let (copies, in_hand) = (self.copies.stats(), self.machine.in_hand());
                let stats = link.stats.as_ref()?;
                let held = link.regions.out().saturating_sub(in_hand);
                Some(prefetch_stats(stats, in_hand, held, copies, self.waited))
            }
            Backend::Connecting(_) | Backend::Opening(_) => None,
        }
    }

    pub(crate) fn cluster_id(&self) -> Option<String> {
        match &self.backend {
            Backend::Worker(link) => Some(link.cluster_id.clone()).filter(|id| !id.is_empty()),
            Backend::InProcess(in_process, _) => in_process.worker.cluster_id(),
            Backend::Connecting(_) | Backend::Opening(_) => None,
        }
    }

    pub(crate) fn copied(&self) -> u64 {
        self.copies.made
    }

    pub(crate) fn source(&self) -> String {
        match &self.backend {
            Backend::Worker(link) => format!("worker {}", link.name),
            Backend::InProcess(..) | Backend::Opening(_) => "in process".into(),
            Backend::Connecting(_) => "connecting".into(),
        }
    }
}
