use serde::{Deserialize, Serialize};

use super::chain::ImageChange;
use super::turned::Axis;
use crate::draw::unit;
use crate::operator::definition::{Definition, Given, Inputs, OperatorWork};

/// Mirrors an image, always or randomly, as `tf.image.flip_left_right`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flip {
    /// Column of images.
    pub input: String,
    pub axis: Axis,
    pub probability: f64,
}

impl Definition for Flip {
    fn row() -> &'static str {
        "`flip(input, axis, probability)` | the mirror image, randomly | \
         `tf.image.flip_left_right`, `flip_up_down` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Images(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let Self { axis, probability, .. } = *self;
        let chain = given.images()?;
        if !(0.0..=1.0).contains(&probability) {
            return Err(format!("probability is {probability}; it is from 0 to 1"));
        }
        let size = chain.size;
        Ok(OperatorWork::Images(chain.then(given.position, size, move |image| {
            let is_mirrored = probability >= 1.0 || unit(&mut image.draws()) < probability;
            Ok(if is_mirrored { ImageChange::Mirror(axis) } else { ImageChange::Nothing })
        })))
    }
}
