//! Boxes in images, from a column.

use serde::{Deserialize, Serialize};
use shardfeed_image::{Region, Size};

use super::chain::ImageChange;
use crate::operator::definition::{Given, OperatorWork};
use crate::operator::fault::OperatorFault;

/// Boxes of one image per row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Column of four numbers per row.
    pub column: String,
    pub format: BoxFormat,
    /// True if the numbers are fractions of the image's height and width, false if they are pixels.
    pub normalized: bool,
}

/// Order and meaning of the numbers of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxFormat {
    /// Top, left, bottom, right.
    Yxyx,
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height.
    Xywh,
}

impl Bounds {
    /// Work that crops each image to its box.
    pub(super) fn prepare(&self, given: &Given<'_>) -> Result<OperatorWork, String> {
        let mut chain = given.images()?;
        let form = given.forms.last().expect("the box is a column").clone();
        if form.of_numbers()?.shape != [4] {
            return Err(format!(
                "a box is four numbers, but `{}` is {} of shape {:?}",
                self.column, form.dtype, form.shape
            ));
        }
        let (bounds, input) = (self.clone(), chain.add_input());
        Ok(OperatorWork::Images(chain.then(given.position, None, move |image| {
            let numbers = image.numbers(input, &form);
            let region = bounds.region(&numbers, image.size);
            region.map(ImageChange::Part).map_err(|what| {
                let (column, Size { height, width }) = (&bounds.column, image.size);
                OperatorFault::Record(format!(
                    "the box {numbers:?} of `{column}` for an image of {height}x{width} {what}"
                ))
            })
        })))
    }

    /// Returns the region of the box's edges, each rounded to the nearest edge of a pixel.
    ///
    /// # Errors  The reason why no region of the image is this box.
    fn region(&self, numbers: &[f64], image: Size) -> Result<Region, &'static str> {
        let (corner, other) = ((numbers[0], numbers[1]), (numbers[2], numbers[3]));
        let ((top, left), (bottom, right)) = match self.format {
            BoxFormat::Yxyx => (corner, other),
            BoxFormat::Xyxy => ((corner.1, corner.0), (other.1, other.0)),
            BoxFormat::Xywh => ((corner.1, corner.0), (corner.1 + other.1, corner.0 + other.0)),
        };
        let edge = |at: f64, side: usize| {
            let pixels = if self.normalized { at * side as f64 } else { at }.round_ties_even();
            (0.0..=side as f64).contains(&pixels).then_some(pixels as usize)
        };
        let edges = || {
            let rows = (edge(top, image.height)?, edge(bottom, image.height)?);
            Some((rows, (edge(left, image.width)?, edge(right, image.width)?)))
        };
        let ((top, bottom), (left, right)) = edges().ok_or(match self.normalized {
            true if numbers.iter().any(|number| number.is_finite() && *number >= 2.0) => {
                "does not lie in it; pass normalized=False if boxes are in pixels"
            }
            _ => "does not lie in it",
        })?;
        if top >= bottom || left >= right {
            return Err("has none of its pixels");
        }
        Ok(Region { top, left, size: Size { height: bottom - top, width: right - left } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Size = Size { height: 100, width: 200 };

    fn region(
        format: BoxFormat,
        normalized: bool,
        numbers: [f64; 4],
    ) -> Result<Region, &'static str> {
        Bounds { column: "box".to_owned(), format, normalized }.region(&numbers, IMAGE)
    }

    #[test]
    fn every_format_is_the_same_region() {
        let size = Size { height: 40, width: 30 };
        let expected = Ok(Region { top: 10, left: 50, size });
        assert_eq!(region(BoxFormat::Yxyx, false, [10.0, 50.0, 50.0, 80.0]), expected);
        assert_eq!(region(BoxFormat::Xyxy, false, [50.0, 10.0, 80.0, 50.0]), expected);
        assert_eq!(region(BoxFormat::Xywh, false, [50.0, 10.0, 30.0, 40.0]), expected);
        assert_eq!(region(BoxFormat::Yxyx, true, [0.1, 0.25, 0.5, 0.4]), expected);
        assert_eq!(region(BoxFormat::Xyxy, true, [0.25, 0.1, 0.4, 0.5]), expected);
        assert_eq!(region(BoxFormat::Xywh, true, [0.25, 0.1, 0.15, 0.4]), expected);
        let all = Ok(Region::all(IMAGE));
        assert_eq!(region(BoxFormat::Yxyx, true, [0.0, 0.0, 1.0, 1.0]), all);
        assert_eq!(region(BoxFormat::Yxyx, false, [-0.5, 0.4, 100.5, 199.6]), all);
    }

    #[test]
    fn a_pixel_divided_by_the_size_is_that_pixel_again() {
        for height in [1_usize, 3, 7, 97, 480, 1080, 65_500] {
            let image = Size { height, width: 1 };
            let bounds =
                Bounds { column: String::new(), format: BoxFormat::Yxyx, normalized: true };
            for top in (0..height).step_by(height.div_ceil(500)) {
                let stored = |pixel: usize| f64::from(pixel as f32 / height as f32);
                let numbers = [stored(top), 0.0, stored(top + 1), 1.0];
                let size = Size { height: 1, width: 1 };
                let expected = Ok(Region { top, left: 0, size });
                assert_eq!(bounds.region(&numbers, image), expected, "{top} of {height}");
            }
        }
    }

    #[test]
    fn other_boxes_say_why() {
        let outside = Err("does not lie in it");
        for numbers in [[-0.6, 0.0, 9.0, 9.0], [0.0, 0.0, 101.0, 9.0], [0.0, 0.0, 9.0, 1e300]] {
            assert_eq!(region(BoxFormat::Yxyx, false, numbers), outside);
        }
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(region(BoxFormat::Yxyx, false, [0.0, 0.0, wrong, 9.0]), outside);
        }
        assert_eq!(region(BoxFormat::Xywh, true, [0.9, 0.0, 0.2, 1.0]), outside);
        assert_eq!(
            region(BoxFormat::Yxyx, true, [10.0, 50.0, 50.0, 80.0]),
            Err("does not lie in it; pass normalized=False if boxes are in pixels")
        );
        for numbers in [[5.0, 5.0, 5.0, 9.0], [5.0, 5.0, 4.0, 9.0], [5.0, 5.6, 9.0, 6.4]] {
            assert_eq!(region(BoxFormat::Yxyx, false, numbers), Err("has none of its pixels"));
        }
    }
}
