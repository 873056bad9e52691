use serde::{Deserialize, Serialize};

use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::fault::OperatorFault;
use super::form::{Form, Input, check_value};
use crate::dtype::{ColumnNumber, with_type};

/// Fills the first dimensions up to a size: rows of any length, images of any size, or numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    /// Column of numbers or images.
    pub input: String,
    #[serde(flatten)]
    pub padding: Padding,
}

/// Size and position of padded values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Padding {
    /// Sizes of the first dimensions; others are unchanged.
    pub size: Vec<usize>,
    pub value: f64,
    pub side: PadSide,
    /// True if longer dimensions are cut on the same side; otherwise they are errors.
    pub truncate: bool,
}

/// Side of a dimension on which values are added or cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadSide {
    Start,
    End,
    /// Half of them on each side; of an odd number the larger half at the end.
    Both,
}

impl Definition for Pad {
    fn row() -> &'static str {
        "`pad(input, size, value, side, truncate)` | the first dimensions of numbers, rows of any \
         length, or images, filled up to `size` | `np.pad`, `tf.image.resize_with_crop_or_pad` | \
         bit for bit, with numpy"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Any(self.input.clone()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let padding = self.padding.clone();
        if let Some(images) = given.images {
            return images.padded(padding).map(OperatorWork::Images);
        }
        check_value("value", padding.value, given.forms[0].of_numbers()?.dtype)?;
        padding.prepare(&given, Padding::too_large)
    }
}

impl Padding {
    /// Prepares the padding of numbers, or of rows of any length.
    /// - `too_large`: text of the error for an array of this shape, which is larger than the size.
    pub(super) fn prepare(
        self,
        given: &Given<'_>,
        too_large: fn(&Self, &[usize]) -> String,
    ) -> Result<OperatorWork, String> {
        let input = given.forms[0].of_numbers()?.clone();
        let own = if given.is_rows { [&[0], &input.shape[..]].concat() } else { input.shape };
        let padded = self.size.len();
        if padded == 0 || padded > own.len() {
            return Err(match own.len() {
                0 => "it takes columns with a dimension; reshape to [1] first".to_owned(),
                most => format!(
                    "size {:?} has to be 1 to {most} numbers, for the first dimensions",
                    self.size
                ),
            });
        }
        if !self.fits(&own) {
            return Err(too_large(&self, &own));
        }
        let form = Form::numbers(input.dtype, [&self.size[..], &own[padded..]].concat())?;
        let (dtype, items) = (input.dtype, form.items());
        Ok(OperatorWork::columns(form, move |inputs, rows, out| {
            with_type!(dtype, T => {
                let out = bytemuck::cast_slice_mut::<u8, T>(out);
                let mut rest = inputs[0].numbers::<T>();
                let mut have = own.clone();
                for row in 0..rows {
                    if let Input::Rows(_, lengths) = inputs[0] {
                        have[0] = lengths[row] as usize;
                    }
                    if !self.fits(&have) {
                        return Err((row, OperatorFault::Record(too_large(&self, &have))));
                    }
                    let (from, others) = rest.split_at(crate::dtype::items(&have));
                    rest = others;
                    self.write(from, &have, &mut out[row * items..][..items]);
                }
            });
            Ok(())
        }))
    }

    /// True if an array is no larger than the size, or is cut.
    pub(super) fn fits(&self, have: &[usize]) -> bool {
        self.truncate || have.iter().zip(&self.size).all(|(have, size)| have <= size)
    }

    pub(super) fn too_large(&self, have: &[usize]) -> String {
        let (found, size) = (&have[..self.size.len()], &self.size);
        format!(
            "its shape is {found:?}, larger than size {size:?} of pad; raise size, or set truncate"
        )
    }

    /// Writes an array that fits, padded.
    /// - `have`: shape of `from`.
    pub(super) fn write<T: ColumnNumber>(&self, from: &[T], have: &[usize], out: &mut [T]) {
        out.fill(T::from_f64(self.value));
        self.copy(from, &have[..self.size.len()], out, &self.size);
    }

    /// Copies an array into a larger or smaller one.
    /// - `have`, `size`: the dimensions of both that differ.
    fn copy<T: Copy>(&self, from: &[T], have: &[usize], out: &mut [T], size: &[usize]) {
        let (Some((&have, inner_have)), Some((&size, inner_size))) =
            (have.split_first(), size.split_first())
        else {
            out.copy_from_slice(from);
            return;
        };
        let (first, place) = (self.before(have, size), self.before(size, have));
        if have == 0 || size == 0 {
            return;
        }
        let (step, out_step) = (from.len() / have, out.len() / size);
        if inner_size.is_empty() {
            let common = have.min(size) * step;
            out[place * step..][..common].copy_from_slice(&from[first * step..][..common]);
            return;
        }
        for at in 0..have.min(size) {
            let from = &from[(first + at) * step..][..step];
            let out = &mut out[(place + at) * out_step..][..out_step];
            self.copy(from, inner_have, out, inner_size);
        }
    }

    /// Number of values before the common part in the longer of two dimensions, 0 in the other.
    fn before(&self, own: usize, other: usize) -> usize {
        let more = own.saturating_sub(other);
        match self.side {
            PadSide::Start => more,
            PadSide::End => 0,
            PadSide::Both => more / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(
        side: PadSide,
        size: &[usize],
        have: &[usize],
        truncate: bool,
    ) -> Result<Vec<i32>, String> {
        let padding = Padding { size: size.to_vec(), value: 0.0, side, truncate };
        let from: Vec<i32> = (1..).take(have.iter().product()).collect();
        let inner: usize = have[size.len()..].iter().product();
        let mut out = vec![-1; size.iter().product::<usize>() * inner];
        if !padding.fits(have) {
            return Err(padding.too_large(have));
        }
        padding.write(&from, have, &mut out);
        Ok(out)
    }

    #[test]
    fn values_are_added_and_cut_on_the_side() {
        let one = |side, size: usize, have: usize| padded(side, &[size], &[have], true).unwrap();
        assert_eq!(one(PadSide::End, 4, 2), [1, 2, 0, 0]);
        assert_eq!(one(PadSide::Start, 4, 2), [0, 0, 1, 2]);
        assert_eq!(one(PadSide::Both, 5, 2), [0, 1, 2, 0, 0]);
        assert_eq!(one(PadSide::End, 2, 5), [1, 2]);
        assert_eq!(one(PadSide::Start, 2, 5), [4, 5]);
        assert_eq!(one(PadSide::Both, 2, 5), [2, 3]);
        assert_eq!(one(PadSide::Both, 3, 0), [0, 0, 0]);
        assert_eq!(one(PadSide::Both, 0, 3), [0; 0]);
    }

    #[test]
    fn other_dimensions_stay() {
        let both = padded(PadSide::End, &[3], &[2, 2], false).unwrap();
        assert_eq!(both, [1, 2, 3, 4, 0, 0]);
        let both = padded(PadSide::Start, &[1, 3], &[2, 2, 1], true).unwrap();
        assert_eq!(both, [0, 3, 4]);
        assert_eq!(
            padded(PadSide::End, &[2, 1], &[2, 3], false).unwrap_err(),
            "its shape is [2, 3], larger than size [2, 1] of pad; raise size, or set truncate"
        );
    }
}
