//! Side tables: rows of fixed size in a file, found by their key with two reads.
//!
//! A file is a header, pages of keys, and blocks of rows. A hash of the key says in which page it is, the
//! page says which row is its own. Nothing but the header is read at the beginning, so that a table may be
//! larger than memory, and the system's page cache is what processes share.
//!
//! Files are read with reads at offsets and not mapped: a mapped file that somebody cuts off kills the process
//! that touches it (SIGBUS), and bytes in a mapping may change after they were checked. What is read is a
//! copy, checked before anything in it is believed. Its checksum includes the table's digest and the place in
//! the file, so a part of another table is found out as well as a flipped bit. Any bytes give the row that
//! was written, or an error that says file and offset.
//!
//! This crate knows no types of numbers: a row is bytes, and its columns are names, words and lengths.
//!
//! Start at [`Table`], and at [`Layout`], which writes one.
#![forbid(unsafe_code)]

mod error;
mod header;
mod key;
mod seal;

mod cache;
mod read;
mod write;

pub use error::{TableError, WriteError};
pub use header::{Column, Digest, KeyKind, ROW_BYTES_MAX};
pub use key::Key;
pub use read::Table;
pub use write::{Keys, Layout};
