//! Header of a table file: its contents and their locations.

use std::fmt;

use crc_fast::crc32_iscsi;
use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::error::TableError;

/// Size of a page of keys in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bytes of a page before its keys: count, checksum, first row.
pub(crate) const PAGE_HEAD_BYTES: usize = 16;
/// Size of a block's checksum in bytes.
pub(crate) const SEAL_BYTES: usize = 4;
/// Bytes of rows per block, unless one row is larger.
pub(crate) const BLOCK_ROWS_BYTES: usize = 4092;

pub const ROW_BYTES_MAX: usize = 1 << 29;

const MAGIC: &[u8; 8] = b"SHFTABLE";
const VERSION: u32 = 1;
/// Offset of the text: after magic, version and length.
const TEXT_AT: usize = 16;
/// Maximum size of the text in bytes; columns are few and have names written by users.
const TEXT_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    Int64,
    Bytes,
}

impl KeyKind {
    /// Returns the size of a key in a page, in bytes.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Int64 => 8,
            Self::Bytes => 16,
        }
    }

    pub(crate) fn page_keys_max(self) -> usize {
        (PAGE_BYTES - PAGE_HEAD_BYTES) / self.bytes()
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int64 => "int64",
            Self::Bytes => "byte strings",
        })
    }
}

/// Column of a table: the same part of every row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Name, unique within the table.
    pub name: String,
    /// Type of its numbers, as a name that only readers interpret.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Bytes per row, at least 1.
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) key: KeyKind,
    pub(crate) keys: u64,
    pub(crate) seed: u64,
    pub(crate) pages: u64,
    pub(crate) block_rows: u64,
    pub(crate) columns: Vec<Column>,
    /// SHA-256 of this header's text, the keys and the rows; not part of the hashed text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<Digest>,
}

/// Locations of the parts of a file, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) pages_at: u64,
    pub(crate) blocks_at: u64,
    pub(crate) block_bytes: usize,
    pub(crate) row_bytes: usize,
    pub(crate) file_bytes: u64,
}

impl Header {
    /// Checks the columns; the error is the reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { columns, .. } = self;
        if columns.is_empty() {
            return Err("a table has at least one column".to_owned());
        }
        let mut names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two columns have the name `{}`", twice[0]));
        }
        if let Some(empty) = columns.iter().find(|column| column.bytes == 0) {
            return Err(format!("column `{}` has no bytes", empty.name));
        }
        self.row_bytes().map(drop)
    }

    pub(crate) fn row_bytes_checked(&self) -> Result<usize, String> {
        self.check()?;
        self.row_bytes()
    }

    fn row_bytes(&self) -> Result<usize, String> {
        let sum = |sum: usize, column: &Column| sum.checked_add(column.bytes);
        match self.columns.iter().try_fold(0, sum) {
            Some(bytes) if bytes <= ROW_BYTES_MAX => Ok(bytes),
            _ => Err(format!("a row has more than {ROW_BYTES_MAX} bytes")),
        }
    }

    /// Returns the rows per block for rows of `row_bytes` bytes.
    pub(crate) fn block_rows(row_bytes: usize) -> u64 {
        (BLOCK_ROWS_BYTES / row_bytes).max(1) as u64
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.keys.div_ceil(self.block_rows)
    }

    /// Returns the locations of all parts.
    /// - `text_bytes`: length of the header's text in the file.
    pub(crate) fn places(&self, text_bytes: usize) -> Result<Places, String> {
        let row_bytes = self.row_bytes_checked()?;
        if self.pages == 0 || self.block_rows != Self::block_rows(row_bytes) {
            return Err("its pages or blocks have a size that no table has".to_owned());
        }
        // One row or at most 4 KiB of rows: both are far below usize::MAX.
        let block_bytes = self.block_rows as usize * row_bytes + SEAL_BYTES;
        let pages_at = (TEXT_AT + text_bytes + SEAL_BYTES).next_multiple_of(PAGE_BYTES) as u64;
        let places = || {
            let blocks_at = self.pages.checked_mul(PAGE_BYTES as u64)?.checked_add(pages_at)?;
            let blocks = self.blocks().checked_mul(block_bytes as u64)?;
            let file_bytes = blocks_at.checked_add(blocks)?;
            Some(Places { pages_at, blocks_at, block_bytes, row_bytes, file_bytes })
        };
        places().ok_or_else(|| "it would have more bytes than a file can".to_owned())
    }

    /// Returns the text that is hashed first into the digest.
    pub(crate) fn text_before_digest(&self) -> String {
        json(&Self { digest: None, ..self.clone() })
    }

    /// Returns the file's first bytes, up to the first page.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let text = json(self);
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("its columns take more than {TEXT_BYTES_MAX} bytes to name"));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&crc32_iscsi(&bytes).to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
        Ok(bytes)
    }

    /// Reads the header of a file.
    /// - `read`: reads at an offset; returns `None` beyond the end.
    /// - Returns the header, its digest, and the locations of all parts.
    pub(crate) fn read(
        file: &str,
        read: impl Fn(u64, usize) -> Result<Option<Vec<u8>>, TableError>,
    ) -> Result<(Self, Digest, Places), TableError> {
        let not = |what: String| TableError::NotATable { file: file.to_owned(), what };
        let head = read(0, TEXT_AT)?.filter(|head| head.starts_with(MAGIC));
        let Some(head) = head else {
            return Err(not("is no table; write one with shardfeed.write_table".to_owned()));
        };
        let number =
            |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        if number(8) != VERSION {
            let version = number(8);
            return Err(not(format!(
                "is a table of version {version}, and this software reads version {VERSION}; use the same \
                 version of shardfeed for both"
            )));
        }
        let damaged = |what: String| TableError::Damaged { file: file.to_owned(), offset: 0, what };
        let text_bytes = number(12) as usize;
        if text_bytes > TEXT_BYTES_MAX {
            return Err(damaged(format!("its header says that it has {text_bytes} bytes")));
        }
        let bytes = (TEXT_AT + text_bytes + SEAL_BYTES).next_multiple_of(PAGE_BYTES);
        let Some(bytes) = read(0, bytes)? else {
            return Err(damaged("its header is cut off".to_owned()));
        };
        let (sealed, rest) = bytes.split_at(TEXT_AT + text_bytes);
        let (seal, padding) = rest.split_at(SEAL_BYTES);
        if crc32_iscsi(sealed).to_le_bytes() != *seal || padding.iter().any(|&byte| byte != 0) {
            return Err(damaged("its header does not fit its checksum".to_owned()));
        }
        let header: Self = serde_json::from_slice(&sealed[TEXT_AT..])
            .map_err(|error| damaged(format!("its header cannot be read: {error}")))?;
        let places = header.places(text_bytes).map_err(damaged)?;
        let digest = header.digest.ok_or_else(|| damaged("it has no digest".to_owned()))?;
        Ok((header, digest, places))
    }
}

fn json(header: &Header) -> String {
    serde_json::to_string(header).expect("a header is plain data")
}
