//! Operators that crop images: `crop`, `random_crop` and `random_resized_crop`.

use serde::{Deserialize, Serialize};
use shardfeed_image::{Region, Size};
use shardfeed_plan::Draws;

use super::bounds::Bounds;
use super::chain::{Chain, ImageChange, check_size};
use crate::draw::unit;
use crate::operator::definition::{Definition, Given, Inputs, OperatorWork};
use crate::operator::fault::OperatorFault;

/// Maximum attempts to find a random crop that lies within an image.
const ATTEMPTS: usize = 10;

/// Crops an image, as `tf.image.crop_to_bounding_box`, or to the box of its row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crop {
    /// Column of images.
    pub input: String,
    /// Height and width; `None`: those of `bounds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<[usize; 2]>,
    /// First row and first pixel in a row; `None`: centred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<[usize; 2]>,
    /// Box of each row; not with `size` and `offset`.
    #[serde(default, rename = "box", skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

impl Definition for Crop {
    fn row() -> &'static str {
        "`crop(input, size, offset, box, format, normalized)` | a part; the centre without \
         `offset`; or the box of each row | `tf.image.crop_to_bounding_box` | bit for bit"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        let column = self.bounds.as_ref().map(|bounds| &bounds.column);
        Ok(Inputs::Images([&self.input].into_iter().chain(column).cloned().collect()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let (size, offset) = match (self.size, self.offset, &self.bounds) {
            (Some(size), offset, None) => (of(size), offset),
            (None, None, Some(bounds)) => return bounds.prepare(&given),
            _ => return Err("it takes a size, with or without an offset, or a box".to_owned()),
        };
        let chain = given.images()?;
        let from = offset.map(|[top, left]| (top, left)).unwrap_or_default();
        check_part(&chain, size, from)?;
        Ok(OperatorWork::Images(chain.then(given.position, Some(size), move |image| {
            let all = image.size;
            check_lies_in(size, from, all)?;
            let centre = || ((all.height - size.height) / 2, (all.width - size.width) / 2);
            let (top, left) = if offset.is_some() { from } else { centre() };
            Ok(ImageChange::Part(Region { top, left, size }))
        })))
    }
}

/// Crops an image at a random position, as `tf.image.random_crop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomCrop {
    /// Column of images.
    pub input: String,
    /// Height and width.
    pub size: [usize; 2],
}

impl Definition for RandomCrop {
    fn row() -> &'static str {
        "`random_crop(input, size)` | a part at a random position | `tf.image.random_crop` | \
         the part by a second implementation, its pixels as `crop`"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Images(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let (chain, size) = (given.images()?, of(self.size));
        check_part(&chain, size, (0, 0))?;
        Ok(OperatorWork::Images(chain.then(given.position, Some(size), move |image| {
            check_lies_in(size, (0, 0), image.size)?;
            Ok(ImageChange::Part(place(size, image.size, &mut image.draws())))
        })))
    }
}

/// Crops a region of random area, shape and position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomResizedCrop {
    /// Column of images.
    pub input: String,
    /// Minimum and maximum fraction of the area.
    pub scale: [f64; 2],
    /// Minimum and maximum ratio of width to height.
    pub ratio: [f64; 2],
}

impl Definition for RandomResizedCrop {
    fn row() -> &'static str {
        "`random_resized_crop(input, scale, ratio)` | a part of random area and shape | \
         [ORDER.md](ORDER.md), section 11 | as `random_crop`"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Images(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let (chain, scale, ratio) = (given.images()?, self.scale, self.ratio);
        check_range("scale", scale, 1.0)?;
        check_range("ratio", ratio, 1e6)?;
        Ok(OperatorWork::Images(chain.then(given.position, None, move |image| {
            check_lies_in(of([1, 1]), (0, 0), image.size)?;
            Ok(ImageChange::Part(random_part(image.size, scale, ratio, &mut image.draws())))
        })))
    }
}

fn of([height, width]: [usize; 2]) -> Size {
    Size { height, width }
}

fn lies_in(size: Size, (top, left): (usize, usize), all: Size) -> bool {
    Region { top, left, size }.lies_in(all)
}

/// Checks a declared part against the images, if all have one size.
fn check_part(chain: &Chain, size: Size, from: (usize, usize)) -> Result<(), String> {
    check_size(size)?;
    match chain.size {
        Some(all) if !lies_in(size, from, all) => Err(format!(
            "a part of {}x{} from {from:?} does not lie in images of {}x{}",
            size.height, size.width, all.height, all.width
        )),
        _ => Ok(()),
    }
}

fn check_lies_in(size: Size, from: (usize, usize), all: Size) -> Result<(), OperatorFault> {
    if lies_in(size, from, all) {
        return Ok(());
    }
    Err(OperatorFault::no_part(size, from, all))
}

fn check_range(name: &str, [low, high]: [f64; 2], most: f64) -> Result<(), String> {
    if !(low > 0.0 && low <= high && high <= most) {
        return Err(format!(
            "{name} is from {low} to {high}; it has to rise, from more than 0 to at most {most}"
        ));
    }
    Ok(())
}

/// Returns a region at a uniformly random position.
fn place(size: Size, all: Size, draws: &mut Draws) -> Region {
    let top = draws.below((all.height - size.height) as u64 + 1) as usize;
    let left = draws.below((all.width - size.width) as u64 + 1) as usize;
    Region { top, left, size }
}

/// Returns a region of random area and shape: docs/ORDER.md, section 11; Szegedy et al. 2014.
fn random_part(all: Size, scale: [f64; 2], ratio: [f64; 2], draws: &mut Draws) -> Region {
    let (height, width) = (all.height as f64, all.width as f64);
    let (low, high) = (libm::log(ratio[0]), libm::log(ratio[1]));
    for _ in 0..ATTEMPTS {
        let area = height * width * (scale[0] + unit(draws) * (scale[1] - scale[0]));
        let shape = libm::exp(low + unit(draws) * (high - low));
        let size = Size {
            height: (area / shape).sqrt().round_ties_even() as usize,
            width: (area * shape).sqrt().round_ties_even() as usize,
        };
        let is_within =
            (1..=all.height).contains(&size.height) && (1..=all.width).contains(&size.width);
        if is_within {
            return place(size, all, draws);
        }
    }
    // The largest centred region with an allowed shape.
    let shape = width / height;
    let size = if shape < ratio[0] {
        Size { height: (width / ratio[0]).round_ties_even() as usize, width: all.width }
    } else if shape > ratio[1] {
        Size { height: all.height, width: (height * ratio[1]).round_ties_even() as usize }
    } else {
        all
    };
    let within = |side: usize, all: usize| side.clamp(1, all);
    let size =
        Size { height: within(size.height, all.height), width: within(size.width, all.width) };
    Region { top: (all.height - size.height) / 2, left: (all.width - size.width) / 2, size }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use shardfeed_plan::{Digest, OrderDigest, Sample};

    use super::super::color_jitter::ColorJitter;
    use super::*;
    use crate::draw::DrawKey;
    use crate::record::Row;

    #[derive(Deserialize)]
    struct Drawn {
        kind: String,
        seed: u64,
        epoch: u64,
        shard: u32,
        ordinal: u64,
        occurrence: u32,
        position: usize,
        #[serde(default)]
        height: usize,
        #[serde(default)]
        width: usize,
        #[serde(default)]
        size: [usize; 2],
        #[serde(default)]
        scale: [f64; 2],
        #[serde(default)]
        ratio: [f64; 2],
        #[serde(default)]
        probability: f64,
        #[serde(default)]
        ranges: [Option<[f64; 2]>; 4],
        answer: serde_json::Value,
    }

    /// Compares the draws with a second implementation that was written from docs/ORDER.md only.
    #[test]
    fn draws_what_its_specification_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/draws.json");
        let cases: Vec<Drawn> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(cases.len() >= 20);
        let bytes: Vec<String> = (0..32_u8).map(|byte| format!("{byte:02x}")).collect();
        let digest: OrderDigest = bytes.concat().parse::<Digest>().unwrap();
        for case in cases {
            let Drawn { seed, epoch, shard, ordinal, occurrence, position, .. } = case;
            let key = DrawKey { digest, seed, epoch, sources: [].into() };
            let row = Row { occurrence, ..Row::of_record(Sample { shard, ordinal }, &[]) };
            let mut draws = key.draws(&row, position);
            let all = Size { height: case.height, width: case.width };
            let region = match case.kind.as_str() {
                "flip" => {
                    let turned = unit(&mut draws) < case.probability;
                    assert_eq!(case.answer, turned, "flip {seed} {epoch} {ordinal}");
                    continue;
                }
                "color_jitter" => {
                    let [brightness, contrast, saturation, hue] = case.ranges;
                    let input = String::new();
                    let jitter = ColorJitter { input, brightness, contrast, saturation, hue };
                    let steps = jitter.drawn(&mut draws).map(|(step, factor)| (step as u8, factor));
                    assert_eq!(case.answer, serde_json::json!(steps), "jitter {seed} {ordinal}");
                    continue;
                }
                "random_crop" => {
                    let [height, width] = case.size;
                    place(Size { height, width }, all, &mut draws)
                }
                _ => random_part(all, case.scale, case.ratio, &mut draws),
            };
            let Region { top, left, size: Size { height, width } } = region;
            assert_eq!(case.answer, serde_json::json!([top, left, height, width]), "{all:?}");
        }
    }

    proptest! {
        #[test]
        fn random_parts_lie_in_their_images(
            (height, width) in (1_usize..2_000, 1_usize..2_000),
            low in 0.001_f64..1.0,
            ratio in 0.01_f64..100.0,
            key: u64,
        ) {
            let all = Size { height, width };
            let (scale, ratio) = ([low, 1.0], [ratio, ratio * 1.5]);
            let part = random_part(all, scale, ratio, &mut Draws::new(key, 0));
            prop_assert!(lies_in(part.size, (part.top, part.left), all));
            prop_assert!(part.size.pixels() > 0);
        }
    }
}
