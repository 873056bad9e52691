//! Memory of the operators: intermediate columns, and images in work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use shardfeed_image::Resizer;

use super::fault::OperatorFault;
use super::form::Form;

/// Memory of previous columns for reuse: fresh pages cost as much as writing the data.
#[derive(Clone, Debug, Default)]
pub(crate) struct ColumnMemory {
    shared: Arc<ColumnMemoryShared>,
}

#[derive(Debug, Default)]
struct ColumnMemoryShared {
    state: Mutex<ColumnMemoryState>,
    /// Signalled when an image is finished.
    done: Condvar,
    /// See [`ColumnMemory::take_suspect_images`].
    suspect_images: AtomicU64,
}

#[derive(Debug)]
struct ColumnMemoryState {
    free: Vec<Vec<u64>>,
    free_bytes: usize,
    scratch: Vec<ImageScratch>,
    /// Bytes of the images in work.
    image_bytes: usize,
    bytes_max: usize,
}

impl Default for ColumnMemoryState {
    fn default() -> Self {
        let (free, scratch) = (vec![], vec![]);
        Self { free, free_bytes: 0, scratch, image_bytes: 0, bytes_max: usize::MAX }
    }
}

/// Maximum number of free buffers: several for each thread.
const FREE_MAX: usize = 64;

/// Divisor of the total memory that limits each buffer of a thread that is kept between images.
const KEPT_PART: usize = 16;

#[derive(Debug)]
pub(crate) struct ImagePermit<'a> {
    memory: &'a ColumnMemory,
    bytes: usize,
}

impl ColumnMemory {
    fn lock(&self) -> MutexGuard<'_, ColumnMemoryState> {
        // Each change of the state is complete when the lock is released, even after a panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limits the memory to `bytes` from now on, except for a single row or image that needs more.
    pub(crate) fn bound(&self, bytes: usize) {
        self.lock().bytes_max = bytes;
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.lock().bytes_max
    }

    /// Waits until an image of `bytes` fits, or no other image is in work.
    ///
    /// A thread has one image at a time, so no thread waits while it holds a permit.
    pub(crate) fn image(&self, bytes: usize) -> ImagePermit<'_> {
        let mut state = self.lock();
        while state.image_bytes > 0 && state.image_bytes.saturating_add(bytes) > state.bytes_max {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.image_bytes = state.image_bytes.saturating_add(bytes);
        ImagePermit { memory: self, bytes }
    }

    /// Counts an image that was decoded although its data is suspect.
    pub(crate) fn count_suspect_image(&self) {
        self.shared.suspect_images.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of images counted since the last call.
    pub(crate) fn take_suspect_images(&self) -> u64 {
        self.shared.suspect_images.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn scratch(&self) -> ImageScratch {
        self.lock().scratch.pop().unwrap_or_default()
    }

    pub(crate) fn keep_scratch(&self, scratch: ImageScratch) {
        let kept_max = self.bytes_max() / KEPT_PART;
        let scratch = scratch.trim(kept_max);
        let mut state = self.lock();
        if state.scratch.len() < FREE_MAX {
            state.scratch.push(scratch);
        }
    }

    /// Keeps a column's memory, which may be empty, for reuse.
    pub(crate) fn keep(&self, column: &mut ColumnBuffer) {
        let words = std::mem::take(column).words;
        let bytes = 8 * words.capacity();
        let mut state = self.lock();
        let fits = state.free_bytes.saturating_add(bytes) <= state.bytes_max;
        if bytes > 0 && state.free.len() < FREE_MAX && fits {
            state.free_bytes += bytes;
            state.free.push(words);
        }
    }

    /// Takes a free buffer, or an empty one.
    fn take(&self) -> Vec<u64> {
        let mut state = self.lock();
        let words = state.free.pop().unwrap_or_default();
        state.free_bytes -= 8 * words.capacity();
        words
    }
}

impl Drop for ImagePermit<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        state.image_bytes = state.image_bytes.saturating_sub(self.bytes);
        drop(state);
        self.memory.shared.done.notify_all();
    }
}

/// Numbers of some rows, in separate memory.
#[derive(Debug, Default)]
pub(crate) struct ColumnBuffer {
    words: Vec<u64>,
    bytes: usize,
}

impl ColumnBuffer {
    /// Creates a column with unspecified content: that of its memory's previous use.
    ///
    /// # Errors  There is not enough memory.
    pub(crate) fn new(
        form: &Form,
        rows: usize,
        memory: &ColumnMemory,
    ) -> Result<Self, OperatorFault> {
        let bytes = rows.saturating_mul(form.row_bytes());
        let mut words = memory.take();
        let count = bytes.div_ceil(8);
        let reserved = words.try_reserve_exact(count.saturating_sub(words.len()));
        reserved.map_err(|_| OperatorFault::Memory { bytes })?;
        words.resize(count, 0);
        Ok(Self { words, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// Reusable image memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct ImageScratch {
    pub(crate) resizer: Resizer,
    pub(crate) pixels: Vec<u64>,
    pub(crate) flipped: Vec<u64>,
}

impl ImageScratch {
    /// Maximum bytes of a buffer kept between images; larger images get new memory.
    const KEPT_BYTES_MAX: usize = 16 << 20;

    /// Frees buffers that are too large to keep.
    /// - `kept_max`: bytes of each buffer.
    fn trim(mut self, kept_max: usize) -> Self {
        let kept_max = kept_max.min(Self::KEPT_BYTES_MAX);
        for words in [&mut self.pixels, &mut self.flipped] {
            if 8 * words.capacity() > kept_max {
                *words = vec![];
            }
        }
        if self.resizer.bytes() > kept_max {
            self.resizer = Resizer::default();
        }
        self
    }
}

/// Returns a buffer of `bytes` bytes.
pub(crate) fn room(words: &mut Vec<u64>, bytes: usize) -> Result<&mut [u8], OperatorFault> {
    let count = bytes.div_ceil(8);
    words
        .try_reserve_exact(count.saturating_sub(words.len()))
        .map_err(|_| OperatorFault::Memory { bytes })?;
    words.resize(count.max(words.len()), 0);
    Ok(&mut bytemuck::cast_slice_mut(words)[..bytes])
}
