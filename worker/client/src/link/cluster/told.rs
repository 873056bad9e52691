//! Statistics and descriptions of a link.

use shardfeed_reader::PrefetchStats;

use super::{Cluster, Way};
use crate::link::received::prefetch_stats;

impl Cluster {
    pub(crate) fn stats(&self) -> Option<PrefetchStats> {
        match &self.way {
            Way::Here(here) => here.here.stats(),
            Way::Worker(link, _) => {
                let copies = self.copies.stats();
                let stats = link.stats.as_ref()?;
                let held = link.regions.out().saturating_sub(self.queue.len());
                Some(prefetch_stats(stats, self.queue.len(), held, copies, self.waited))
            }
            Way::Connecting(_) | Way::Opening(_) => None,
        }
    }

    pub(crate) fn cluster_id(&self) -> Option<String> {
        match &self.way {
            Way::Worker(link, _) => Some(link.cluster_id().to_owned()).filter(|id| !id.is_empty()),
            Way::Here(here) => here.coordinator.cluster_id(),
            Way::Connecting(_) | Way::Opening(_) => None,
        }
    }

    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    pub(crate) fn source(&self) -> String {
        match &self.way {
            Way::Worker(link, _) => format!("worker {}", link.name()),
            Way::Here(_) | Way::Opening(_) => "in process".into(),
            Way::Connecting(_) => "connecting".into(),
        }
    }
}
