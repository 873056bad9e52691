//! One batch on its way through the threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use shardfeed_pipeline::{Assembler, Batch, DrawKey, Row, RowError, RowFault};
use shardfeed_source::{LoadError, descriptors, trace};
use shardfeed_tfrecord::{FOOTER_BYTES, HEADER_BYTES};

use crate::mend::Order;
use crate::records::gather::{Gathered, Item, RecordLocation};
use crate::records::place::{read_record, read_straight};
use crate::records::stream::StreamTools;
use crate::sequence::{Delivered, Delivery, Ticket};
use crate::skipped::Skipped;
use crate::threads::computing;

/// Returns all rows' positions, if none of the rows was read yet.
fn places(gathered: &Gathered) -> Option<Vec<RecordLocation>> {
    let place = |item| match item {
        Item::Place(place) => Some(place),
        Item::Held(_) => None,
    };
    gathered.rows.iter().map(|row| place(row.item)).collect()
}

enum AssembleError {
    Row(RowError),
    Load(LoadError),
}

pub(crate) struct BatchWork {
    pub(crate) assembler: Assembler,
    pub(crate) tools: StreamTools,
    /// Order that gives the substitutes of corrupt records; `None`: corrupt records are errors.
    pub(crate) order: Option<Order>,
    pub(crate) ticket: Ticket,
    pub(crate) draw: DrawKey,
    pub(crate) step: u64,
    /// True once the records whose checksums do not match were read again.
    pub(crate) has_read_again: bool,
    /// Samples whose records were substituted; `None` before that.
    pub(crate) skipped: Option<Vec<Skipped>>,
}

impl BatchWork {
    /// Reads rows known only by position, on a reading thread; then assembles on a computing one.
    pub(crate) fn read_placed(self, mut gathered: Gathered) {
        if self.assembler.is_straight()
            && let Some(places) = places(&gathered)
        {
            let mut needed = None;
            let has_room = |bytes| {
                let fits = self.ticket.has_room(bytes);
                needed = (fits == Ok(false)).then_some(bytes);
                fits == Ok(true)
            };
            let (shard, rows) = (places[0].sample.shard, &gathered.rows);
            let straight = || read_straight(&places, rows, &self.assembler, &self.tools, has_room);
            let batch = self.tools.counters.meter.chunk(shard, straight);
            match (batch, needed) {
                (Some(batch), _) => return self.finish(batch, &gathered),
                (None, Some(bytes)) => {
                    return self.park(bytes, move |work| {
                        let io = Arc::clone(&work.tools.io);
                        io.spawn(move || work.read_placed(gathered));
                    });
                }
                // Reading them one by one reports the error.
                (None, None) => {}
            }
        }
        let by_place = gathered.rows.iter().find_map(|row| match &row.item {
            Item::Place(place) => Some(place.sample.shard),
            Item::Held(_) => None,
        });
        let read = match by_place {
            Some(shard) => self.tools.counters.meter.chunk(shard, || self.read(&mut gathered)),
            None => self.read(&mut gathered),
        };
        match read {
            Ok(()) => computing().spawn(move || self.run(gathered)),
            Err(error) => self.ticket.finish(Err(error)),
        }
    }

    /// Reads rows known only by position.
    fn read(&self, gathered: &mut Gathered) -> Result<(), LoadError> {
        for index in 0..gathered.rows.len() {
            if let Item::Place(place) = gathered.rows[index].item {
                if self.tools.stop.load(Ordering::Relaxed) {
                    return Err(LoadError::Interrupted);
                }
                let record = read_record(&place, &self.tools.files, &self.tools.chunks)?;
                gathered.rows[index].item = gathered.item(record);
            }
        }
        Ok(())
    }

    /// Assembles a batch; returns `Ok(Err(bytes))` with the needed bytes if there is no memory yet.
    fn assemble(&self, rows: &[Row<'_>]) -> Result<Result<Batch, usize>, AssembleError> {
        let at = [("epoch", self.draw.epoch), ("step", self.step)];
        let _span = trace::span_of("assemble", at);
        let (mut needed, mut never) = (0, None);
        let assemble = || {
            self.assembler.assemble_within(rows, &self.draw, |bytes| {
                needed = bytes;
                self.ticket.has_room(bytes).unwrap_or_else(|error| {
                    never = Some(error);
                    false
                })
            })
        };
        // A slot for another process needs a descriptor until that process has it.
        let made = descriptors::with(assemble, |error| match &error.fault {
            RowFault::Memory { source, .. } => descriptors::is_short(source),
            _ => false,
        });
        match (made.map_err(AssembleError::Row)?, never) {
            (_, Some(error)) => Err(AssembleError::Load(LoadError::BatchTooLarge(
                error,
                self.draw.epoch,
                self.step,
            ))),
            (Some(batch), None) => Ok(Ok(batch)),
            (None, None) => Ok(Err(needed)),
        }
    }

    /// Assembles rows that were all read. A record whose checksum does not match is read once more
    /// before it counts as damaged: a cache or the network may have changed it.
    pub(crate) fn run(mut self, gathered: Gathered) {
        let rows = gathered.assembled();
        let error = match self.assemble(&rows) {
            Ok(Ok(batch)) => return self.finish(batch, &gathered),
            Ok(Err(bytes)) => return self.park(bytes, move |work| work.run(gathered)),
            Err(AssembleError::Load(error)) => return self.ticket.finish(Err(error)),
            Err(AssembleError::Row(error)) => error,
        };
        let is_mended = self.skipped.is_some();
        if matches!(error.fault, RowFault::Data(_)) && !self.has_read_again && !is_mended {
            self.has_read_again = true;
            let damaged = self.damaged(&rows);
            let io = Arc::clone(&self.tools.io);
            return io.spawn(move || self.run_again(gathered, &damaged));
        }
        let faults = match self.order.is_some() && !is_mended && error.fault.is_of_record() {
            true => self.faults(&rows),
            false => Err(self.tools.files.located(error)),
        };
        match faults {
            Ok(faults) => {
                // Substitutes are read on a reading thread, so that no computing thread waits.
                let io = Arc::clone(&self.tools.io);
                io.spawn(move || self.mend(gathered, &faults));
            }
            Err(error) => self.ticket.finish(Err(error)),
        }
    }

    /// Returns the rows with a record whose checksum does not match, and where that is.
    fn damaged(&self, rows: &[Row<'_>]) -> Vec<(usize, Range<u64>)> {
        let check = |(index, row): (usize, &Row<'_>)| match self.assembler.check(row, &self.draw) {
            Err(RowError { offset, len, fault: RowFault::Data(_), .. }) => {
                Some((index, offset..offset + (HEADER_BYTES + len + FOOTER_BYTES) as u64))
            }
            _ => None,
        };
        rows.par_iter().enumerate().filter_map(check).collect()
    }

    /// Reads rows again, from their storage, and assembles all.
    fn run_again(self, mut gathered: Gathered, damaged: &[(usize, Range<u64>)]) {
        for (row, range) in damaged {
            if self.tools.stop.load(Ordering::Relaxed) {
                return self.ticket.finish(Err(LoadError::Interrupted));
            }
            let (portion, sample) = (gathered.rows[*row].portion(), gathered.rows[*row].sample());
            self.tools.files.doubt_record(sample.shard, range.clone());
            match self.tools.read_one(portion, sample) {
                Ok(record) => gathered.rows[*row].item = gathered.item(record),
                Err(error) => return self.ticket.finish(Err(error)),
            }
        }
        computing().spawn(move || self.run(gathered));
    }

    /// Continues when there is memory for a batch of `bytes`.
    fn park(self, bytes: usize, go_on: impl FnOnce(Self) + Send + 'static) {
        let park = self.ticket.park(bytes);
        park(Box::new(move || {
            computing().spawn(move || match self.tools.stop.load(Ordering::Relaxed) {
                true => self.ticket.finish(Err(LoadError::Interrupted)),
                false => go_on(self),
            });
        }));
    }

    fn mend(mut self, mut gathered: Gathered, faults: &[Option<RowError>]) {
        match self.substitute(&mut gathered, faults) {
            Ok(skipped) => self.skipped = Some(skipped),
            Err(error) => return self.ticket.finish(Err(error)),
        }
        computing().spawn(move || self.run(gathered));
    }

    fn finish(self, batch: Batch, gathered: &Gathered) {
        let Self { ticket, draw: DrawKey { epoch, .. }, step, skipped, .. } = self;
        let skipped = skipped.unwrap_or_default();
        // A row with a substitute is no longer valid.
        let samples = gathered.planned();
        let delivered = Delivered { epoch, step, samples, skipped, batch };
        ticket.finish(Ok(Delivery::Batch(Box::new(delivered))));
    }
}
