//! The planning thread of a dynamic job.

use std::sync::Arc;

use shardfeed_plan::Shuffle;
use shardfeed_plan::dynamic::Groups;
use shardfeed_source::LoadError;

use crate::assignment::Assignment;
use crate::dynamic::feed::{GrantFeed, Taker};
use crate::dynamic::granted::NextStep;
use crate::dynamic::reader::GroupReader;
use crate::epoch_samples::EpochSamples;
use crate::mend::Order;
use crate::meter::Doing;
use crate::planner::{Planner, Shape, draw_key, has_window};
use crate::prefetch::RankLease;
use crate::sequence::Delivery;
use crate::tuning::PREFETCH_START;

impl Planner {
    /// Follows the grants, epoch by epoch and batch by batch, until stopped.
    pub(crate) fn follow_grants(&mut self, assignment: &Assignment) -> Result<(), LoadError> {
        let Assignment { rank: RankLease { control, lease }, plans, identity, .. } = assignment;
        let (shuffle, batch_size) = (&identity.shuffle, assignment.batch_size());
        let feed = Arc::new(GrantFeed::new(batch_size));
        control.watch(lease, feed.bell());
        self.shared.state.lock().feed = Some(Arc::clone(&feed));
        let _taker = Taker::start(&feed, Arc::clone(control), lease.clone())?;
        let (mut epoch, mut step) = (self.options.epoch, self.options.step);
        loop {
            let groups = plans.groups(identity, epoch)?;
            let shape = self.group_shape(&groups, shuffle, batch_size);
            self.tools.samples = EpochSamples::of_dataset(epoch, shuffle.enabled);
            let (reading, _) = self.reading(&shape)?;
            let draw = draw_key(shuffle, epoch, &[]);
            feed.begin_epoch((epoch, step), self.lookahead(&groups, &shape));
            self.reads(Order::Granted(groups.clone()));
            let mut reader = GroupReader::new(groups, reading, self.tools.clone());
            let mut is_filling = !has_window(shuffle);
            loop {
                let meter = &self.shared.counters.meter;
                let Some(ticket) = meter.during(Doing::Room, || self.shared.begin()) else {
                    return Ok(());
                };
                let begun = meter.during(Doing::Grant, || feed.begin(&self.tools.stop));
                let rows = match begun {
                    Ok(NextStep::Step(next)) => {
                        let doing = if is_filling { Doing::Gather } else { Doing::Fill };
                        is_filling = true;
                        let rows = meter.during(doing, || reader.rows(&next));
                        rows.map(|rows| (next.step, rows))
                    }
                    Ok(NextStep::Ended { steps }) => {
                        ticket.finish(Ok(Delivery::EpochEnd { epoch, steps }));
                        break;
                    }
                    Err(error) => Err(error),
                };
                match rows {
                    Ok((step, rows)) => self.assemble(ticket, (draw.clone(), step), rows),
                    Err(error) => {
                        ticket.finish(Err(error));
                        return Ok(());
                    }
                }
            }
            (epoch, step) = (epoch.saturating_add(1), 0);
        }
    }

    /// Returns the shape of an epoch: groups are read like lanes, one at a time.
    fn group_shape(&self, groups: &Groups, shuffle: &Shuffle, batch_size: u64) -> Shape {
        let files = self.options.dataset.files();
        let shards = shuffle.interleave.min(files.len() as u64);
        let largest = files.iter().map(|file| file.records).max().unwrap_or(0);
        Shape {
            rows: batch_size,
            lanes: 1,
            lane_samples: largest.saturating_mul(shards).min(groups.samples()),
            shuffle: shuffle.clone(),
            sources: 0,
            shards: (0..files.len() as u32).collect(),
            record_bytes: self.options.dataset.record_bytes_mean(),
            is_cut: false,
        }
    }

    /// Returns the number of samples that should be granted and not begun: twice the batches ahead,
    /// or the beginning of the next group.
    fn lookahead(&self, groups: &Groups, shape: &Shape) -> u64 {
        let group = groups.samples().div_ceil(groups.count());
        let begins = shape.shuffle.window.saturating_mul(2).min(group);
        let ahead = self.options.prefetch.unwrap_or(PREFETCH_START) as u64;
        shape.rows.saturating_mul(2 * ahead).max(begins).max(1)
    }
}
