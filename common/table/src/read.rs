//! Reads tables.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use shardfeed_plan::Digest;

use crate::cache::Cache;
use crate::error::TableError;
use crate::header::{Column, Header, KeyKind, PAGE_BYTES, PAGE_HEAD_BYTES, Places};
use crate::key::{Key, StoredKey};
use crate::seal::{SealedPart, seal};

type Result<T, E = TableError> = std::result::Result<T, E>;

/// An open table. Lookups may run concurrently in several threads.
///
/// It remains the file that was opened, even after another file takes its name. A write to the file
/// or its truncation causes errors for readers, never wrong rows.
#[derive(Debug)]
pub struct Table {
    file: File,
    name: String,
    header: Header,
    digest: Digest,
    places: Places,
    pages: Cache,
    blocks: Cache,
}

/// A checked page of keys.
struct Page<'a> {
    first_row: u64,
    keys: &'a [u8],
}

impl Table {
    /// Opens the table at `path`; checks its header and length. Other parts are checked when read.
    ///
    /// # Errors  The file is missing, is not a table, or its length differs from its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.to_string_lossy().into_owned();
        let failed = |source| TableError::Open { file: name.clone(), source };
        // Opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(TableError::NotATable { file: name, what: "is no file".to_owned() });
        }
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        let (header, digest, places) = Header::read(&name, |offset, bytes| {
            if offset + bytes as u64 > found {
                return Ok(None);
            }
            let mut memory = vec![0; bytes];
            let read = file.read_exact_at(&mut memory, offset);
            read.map(|()| Some(memory)).map_err(|error| failed_at(&name, offset, error))
        })?;
        if places.file_bytes != found {
            return Err(TableError::Length { file: name, expected: places.file_bytes, found });
        }
        let pages = Cache::new(header.pages, PAGE_BYTES);
        let blocks = Cache::new(header.blocks(), places.block_bytes);
        Ok(Self { file, name, header, digest, places, pages, blocks })
    }

    /// Returns the path with which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub fn key(&self) -> KeyKind {
        self.header.key
    }

    /// Returns the columns in the order in which they are stored in a row.
    pub fn columns(&self) -> &[Column] {
        &self.header.columns
    }

    pub fn keys(&self) -> u64 {
        self.header.keys
    }

    /// Calls `found` with the row of `key`, if there is one. A key of another type has none.
    ///
    /// # Errors  A part of the file is damaged or cannot be read.
    pub fn find<T>(&self, key: Key<'_>, found: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let fits = match key {
            Key::Int64(_) => self.header.key == KeyKind::Int64,
            Key::Bytes(_) => self.header.key == KeyKind::Bytes,
        };
        if !fits || self.header.keys == 0 {
            return Ok(None);
        }
        let stored = StoredKey::of(key);
        let number = stored.page(self.header.seed, self.header.pages);
        let read = |memory| self.read_page(number, memory);
        let row = self.pages.with(number, read, |bytes| self.row_of(&page(bytes), &stored))?;
        let Some(row) = row else {
            return Ok(None);
        };
        let (block, place) = (row / self.header.block_rows, row % self.header.block_rows);
        let from = place as usize * self.places.row_bytes;
        let read = |memory| self.read_block(block, memory);
        let row = |bytes: &[u8]| found(&bytes[from..from + self.places.row_bytes]);
        self.blocks.with(block, read, row).map(Some)
    }

    fn row_of(&self, page: &Page<'_>, stored: &StoredKey) -> Option<u64> {
        let (width, stored) = (self.header.key.bytes(), stored.bytes(self.header.key));
        let (mut low, mut high) = (0, page.keys.len() / width);
        while low < high {
            let middle = low.midpoint(high);
            match page.keys[middle * width..(middle + 1) * width].cmp(stored) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(page.first_row + middle as u64),
            }
        }
        None
    }

    fn read_part(&self, offset: u64, bytes: usize, mut memory: Vec<u8>) -> Result<Vec<u8>> {
        memory.resize(bytes, 0);
        match self.file.read_exact_at(&mut memory, offset) {
            Ok(()) => Ok(memory),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self
                    .damaged(offset, "the file ends before it; it was cut off after it was opened"))
            }
            Err(error) => Err(failed_at(&self.name, offset, error)),
        }
    }

    fn damaged(&self, offset: u64, what: &str) -> TableError {
        TableError::Damaged { file: self.name.clone(), offset, what: what.to_owned() }
    }

    /// Reads and checks page `number`; all its rows are within the table.
    fn read_page(&self, number: u64, memory: Vec<u8>) -> Result<Vec<u8>> {
        let offset = self.places.pages_at + number * PAGE_BYTES as u64;
        let bytes = self.read_part(offset, PAGE_BYTES, memory)?;
        let sum = seal(&self.digest, SealedPart::Page, number, [&bytes[..4], &bytes[8..]]);
        if sum.to_le_bytes() != bytes[4..8] {
            return Err(self.damaged(offset, "a page of keys does not fit its checksum"));
        }
        let count = u64::from(count(&bytes));
        let end = page_first_row(&bytes).checked_add(count);
        let fits = count <= self.header.key.page_keys_max() as u64
            && end.is_some_and(|end| end <= self.header.keys);
        if !fits {
            return Err(self.damaged(offset, "a page says more keys than there are"));
        }
        // Truncated to the length from which `page` derives the keys.
        let keys_end = PAGE_HEAD_BYTES + count as usize * self.header.key.bytes();
        let mut bytes = bytes;
        bytes.truncate(keys_end);
        Ok(bytes)
    }

    fn read_block(&self, number: u64, memory: Vec<u8>) -> Result<Vec<u8>> {
        let bytes = self.places.block_bytes;
        let offset = self.places.blocks_at + number * bytes as u64;
        let bytes = self.read_part(offset, bytes, memory)?;
        let (rows, sum) = bytes.split_at(bytes.len() - crate::header::SEAL_BYTES);
        if seal(&self.digest, SealedPart::Block, number, [rows, &[]]).to_le_bytes() != *sum {
            return Err(self.damaged(offset, "a block of rows does not fit its checksum"));
        }
        Ok(bytes)
    }

    /// Reads the whole table and checks it against its digest.
    /// - `progress`: called with the number of bytes read so far.
    ///
    /// # Errors  The first damaged part.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut hash = Sha256::new();
        hash.update(self.header.text_before_digest());
        let (mut memory, mut next_row) = (vec![], 0);
        for number in 0..self.header.pages {
            let bytes = self.read_page(number, memory)?;
            let offset = self.places.pages_at + number * PAGE_BYTES as u64;
            let wrong = |what| Err(self.damaged(offset, what));
            let Page { first_row, keys } = page(&bytes);
            if first_row != next_row {
                return wrong("a page begins with another row than the one before it ends with");
            }
            let width = self.header.key.bytes();
            if !keys.chunks(width).is_sorted_by(|one, next| one < next) {
                return wrong("the keys of a page are not in their order");
            }
            next_row += (keys.len() / width) as u64;
            hash.update(keys);
            memory = bytes;
            progress(offset + PAGE_BYTES as u64);
        }
        if next_row != self.header.keys {
            return Err(
                self.damaged(self.places.pages_at, "its pages have fewer keys than it says")
            );
        }
        for number in 0..self.header.blocks() {
            let bytes = self.read_block(number, memory)?;
            hash.update(&bytes[..bytes.len() - crate::header::SEAL_BYTES]);
            memory = bytes;
            progress(self.places.blocks_at + (number + 1) * self.places.block_bytes as u64);
        }
        if Digest::from_bytes(hash.finalize().into()) == self.digest {
            return Ok(());
        }
        Err(self.damaged(0, "its content does not match its digest"))
    }
}

fn count(page: &[u8]) -> u32 {
    u32::from_le_bytes(*page.first_chunk().expect("a page has a head"))
}

fn page_first_row(page: &[u8]) -> u64 {
    u64::from_le_bytes(*page[8..].first_chunk().expect("a page has a head"))
}

fn page(bytes: &[u8]) -> Page<'_> {
    Page { first_row: page_first_row(bytes), keys: &bytes[PAGE_HEAD_BYTES..] }
}

fn failed_at(name: &str, offset: u64, source: io::Error) -> TableError {
    TableError::Io { file: name.to_owned(), offset, source }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Keys, Layout};

    /// Tables written by other tools can have checksums that match wrong contents.
    #[test]
    fn every_part_that_does_not_fit_the_others_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.sft");
        let column = Column { name: "x".into(), dtype: "uint8".into(), shape: vec![4], bytes: 4 };
        let keys: Vec<i64> = (0..600).collect();
        let layout = Layout::new(Keys::Int64(&keys), vec![column]).unwrap();
        layout
            .write(&path, |_, out| {
                out.fill(7);
                Ok(())
            })
            .unwrap();
        let good = fs::read(&path).unwrap();
        let table = Table::open(&path).unwrap();
        let (page_at, block_at) = (table.places.pages_at as usize, table.places.blocks_at as usize);
        let last = table.header.pages - 1;
        let sealed_page = |number: u64, change: &dyn Fn(&mut [u8])| {
            let mut bytes = good.clone();
            let page = &mut bytes[page_at + number as usize * PAGE_BYTES..][..PAGE_BYTES];
            change(page);
            let sum = seal(&table.digest, SealedPart::Page, number, [&page[..4], &page[8..]]);
            page[4..8].copy_from_slice(&sum.to_le_bytes());
            bytes
        };
        let sealed_block = || {
            let mut bytes = good.clone();
            let block = &mut bytes[block_at..block_at + table.places.block_bytes];
            let (rows, sum) = block.split_at_mut(table.places.block_bytes - 4);
            rows[0] ^= 1;
            let seal = seal(&table.digest, SealedPart::Block, 0, [rows, &[]]);
            sum.copy_from_slice(&seal.to_le_bytes());
            bytes
        };
        let flipped = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        let files = [
            flipped(page_at + 100),
            flipped(block_at),
            sealed_page(0, &|page| page[..4].copy_from_slice(&601_u32.to_le_bytes())),
            sealed_page(0, &|page| page[8] = 1),
            sealed_page(0, &|page| page.copy_within(16..24, 24)),
            sealed_page(last, &|page| page[0] -= 1),
            sealed_block(),
        ];
        let said = files.map(|bytes| {
            fs::write(&path, bytes).unwrap();
            let error = Table::open(&path).unwrap().verify(&mut |_| {}).unwrap_err().to_string();
            error.replace(folder.path().to_str().unwrap(), "DIR")
        });
        assert_eq!(
            said,
            [
                "DIR/t.sft: damaged at offset 4096: a page of keys does not fit its checksum; copy the \
                 table again, and leave it alone while it is used",
                "DIR/t.sft: damaged at offset 12288: a block of rows does not fit its checksum; copy \
                 the table again, and leave it alone while it is used",
                "DIR/t.sft: damaged at offset 4096: a page says more keys than there are; copy the \
                 table again, and leave it alone while it is used",
                "DIR/t.sft: damaged at offset 4096: a page begins with another row than the one before \
                 it ends with; copy the table again, and leave it alone while it is used",
                "DIR/t.sft: damaged at offset 4096: the keys of a page are not in their order; copy \
                 the table again, and leave it alone while it is used",
                "DIR/t.sft: damaged at offset 4096: its pages have fewer keys than it says; copy the \
                 table again, and leave it alone while it is used",
                "DIR/t.sft: damaged at offset 0: its content does not match its digest; copy the \
                 table again, and leave it alone while it is used",
            ]
        );
    }
}
