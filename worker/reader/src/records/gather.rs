//! Held records: the chunks that contain them, and the rows of a batch that is made of them.
//!
//! A chunk is shared by thousands of records, which other threads use. Reference counts per record
//! would make all processors write to the same memory. The reading thread therefore counts its held
//! records in its own memory, and a batch has one reference to each chunk.

use std::sync::Arc;

use shardfeed_pipeline::{ChunkBuffer, Row};
use shardfeed_plan::{Planned, Portion, Sample};
use shardfeed_tfrecord::{FOOTER_BYTES, RecordSpan};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<C = Arc<ChunkBuffer>> {
    pub(crate) portion: Portion,
    pub(crate) sample: Sample,
    /// Position in its chunk.
    pub(crate) span: RecordSpan,
    /// Row of the record that is the sample; 0 if the record is the sample.
    pub(crate) part: u32,
    pub(crate) chunk: C,
}

/// A record in one of several chunks, whose holder numbers them.
pub(crate) type HeldRecord = Record<u32>;

impl Record {
    /// Returns the record as a row that is not valid.
    pub(crate) fn row(&self, occurrence: u32) -> Row<'_> {
        self.row_in(&self.chunk, false, occurrence)
    }
}

impl<C> Record<C> {
    /// Returns the record as a row.
    fn row_in<'a>(&self, chunk: &'a ChunkBuffer, valid: bool, occurrence: u32) -> Row<'a> {
        let Self { portion, sample, span, part, .. } = *self;
        let stored = &chunk[span.start..span.start + span.len + FOOTER_BYTES];
        Row { portion, sample, offset: span.offset, stored, valid, part, occurrence }
    }

    /// Returns the record with another reference to its chunk.
    fn with_chunk<D>(self, chunk: impl FnOnce(C) -> D) -> Record<D> {
        let Self { portion, sample, span, part, chunk: of } = self;
        Record { portion, sample, span, part, chunk: chunk(of) }
    }
}

/// Position of a record in an uncompressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) portion: Portion,
    pub(crate) sample: Sample,
    /// Offset of its header in bytes.
    pub(crate) offset: u64,
    /// Bytes of its data.
    pub(crate) len: u64,
}

/// A held record, or the position of one that is not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Held(HeldRecord),
    Place(RecordLocation),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRow {
    pub(crate) item: Item,
    /// `false` for padding, and for a substitute of a corrupt record.
    pub(crate) valid: bool,
    /// Occurrence number for random operators: 1 for padding.
    pub(crate) occurrence: u32,
}

impl PendingRow {
    pub(crate) fn portion(&self) -> Portion {
        match self.item {
            Item::Held(held) => held.portion,
            Item::Place(place) => place.portion,
        }
    }

    pub(crate) fn sample(&self) -> Sample {
        match self.item {
            Item::Held(held) => held.sample,
            Item::Place(place) => place.sample,
        }
    }
}

/// Rows of a batch, with the chunks that contain its records.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) rows: Vec<PendingRow>,
    chunks: Vec<Arc<ChunkBuffer>>,
}

impl Gathered {
    pub(crate) fn with_capacity(rows: usize) -> Self {
        Self { rows: Vec::with_capacity(rows), chunks: Vec::new() }
    }

    /// Adds a record that is held nowhere else, as an item of this batch.
    pub(crate) fn item(&mut self, record: Record) -> Item {
        Item::Held(record.with_chunk(|chunk| self.chunk(chunk)))
    }

    fn chunk(&mut self, chunk: Arc<ChunkBuffer>) -> u32 {
        self.chunks.push(chunk);
        u32::try_from(self.chunks.len() - 1).expect("a batch has fewer rows")
    }

    /// Returns the record of a row, if it was read.
    pub(crate) fn record(&self, row: usize) -> Option<Record> {
        match self.rows[row].item {
            Item::Held(held) => {
                Some(held.with_chunk(|chunk| Arc::clone(&self.chunks[chunk as usize])))
            }
            Item::Place(_) => None,
        }
    }

    /// Returns all rows in the form for assembly; all of them must have been read.
    pub(crate) fn assembled(&self) -> Vec<Row<'_>> {
        let row = |row: &PendingRow| {
            let Item::Held(held) = row.item else {
                unreachable!("places are read before their rows are assembled");
            };
            held.row_in(&self.chunks[held.chunk as usize], row.valid, row.occurrence)
        };
        self.rows.iter().map(row).collect()
    }

    /// Returns its rows as planned.
    pub(crate) fn planned(&self) -> Vec<Planned> {
        let planned = |row: &PendingRow| {
            let (portion, sample) = (row.portion(), row.sample());
            Planned { portion, sample, valid: row.valid }
        };
        self.rows.iter().map(planned).collect()
    }
}

/// Rows that were read together and go into different batches.
#[derive(Debug)]
pub(crate) struct Stock {
    rows: Vec<PendingRow>,
    /// Chunks of the rows that were not given.
    chunks: Chunks,
}

impl Stock {
    pub(crate) fn new(gathered: Gathered) -> Self {
        let mut chunks = Chunks::default();
        let numbers = gathered.chunks.into_iter().map(|chunk| chunks.insert(chunk));
        let numbers: Vec<_> = numbers.collect();
        for row in &gathered.rows {
            if let Item::Held(held) = row.item {
                chunks.hold(held.chunk, 1);
            }
        }
        numbers.into_iter().for_each(|number| chunks.let_go(number));
        Self { rows: gathered.rows, chunks }
    }

    /// Moves a row into a batch.
    /// - `batch`: number of the batch, which is given all its rows before another one.
    pub(crate) fn give(&mut self, row: usize, batch: u64, into: &mut Gathered) {
        let PendingRow { item, valid, occurrence } = self.rows[row];
        let item = self.chunks.moved(item, batch, into);
        into.rows.push(PendingRow { item, valid, occurrence });
    }
}

/// Chunks of which records are held.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    entries: Vec<HeldChunk>,
    free: Vec<u32>,
    /// Counts the batches collected.
    gathering: u64,
}

#[derive(Debug)]
struct HeldChunk {
    /// `None` if no record of it is held.
    chunk: Option<Arc<ChunkBuffer>>,
    /// Number of held records, plus one while more of its records may be held.
    held: usize,
    /// The batch that it was given to last, and its number there.
    given: Option<(u64, u32)>,
}

impl Chunks {
    /// Adds a chunk, held once.
    pub(crate) fn insert(&mut self, chunk: Arc<ChunkBuffer>) -> u32 {
        let entry = HeldChunk { chunk: Some(chunk), held: 1, given: None };
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("fewer chunks fit into memory")
            }
        }
    }

    pub(crate) fn hold(&mut self, number: u32, times: usize) {
        self.entries[number as usize].held += times;
    }

    pub(crate) fn let_go(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        entry.held -= 1;
        if entry.held == 0 {
            entry.chunk = None;
            self.free.push(number);
        }
    }

    pub(crate) fn give(
        &mut self,
        items: impl Iterator<Item = Item>,
        valid: bool,
        into: &mut Gathered,
    ) {
        self.gathering += 1;
        for item in items {
            let item = self.moved(item, self.gathering, into);
            into.rows.push(PendingRow { item, valid, occurrence: u32::from(!valid) });
        }
    }

    /// Returns a held item as one of a batch, whose items are moved before those of another one.
    fn moved(&mut self, item: Item, batch: u64, into: &mut Gathered) -> Item {
        let Item::Held(held) = item else {
            return item;
        };
        let entry = &mut self.entries[held.chunk as usize];
        let number = match entry.given {
            Some((given, number)) if given == batch => number,
            _ => into.chunk(Arc::clone(entry.chunk.as_ref().expect("a record of it is held"))),
        };
        entry.given = Some((batch, number));
        self.let_go(held.chunk);
        Item::Held(HeldRecord { chunk: number, ..held })
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_pipeline::ChunkPool;

    use super::*;

    fn held(chunk: u32, ordinal: u64) -> Item {
        let span = RecordSpan { start: 0, len: 4, offset: 0 };
        let (portion, sample) = (Portion::default(), Sample { shard: 0, ordinal });
        Item::Held(HeldRecord { portion, sample, span, part: 0, chunk })
    }

    #[test]
    fn a_stock_gives_each_batch_its_chunks_once() {
        let pool = ChunkPool::new(4, 1 << 20);
        let (mut chunks, mut read) = (Chunks::default(), Gathered::default());
        let numbers = [1, 2].map(|byte| chunks.insert(pool.share(vec![byte; 8])));
        numbers.iter().for_each(|number| chunks.hold(*number, 2));
        let items = [(0, 0), (1, 1), (0, 2), (1, 3)].map(|(of, at)| held(numbers[of], at));
        chunks.give(items.into_iter(), true, &mut read);
        drop(chunks);
        let mut stock = Stock::new(read);
        let mut batches = [[3, 0], [1, 2]].into_iter().zip(7..).map(|(rows, number)| {
            let mut batch = Gathered::default();
            rows.into_iter().for_each(|row| stock.give(row, number, &mut batch));
            batch
        });
        let (first, second) = (batches.next().unwrap(), batches.next().unwrap());
        drop(batches);
        let bytes = |batch: &Gathered| -> Vec<u8> {
            batch.assembled().iter().map(|row| row.stored[0]).collect()
        };
        assert_eq!((bytes(&first), bytes(&second)), (vec![2, 1], vec![2, 1]));
        assert_eq!((first.chunks.len(), second.chunks.len()), (2, 2));
        drop((first, second));
        assert_eq!(pool.shared_bytes(), 0, "the stock holds no chunk without rows");
    }

    #[test]
    fn a_chunk_goes_with_the_last_record_that_is_held_of_it() {
        let pool = ChunkPool::new(4, 1 << 20);
        let mut chunks = Chunks::default();
        let one = chunks.insert(pool.share(vec![1; 8]));
        let two = chunks.insert(pool.share(vec![2; 8]));
        chunks.hold(one, 2);
        chunks.hold(two, 1);
        let mut batch = Gathered::default();
        chunks.give([held(one, 0), held(two, 1), held(one, 2)].into_iter(), true, &mut batch);
        assert_eq!(batch.chunks.len(), 2, "one share in each");
        let first: Vec<u8> = batch.assembled().iter().map(|row| row.stored[0]).collect();
        assert_eq!(first, [1, 2, 1]);
        drop(batch);
        assert_eq!(pool.shared_bytes(), 16, "more of both is to come");
        chunks.let_go(one);
        assert_eq!(pool.shared_bytes(), 8);
        let three = chunks.insert(pool.share(vec![3; 8]));
        assert_eq!(three, one, "its number is used again");
        let mut batch = Gathered::default();
        chunks.hold(three, 1);
        chunks.let_go(three);
        chunks.give([held(three, 3)].into_iter(), false, &mut batch);
        assert_eq!(batch.assembled()[0].stored[0], 3);
        assert_eq!((batch.rows[0].valid, batch.rows[0].occurrence), (false, 1));
        chunks.let_go(two);
        drop(batch);
        assert_eq!(pool.shared_bytes(), 0);
    }
}
