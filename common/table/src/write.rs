//! Writes tables.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use shardfeed_plan::Digest;
use shardfeed_tfrecord::NewFile;

use crate::error::WriteError;
use crate::header::{Column, Header, KeyKind, PAGE_BYTES, SEAL_BYTES};
use crate::key::{Key, StoredKey};
use crate::seal::{SealedPart, seal};

/// Bytes of rows that are requested at a time, unless one row is larger.
const CHUNK_BYTES: usize = 4 << 20;

/// Maximum number of seeds; keys that were not chosen to collide fit with the first.
const SEEDS: u64 = 8;

/// Keys of all rows, in the order of the rows.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    Int64(&'a [i64]),
    Bytes(&'a [&'a [u8]]),
}

/// Location of each row of a table. Equal keys, columns and rows, in any order, give an equal file.
#[derive(Debug)]
pub struct Layout {
    header: Header,
    /// Rows in file order: by page, then by key.
    rows: Vec<PlacedKey>,
}

#[derive(Clone, Copy, Debug)]
struct PlacedKey {
    key: StoredKey,
    /// Index of the caller's row.
    row: usize,
}

impl Layout {
    /// Assigns a location to every key. Uses 24 bytes of memory per key, and again as much while
    /// sorting.
    ///
    /// # Errors  A key occurs twice; the columns are invalid.
    pub fn new(keys: Keys<'_>, columns: Vec<Column>) -> Result<Self, WriteError> {
        let placed = |(row, key)| PlacedKey { key: StoredKey::of(key), row };
        let (kind, mut rows): (_, Vec<PlacedKey>) = match keys {
            Keys::Int64(keys) => {
                let keys = keys.iter().map(|&key| Key::Int64(key));
                (KeyKind::Int64, keys.enumerate().map(placed).collect())
            }
            Keys::Bytes(keys) => {
                let keys = keys.iter().map(|key| Key::Bytes(key));
                (KeyKind::Bytes, keys.enumerate().map(placed).collect())
            }
        };
        let mut header = Header {
            key: kind,
            keys: rows.len() as u64,
            seed: 0,
            pages: 1,
            block_rows: 1,
            columns,
            digest: None,
        };
        let row_bytes = header.row_bytes_checked().map_err(WriteError::Columns)?;
        header.block_rows = Header::block_rows(row_bytes);
        rows.sort_unstable_by_key(|placed| (placed.key, placed.row));
        if let Some(pair) = rows.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(WriteError::Duplicate { first: pair[0].row, second: pair[1].row });
        }
        (header.seed, header.pages) = spread(&rows, kind)?;
        let (seed, pages) = (header.seed, header.pages);
        // The rows are sorted by key already; the stable sort keeps that order within each page.
        rows.sort_by_key(|placed| placed.key.page(seed, pages));
        Ok(Self { header, rows })
    }

    pub fn row_bytes(&self) -> usize {
        self.header.columns.iter().map(|column| column.bytes).sum()
    }

    /// Writes the table at `path`. An existing file is replaced once the new one is complete.
    /// - `fill`: writes the given rows of the caller, their columns concatenated, into a buffer of
    ///   their size. It is called for a row twice and must write the same bytes both times.
    ///
    /// # Errors  Those of the file system and of `fill`; `path` is then unchanged.
    pub fn write(
        mut self,
        path: impl AsRef<Path>,
        mut fill: impl FnMut(&[usize], &mut [u8]) -> io::Result<()>,
    ) -> Result<Digest, WriteError> {
        let digest = self.digest(&mut fill)?;
        self.header.digest = Some(digest);
        let mut file = NewFile::beside(path.as_ref())?;
        let mut out = BufWriter::with_capacity(256 << 10, file.file());
        out.write_all(&self.header.encode().map_err(WriteError::Columns)?)?;
        self.each_page(|number, first_row, keys| {
            let mut page = vec![0; PAGE_BYTES];
            page[..4].copy_from_slice(&(keys.len() as u32).to_le_bytes());
            page[8..16].copy_from_slice(&first_row.to_le_bytes());
            let places = page[16..].chunks_exact_mut(self.header.key.bytes());
            places
                .zip(keys)
                .for_each(|(to, key)| to.copy_from_slice(key.key.bytes(self.header.key)));
            let sum = seal(&digest, SealedPart::Page, number, [&page[..4], &page[8..]]);
            page[4..8].copy_from_slice(&sum.to_le_bytes());
            out.write_all(&page)
        })?;
        // The second fill must give the same rows as the first.
        let mut again = self.digest_of_keys();
        self.each_block(&mut fill, |number, rows| {
            again.update(rows);
            out.write_all(rows)?;
            out.write_all(&seal(&digest, SealedPart::Block, number, [rows, &[]]).to_le_bytes())
        })?;
        if Digest::from_bytes(again.finalize().into()) != digest {
            return Err(io::Error::other("the rows changed while they were written").into());
        }
        out.flush()?;
        drop(out);
        file.finish()?;
        Ok(digest)
    }

    fn digest(
        &self,
        fill: &mut impl FnMut(&[usize], &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Digest> {
        let mut hash = self.digest_of_keys();
        self.each_block(fill, |_, rows| {
            hash.update(rows);
            Ok(())
        })?;
        Ok(Digest::from_bytes(hash.finalize().into()))
    }

    fn digest_of_keys(&self) -> Sha256 {
        let mut hash = Sha256::new();
        hash.update(self.header.text_before_digest());
        self.rows.iter().for_each(|row| hash.update(row.key.bytes(self.header.key)));
        hash
    }

    /// Calls `visit` with each page: its number, first row and keys.
    fn each_page(
        &self,
        mut visit: impl FnMut(u64, u64, &[PlacedKey]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Header { seed, pages, .. } = self.header;
        let mut rest = &self.rows[..];
        for number in 0..pages {
            let count = rest.partition_point(|placed| placed.key.page(seed, pages) == number);
            let first_row = (self.rows.len() - rest.len()) as u64;
            let (own, others) = rest.split_at(count);
            visit(number, first_row, own)?;
            rest = others;
        }
        Ok(())
    }

    /// Calls `visit` with the rows of each block; missing rows of the last block are zeros.
    fn each_block(
        &self,
        fill: &mut impl FnMut(&[usize], &mut [u8]) -> io::Result<()>,
        mut visit: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let block_rows = self.header.block_rows as usize;
        let block_bytes = block_rows * self.row_bytes();
        let blocks = (CHUNK_BYTES / (block_bytes + SEAL_BYTES)).max(1);
        let (mut memory, mut sources, mut number) = (vec![], vec![], 0);
        for chunk in self.rows.chunks(blocks * block_rows) {
            sources.clear();
            sources.extend(chunk.iter().map(|placed| placed.row));
            memory.clear();
            memory.resize(chunk.len().div_ceil(block_rows) * block_bytes, 0);
            fill(&sources, &mut memory[..chunk.len() * self.row_bytes()])?;
            for block in memory.chunks(block_bytes) {
                visit(number, block)?;
                number += 1;
            }
        }
        Ok(())
    }
}

/// Returns a seed and a number of pages with which no page overflows.
fn spread(rows: &[PlacedKey], kind: KeyKind) -> Result<(u64, u64), WriteError> {
    let page_max = kind.page_keys_max();
    let least = rows.len().div_ceil(page_max).max(1);
    for seed in 0..SEEDS {
        let mut pages = least;
        // Random keys need up to a third more pages, for a table of any size.
        while pages <= least * 4 {
            let mut counts = vec![0_u16; pages];
            let fits = rows.iter().all(|placed| {
                let count = &mut counts[placed.key.page(seed, pages as u64) as usize];
                *count += 1;
                usize::from(*count) <= page_max
            });
            if fits {
                return Ok((seed, pages as u64));
            }
            pages += pages.div_ceil(32);
        }
    }
    Err(WriteError::Spread { keys: rows.len(), seeds: SEEDS })
}
