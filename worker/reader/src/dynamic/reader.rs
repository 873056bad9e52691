//! The rows of the batches of a dynamic job, from group to group.

use std::collections::VecDeque;

use shardfeed_pipeline::Reading;
use shardfeed_plan::PlanError;
use shardfeed_plan::dynamic::{GroupRange, Groups};
use shardfeed_source::LoadError;

use crate::dynamic::granted::GrantedStep;
use crate::records::gather::Gathered;
use crate::records::reader::LaneReader;
use crate::records::stream::StreamTools;

/// Reads the samples granted to one rank in one epoch.
#[derive(Debug)]
pub(crate) struct GroupReader {
    groups: Groups,
    reading: Reading,
    tools: StreamTools,
    /// The group that is read, and the next one if its files are already open.
    feeds: VecDeque<(u64, LaneReader)>,
}

impl GroupReader {
    pub(crate) fn new(groups: Groups, reading: Reading, mut tools: StreamTools) -> Self {
        if let Reading::Hold { chunk_bytes, primed_max } = reading {
            // Two groups are open around a border.
            (tools.chunk_bytes, tools.primed_max) = (chunk_bytes, (primed_max / 2).max(1));
        }
        Self { groups, reading, tools, feeds: VecDeque::new() }
    }

    /// Returns the rows of a batch, in order.
    pub(crate) fn rows(&mut self, step: &GrantedStep) -> Result<Gathered, LoadError> {
        let mut gathered = Gathered::default();
        for piece in &step.pieces {
            self.take(*piece, &mut gathered)?;
        }
        self.prepare(step.then)?;
        Ok(gathered)
    }

    fn take(&mut self, piece: GroupRange, into: &mut Gathered) -> Result<(), LoadError> {
        let fits = |(group, feed): &(u64, LaneReader)| {
            *group == piece.group && feed.next_output() <= piece.from
        };
        match self.feeds.iter().position(fits) {
            Some(index) => drop(self.feeds.drain(..index)),
            None => {
                self.feeds.clear();
                let feed = self.feed(piece)?;
                self.feeds.push_back((piece.group, feed));
            }
        }
        let (_, feed) = self.feeds.front_mut().expect("just seen or made");
        feed.take(piece.from..piece.to, into)
    }

    /// Opens the files of the next group once all shards of this one are being read.
    fn prepare(&mut self, then: Option<GroupRange>) -> Result<(), LoadError> {
        let is_due = match &self.feeds.back() {
            Some((_, feed)) => self.feeds.len() == 1 && feed.is_all_in_reading(),
            None => false,
        };
        if let Some(piece) = then.filter(|_| is_due) {
            let feed = self.feed(piece)?;
            self.feeds.push_back((piece.group, feed));
        }
        Ok(())
    }

    fn feed(&self, piece: GroupRange) -> Result<LaneReader, PlanError> {
        LaneReader::new(&self.groups.lane(piece.group), piece.from, self.reading, &self.tools)
    }
}
