//! Operators on images: decode, crop, flip and resize.
//!
//! Image sizes differ from row to row until an operator makes them equal. The operators before that
//! are declared but not run separately: a row passes through the whole chain at once, so that no
//! more of an image is decoded than needed, and each thread has only one image in memory.

use shardfeed_image::{Decoding, Encoded, Health, Region, Resizer, Sample, Size, View};
use shardfeed_plan::Draws;

use super::run::{Input, Memory, OperatorFault};
use super::{Axis, Dim, Form, Operation};
use crate::draw::unit;
use crate::dtype::Dtype;

/// Maximum attempts to find a random crop that lies within an image.
const ATTEMPTS: usize = 10;

/// Images, and the operators applied to each.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    source: Source,
    dtype: Dtype,
    channels: usize,
    /// Size of the source images, if it is the same for all rows.
    source_size: Option<Size>,
    stages: Vec<Stage>,
    resized: Option<Resized>,
    /// Size after all operators, if it is the same for all rows.
    size: Option<Size>,
}

#[derive(Clone, Debug)]
enum Source {
    Encoded(Decoding),
    /// Numbers of a known size.
    Numbers,
    /// Strings or numbers whose size is in other columns.
    Sized {
        sizes: [Dim; 2],
        is_strings: bool,
    },
}

/// Operator on an image, and its position, which keys its random draws.
#[derive(Clone, Copy, Debug)]
struct Stage {
    kind: StageKind,
    position: usize,
}

#[derive(Clone, Copy, Debug)]
enum StageKind {
    Part { size: Size, from: Option<(usize, usize)> },
    RandomPart { size: Size },
    RandomResized { scale: [f64; 2], ratio: [f64; 2] },
    Flip { axis: Axis, probability: f64 },
}

#[derive(Clone, Copy, Debug)]
struct Resized {
    size: Size,
    method: shardfeed_image::Method,
    antialias: bool,
    from: Dtype,
    to: Dtype,
}

/// Reusable image memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    resizer: Resizer,
    pixels: Vec<u64>,
    flipped: Vec<u64>,
}

impl Scratch {
    /// Maximum bytes of a buffer kept between images; larger images get new memory.
    const KEPT_BYTES_MAX: usize = 16 << 20;

    /// Frees buffers that are too large to keep.
    /// - `kept_max`: bytes of each buffer.
    pub(super) fn trim(mut self, kept_max: usize) -> Self {
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

/// Memory for an image as a multiple of its pixel bytes: pixels, decoder rows, and the results of
/// flipping and resizing.
const IMAGE_SHARE: usize = 4;

/// Returns a buffer of `bytes` bytes.
fn room(words: &mut Vec<u64>, bytes: usize) -> Result<&mut [u8], OperatorFault> {
    let count = bytes.div_ceil(8);
    words
        .try_reserve_exact(count.saturating_sub(words.len()))
        .map_err(|_| OperatorFault::Memory { bytes })?;
    words.resize(count.max(words.len()), 0);
    Ok(&mut bytemuck::cast_slice_mut(words)[..bytes])
}

impl Chain {
    /// Creates a chain that decodes images from strings.
    pub(crate) fn decoded(operation: &Operation, input: &Form) -> Result<Self, String> {
        let Operation::DecodeImage { channels, dtype, size, .. } = operation else {
            unreachable!("only decode_image decodes images");
        };
        if input.dtype != Dtype::Bytes || input.items() != 1 {
            return Err(format!(
                "it takes one byte string a row, not {} of shape {:?}",
                input.dtype, input.shape
            ));
        }
        if !matches!(channels, 1 | 3 | 4) {
            return Err(format!("channels is 1, 3 or 4, not {channels}"));
        }
        let depth = match dtype {
            Dtype::Uint8 => shardfeed_image::Depth::Eight,
            Dtype::Uint16 => shardfeed_image::Depth::Sixteen,
            other => return Err(format!("dtype is uint8 or uint16, not {other}; cast afterwards")),
        };
        let size = size.map(|[height, width]| Size { height, width });
        if let Some(size) = size {
            check_size(size)?;
        }
        let source = Source::Encoded(Decoding { channels: *channels, depth });
        let (dtype, channels, stages) = (*dtype, *channels, vec![]);
        Ok(Self { source, dtype, channels, source_size: size, stages, resized: None, size })
    }

    /// Creates a chain of images that are numbers of one shape.
    pub(crate) fn of_numbers(input: &Form) -> Result<Self, String> {
        let &[height, width, channels] = input.shape.as_slice() else {
            return Err(format!(
                "it takes images, [height, width, channels], not {} of shape {:?}",
                input.dtype, input.shape
            ));
        };
        let size = Some(Size { height, width });
        let (dtype, stages) = (input.dtype, vec![]);
        let source = Source::Numbers;
        Ok(Self { source, dtype, channels, source_size: size, stages, resized: None, size })
    }

    /// Creates a chain of strings or numbers with the height and width in other columns.
    pub(crate) fn sized(dtype: Dtype, shape: &[Dim], inputs: &[Form]) -> Result<Self, String> {
        let [height, width, Dim::Size(channels)] = shape else {
            return Err(
                "a shape with names of columns is [height, width, channels], channels a number"
                    .to_owned(),
            );
        };
        let is_strings = inputs[0].dtype == Dtype::Bytes;
        if is_strings && inputs[0].items() != 1 {
            return Err(format!("it takes one byte string a row, not shape {:?}", inputs[0].shape));
        }
        if !is_strings && inputs[0].dtype != dtype {
            return Err("its numbers are of another type".to_owned());
        }
        for (name, form) in shape.iter().filter_map(Dim::column).zip(&inputs[1..]) {
            if form.dtype != Dtype::Int64 || form.items() != 1 {
                return Err(format!(
                    "column `{name}` is {} of shape {:?}; a size is one int64 a row",
                    form.dtype, form.shape
                ));
            }
        }
        Form::numbers(dtype, vec![*channels])?;
        let source = Source::Sized { sizes: [height.clone(), width.clone()], is_strings };
        let (channels, stages) = (*channels, vec![]);
        Ok(Self { source, dtype, channels, source_size: None, stages, resized: None, size: None })
    }

    /// Appends `operation` to the chain.
    pub(crate) fn then(mut self, operation: &Operation, position: usize) -> Result<Self, String> {
        debug_assert!(self.resized.is_none(), "a resized image is a separate column");
        let kind = match *operation {
            Operation::Crop { size, offset, .. } => {
                let size = Size { height: size[0], width: size[1] };
                let from = offset.map(|[top, left]| (top, left));
                self.check_part(size, from.unwrap_or_default())?;
                self.size = Some(size);
                StageKind::Part { size, from }
            }
            Operation::RandomCrop { size, .. } => {
                let size = Size { height: size[0], width: size[1] };
                self.check_part(size, (0, 0))?;
                self.size = Some(size);
                StageKind::RandomPart { size }
            }
            Operation::RandomResizedCrop { scale, ratio, .. } => {
                check_range("scale", scale, 1.0)?;
                check_range("ratio", ratio, 1e6)?;
                self.size = None;
                StageKind::RandomResized { scale, ratio }
            }
            Operation::Flip { axis, probability, .. } => {
                if !(0.0..=1.0).contains(&probability) {
                    return Err(format!("probability is {probability}; it is from 0 to 1"));
                }
                StageKind::Flip { axis, probability }
            }
            Operation::Resize { size, method, antialias, dtype, .. } => {
                let (from, to) = (self.dtype, dtype.unwrap_or(self.dtype));
                if sample(from).is_none() || !(1..=4).contains(&self.channels) {
                    return Err(format!(
                        "it takes images of uint8, uint16 or float32 with 1 to 4 channels, not {from} with \
                         {}; cast them",
                        self.channels
                    ));
                }
                if to != from && to != Dtype::Float32 {
                    return Err(format!("dtype is {from} or float32, not {to}; cast afterwards"));
                }
                let size = Size { height: size[0], width: size[1] };
                check_size(size)?;
                self.resized = Some(Resized { size, method, antialias, from, to });
                (self.size, self.dtype) = (Some(size), to);
                return Ok(self);
            }
            ref other => unreachable!("{other:?} takes no images"),
        };
        self.stages.push(Stage { kind, position });
        Ok(self)
    }

    fn check_part(&self, size: Size, from: (usize, usize)) -> Result<(), String> {
        check_size(size)?;
        match self.size {
            Some(all) if !lies_in(size, from, all) => Err(format!(
                "a part of {}x{} from {from:?} does not lie in images of {}x{}",
                size.height, size.width, all.height, all.width
            )),
            _ => Ok(()),
        }
    }

    /// Form of one row, if all rows have the same size.
    pub(crate) fn form(&self) -> Option<Result<Form, String>> {
        let Size { height, width } = self.size?;
        Some(Form::numbers(self.dtype, vec![height, width, self.channels]))
    }

    /// Runs the chain on one row.
    /// - `inputs`: of all rows. `draws`: random draws of the operator at a position, for this row.
    pub(crate) fn run(
        &self,
        inputs: &[Input<'_>],
        row: usize,
        draws: impl Fn(usize) -> Draws,
        (scratch, memory): (&mut Scratch, &Memory),
        out: &mut [u8],
    ) -> Result<(), OperatorFault> {
        let Scratch { resizer, pixels, flipped } = scratch;
        let permit = |size: Size, pixel: usize, held: usize| {
            memory.image(IMAGE_SHARE * size.pixels() * pixel + held)
        };
        let pixel_bytes = self.channels * self.resized.map_or(self.dtype, |to| to.from).bytes();
        match &self.source {
            Source::Encoded(decoding) => {
                let Input::Strings(strings) = inputs[0] else {
                    unreachable!("forms were checked: these are strings");
                };
                let encoded = Encoded::open(strings[row], *decoding)?;
                let size = encoded.size();
                if let Some(wanted) = self.source_size.filter(|wanted| *wanted != size) {
                    return Err(OperatorFault::ImageSize { size, wanted });
                }
                let (region, turned) = self.part(size, draws)?;
                let needed = encoded.needed(region);
                // Even for a crop the decoder may hold the whole image.
                let _permit = permit(size, pixel_bytes, encoded.held_bytes());
                let bytes = room(pixels, needed.size.pixels() * pixel_bytes)?;
                if encoded.decode(needed, bytes)? == Health::Suspect {
                    memory.count_suspect_image();
                }
                let (top, left) = (region.top - needed.top, region.left - needed.left);
                let region = Region { top, left, size: region.size };
                let view = View { bytes, size: needed.size, pixel_bytes, region };
                self.finish(view, turned, resizer, flipped, out)
            }
            Source::Numbers => {
                let size = self.source_size.expect("numbers have a shape");
                let bytes = inputs[0].row(row);
                let (region, turned) = self.part(size, draws)?;
                let view = View { bytes, size, pixel_bytes, region };
                self.finish(view, turned, resizer, flipped, out)
            }
            Source::Sized { sizes, is_strings } => {
                let mut named = inputs[1..].iter();
                let mut side = |dim: &Dim| -> Result<usize, OperatorFault> {
                    let Dim::Column(name) = dim else {
                        return Ok(dim.size().unwrap_or_default());
                    };
                    let number =
                        named.next().expect("one input for each name").numbers::<i64>()[row];
                    usize::try_from(number)
                        .map_err(|_| OperatorFault::Side { column: name.clone(), number })
                };
                let size = Size { height: side(&sizes[0])?, width: side(&sizes[1])? };
                let expected = size.pixels().saturating_mul(pixel_bytes);
                let bytes = match inputs[0] {
                    Input::Strings(strings) if *is_strings => strings[row],
                    numbers => numbers.row(row),
                };
                if bytes.len() != expected {
                    let shape = vec![size.height, size.width, self.channels];
                    let (dtype, found) =
                        (self.resized.map_or(self.dtype, |to| to.from), bytes.len());
                    return Err(OperatorFault::Length { dtype, shape, expected, found });
                }
                let (region, turned) = self.part(size, draws)?;
                let _permit = permit(size, pixel_bytes, 0);
                // Strings may be unaligned; numbers are read from an aligned copy.
                let aligned = room(pixels, bytes.len())?;
                aligned.copy_from_slice(bytes);
                let view = View { bytes: aligned, size, pixel_bytes, region };
                self.finish(view, turned, resizer, flipped, out)
            }
        }
    }

    /// Returns the final region of an image of `size`, and the axes on which it is flipped.
    fn part(
        &self,
        size: Size,
        draws: impl Fn(usize) -> Draws,
    ) -> Result<(Region, Turned), OperatorFault> {
        let mut region = Region::all(size);
        let mut turned = Turned::default();
        for Stage { kind, position } in &self.stages {
            let all = region.size;
            let inner = match *kind {
                StageKind::Part { size, from } => {
                    let centre = || ((all.height - size.height) / 2, (all.width - size.width) / 2);
                    if !lies_in(size, from.unwrap_or_default(), all) {
                        let from = from.unwrap_or_default();
                        return Err(OperatorFault::Part { size, from, image: all });
                    }
                    let (top, left) = from.unwrap_or_else(centre);
                    Region { top, left, size }
                }
                StageKind::RandomPart { size } => {
                    if !lies_in(size, (0, 0), all) {
                        return Err(OperatorFault::Part { size, from: (0, 0), image: all });
                    }
                    place(size, all, &mut draws(*position))
                }
                StageKind::RandomResized { scale, ratio } => {
                    if all.pixels() == 0 {
                        let size = Size { height: 1, width: 1 };
                        return Err(OperatorFault::Part { size, from: (0, 0), image: all });
                    }
                    random_part(all, scale, ratio, &mut draws(*position))
                }
                StageKind::Flip { axis, probability } => {
                    if probability >= 1.0 || unit(&mut draws(*position)) < probability {
                        turned.turn(axis);
                    }
                    continue;
                }
            };
            region = region.within(turned.seen_from_behind(inner, all));
        }
        Ok((region, turned))
    }

    /// Writes the visible region.
    fn finish(
        &self,
        view: View<'_>,
        turned: Turned,
        resizer: &mut Resizer,
        flipped: &mut Vec<u64>,
        out: &mut [u8],
    ) -> Result<(), OperatorFault> {
        let size = view.region.size;
        let Some(to) = self.resized else {
            turned.copy(view, out);
            return Ok(());
        };
        if size.pixels() == 0 {
            let part = Size { height: 1, width: 1 };
            return Err(OperatorFault::Part { size: part, from: (0, 0), image: size });
        }
        let kinds = (sample(to.from).expect("checked"), sample(to.to).expect("checked"));
        let how = (to.method, to.antialias);
        if turned == Turned::default() {
            resizer.resize(view, kinds, self.channels, how, to.size, out);
            return Ok(());
        }
        let bytes = room(flipped, size.pixels() * view.pixel_bytes)?;
        turned.copy(view, bytes);
        let view = View { bytes, size, region: Region::all(size), ..view };
        resizer.resize(view, kinds, self.channels, how, to.size, out);
        Ok(())
    }

    /// Runs the chain on all rows in sequence.
    pub(crate) fn run_all(
        &self,
        inputs: &[Input<'_>],
        rows: usize,
        draws: impl Fn(usize, usize) -> Draws,
        memory: &Memory,
        out: &mut [u8],
    ) -> Result<(), (usize, OperatorFault)> {
        let bytes = out.len().checked_div(rows).unwrap_or(0);
        let mut scratch = memory.scratch();
        let each = |row: usize| {
            let out = &mut out[row * bytes..(row + 1) * bytes];
            self.run(inputs, row, |position| draws(row, position), (&mut scratch, memory), out)
                .map_err(|fault| (row, fault))
        };
        let done = (0..rows).try_for_each(each);
        memory.keep_scratch(scratch);
        done
    }
}

fn lies_in(size: Size, (top, left): (usize, usize), all: Size) -> bool {
    Region { top, left, size }.lies_in(all)
}

fn check_size(size: Size) -> Result<(), String> {
    if size.height == 0 || size.width == 0 || size.pixels() > shardfeed_image::PIXELS_MAX {
        return Err(format!(
            "size is {}x{}; both are 1 or more, and together at most {} pixels",
            size.height,
            size.width,
            shardfeed_image::PIXELS_MAX
        ));
    }
    Ok(())
}

fn check_range(name: &str, [low, high]: [f64; 2], most: f64) -> Result<(), String> {
    if !(low > 0.0 && low <= high && high <= most) {
        return Err(format!(
            "{name} is from {low} to {high}; it has to rise, from more than 0 to at most {most}"
        ));
    }
    Ok(())
}

pub(super) fn sample(dtype: Dtype) -> Option<Sample> {
    match dtype {
        Dtype::Uint8 => Some(Sample::U8),
        Dtype::Uint16 => Some(Sample::U16),
        Dtype::Float32 => Some(Sample::F32),
        _ => None,
    }
}

/// Returns a region at a uniformly random position.
fn place(size: Size, all: Size, draws: &mut Draws) -> Region {
    let top = draws.below((all.height - size.height) as u64 + 1) as usize;
    let left = draws.below((all.width - size.width) as u64 + 1) as usize;
    Region { top, left, size }
}

/// Returns a region of random area and shape. Source: docs/ORDER.md, section 11; Szegedy et al.
/// 2014.
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

/// Axes on which an image is flipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Turned {
    left_right: bool,
    up_down: bool,
}

impl Turned {
    fn turn(&mut self, axis: Axis) {
        match axis {
            Axis::Horizontal => self.left_right = !self.left_right,
            Axis::Vertical => self.up_down = !self.up_down,
        }
    }

    /// Converts a region of the flipped image to the image itself, of size `all`.
    fn seen_from_behind(self, part: Region, all: Size) -> Region {
        let Region { mut top, mut left, size } = part;
        if self.up_down {
            top = all.height - top - size.height;
        }
        if self.left_right {
            left = all.width - left - size.width;
        }
        Region { top, left, size }
    }

    fn copy(self, view: View<'_>, out: &mut [u8]) {
        let pixel = view.pixel_bytes;
        let len = view.region.size.width * pixel;
        if len == 0 || out.is_empty() {
            return;
        }
        let write = |(out, row): (&mut [u8], &[u8])| match (self.left_right, pixel) {
            (false, _) => out.copy_from_slice(row),
            (true, 1) => out.iter_mut().zip(row.iter().rev()).for_each(|(to, from)| *to = *from),
            (true, 3) => {
                let pixels = out.as_chunks_mut::<3>().0.iter_mut();
                pixels.zip(row.as_chunks::<3>().0.iter().rev()).for_each(|(to, from)| *to = *from);
            }
            (true, _) => {
                let pixels = out.chunks_exact_mut(pixel).zip(row.chunks_exact(pixel).rev());
                pixels.for_each(|(to, from)| to.copy_from_slice(from));
            }
        };
        let rows = out.chunks_exact_mut(len);
        match self.up_down {
            false => rows.zip(view.rows()).for_each(write),
            true => rows.zip(view.rows().rev()).for_each(write),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use shardfeed_plan::{ContentDigest, Digest, Sample as Identity};

    use super::*;
    use crate::draw::DrawKey;

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
        answer: serde_json::Value,
    }

    /// Compares the draws with a second implementation that was written from docs/ORDER.md only.
    #[test]
    fn draws_what_its_specification_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/draws.json");
        let cases: Vec<Drawn> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(cases.len() >= 20);
        let bytes: Vec<String> = (0..32_u8).map(|byte| format!("{byte:02x}")).collect();
        let content: ContentDigest = bytes.concat().parse::<Digest>().unwrap();
        for case in cases {
            let Drawn { seed, epoch, shard, ordinal, occurrence, position, .. } = case;
            let key = DrawKey { content, seed, epoch };
            let mut draws = key.draws(Identity { shard, ordinal }, occurrence, position);
            let all = Size { height: case.height, width: case.width };
            let region = match case.kind.as_str() {
                "flip" => {
                    let turned = unit(&mut draws) < case.probability;
                    assert_eq!(case.answer, turned, "flip {seed} {epoch} {ordinal}");
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

        /// Crops of flipped crops give the same pixels as applying them one after the other.
        #[test]
        fn parts_and_mirrors_go_in_any_order(turns in prop::collection::vec((0..3_u8, 0..3_usize), 0..8)) {
            let size = Size { height: 20, width: 20 };
            let bytes: Vec<u8> = (0..400_usize).flat_map(|at| [(at / 20) as u8, (at % 20) as u8]).collect();
            let whole = View { bytes: &bytes, size, pixel_bytes: 2, region: Region::all(size) };
            let (mut region, mut turned) = (Region::all(size), Turned::default());
            let (mut step, mut at) = (bytes.clone(), size);
            for (kind, from) in turns {
                let view = View { bytes: &step, size: at, pixel_bytes: 2, region: Region::all(at) };
                let (mut next, mut by) = (view, Turned::default());
                match kind {
                    0 => by.turn(Axis::Horizontal),
                    1 => by.turn(Axis::Vertical),
                    _ => {
                        let left = from.min(2);
                        let size = Size { height: at.height - 2, width: at.width - 2 };
                        next.region = Region { top: from, left, size };
                        region = region.within(turned.seen_from_behind(next.region, at));
                        at = size;
                    }
                }
                turned = Turned {
                    left_right: turned.left_right != by.left_right,
                    up_down: turned.up_down != by.up_down,
                };
                let mut out = vec![0; at.pixels() * 2];
                by.copy(next, &mut out);
                step = out;
            }
            let mut out = vec![0; at.pixels() * 2];
            turned.copy(View { region, ..whole }, &mut out);
            prop_assert_eq!(out, step);
        }
    }
}
