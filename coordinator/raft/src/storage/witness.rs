//! Commit mark: the number of the log's commits, kept apart from the database.
//!
//! When the newest commit of a database looks damaged, the database assumes that a power cut tore
//! it, and reverts to the previous commit. If that commit was acknowledged, this is silent data
//! loss, and one flipped bit is enough. So each commit's number is synced here before the commit is
//! acknowledged, and a database with fewer commits than its commit mark is rejected.

use std::io;

use uuid::Uuid;

use crate::storage::framing::{self, FrameError, FrameKind};
use crate::storage::log::{LogError, Result};
use shardfeed_host::DiskFile;

/// Two slots, written in turn, each in its own page: a torn write leaves the other one intact.
const SLOT_BYTES: usize = 4096;
const SLOTS: usize = 2;

/// The file of the commit mark, beside the database.
#[derive(Debug)]
pub(crate) struct Witness {
    file: Box<dyn DiskFile>,
    cluster: Uuid,
}

impl Witness {
    /// Returns the bytes of a new log's commit mark.
    pub(crate) fn pristine(cluster: Uuid) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_BYTES * SLOTS];
        for slot in bytes.chunks_mut(SLOT_BYTES) {
            let frame = encode(cluster, 0);
            slot[..frame.len()].copy_from_slice(&frame);
        }
        bytes
    }

    /// Checks the commit mark against a database with `commits`, and sets it to this number.
    pub(crate) fn open(file: Box<dyn DiskFile>, cluster: Uuid, commits: u64) -> Result<Self> {
        let corrupt = |reason| LogError::Corrupt { place: "its witness".to_owned(), reason };
        if file.len()? != (SLOT_BYTES * SLOTS) as u64 {
            return Err(corrupt(
                "the file `log.witness` is missing or has another length".to_owned(),
            ));
        }
        let mut bytes = vec![0; SLOT_BYTES * SLOTS];
        file.read_at(0, &mut bytes)?;
        let slots = bytes.chunks(SLOT_BYTES).map(|slot| decode(cluster, slot));
        let newest = slots.reduce(|one, other| match (one, other) {
            (Ok(one), Ok(other)) => Ok(one.max(other)),
            (one, other) => one.or(other),
        });
        let newest = newest.expect("there are two slots");
        let newest =
            newest.map_err(|e| corrupt(format!("no slot of `log.witness` is right: {e}")))?;
        if commits < newest {
            return Err(LogError::Corrupt {
                place: "its last commits".to_owned(),
                reason: format!("commit {newest} was acknowledged, the newest left is {commits}"),
            });
        }
        let witness = Self { file, cluster };
        witness.note(commits)?;
        Ok(witness)
    }

    /// Records durably that the database has this commit.
    pub(crate) fn note(&self, commits: u64) -> io::Result<()> {
        let slot = commits % SLOTS as u64;
        self.file.write_at(slot * SLOT_BYTES as u64, &encode(self.cluster, commits))?;
        self.file.sync()
    }
}

fn encode(cluster: Uuid, commits: u64) -> Vec<u8> {
    framing::seal(FrameKind::Witness, cluster, &commits.to_le_bytes())
}

fn decode(cluster: Uuid, slot: &[u8]) -> Result<u64, FrameError> {
    let (_, body, _) = framing::open_first(FrameKind::Witness, Some(cluster), slot)?;
    let number = body.try_into().map(u64::from_le_bytes);
    number.map_err(|_| FrameError::Malformed { what: "it is not a number".to_owned() })
}
