//! Side tables: rows of fixed size in a file, found by their key with two reads.
//!
//! A file consists of a header, pages of keys, and blocks of rows. A hash of the key selects the
//! page, and the page gives the row. Only the header is read when the table is opened, so a table
//! may be larger than memory; processes share the system's page cache.
//!
//! Files are read with reads at offsets and are not mapped. Truncating a mapped file kills the
//! process that touches it (SIGBUS), and bytes in a mapping may change after they were checked.
//! Reads return a copy, which is checked before it is used. Its checksum covers the table's digest
//! and the location in the file, so a part of another table is detected as well as a flipped bit.
//! Any bytes give the row that was written, or an error with file and offset.
//!
//! It does not interpret number types: a row is bytes, columns are names, type names and lengths.
//!
//! Start at [`Table`], and at [`Layout`], which writes a table.
#![forbid(unsafe_code)]

mod error;
mod header;
mod key;
mod seal;

mod cache;
mod read;
mod write;

pub use error::{TableError, WriteError};
pub use header::{Column, KeyKind, ROW_BYTES_MAX};
pub use key::Key;
pub use read::Table;
pub use write::{Keys, Layout};
