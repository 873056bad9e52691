use serde::{Deserialize, Serialize};
use shardfeed_image::{Method, Size};

use super::chain::{Resized, check_size, sample};
use crate::dtype::Dtype;
use crate::operator::definition::{Definition, Given, Inputs, OperatorWork};

/// Resizes an image, as `tf.image.resize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// Column of images.
    pub input: String,
    /// Height and width.
    pub size: [usize; 2],
    pub method: Method,
    /// True if pixels are averaged when the image becomes smaller.
    pub antialias: bool,
    /// The type of the images, to which results are rounded, or float32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
}

impl Definition for Resize {
    fn row() -> &'static str {
        "`resize(input, size, method, antialias, dtype)` | another size | `tf.image.resize` | \
         see below"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Images(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let chain = given.images()?;
        let (from, to) = (chain.dtype, self.dtype.unwrap_or(chain.dtype));
        if sample(from).is_none() || !(1..=4).contains(&chain.channels) {
            return Err(format!(
                "it takes images of uint8, uint16 or float32 with 1 to 4 channels, not {from} with \
                 {}; cast them",
                chain.channels
            ));
        }
        if to != from && to != Dtype::Float32 {
            return Err(format!("dtype is {from} or float32, not {to}; cast afterwards"));
        }
        let Self { size: [height, width], method, antialias, .. } = *self;
        let size = Size { height, width };
        check_size(size)?;
        Ok(OperatorWork::Images(chain.resized(Resized { size, method, antialias, from, to })))
    }
}
