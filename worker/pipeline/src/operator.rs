//! Operators on a sample's parsed columns; they keep the number of samples.
//!
//! They are declared in the job and are part of its identity. Each works on whole columns of some
//! rows, so that a column is one loop instead of one call per row.

mod compute;
mod expression;
mod image;
mod lookup;
mod run;

use serde::{Deserialize, Serialize};
use shardfeed_image::Method;

use crate::column::items;
use crate::dtype::Dtype;
use expression::Expression;

pub(crate) use image::Chain;
pub(crate) use lookup::Side;
pub use lookup::{TableCause, TableFault, TableRef};
pub use run::OperatorFault;
pub(crate) use run::{Column, Failed, Input, Memory, Ready};

/// Maximum values of one row of a column; more is treated as a mistake or an attack.
const ROW_ITEMS_MAX: usize = 1 << 26;

/// Version of the operators' behaviour; part of a job's identity.
pub const OPERATORS_VERSION: u32 = 1;

/// Order of the bits in a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BitOrder {
    /// Most significant bit first.
    #[default]
    Big,
    /// Least significant bit first.
    Little,
}

/// Axis along which an image is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Left and right are swapped.
    Horizontal,
    /// Top and bottom are swapped.
    Vertical,
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

/// One dimension of a shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// The same for all rows.
    Size(usize),
    /// The value of this column.
    Column(String),
}

impl NewDim {
    fn size(&self) -> Option<i64> {
        if let Self::Size(size) = self { Some(*size) } else { None }
    }

    fn column(&self) -> Option<&String> {
        if let Self::Column(name) = self { Some(name) } else { None }
    }
}

impl Dim {
    pub(crate) fn size(&self) -> Option<usize> {
        if let Self::Size(size) = self { Some(*size) } else { None }
    }

    pub(crate) fn column(&self) -> Option<&String> {
        if let Self::Column(name) = self { Some(name) } else { None }
    }
}

/// One dimension of a new shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NewDim {
    /// The same for all rows; -1: the remaining size.
    Size(i64),
    /// The value of this column.
    Column(String),
}

/// One operator: a column made from one or more columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operator {
    /// Name of the output column; replaces a column of the same name.
    pub output: String,
    /// Operation.
    pub operation: Operation,
}

/// Operation of an operator. Shapes are those of one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// Interprets the bytes of a string as numbers, as `tf.io.decode_raw`.
    DecodeRaw {
        /// Column of one string per row.
        input: String,
        /// Type of the numbers.
        dtype: Dtype,
        /// Shape of the numbers; with column names it is that of an image, and differs from row to
        /// row.
        shape: Vec<Dim>,
        /// True if the least significant byte comes first.
        little_endian: bool,
        /// Number of bytes to which each string is truncated, or padded with zeros.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fixed_length: Option<usize>,
    },
    /// Converts numbers to another type, as `tf.cast`.
    Cast {
        /// Column of numbers.
        input: String,
        /// New type.
        dtype: Dtype,
    },
    /// Changes the shape of numbers.
    Reshape {
        /// Column of numbers.
        input: String,
        /// The new shape; one size may be -1. With column names it is that of an image, and differs
        /// from row to row.
        shape: Vec<NewDim>,
    },
    /// Unpacks each byte to eight numbers, 0 or 1; the last dimension becomes eight times as long.
    UnpackBits {
        /// Column of uint8.
        input: String,
        /// Order of the bits.
        #[serde(default)]
        bit_order: BitOrder,
    },
    /// `x * scale + offset`, in the output's type; one value for all numbers, or one for each index
    /// of the last dimension.
    Scale {
        /// Column of numbers.
        input: String,
        /// Factors.
        scale: Vec<f64>,
        /// Offsets.
        offset: Vec<f64>,
        /// Type of the output: float32 or float64.
        dtype: Dtype,
    },
    /// `(x - mean) / std`, as [`Operation::Scale`].
    Normalize {
        /// Column of numbers.
        input: String,
        /// Values to subtract.
        mean: Vec<f64>,
        /// Divisors.
        std: Vec<f64>,
        /// Type of the output: float32 or float64.
        dtype: Dtype,
    },
    /// Permutes dimensions, as `tf.transpose`.
    Transpose {
        /// Column of numbers.
        input: String,
        /// Input dimension of each output dimension.
        perm: Vec<usize>,
    },
    /// Cuts a range of each dimension, as `tf.slice`.
    Slice {
        /// Column of numbers.
        input: String,
        /// Start of each range.
        begin: Vec<usize>,
        /// Length of each range; -1 = up to the end.
        size: Vec<i64>,
    },
    /// Selects indices of a dimension, in any order and with repeats, as `tf.gather`.
    Select {
        /// Column of numbers.
        input: String,
        /// Dimension.
        axis: usize,
        /// Indices to select.
        indices: Vec<usize>,
    },
    /// Appends a dimension of `depth`, with `on` at the index given by the number and `off`
    /// elsewhere, as `tf.one_hot`; an index out of range gives only `off`.
    OneHot {
        /// Column of integers.
        input: String,
        /// Number of indices.
        depth: usize,
        /// Value at the index.
        on: f64,
        /// Value elsewhere.
        off: f64,
        /// Type of the output.
        dtype: Dtype,
    },
    /// Pads rows with a variable number of values to one length, as `tf.data`'s `padded_batch`.
    PaddedBatch {
        /// Column of rows with a variable number of values.
        input: String,
        /// Numbers of each row of the output.
        length: usize,
        /// Padding value.
        value: f64,
        /// True if longer rows are truncated; otherwise they are errors.
        truncate: bool,
    },
    /// Decodes JPEG and PNG, as `tf.io.decode_image`. The orientation in the metadata is ignored.
    DecodeImage {
        /// Column of one string per row.
        input: String,
        /// 1: grey; 3: red, green, blue; 4: with alpha.
        channels: usize,
        /// uint8 or uint16.
        dtype: Dtype,
        /// Height and width, if all images have the same; any other size is an error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<[usize; 2]>,
    },
    /// Crops an image, as `tf.image.crop_to_bounding_box`.
    Crop {
        /// Column of images.
        input: String,
        /// Height and width.
        size: [usize; 2],
        /// First row and first pixel in a row; `None`: centred.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<[usize; 2]>,
    },
    /// Crops an image at a random position, as `tf.image.random_crop`.
    RandomCrop {
        /// Column of images.
        input: String,
        /// Height and width.
        size: [usize; 2],
    },
    /// Crops a region of random area, shape and position.
    RandomResizedCrop {
        /// Column of images.
        input: String,
        /// Minimum and maximum fraction of the area.
        scale: [f64; 2],
        /// Minimum and maximum ratio of width to height.
        ratio: [f64; 2],
    },
    /// Resizes an image, as `tf.image.resize`.
    Resize {
        /// Column of images.
        input: String,
        /// Height and width.
        size: [usize; 2],
        /// Interpolation of values between pixels.
        method: Method,
        /// True if pixels are averaged when the image becomes smaller.
        antialias: bool,
        /// The type of the images, to which results are rounded, or float32.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dtype: Option<Dtype>,
    },
    /// Mirrors an image, always or randomly, as `tf.image.flip_left_right`.
    Flip {
        /// Column of images.
        input: String,
        /// Axis of the mirroring.
        axis: Axis,
        /// Probability of the mirroring.
        probability: f64,
    },
    /// Moves the channels first or last.
    Layout {
        /// Column of images of one size.
        input: String,
        /// New position of the channels.
        to: ImageLayout,
    },
    /// Looks up keys in a table, as `tf.lookup.StaticHashTable`.
    Lookup {
        /// Column of integers or strings.
        input: String,
        /// The table.
        table: TableRef,
        /// Column of the table.
        column: String,
        /// Type of the table column.
        dtype: Dtype,
        /// Shape of one row of the table column.
        shape: Vec<usize>,
        /// Value for missing keys; `None`: they are errors.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing: Option<f64>,
    },
    /// An expression over columns of one number per row, computed in float64.
    Compute {
        /// Such as `where(mate > 0, 1, tanh(score / 400))`; docs/OPERATORS.md describes the syntax.
        expression: String,
        /// Type of the output.
        dtype: Dtype,
    },
}

/// Error in the declaration of an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator {operator} (output `{output}`): {what}")]
pub struct OperatorError {
    /// Index among the operators, from 0.
    pub operator: usize,
    /// Name of the output column.
    pub output: String,
    /// Description of the error, and what to do.
    pub what: String,
}

/// Type and shape of one row of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl Form {
    pub(crate) fn items(&self) -> usize {
        items(&self.shape)
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.items() * self.dtype.bytes()
    }

    fn numbers(dtype: Dtype, shape: Vec<usize>) -> Result<Self, String> {
        let count = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size.max(1)));
        match count {
            _ if dtype == Dtype::Bytes => Err("its numbers cannot be byte strings".to_owned()),
            Some(count) if count <= ROW_ITEMS_MAX => Ok(Self { dtype, shape }),
            _ => Err(format!(
                "a row of shape {shape:?} has more than {ROW_ITEMS_MAX} numbers; make it smaller"
            )),
        }
    }
}

impl Operator {
    /// Returns the operator as it is in a job's identity, without host-specific paths.
    #[must_use]
    pub fn for_identity(&self) -> Self {
        let mut same = self.clone();
        if let Operation::Lookup { table, .. } = &mut same.operation {
            table.path = None;
        }
        same
    }

    /// Returns type and shape of a result row, for an operator that a device may run instead of the
    /// worker.
    ///
    /// Devices run a cast, a normalization or a layout.
    ///
    /// # Errors  The reason why it cannot be applied, on a device or at all.
    pub fn made_of(&self, dtype: Dtype, shape: &[usize]) -> Result<(Dtype, Vec<usize>), String> {
        let (Operation::Cast { input, .. }
        | Operation::Normalize { input, .. }
        | Operation::Layout { input, .. }) = &self.operation
        else {
            return Err("a device casts, normalizes and lays out; give others to operators".into());
        };
        if *input != self.output {
            let what = "a device's operator makes a column of itself; leave output out";
            return Err(what.into());
        }
        let form = self.operation.form(&[Form { dtype, shape: shape.to_vec() }])?;
        Ok((form.dtype, form.shape))
    }
}

impl Operation {
    /// Lookup table of the operation.
    pub(crate) fn table(&self) -> Option<&TableRef> {
        if let Self::Lookup { table, .. } = self { Some(table) } else { None }
    }

    /// True if it takes rows with a variable number of values.
    pub(crate) fn takes_rows(&self) -> bool {
        matches!(self, Self::PaddedBatch { .. })
    }

    /// True if it takes images, of one size or of different sizes.
    pub(crate) fn takes_images(&self) -> bool {
        matches!(
            self,
            Self::Crop { .. }
                | Self::RandomCrop { .. }
                | Self::RandomResizedCrop { .. }
                | Self::Resize { .. }
                | Self::Flip { .. }
        )
    }

    /// Returns the chain that it begins, if it makes images whose size may differ from row to row.
    pub(crate) fn chain(&self, inputs: &[Form], position: usize) -> Option<Result<Chain, String>> {
        let named = |shape: &[Dim]| shape.iter().any(|dim| dim.column().is_some());
        match self {
            Self::DecodeImage { .. } => Some(Chain::decoded(self, &inputs[0])),
            Self::DecodeRaw { dtype, shape, little_endian, fixed_length, .. } if named(shape) => {
                if !little_endian && dtype.bytes() > 1 || fixed_length.is_some() {
                    let what = "with names of columns in its shape, bytes are little-endian and no \
                                fixed_length is set";
                    return Some(Err(what.to_owned()));
                }
                if inputs[0].dtype != Dtype::Bytes {
                    return Some(Err(format!("it takes byte strings, not {}", inputs[0].dtype)));
                }
                Some(Chain::sized(*dtype, shape, inputs))
            }
            Self::Reshape { shape, .. } => {
                let dim = |dim: &NewDim| match dim {
                    NewDim::Size(size) => usize::try_from(*size).ok().map(Dim::Size),
                    NewDim::Column(name) => Some(Dim::Column(name.clone())),
                };
                if !shape.iter().any(|dim| dim.column().is_some()) {
                    return None;
                }
                let Some(shape) = shape.iter().map(dim).collect::<Option<Vec<_>>>() else {
                    return Some(Err("-1 and names of columns are not both in a shape".to_owned()));
                };
                if inputs[0].dtype == Dtype::Bytes {
                    return Some(Err(
                        "it takes numbers; decode_raw takes strings, with names in its shape"
                            .to_owned(),
                    ));
                }
                Some(Chain::sized(inputs[0].dtype, &shape, inputs))
            }
            operation if operation.takes_images() => Some(
                Chain::of_numbers(&inputs[0]).and_then(|chain| chain.then(operation, position)),
            ),
            _ => None,
        }
    }

    /// Names of the input columns.
    pub(crate) fn inputs(&self) -> Result<Vec<String>, String> {
        Ok(match self {
            Self::DecodeRaw { input, shape, .. } => {
                [input].into_iter().chain(shape.iter().filter_map(Dim::column)).cloned().collect()
            }
            Self::Reshape { input, shape } => [input]
                .into_iter()
                .chain(shape.iter().filter_map(NewDim::column))
                .cloned()
                .collect(),
            Self::Cast { input, .. }
            | Self::UnpackBits { input, .. }
            | Self::Scale { input, .. }
            | Self::Normalize { input, .. }
            | Self::Transpose { input, .. }
            | Self::Slice { input, .. }
            | Self::Select { input, .. }
            | Self::PaddedBatch { input, .. }
            | Self::DecodeImage { input, .. }
            | Self::Crop { input, .. }
            | Self::RandomCrop { input, .. }
            | Self::RandomResizedCrop { input, .. }
            | Self::Resize { input, .. }
            | Self::Flip { input, .. }
            | Self::Layout { input, .. }
            | Self::Lookup { input, .. }
            | Self::OneHot { input, .. } => vec![input.clone()],
            Self::Compute { expression, .. } => Expression::parse(expression)?.names().to_vec(),
        })
    }

    /// Form of the result for inputs of these forms, in the order of [`Operation::inputs`].
    pub(crate) fn form(&self, inputs: &[Form]) -> Result<Form, String> {
        if let Self::DecodeRaw { dtype, shape, fixed_length, .. } = self {
            let shape: Vec<usize> = shape.iter().filter_map(Dim::size).collect();
            return decoded(&inputs[0], *dtype, &shape, *fixed_length);
        }
        if let Self::Lookup { dtype, shape, missing, .. } = self {
            return lookup::form(&inputs[0], *dtype, shape, *missing);
        }
        if let Some(strings) = inputs.iter().find(|input| input.dtype == Dtype::Bytes) {
            return Err(format!(
                "it takes numbers, but its input is byte strings of shape {:?}; decode them first",
                strings.shape
            ));
        }
        match self {
            Self::DecodeRaw { .. } | Self::Lookup { .. } => unreachable!("handled above"),
            Self::DecodeImage { .. }
            | Self::Crop { .. }
            | Self::RandomCrop { .. }
            | Self::RandomResizedCrop { .. }
            | Self::Resize { .. }
            | Self::Flip { .. } => unreachable!("images are worked on in chains"),
            Self::PaddedBatch { length, .. } => Form::numbers(inputs[0].dtype, vec![*length]),
            Self::Layout { to, .. } => transposed(&inputs[0], layout_perm(*to, &inputs[0])?),
            Self::Cast { dtype, .. } => Form::numbers(*dtype, inputs[0].shape.clone()),
            Self::Reshape { shape, .. } => {
                let shape: Vec<i64> = shape.iter().filter_map(NewDim::size).collect();
                reshaped(&inputs[0], &shape)
            }
            Self::UnpackBits { .. } => unpacked(&inputs[0]),
            Self::Scale { scale, offset, dtype, .. } => {
                channels(&inputs[0], &[("scale", scale), ("offset", offset)], *dtype)
            }
            Self::Normalize { mean, std, dtype, .. } => {
                let is_zero = |value: &&f64| match dtype {
                    Dtype::Float32 => **value as f32 == 0.0,
                    _ => **value == 0.0,
                };
                if let Some(zero) = std.iter().find(is_zero) {
                    return Err(format!(
                        "std has {zero}, which is 0 as {dtype}: nothing is divided by it"
                    ));
                }
                channels(&inputs[0], &[("mean", mean), ("std", std)], *dtype)
            }
            Self::Transpose { perm, .. } => transposed(&inputs[0], perm),
            Self::Slice { begin, size, .. } => sliced(&inputs[0], begin, size),
            Self::Select { axis, indices, .. } => selected(&inputs[0], *axis, indices),
            Self::OneHot { depth, dtype, .. } => {
                if !inputs[0].dtype.is_integer() {
                    return Err(format!("it takes integers, not {}; cast them", inputs[0].dtype));
                }
                let shape = [&inputs[0].shape[..], &[*depth]].concat();
                Form::numbers(*dtype, shape)
            }
            Self::Compute { dtype, .. } => {
                if let Some(input) = inputs.iter().find(|input| input.items() != 1) {
                    return Err(format!(
                        "an expression takes columns of one number a row, not of shape {:?}; select or \
                         reshape them",
                        input.shape
                    ));
                }
                Form::numbers(*dtype, vec![])
            }
        }
    }
}

/// Input dimension of each output dimension when images change to another layout.
pub(crate) fn layout_perm(to: ImageLayout, input: &Form) -> Result<&'static [usize], String> {
    match (input.shape.len(), to) {
        (3, ImageLayout::Chw) => Ok(&[2, 0, 1]),
        (3, ImageLayout::Hwc) => Ok(&[1, 2, 0]),
        _ => Err(format!("it takes images of three dimensions, not shape {:?}", input.shape)),
    }
}

fn decoded(
    input: &Form,
    dtype: Dtype,
    shape: &[usize],
    fixed_length: Option<usize>,
) -> Result<Form, String> {
    if input.dtype != Dtype::Bytes || input.items() != 1 {
        return Err(format!(
            "it takes one byte string a row, not {} of shape {:?}",
            input.dtype, input.shape
        ));
    }
    let form = Form::numbers(dtype, shape.to_vec())?;
    let bytes = form.items() * dtype.bytes();
    match fixed_length {
        Some(length) if length != bytes => Err(format!(
            "fixed_length is {length} bytes, but {dtype} of shape {shape:?} is {bytes}; make them the same"
        )),
        _ => Ok(form),
    }
}

fn reshaped(input: &Form, shape: &[i64]) -> Result<Form, String> {
    let items = input.items();
    let refuse =
        || Err(format!("shape {:?} of {items} numbers cannot become {shape:?}", input.shape));
    if shape.iter().any(|&size| size < -1) || shape.iter().filter(|&&size| size == -1).count() > 1 {
        return refuse();
    }
    let mut known = shape.iter().filter(|&&size| size >= 0);
    let known = known.try_fold(1_usize, |count, &size| count.checked_mul(size as usize));
    let free = match known {
        Some(0) if items == 0 => Some(0),
        Some(known) if known > 0 && items.is_multiple_of(known) => Some(items / known),
        _ => None,
    };
    let Some(free) = free else { return refuse() };
    let shape: Vec<usize> =
        shape.iter().map(|&size| if size == -1 { free } else { size as usize }).collect();
    if shape.iter().product::<usize>() != items {
        return Err(format!("{items} numbers of shape {:?} do not fill {shape:?}", input.shape));
    }
    Form::numbers(input.dtype, shape)
}

fn unpacked(input: &Form) -> Result<Form, String> {
    let mut shape = input.shape.clone();
    if input.dtype != Dtype::Uint8 {
        return Err(format!("it takes uint8, not {}; cast or decode to uint8", input.dtype));
    }
    let Some(last) = shape.last_mut() else {
        return Err("it takes columns with a dimension; reshape to [1] first".to_owned());
    };
    *last = last.saturating_mul(8);
    Form::numbers(Dtype::Uint8, shape)
}

fn channels(input: &Form, values: &[(&str, &[f64])], dtype: Dtype) -> Result<Form, String> {
    let last = input.shape.last().copied().unwrap_or(1);
    for (name, values) in values {
        if values.is_empty() || values.len() != 1 && values.len() != last {
            let count = values.len();
            return Err(format!(
                "{name} has {count} values; it needs one, or one for each of the last dimension's {last}"
            ));
        }
    }
    if !matches!(dtype, Dtype::Float32 | Dtype::Float64) {
        return Err(format!("dtype is float32 or float64, not {dtype}; cast afterwards"));
    }
    Form::numbers(dtype, input.shape.clone())
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
