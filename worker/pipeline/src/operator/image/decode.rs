use serde::{Deserialize, Serialize};
use shardfeed_image::{Decoding, Depth, Size};

use super::chain::{Chain, ImageSource, check_size};
use crate::dtype::Dtype;
use crate::operator::definition::{Definition, Given, Inputs, OperatorWork};

/// Decodes JPEG and PNG, as `tf.io.decode_image`; of several strings in a row, each. The orientation in the metadata is ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeImage {
    /// Column of one string per row, or of a dimension of them.
    pub input: String,
    /// 1: grey; 3: red, green, blue; 4: with alpha.
    pub channels: usize,
    /// uint8 or uint16.
    pub dtype: Dtype,
    /// Height and width, if all images have the same; any other size is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<[usize; 2]>,
}

impl Definition for DecodeImage {
    fn row() -> &'static str {
        "`decode_image(input, channels, dtype, size)` | JPEG and PNG as \
         `[height, width, channels]` | `tf.io.decode_image` | bit for bit (below)"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let Self { channels, dtype, size, .. } = *self;
        let count = match given.forms[0].shape[..] {
            [count] if count > 0 && given.forms[0].dtype == Dtype::Bytes => Some(count),
            _ => given.forms[0].of_one_string().map(|()| None)?,
        };
        if !matches!(channels, 1 | 3 | 4) {
            return Err(format!("channels is 1, 3 or 4, not {channels}"));
        }
        let depth = match dtype {
            Dtype::Uint8 => Depth::Eight,
            Dtype::Uint16 => Depth::Sixteen,
            other => return Err(format!("dtype is uint8 or uint16, not {other}; cast afterwards")),
        };
        let size = size.map(|[height, width]| Size { height, width });
        size.map_or(Ok(()), check_size)?;
        let source = ImageSource::Encoded(Decoding { channels, depth });
        Ok(OperatorWork::Images(Chain::new(source, count, dtype, channels, size)))
    }
}
