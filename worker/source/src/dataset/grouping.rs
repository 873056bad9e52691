//! Samples that have several records of a shard: packs or windows.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardfeed_plan::{
    Digest, Lengths, PackError, PackSegment, PackSettings, Packing, WindowSettings, Windows,
};

/// Bytes of a token's segment, position and padding in a record that is a pack, about.
const PACK_TOKEN_BYTES: u64 = 3;

/// Bytes of the windows that are opened together, about.
const WINDOWS_BYTES: u64 = 1 << 20;

/// Maximum number of windows that are opened together.
const WINDOWS_MAX: u64 = 256;

/// Samples of several records, in blocks that are opened together. The records are *sequences*,
/// numbered without those that are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grouping {
    Packs(Packing),
    Windows(Windows),
}

impl Grouping {
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Packs(packing) => packing.memory_bytes(),
            Self::Windows(windows) => windows.memory_bytes(),
        }
    }

    /// Returns packs of the sequences of a shard.
    /// - `counts`: those of [`Packing::counts`], if they were packed before; otherwise empty.
    ///
    /// # Errors  As [`Packing::new`].
    pub(super) fn packs(
        settings: PackSettings,
        shard: Digest,
        lengths: Lengths,
        counts: &[u64],
    ) -> Result<Self, PackError> {
        Packing::new(settings, shard, lengths, counts).map(Self::Packs)
    }

    /// Returns windows over the sequences of a shard.
    /// - `starts`: for each sequence true if it begins a group. `record_bytes`: mean of a record.
    ///
    /// # Errors  As [`Windows::new`].
    pub(super) fn windows(
        settings: WindowSettings,
        starts: impl Iterator<Item = bool>,
        record_bytes: u64,
    ) -> Result<Self, PackError> {
        let window_bytes = record_bytes.saturating_mul(settings.size).max(1);
        let block = (WINDOWS_BYTES / window_bytes).clamp(1, WINDOWS_MAX);
        Windows::new(settings, starts, block).map(Self::Windows)
    }

    /// Returns the packing, if packs are samples.
    pub fn packing(&self) -> Option<&Packing> {
        match self {
            Self::Packs(packing) => Some(packing),
            Self::Windows(_) => None,
        }
    }

    pub fn samples(&self) -> u64 {
        match self {
            Self::Packs(packing) => packing.packs(),
            Self::Windows(windows) => windows.windows(),
        }
    }

    pub fn blocks(&self) -> u64 {
        match self {
            Self::Packs(packing) => packing.blocks(),
            Self::Windows(windows) => windows.blocks(),
        }
    }

    pub fn samples_of(&self, block: u64) -> Range<u64> {
        match self {
            Self::Packs(packing) => packing.packs_of(block),
            Self::Windows(windows) => windows.windows_of(block),
        }
    }

    pub fn block_of(&self, sample: u64) -> u64 {
        match self {
            Self::Packs(packing) => packing.block_of(sample),
            Self::Windows(windows) => windows.block_of(sample),
        }
    }

    /// Returns the first sequence that the samples of a block or of a later one need.
    pub fn first_sequence(&self, block: u64) -> u64 {
        match self {
            Self::Packs(packing) => packing.first_sequence(block),
            Self::Windows(windows) => windows.first_sequence(block),
        }
    }

    /// Returns the segments of each sample of a block; a window has one for each record.
    /// - `variant`: of packs.
    pub(super) fn open(&self, block: u64, variant: u64) -> Vec<Vec<PackSegment>> {
        match self {
            Self::Packs(packing) => packing.open(block, variant),
            Self::Windows(windows) => windows.open(block),
        }
    }

    /// Tokens of each sequence, of packs.
    pub(super) fn lengths(&self) -> Option<&Lengths> {
        self.packing().map(Packing::lengths)
    }

    /// Returns the tokens of a sequence, without the appended one; in windows 1.
    pub(super) fn tokens_of(&self, sequence: u64) -> u64 {
        match self {
            Self::Packs(packing) => packing.lengths().get(sequence).map_or(0, u64::from),
            Self::Windows(_) => 1,
        }
    }

    /// Returns the bytes of the records that the samples are read as, about.
    /// - `stored_bytes`: of the sequences.
    pub(super) fn data_bytes(&self, stored_bytes: u64) -> u64 {
        match self {
            Self::Packs(packing) => {
                let made = packing.packs() * packing.settings().length * PACK_TOKEN_BYTES;
                stored_bytes.saturating_add(made)
            }
            Self::Windows(windows) => {
                let records = windows.windows().saturating_mul(windows.settings().size);
                let each = stored_bytes.div_ceil(windows.sequences().max(1));
                records.saturating_mul(each)
            }
        }
    }
}
