//! Operators that copy numbers to other places: `transpose`, `slice`, `select` and `layout`.

use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::form::Form;
use crate::dtype::{ColumnNumber, with_type};

/// Permutes dimensions, as `tf.transpose`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transpose {
    /// Column of numbers.
    pub input: String,
    /// Input dimension of each output dimension.
    pub perm: Vec<usize>,
}

impl Definition for Transpose {
    fn row() -> &'static str {
        "`transpose(input, perm)` | dimensions in another order | `tf.transpose` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let input = given.forms[0].of_numbers()?;
        Ok(permuted(input, transposed(input, &self.perm)?, &self.perm))
    }
}

/// Cuts a range of each dimension, as `tf.slice`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Column of numbers.
    pub input: String,
    pub begin: Vec<usize>,
    /// Length of each range; -1 = up to the end.
    pub size: Vec<i64>,
}

impl Definition for Slice {
    fn row() -> &'static str {
        "`slice(input, begin, size)` | a part of each dimension | `tf.slice` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let input = given.forms[0].of_numbers()?;
        let form = sliced(input, &self.begin, &self.size)?;
        let strides = strides(&input.shape, |dimension| dimension);
        let from = self.begin.iter().zip(&strides).map(|(begin, stride)| begin * stride).sum();
        let places = places(&form.shape, &strides, from);
        Ok(gathered(input, form, places))
    }
}

/// Selects indices of a dimension, in any order and with repeats, as `tf.gather`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Select {
    /// Column of numbers.
    pub input: String,
    pub axis: usize,
    pub indices: Vec<usize>,
}

impl Definition for Select {
    fn row() -> &'static str {
        "`select(input, indices, axis)` | some indices of a dimension, in any order | `tf.gather` | \
         bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let Self { axis, indices, .. } = self;
        let input = given.forms[0].of_numbers()?;
        let form = selected(input, *axis, indices)?;
        let strides = strides(&input.shape, |dimension| dimension);
        let mut places = places(&form.shape, &strides, 0);
        let inner: usize = form.shape[axis + 1..].iter().product();
        for (at, place) in places.iter_mut().enumerate() {
            let chosen = at / inner % indices.len();
            *place = *place - chosen * strides[*axis] + indices[chosen] * strides[*axis];
        }
        Ok(gathered(input, form, places))
    }
}

/// Position of the channels in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageLayout {
    /// First: `[channels, height, width]`.
    Chw,
    /// Last: `[height, width, channels]`.
    Hwc,
}

/// Moves the channels first or last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Column of images of one size.
    pub input: String,
    /// New position of the channels.
    pub to: ImageLayout,
}

impl Definition for Layout {
    fn row() -> &'static str {
        "`layout(input, to)` | channels first or last | `tf.transpose` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn device_form(&self, input: &Form) -> Option<Result<Form, String>> {
        if input.shape.len() != 3 {
            return Some(Err(format!(
                "a device takes images of three dimensions, not shape {:?}",
                input.shape
            )));
        }
        Some(self.perm(input).and_then(|perm| transposed(input, perm)))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let input = &given.forms[0];
        let perm = self.perm(input)?;
        Ok(permuted(input, transposed(input, perm)?, perm))
    }
}

impl Layout {
    /// Input dimension of each output dimension.
    fn perm(&self, input: &Form) -> Result<&'static [usize], String> {
        match (input.of_numbers()?.shape.len(), self.to) {
            (3, ImageLayout::Chw) => Ok(&[2, 0, 1]),
            (3, ImageLayout::Hwc) => Ok(&[1, 2, 0]),
            (4, ImageLayout::Chw) => Ok(&[0, 3, 1, 2]),
            (4, ImageLayout::Hwc) => Ok(&[0, 2, 3, 1]),
            _ => Err(format!(
                "it takes images of three dimensions, or of four with several images in a row, \
                 not shape {:?}",
                input.shape
            )),
        }
    }
}

fn transposed(input: &Form, perm: &[usize]) -> Result<Form, String> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..input.shape.len()) {
        return Err(format!(
            "perm {perm:?} must name each of the {} dimensions of {:?} once",
            input.shape.len(),
            input.shape
        ));
    }
    Form::numbers(input.dtype, perm.iter().map(|&dimension| input.shape[dimension]).collect())
}

fn sliced(input: &Form, begin: &[usize], size: &[i64]) -> Result<Form, String> {
    let refuse =
        || Err(format!("a part from {begin:?} of size {size:?} does not lie in {:?}", input.shape));
    if begin.len() != input.shape.len() || size.len() != input.shape.len() {
        return refuse();
    }
    let mut shape = vec![];
    for ((&all, &begin), &size) in input.shape.iter().zip(begin).zip(size) {
        let Some(left) = all.checked_sub(begin) else { return refuse() };
        match usize::try_from(size) {
            Ok(size) if size <= left => shape.push(size),
            Err(_) if size == -1 => shape.push(left),
            _ => return refuse(),
        }
    }
    Form::numbers(input.dtype, shape)
}

fn selected(input: &Form, axis: usize, indices: &[usize]) -> Result<Form, String> {
    let Some(&all) = input.shape.get(axis) else {
        return Err(format!("axis {axis} is none of the dimensions of {:?}", input.shape));
    };
    if let Some(index) = indices.iter().find(|&&index| index >= all) {
        return Err(format!("index {index} is beyond the {all} of dimension {axis}"));
    }
    let mut shape = input.shape.clone();
    shape[axis] = indices.len();
    Form::numbers(input.dtype, shape)
}

fn permuted(input: &Form, form: Form, perm: &[usize]) -> OperatorWork {
    let places = places(&form.shape, &strides(&input.shape, |dimension| perm[dimension]), 0);
    gathered(input, form, places)
}

/// Work that copies numbers.
/// - `places`: for each number of an output row, its index in the input row.
fn gathered(input: &Form, form: Form, places: Vec<usize>) -> OperatorWork {
    // Rows are limited far below `u32::MAX` numbers.
    let places: Vec<u32> = places.into_iter().map(|place| place as u32).collect();
    let (dtype, width) = (input.dtype, input.items());
    OperatorWork::columns(form, move |inputs, rows, out| {
        with_type!(dtype, T => {
            let out = bytemuck::cast_slice_mut::<u8, T>(out);
            gather(inputs[0].numbers::<T>(), width, rows, &places, out);
        });
        Ok(())
    })
}

/// Copies the numbers of some rows.
/// - `width`: numbers of an input row.
fn gather<T: ColumnNumber>(all: &[T], width: usize, rows: usize, places: &[u32], out: &mut [T]) {
    let items = places.len();
    let run = places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    for row in 0..rows {
        let numbers = &all[row * width..(row + 1) * width];
        let out = &mut out[row * items..(row + 1) * items];
        match places.first() {
            Some(&first) if run => {
                out.copy_from_slice(&numbers[first as usize..first as usize + items]);
            }
            _ => {
                let places = out.iter_mut().zip(places);
                places.for_each(|(out, &place)| *out = numbers[place as usize]);
            }
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
