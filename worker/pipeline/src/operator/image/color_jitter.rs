//! The operator `color_jitter`.
//!
//! Definition of each step: `torchvision.transforms.functional` on tensors of uint8. All numbers
//! are float32, and every operation is rounded.

use serde::{Deserialize, Serialize};
use shardfeed_plan::Draws;

use super::chain::Chain;
use crate::draw::unit;
use crate::dtype::Dtype;
use crate::operator::definition::{Definition, Given, Inputs, OperatorWork};

/// Changes colours at random, in random order, as `torchvision.transforms.ColorJitter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColorJitter {
    /// Column of images of uint8, of one size.
    pub input: String,
    /// Minimum and maximum factor, 0 or more; `None`: unchanged. So are the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brightness: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contrast: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saturation: Option<[f64; 2]>,
    /// Minimum and maximum shift, -0.5 to 0.5; `None`: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hue: Option<[f64; 2]>,
}

impl Definition for ColorJitter {
    fn row() -> &'static str {
        "`color_jitter(input, brightness, contrast, saturation, hue)` | random colours, in random \
         order | `torchvision.transforms.ColorJitter`; draws: [ORDER.md](ORDER.md), section 11 | \
         bit for bit, with numpy and torchvision"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(vec![self.input.clone()]))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        let (form, chain) = (&given.forms[0], Chain::of_numbers(&given.forms[0])?);
        if form.dtype != Dtype::Uint8 || !matches!(form.shape.last(), Some(1 | 3)) {
            return Err(format!(
                "it takes images of uint8 with 1 or 3 channels, not {} of shape {:?}",
                form.dtype, form.shape
            ));
        }
        let factors = [
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
        ];
        for (name, range) in factors {
            check(name, range, [0.0, f64::from(f32::MAX)])?;
        }
        check("hue", self.hue, [-0.5, 0.5])?;
        Ok(OperatorWork::Images(chain.jittered(self.clone(), given.position)))
    }
}

fn check(name: &str, range: Option<[f64; 2]>, [least, most]: [f64; 2]) -> Result<(), String> {
    match range {
        Some([low, high]) if !(least <= low && low <= high && high <= most) => Err(format!(
            "{name} is from {low} to {high}; it has to rise, from at least {least} to at most {most}"
        )),
        _ => Ok(()),
    }
}

/// Steps in the order of their factors' draws.
const STEPS: [JitterStep; 4] =
    [JitterStep::Brightness, JitterStep::Contrast, JitterStep::Saturation, JitterStep::Hue];

#[derive(Clone, Copy, Debug)]
pub(super) enum JitterStep {
    Brightness,
    Contrast,
    Saturation,
    Hue,
}

impl ColorJitter {
    /// Returns the steps in their order, with their factors. Source: docs/ORDER.md, section 11.
    pub(super) fn drawn(&self, draws: &mut Draws) -> [(JitterStep, Option<f64>); 4] {
        let mut order = [0, 1, 2, 3];
        for at in (1..order.len()).rev() {
            order.swap(at, draws.below(at as u64 + 1) as usize);
        }
        let factors = [self.brightness, self.contrast, self.saturation, self.hue].map(|range| {
            let unit = unit(draws);
            range.map(|[low, high]| low + unit * (high - low))
        });
        order.map(|step| (STEPS[step], factors[step]))
    }

    pub(super) fn change(&self, pixels: &mut [u8], channels: usize, mut draws: Draws) {
        for (step, factor) in self.drawn(&mut draws) {
            let Some(factor) = factor else { continue };
            match (step, channels) {
                (JitterStep::Brightness, _) => brightness(pixels, factor),
                (JitterStep::Contrast, _) => contrast(pixels, channels, factor),
                (JitterStep::Saturation, 3) => saturation(pixels, factor),
                (JitterStep::Hue, 3) => hue(pixels, factor),
                // Images of one channel have neither.
                _ => {}
            }
        }
    }
}

/// Truncates to a pixel's sample.
fn sample(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

fn grey(&[red, green, blue]: &[u8; 3]) -> u8 {
    let [red, green, blue] = [red, green, blue].map(f32::from);
    (0.2989 * red + 0.587 * green + 0.114 * blue) as u8
}

/// Applies the same change to all samples.
fn map(pixels: &mut [u8], change: impl Fn(f32) -> f32) {
    let table: [u8; 256] = std::array::from_fn(|value| sample(change(value as f32)));
    pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

fn brightness(pixels: &mut [u8], factor: f64) {
    let factor = factor as f32;
    map(pixels, |value| factor * value);
}

fn contrast(pixels: &mut [u8], channels: usize, factor: f64) {
    let (sum, count): (u64, usize) = if channels == 3 {
        let pixels = pixels.as_chunks::<3>().0;
        (pixels.iter().map(|pixel| u64::from(grey(pixel))).sum(), pixels.len())
    } else {
        (pixels.iter().map(|&value| u64::from(value)).sum(), pixels.len())
    };
    let mean = sum as f32 / count as f32;
    let (factor, rest) = (factor as f32, (1.0 - factor) as f32 * mean);
    map(pixels, |value| factor * value + rest);
}

fn saturation(pixels: &mut [u8], factor: f64) {
    let (factor, rest) = (factor as f32, (1.0 - factor) as f32);
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let rest = rest * f32::from(grey(pixel));
        *pixel = pixel.map(|value| sample(factor * f32::from(value) + rest));
    }
}

fn hue(pixels: &mut [u8], shift: f64) {
    let shift = shift as f32;
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let [hue, saturation, value] = to_hsv(pixel.map(|value| f32::from(value) / 255.0));
        let mut hue = (hue + shift) % 1.0;
        if hue < 0.0 {
            hue += 1.0;
        }
        *pixel = to_rgb([hue, saturation, value]).map(|value| (value * 255.999) as u8);
    }
}

fn to_hsv([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most == least {
        // 1 modulo 1.
        return [0.0, 0.0, most];
    }
    let range = most - least;
    let [from_red, from_green, from_blue] = [red, green, blue].map(|value| (most - value) / range);
    let sixths = if most == red {
        from_blue - from_green
    } else if most == green {
        2.0 + from_red - from_blue
    } else {
        4.0 + from_green - from_red
    };
    [(sixths / 6.0 + 1.0) % 1.0, range / most, most]
}

fn to_rgb([hue, saturation, value]: [f32; 3]) -> [f32; 3] {
    let sixth = (hue * 6.0).floor();
    let part = hue * 6.0 - sixth;
    let low = (value * (1.0 - saturation)).clamp(0.0, 1.0);
    let falling = (value * (1.0 - saturation * part)).clamp(0.0, 1.0);
    let rising = (value * (1.0 - saturation * (1.0 - part))).clamp(0.0, 1.0);
    match sixth as u8 % 6 {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every colour of a lattice, as `python/tests/test_image_operators.py` compares with numpy.
    fn colours() -> Vec<u8> {
        let levels = || (0..=255_u8).step_by(15);
        let all = levels().flat_map(|red| levels().map(move |green| (red, green)));
        all.flat_map(|(red, green)| levels().flat_map(move |blue| [red, green, blue])).collect()
    }

    fn changed(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut pixels = colours();
        change(&mut pixels);
        pixels
    }

    #[test]
    fn neutral_factors_change_nothing() {
        let same = colours();
        assert_eq!(changed(|pixels| brightness(pixels, 1.0)), same);
        assert_eq!(changed(|pixels| contrast(pixels, 3, 1.0)), same);
        assert_eq!(changed(|pixels| saturation(pixels, 1.0)), same);
        assert_eq!(changed(|pixels| hue(pixels, 0.0)), same);
    }

    #[test]
    fn extreme_factors_are_known() {
        assert!(changed(|pixels| brightness(pixels, 0.0)).iter().all(|&value| value == 0));
        let grey = changed(|pixels| contrast(pixels, 3, 0.0));
        assert!(grey.iter().all(|&value| value == grey[0]), "the mean everywhere");
        let greys = changed(|pixels| saturation(pixels, 0.0));
        assert!(
            greys
                .as_chunks::<3>()
                .0
                .iter()
                .all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2])
        );
        // A third of the wheel: red, green and blue change places.
        let mut pixels = [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9];
        hue(&mut pixels, 1.0 / 3.0);
        assert_eq!(pixels, [0, 255, 0, 0, 0, 255, 255, 0, 0, 9, 9, 9]);
        hue(&mut pixels, -1.0 / 3.0);
        assert_eq!(pixels, [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9]);
        let mut one = [10, 20, 40];
        contrast(&mut one, 1, 0.0);
        assert_eq!(one, [23; 3]);
    }

    #[test]
    fn an_image_without_pixels_stays_empty() {
        let fields =
            r#"{"input": "i", "brightness": [2, 2], "contrast": [2, 2], "hue": [0.1, 0.1]}"#;
        let jitter: ColorJitter = serde_json::from_str(fields).unwrap();
        let mut pixels = [];
        jitter.change(&mut pixels, 3, Draws::new(7, 0));
    }
}
