//! Operators on images that a row passes through at once.

use std::fmt;
use std::sync::Arc;

use shardfeed_image::{Decoding, Encoded, Health, Method, Region, Resizer, Sample, Size, View};
use shardfeed_plan::Draws;

use super::color_jitter::ColorJitter;
use super::turned::{Axis, Turned};
use crate::dtype::{ColumnNumber, Dtype, with_type};
use crate::operator::fault::{Failed, OperatorFault};
use crate::operator::form::{Dim, Form, Input, check_value};
use crate::operator::memory::{ColumnMemory, ImageScratch, room};
use crate::operator::pad::Padding;

/// Images, and the operators applied to each.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    source: ImageSource,
    /// Images of a row, which then has a first dimension of this size; `None`: one image.
    count: Option<usize>,
    /// Number of columns that it takes.
    inputs: usize,
    pub(super) dtype: Dtype,
    pub(super) channels: usize,
    /// Size of the source images, if it is the same for all rows.
    source_size: Option<Size>,
    stages: Vec<ChainStage>,
    finish: Finish,
    /// Size after all operators, if it is the same for all rows.
    pub(super) size: Option<Size>,
}

#[derive(Clone, Debug)]
pub(super) enum ImageSource {
    Encoded(Decoding),
    /// Numbers of a known size.
    Numbers,
    /// Strings or numbers whose size is in other columns.
    Sized {
        sizes: [Dim; 2],
        is_strings: bool,
    },
}

pub(super) enum ImageChange {
    Part(Region),
    Mirror(Axis),
    Nothing,
}

/// An image, as an operator on it gets it.
pub(super) struct ImageRow<'a> {
    pub(super) size: Size,
    /// The operator's random draws for this row.
    draws: &'a dyn Fn() -> Draws,
    inputs: &'a [Input<'a>],
    row: usize,
}

impl ImageRow<'_> {
    pub(super) fn draws(&self) -> Draws {
        (self.draws)()
    }

    /// Numbers of this row in an input of the chain.
    /// - `form`: of one row of the input.
    pub(super) fn numbers(&self, input: usize, form: &Form) -> Vec<f64> {
        let items = form.items();
        with_type!(form.dtype, T => {
            let numbers = &self.inputs[input].numbers::<T>()[self.row * items..][..items];
            numbers.iter().map(|number| number.to_f64()).collect()
        })
    }
}

/// Returns the change of an image.
type Alter = dyn Fn(&ImageRow<'_>) -> Result<ImageChange, OperatorFault> + Send + Sync;

/// Operator on an image, and its position, which keys its random draws.
#[derive(Clone)]
struct ChainStage {
    alter: Arc<Alter>,
    position: usize,
}

impl fmt::Debug for ChainStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainStage").field("position", &self.position).finish_non_exhaustive()
    }
}

/// The last step of a chain: the visible pixels become a row of a column.
#[derive(Clone, Debug)]
enum Finish {
    Copy,
    Resize(Resized),
    Pad(Padding),
    /// Changes colours, with the draws of a position.
    Jitter(ColorJitter, usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Resized {
    pub(super) size: Size,
    pub(super) method: Method,
    pub(super) antialias: bool,
    pub(super) from: Dtype,
    pub(super) to: Dtype,
}

/// Memory for an image as a multiple of its pixel bytes: pixels, decoder rows, two copies.
const IMAGE_SHARE: usize = 4;

impl Chain {
    /// Creates a chain without operators.
    /// - `count`: images in a row; `None`: a row is one image. `size`: of all images, if equal.
    pub(super) fn new(
        source: ImageSource,
        count: Option<usize>,
        dtype: Dtype,
        channels: usize,
        size: Option<Size>,
    ) -> Self {
        let inputs = match &source {
            ImageSource::Encoded(_) | ImageSource::Numbers => 1,
            ImageSource::Sized { sizes, .. } => 1 + sizes.iter().filter_map(Dim::column).count(),
        };
        let (source_size, stages, finish) = (size, vec![], Finish::Copy);
        Self { source, count, inputs, dtype, channels, source_size, stages, finish, size }
    }

    /// Creates a chain of images that are numbers of one shape.
    pub(crate) fn of_numbers(input: &Form) -> Result<Self, String> {
        let (count, height, width, channels) = match input.shape[..] {
            [height, width, channels] => (None, height, width, channels),
            [count, height, width, channels] => (Some(count), height, width, channels),
            _ => {
                return Err(format!(
                    "it takes images, [height, width, channels], or some in each row, [images, \
                     height, width, channels], not {} of shape {:?}",
                    input.dtype, input.shape
                ));
            }
        };
        let size = Some(Size { height, width });
        Ok(Self::new(ImageSource::Numbers, count, input.dtype, channels, size))
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
        let source = ImageSource::Sized { sizes: [height.clone(), width.clone()], is_strings };
        Ok(Self::new(source, None, dtype, *channels, None))
    }

    /// Appends an operator that crops or mirrors.
    /// - `size`: of the results, if all have the same.
    pub(super) fn then(
        mut self,
        position: usize,
        size: Option<Size>,
        alter: impl Fn(&ImageRow<'_>) -> Result<ImageChange, OperatorFault> + Send + Sync + 'static,
    ) -> Self {
        debug_assert!(matches!(self.finish, Finish::Copy), "later operators take its column");
        self.stages.push(ChainStage { alter: Arc::new(alter), position });
        self.size = size;
        self
    }

    /// Appends the operator that gives all images one size.
    pub(super) fn resized(mut self, to: Resized) -> Self {
        (self.size, self.dtype) = (Some(to.size), to.to);
        self.finish = Finish::Resize(to);
        self
    }

    /// Appends the operator that fills images up to one size.
    pub(crate) fn padded(mut self, padding: Padding) -> Result<Self, String> {
        let &[height, width] = &padding.size[..] else {
            return Err(format!("size of images is (height, width), not {:?}", padding.size));
        };
        let size = Size { height, width };
        check_size(size)?;
        check_value("value", padding.value, self.dtype)?;
        self.size = Some(size);
        self.finish = Finish::Pad(padding);
        Ok(self)
    }

    /// Appends the operator that changes colours.
    pub(super) fn jittered(mut self, jitter: ColorJitter, position: usize) -> Self {
        self.finish = Finish::Jitter(jitter, position);
        self
    }

    fn source_dtype(&self) -> Dtype {
        if let Finish::Resize(resized) = &self.finish { resized.from } else { self.dtype }
    }

    /// Adds a column that the next operator takes, and returns its index among the inputs.
    pub(super) fn add_input(&mut self) -> usize {
        self.inputs += 1;
        self.inputs - 1
    }

    /// Images of a row, type of the samples, and samples of a pixel.
    pub(crate) fn pixels(&self) -> (Option<usize>, Dtype, usize) {
        (self.count, self.dtype, self.channels)
    }

    /// Form of one row, if all rows have the same size.
    pub(crate) fn form(&self) -> Option<Result<Form, String>> {
        let Size { height, width } = self.size?;
        let shape = self.count.into_iter().chain([height, width, self.channels]).collect();
        Some(Form::numbers(self.dtype, shape))
    }

    /// Runs the chain on one image that is numbers.
    /// - `inputs`: of all rows. `draws`: random draws of the operator at a position, for this row.
    fn run(
        &self,
        inputs: &[Input<'_>],
        (row, image): (usize, usize),
        draws: impl Fn(usize) -> Draws,
        (scratch, memory): (&mut ImageScratch, &ColumnMemory),
        out: &mut [u8],
    ) -> Result<(), OperatorFault> {
        let ImageScratch { resizer, pixels, flipped } = scratch;
        let pixel_bytes = self.channels * self.source_dtype().bytes();
        match &self.source {
            ImageSource::Encoded(_) => unreachable!("encoded images are decoded"),
            ImageSource::Numbers => {
                let size = self.source_size.expect("numbers have a shape");
                let bytes = inputs[0].row(row);
                let image_bytes = bytes.len() / self.count.unwrap_or(1).max(1);
                let bytes = &bytes[image * image_bytes..][..image_bytes];
                let (region, turned) = self.part(size, inputs, row, &draws)?;
                let view = View { bytes, size, pixel_bytes, region };
                self.finish(view, turned, draws, (resizer, flipped), out)
            }
            ImageSource::Sized { sizes, is_strings } => {
                let mut named = inputs[1..].iter();
                let mut side = |dim: &Dim| -> Result<usize, OperatorFault> {
                    let Dim::Column(name) = dim else {
                        return Ok(dim.size().unwrap_or_default());
                    };
                    let number =
                        named.next().expect("one input for each name").numbers::<i64>()[row];
                    usize::try_from(number).map_err(|_| {
                        OperatorFault::Record(format!("column `{name}` says {number} for a size"))
                    })
                };
                let size = Size { height: side(&sizes[0])?, width: side(&sizes[1])? };
                let expected = size.pixels().saturating_mul(pixel_bytes);
                let bytes = match inputs[0] {
                    Input::Strings(strings) if *is_strings => strings[row],
                    numbers => numbers.row(row),
                };
                if bytes.len() != expected {
                    let shape = [size.height, size.width, self.channels];
                    let (dtype, found) = (self.source_dtype(), bytes.len());
                    return Err(OperatorFault::length(dtype, &shape, expected, found));
                }
                let (region, turned) = self.part(size, inputs, row, &draws)?;
                let _permit = memory.image(IMAGE_SHARE * size.pixels() * pixel_bytes);
                // Strings may be unaligned; numbers are read from an aligned copy.
                let aligned = room(pixels, bytes.len())?;
                aligned.copy_from_slice(bytes);
                let view = View { bytes: aligned, size, pixel_bytes, region };
                self.finish(view, turned, draws, (resizer, flipped), out)
            }
        }
    }

    /// Decodes an image once, and runs the chain on it for each of its rows.
    /// - `encoded`: its bytes. `rows`: one for each image of `out`. `draws`: as in `run_all`.
    fn run_encoded(
        &self,
        (encoded, decoding): (&[u8], Decoding),
        (inputs, rows): (&[Input<'_>], &[usize]),
        draws: &impl Fn(usize, usize) -> Draws,
        (scratch, memory): (&mut ImageScratch, &ColumnMemory),
        out: &mut [u8],
    ) -> Result<(), Failed> {
        let ImageScratch { resizer, pixels, flipped } = scratch;
        let first = |fault: OperatorFault| (rows[0], fault);
        let encoded = Encoded::open(encoded, decoding).map_err(|error| first(error.into()))?;
        let (size, pixel_bytes) = (encoded.size(), decoding.pixel_bytes());
        if let Some(wanted) = self.source_size.filter(|wanted| *wanted != size) {
            return Err(first(OperatorFault::Record(format!(
                "an image of {}x{} pixels, but all are said to have {}x{}; leave size out, and resize or \
                 crop",
                size.height, size.width, wanted.height, wanted.width
            ))));
        }
        let part = |row: &usize| {
            let draws = |position| draws(*row, position);
            self.part(size, inputs, *row, draws).map_err(|fault| (*row, fault))
        };
        let parts = rows.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let regions = parts.iter().map(|(region, _)| *region);
        let needed = encoded.needed(regions.reduce(Region::around).expect("there are rows"));
        // Even for a crop the decoder may hold the whole image.
        let held_bytes = IMAGE_SHARE * size.pixels() * pixel_bytes + encoded.held_bytes();
        let _permit = memory.image(held_bytes);
        let bytes = room(pixels, needed.size.pixels() * pixel_bytes).map_err(first)?;
        if encoded.decode(needed, bytes).map_err(|error| first(error.into()))? == Health::Suspect {
            memory.count_suspect_image();
        }
        let row_bytes = out.len() / rows.len();
        for (index, (&row, (region, turned))) in rows.iter().zip(parts).enumerate() {
            let (top, left) = (region.top - needed.top, region.left - needed.left);
            let region = Region { top, left, size: region.size };
            let view = View { bytes, size: needed.size, pixel_bytes, region };
            let out = &mut out[index * row_bytes..][..row_bytes];
            let draws = |position| draws(row, position);
            self.finish(view, turned, draws, (&mut *resizer, &mut *flipped), out)
                .map_err(|fault| (row, fault))?;
        }
        Ok(())
    }

    /// Returns the final region of an image of `size`, and the axes on which it is flipped.
    fn part(
        &self,
        size: Size,
        inputs: &[Input<'_>],
        row: usize,
        draws: impl Fn(usize) -> Draws,
    ) -> Result<(Region, Turned), OperatorFault> {
        let mut region = Region::all(size);
        let mut turned = Turned::default();
        for ChainStage { alter, position } in &self.stages {
            let draws = || draws(*position);
            match alter(&ImageRow { size: region.size, draws: &draws, inputs, row })? {
                ImageChange::Part(inner) => {
                    region = region.within(turned.seen_from_behind(inner, region.size));
                }
                ImageChange::Mirror(axis) => turned.turn(axis),
                ImageChange::Nothing => {}
            }
        }
        Ok((region, turned))
    }

    /// Writes the visible region.
    fn finish(
        &self,
        view: View<'_>,
        turned: Turned,
        draws: impl Fn(usize) -> Draws,
        (resizer, flipped): (&mut Resizer, &mut Vec<u64>),
        out: &mut [u8],
    ) -> Result<(), OperatorFault> {
        let size = view.region.size;
        let to = match &self.finish {
            Finish::Copy => {
                turned.copy(view, out);
                return Ok(());
            }
            Finish::Jitter(jitter, position) => {
                turned.copy(view, out);
                jitter.change(out, self.channels, draws(*position));
                return Ok(());
            }
            Finish::Pad(padding) => {
                let have = [size.height, size.width];
                if !padding.fits(&have) {
                    return Err(OperatorFault::Record(padding.too_large(&have)));
                }
                let bytes = room(flipped, size.pixels() * view.pixel_bytes)?;
                turned.copy(view, bytes);
                with_type!(self.dtype, T => {
                    let out = bytemuck::cast_slice_mut::<u8, T>(out);
                    padding.write(bytemuck::cast_slice::<u8, T>(bytes), &have, out);
                });
                return Ok(());
            }
            Finish::Resize(to) => to,
        };
        if size.pixels() == 0 {
            let part = Size { height: 1, width: 1 };
            return Err(OperatorFault::no_part(part, (0, 0), size));
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
    /// - `made`: returns the result of a row for which it was run before. `draws`: random draws of a
    ///   row for the operator at a position.
    pub(crate) fn run_all<'m>(
        &self,
        inputs: &[Input<'_>],
        rows: usize,
        made: impl Fn(usize) -> Option<&'m [u8]>,
        draws: impl Fn(usize, usize) -> Draws,
        memory: &ColumnMemory,
        out: &mut [u8],
    ) -> Result<(), Failed> {
        let mut scratch = memory.scratch();
        let done = self.run_rows(inputs, rows, made, draws, (&mut scratch, memory), out);
        memory.keep_scratch(scratch);
        done
    }

    fn run_rows<'m>(
        &self,
        inputs: &[Input<'_>],
        rows: usize,
        made: impl Fn(usize) -> Option<&'m [u8]>,
        draws: impl Fn(usize, usize) -> Draws,
        (scratch, memory): (&mut ImageScratch, &ColumnMemory),
        out: &mut [u8],
    ) -> Result<(), Failed> {
        let images = self.count.unwrap_or(1);
        let bytes = out.len().checked_div(rows * images).unwrap_or(0);
        let (mut at, mut same) = (0, vec![]);
        while at < rows * images {
            let row = at / images;
            if let Some(made) = made(row) {
                out[at * bytes..][..made.len()].copy_from_slice(made);
                at += images;
                continue;
            }
            let ImageSource::Encoded(decoding) = &self.source else {
                let out = &mut out[at * bytes..][..bytes];
                // The images of a row have the same draws, so that they stay alike.
                let draws = |position| draws(row, position);
                self.run(inputs, (row, at % images), draws, (&mut *scratch, memory), out)
                    .map_err(|fault| (row, fault))?;
                at += 1;
                continue;
            };
            let strings = inputs[0].strings();
            let encoded = strings[at];
            same.clear();
            let alike =
                |&at: &usize| std::ptr::eq(strings[at], encoded) && made(at / images).is_none();
            same.extend((at..rows * images).take_while(alike).map(|at| at / images));
            let mut decode = |rows: &[usize], at: usize| {
                let out = &mut out[at * bytes..][..rows.len() * bytes];
                let tools = (&mut *scratch, memory);
                self.run_encoded((encoded, *decoding), (inputs, rows), &draws, tools, out)
            };
            match decode(&same, at) {
                // Damage outside of a row's part is no error of this row.
                Err(_) if same.len() > 1 => {
                    let mut each = same.iter().zip(at..);
                    each.try_for_each(|(row, at)| decode(std::slice::from_ref(row), at))?;
                }
                done => done?,
            }
            at += same.len();
        }
        Ok(())
    }

    pub(crate) fn decodes(&self) -> bool {
        matches!(self.source, ImageSource::Encoded(_))
    }
}

pub(super) fn check_size(size: Size) -> Result<(), String> {
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

/// Returns the type of pixels' samples, if images of it can be resized.
pub(super) fn sample(dtype: Dtype) -> Option<Sample> {
    match dtype {
        Dtype::Uint8 => Some(Sample::U8),
        Dtype::Uint16 => Some(Sample::U16),
        Dtype::Float32 => Some(Sample::F32),
        _ => None,
    }
}
