//! Runs one operator for some rows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use shardfeed_image::{ImageError, Size};

use super::expression::Expression;
use super::image::Scratch;
use super::lookup::{Lookup, Side, TableFault};
use super::{BitOrder, Form, Operation, compute, layout_perm};
use crate::dtype::{Dtype, Number, with_type};

/// Maximum values of a row for which channel values are repeated over the entire row.
const PERIOD_MAX: usize = 1 << 14;

/// Memory of previous columns for reuse: fresh pages cost as much as writing the data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when an image is finished.
    done: Condvar,
    /// See [`Memory::take_suspect_images`].
    suspect_images: AtomicU64,
}

#[derive(Debug)]
struct State {
    free: Vec<Vec<u64>>,
    free_bytes: usize,
    scratch: Vec<Scratch>,
    /// Bytes of the images in work.
    image_bytes: usize,
    bytes_max: usize,
}

impl Default for State {
    fn default() -> Self {
        let (free, scratch) = (vec![], vec![]);
        Self { free, free_bytes: 0, scratch, image_bytes: 0, bytes_max: usize::MAX }
    }
}

/// Maximum number of free buffers: several for each thread.
const FREE_MAX: usize = 64;

/// Divisor of the total memory that limits each buffer of a thread that is kept between images.
const KEPT_PART: usize = 16;

/// Permit to have an image in memory.
#[derive(Debug)]
pub(crate) struct ImagePermit<'a> {
    memory: &'a Memory,
    bytes: usize,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of the state is complete when the lock is released, even after a panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limits the memory to `bytes` from now on, except for a single row or image that needs more.
    pub(crate) fn bound(&self, bytes: usize) {
        self.lock().bytes_max = bytes;
    }

    /// Maximum bytes that may be used.
    pub(crate) fn bytes_max(&self) -> usize {
        self.lock().bytes_max
    }

    /// Waits until an image of `bytes` fits, or no other image is in work.
    ///
    /// A thread has one image at a time, so a thread that holds a permit never waits for another
    /// one.
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

    /// Takes reusable image memory.
    pub(crate) fn scratch(&self) -> Scratch {
        self.lock().scratch.pop().unwrap_or_default()
    }

    /// Keeps image memory for reuse.
    pub(crate) fn keep_scratch(&self, scratch: Scratch) {
        let kept_max = self.bytes_max() / KEPT_PART;
        let scratch = scratch.trim(kept_max);
        let mut state = self.lock();
        if state.scratch.len() < FREE_MAX {
            state.scratch.push(scratch);
        }
    }

    /// Keeps a column's memory, which may be empty, for reuse.
    pub(crate) fn keep(&self, column: &mut Column) {
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
pub(crate) struct Column {
    words: Vec<u64>,
    bytes: usize,
}

impl Column {
    /// Creates a column with unspecified content: that of its memory's previous use.
    ///
    /// # Errors  There is not enough memory.
    pub(crate) fn new(form: &Form, rows: usize, memory: &Memory) -> Result<Self, OperatorFault> {
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

/// Input of an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input<'a> {
    /// Rows end to end, with the bytes of one row.
    Numbers(&'a [u8], usize),
    /// Rows end to end, with the number of values of each.
    Rows(&'a [u8], &'a [usize]),
    /// One string per row.
    Strings(&'a [&'a [u8]]),
}

impl<'a> Input<'a> {
    pub(crate) fn numbers<T: Number>(self) -> &'a [T] {
        match self {
            Self::Numbers(bytes, _) | Self::Rows(bytes, _) => bytemuck::cast_slice(bytes),
            Self::Strings(_) => unreachable!("forms were checked: these are numbers"),
        }
    }

    /// Numbers of one row.
    pub(crate) fn row(self, row: usize) -> &'a [u8] {
        let Self::Numbers(bytes, row_bytes) = self else {
            unreachable!("forms were checked: these are numbers");
        };
        &bytes[row * row_bytes..(row + 1) * row_bytes]
    }

    fn bytes(self) -> &'a [u8] {
        self.numbers::<u8>()
    }
}

/// Error of a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorFault {
    /// There is not enough memory for an intermediate column.
    #[error("no memory for {bytes} bytes of it; use smaller batches or shapes")]
    Memory {
        /// Requested bytes.
        bytes: usize,
    },
    /// A row has more numbers than the padded length.
    #[error(
        "{found} numbers, more than the {length} of padded_batch; raise length, or set truncate"
    )]
    TooLong {
        /// Numbers in the row.
        found: usize,
        /// Maximum numbers.
        length: usize,
    },
    /// A table does not contain a key.
    #[error("{table} has no key {key}; write the table with it, or give missing a number")]
    NoKey {
        /// The key, or its beginning.
        key: String,
        /// Path of the table.
        table: String,
    },
    /// A table cannot be used.
    #[error(transparent)]
    Table(#[from] Box<TableFault>),
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An image has another size than declared.
    #[error(
        "an image of {}x{} pixels, but all are said to have {}x{}; leave size out, and resize or crop",
        .size.height, .size.width, .wanted.height, .wanted.width
    )]
    ImageSize {
        /// Size of the image.
        size: Size,
        /// Declared size.
        wanted: Size,
    },
    /// A region does not lie within an image.
    #[error(
        "a part of {}x{} pixels from {from:?} does not lie in an image of {}x{}; resize it before",
        .size.height, .size.width, .image.height, .image.width
    )]
    Part {
        /// Size of the region.
        size: Size,
        /// First row, and first pixel in a row.
        from: (usize, usize),
        /// Size of the image.
        image: Size,
    },
    /// A column contains an invalid size.
    #[error("column `{column}` says {number} for a size")]
    Side {
        /// Name of the column.
        column: String,
        /// Its value.
        number: i64,
    },
    /// A string does not have the length of its numbers.
    #[error(
        "decode_raw: the string has {found} bytes, but {dtype} of shape {shape:?} takes {expected}; correct \
         dtype or shape, or set fixed_length"
    )]
    Length {
        /// Type of the numbers.
        dtype: Dtype,
        /// Shape of the numbers.
        shape: Vec<usize>,
        /// Bytes of the numbers.
        expected: usize,
        /// Bytes of the string.
        found: usize,
    },
}

impl From<TableFault> for OperatorFault {
    fn from(fault: TableFault) -> Self {
        Self::Table(Box::new(fault))
    }
}

impl OperatorFault {
    /// True if the record causes the error, so that another record may be substituted.
    pub(crate) fn is_of_record(&self) -> bool {
        !matches!(self, Self::Memory { .. } | Self::Table(_))
    }
}

/// Row in which an operator failed, and the error.
pub(crate) type Failed = (usize, OperatorFault);

/// An operator, ready to run any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    operation: Operation,
    inputs: Vec<Form>,
    form: Form,
    /// For each number of an output row, its index in the input row.
    places: Vec<u32>,
    expression: Option<Expression>,
    lookup: Option<Lookup>,
}

impl Ready {
    /// Prepares an operator.
    /// - `side`: the lookup table, if it uses one.
    ///
    /// # Errors  The reason why it cannot be applied.
    pub(crate) fn new(
        operation: Operation,
        inputs: Vec<Form>,
        side: Option<Arc<Side>>,
    ) -> Result<Self, String> {
        let form = operation.form(&inputs)?;
        let places = match &operation {
            Operation::Transpose { perm, .. } => {
                places(&form.shape, &strides(&inputs[0].shape, |dimension| perm[dimension]), 0)
            }
            Operation::Layout { to, .. } => {
                let perm = layout_perm(*to, &inputs[0])?;
                places(&form.shape, &strides(&inputs[0].shape, |dimension| perm[dimension]), 0)
            }
            Operation::Slice { begin, .. } => {
                let strides = strides(&inputs[0].shape, |dimension| dimension);
                let from = begin.iter().zip(&strides).map(|(begin, stride)| begin * stride).sum();
                places(&form.shape, &strides, from)
            }
            Operation::Select { axis, indices, .. } => {
                let strides = strides(&inputs[0].shape, |dimension| dimension);
                let mut found = places(&form.shape, &strides, 0);
                let inner: usize = form.shape[axis + 1..].iter().product();
                for (at, place) in found.iter_mut().enumerate() {
                    let chosen = at / inner % indices.len();
                    *place = *place - chosen * strides[*axis] + indices[chosen] * strides[*axis];
                }
                found
            }
            _ => vec![],
        };
        let expression = match &operation {
            Operation::Compute { expression, .. } => Some(Expression::parse(expression)?),
            _ => None,
        };
        let lookup = match (&operation, side) {
            (Operation::Lookup { column, dtype, shape, missing, .. }, Some(side)) => {
                let row = Form { dtype: *dtype, shape: shape.clone() };
                Some(Lookup::new(side, column, &inputs[0], &row, *missing))
            }
            _ => None,
        };
        // Rows are limited far below `u32::MAX` numbers.
        let places = places.into_iter().map(|place| place as u32).collect();
        Ok(Self { operation, inputs, form, places, expression, lookup })
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }

    /// Opens the lookup table, if the operator uses one.
    pub(crate) fn open(&self) -> Result<(), TableFault> {
        self.lookup.as_ref().map_or(Ok(()), |lookup| lookup.open().map(drop))
    }

    /// Runs the operator on `rows` rows.
    /// - `out`: exactly the numbers of these rows.
    pub(crate) fn run(
        &self,
        inputs: &[Input<'_>],
        rows: usize,
        out: &mut [u8],
    ) -> Result<(), Failed> {
        let to = self.form.dtype;
        let from = self.inputs.first().map_or(Dtype::Float64, |form| form.dtype);
        match &self.operation {
            Operation::DecodeRaw { little_endian, fixed_length, .. } => {
                let Input::Strings(strings) = inputs[0] else {
                    unreachable!("forms were checked: these are strings");
                };
                return self.decode(strings, *little_endian, fixed_length.is_some(), out);
            }
            Operation::Cast { .. } => {
                with_type!(from, From => with_type!(to, To => {
                    cast(inputs[0].numbers::<From>(), bytemuck::cast_slice_mut::<u8, To>(out));
                }));
            }
            Operation::Reshape { .. } => out.copy_from_slice(inputs[0].bytes()),
            Operation::UnpackBits { bit_order, .. } => unpack(inputs[0].bytes(), *bit_order, out),
            Operation::Scale { scale, offset, .. } => {
                self.channels(
                    inputs[0],
                    scale,
                    offset,
                    out,
                    |x, a, b| x * a + b,
                    |x, a, b| x * a + b,
                );
            }
            Operation::Normalize { mean, std, .. } => {
                self.channels(
                    inputs[0],
                    mean,
                    std,
                    out,
                    |x, a, b| (x - a) / b,
                    |x, a, b| (x - a) / b,
                );
            }
            Operation::PaddedBatch { length, value, truncate, .. } => {
                let Input::Rows(_, lengths) = inputs[0] else {
                    unreachable!("forms were checked: these are rows");
                };
                with_type!(from, T => {
                    let out = bytemuck::cast_slice_mut::<u8, T>(out);
                    return pad(inputs[0].numbers::<T>(), lengths, *length, T::from_f64(*value), *truncate, out);
                });
            }
            Operation::DecodeImage { .. }
            | Operation::Crop { .. }
            | Operation::RandomCrop { .. }
            | Operation::RandomResizedCrop { .. }
            | Operation::Resize { .. }
            | Operation::Flip { .. } => unreachable!("images are worked on in chains"),
            Operation::Transpose { .. }
            | Operation::Layout { .. }
            | Operation::Slice { .. }
            | Operation::Select { .. } => {
                with_type!(from, T => {
                    let all = inputs[0].numbers::<T>();
                    let out = bytemuck::cast_slice_mut::<u8, T>(out);
                    self.gather(all, rows, out);
                });
            }
            Operation::OneHot { depth, on, off, .. } => {
                with_type!(from, From => with_type!(to, To => {
                    let (on, off) = (To::from_f64(*on), To::from_f64(*off));
                    let out = bytemuck::cast_slice_mut::<u8, To>(out);
                    out.fill(off);
                    for (at, number) in inputs[0].numbers::<From>().iter().enumerate() {
                        let place = usize::try_from(number.to_i64()).ok();
                        if let Some(place) = place.filter(|place| place < depth) {
                            out[at * depth + place] = on;
                        }
                    }
                }));
            }
            Operation::Compute { .. } => self.compute(inputs, rows, out),
            Operation::Lookup { .. } => {
                let lookup = self.lookup.as_ref().expect("a lookup has its table");
                return lookup.run(inputs[0], from, self.inputs[0].items(), out);
            }
        }
        Ok(())
    }

    fn decode(
        &self,
        strings: &[&[u8]],
        little_endian: bool,
        is_fixed: bool,
        out: &mut [u8],
    ) -> Result<(), Failed> {
        let Form { dtype, shape } = &self.form;
        let bytes = self.form.items() * dtype.bytes();
        for (row, string) in strings.iter().enumerate() {
            if string.len() != bytes && !is_fixed {
                let (shape, found) = (shape.clone(), string.len());
                let fault = OperatorFault::Length { dtype: *dtype, shape, expected: bytes, found };
                return Err((row, fault));
            }
            let len = string.len().min(bytes);
            let (head, tail) = out[row * bytes..(row + 1) * bytes].split_at_mut(len);
            head.copy_from_slice(&string[..len]);
            tail.fill(0);
        }
        if little_endian != cfg!(target_endian = "little") && dtype.bytes() > 1 {
            out.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
        }
        if *dtype == Dtype::Bool {
            out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(())
    }

    fn gather<T: Number>(&self, all: &[T], rows: usize, out: &mut [T]) {
        let (width, items) = (self.inputs[0].items(), self.form.items());
        let run = self.places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        for row in 0..rows {
            let numbers = &all[row * width..(row + 1) * width];
            let out = &mut out[row * items..(row + 1) * items];
            match self.places.first() {
                Some(&first) if run => {
                    out.copy_from_slice(&numbers[first as usize..first as usize + items]);
                }
                _ => {
                    let places = out.iter_mut().zip(&self.places);
                    places.for_each(|(out, &place)| *out = numbers[place as usize]);
                }
            }
        }
    }

    fn channels(
        &self,
        input: Input<'_>,
        first: &[f64],
        second: &[f64],
        out: &mut [u8],
        in_f32: impl Fn(f32, f32, f32) -> f32,
        in_f64: impl Fn(f64, f64, f64) -> f64,
    ) {
        // Repeats the values over a longer period, so that a short last dimension makes no short
        // loops.
        let last = self.form.shape.last().copied().unwrap_or(1).max(1);
        let items = self.form.items().max(1);
        let period = if items <= PERIOD_MAX { items } else { last };
        let spread = |values: &[f64]| -> Vec<f64> {
            let value = |at: usize| values[if values.len() == 1 { 0 } else { at % last }];
            (0..period).map(value).collect()
        };
        let (first, second) = (spread(first), spread(second));
        with_type!(self.inputs[0].dtype, From => {
            let numbers = input.numbers::<From>().chunks_exact(period);
            if self.form.dtype == Dtype::Float32 {
                let narrow = |values: &[f64]| -> Vec<f32> {
                    values.iter().map(|&value| value as f32).collect()
                };
                let (first, second) = (narrow(&first), narrow(&second));
                let out = bytemuck::cast_slice_mut::<u8, f32>(out);
                for (out, numbers) in out.chunks_exact_mut(period).zip(numbers) {
                    let values = first.iter().zip(&second);
                    for ((out, number), (a, b)) in out.iter_mut().zip(numbers).zip(values) {
                        *out = in_f32(cast_one(*number), *a, *b);
                    }
                }
            } else {
                let out = bytemuck::cast_slice_mut::<u8, f64>(out);
                for (out, numbers) in out.chunks_exact_mut(period).zip(numbers) {
                    let values = first.iter().zip(&second);
                    for ((out, number), (a, b)) in out.iter_mut().zip(numbers).zip(values) {
                        *out = in_f64(number.to_f64(), *a, *b);
                    }
                }
            }
        });
    }

    fn compute(&self, inputs: &[Input<'_>], rows: usize, out: &mut [u8]) {
        let expression = self.expression.as_ref().expect("an expression was read");
        let input = |name: usize, range: std::ops::Range<usize>, to: &mut [f64]| {
            with_type!(self.inputs[name].dtype, From => {
                cast(&inputs[name].numbers::<From>()[range], to);
            });
        };
        with_type!(self.form.dtype, To => {
            let out = bytemuck::cast_slice_mut::<u8, To>(out);
            compute::compute(expression, rows, input, |range, values| cast(values, &mut out[range]));
        });
    }
}

fn cast<From: Number, To: Number>(from: &[From], to: &mut [To]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = cast_one(*from));
}

#[inline]
fn cast_one<From: Number, To: Number>(from: From) -> To {
    if From::IS_FLOAT { To::from_f64(from.to_f64()) } else { To::from_i64(from.to_i64()) }
}

fn pad<T: Number>(
    mut numbers: &[T],
    lengths: &[usize],
    length: usize,
    value: T,
    truncate: bool,
    out: &mut [T],
) -> Result<(), Failed> {
    for (row, &found) in lengths.iter().enumerate() {
        if found > length && !truncate {
            return Err((row, OperatorFault::TooLong { found, length }));
        }
        let (own, rest) = numbers.split_at(found);
        let (head, tail) = out[row * length..(row + 1) * length].split_at_mut(found.min(length));
        head.copy_from_slice(&own[..head.len()]);
        tail.fill(value);
        numbers = rest;
    }
    Ok(())
}

fn unpack(bytes: &[u8], order: BitOrder, out: &mut [u8]) {
    for (byte, bits) in bytes.iter().zip(out.as_chunks_mut::<8>().0) {
        for (at, bit) in bits.iter_mut().enumerate() {
            *bit = match order {
                BitOrder::Big => byte >> (7 - at) & 1,
                BitOrder::Little => byte >> at & 1,
            };
        }
    }
}

/// Returns the stride of each dimension, in the order given by `of`.
fn strides(shape: &[usize], of: impl Fn(usize) -> usize) -> Vec<usize> {
    let stride = |dimension: usize| shape[dimension + 1..].iter().product();
    (0..shape.len()).map(|dimension| stride(of(dimension))).collect()
}

/// Returns the index of each number of a row of `shape` with these strides.
fn places(shape: &[usize], strides: &[usize], from: usize) -> Vec<usize> {
    let mut places = vec![from];
    for (&size, &stride) in shape.iter().zip(strides) {
        places =
            places.iter().flat_map(|place| (0..size).map(move |at| place + at * stride)).collect();
    }
    places
}
