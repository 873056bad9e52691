//! Compares image operators with TensorFlow's results, recorded by `goldens/make_images.py`.
//!
//! Results are exact where both only move samples, and where both decode accurately. The weights of
//! the two resizers differ in their last bits; `Near` is the tolerance.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;
mod dice;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use shardfeed_pipeline::Dtype;

use dice::{Dice, disturb, rounds};
use sample::{Answer, Case, floats, ours};

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
}

fn inflated(text: &str) -> Vec<u8> {
    let bytes = BASE64_STANDARD.decode(text).unwrap();
    let mut inflated = vec![];
    flate2::read::ZlibDecoder::new(bytes.as_slice()).read_to_end(&mut inflated).unwrap();
    inflated
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::Uint8 => bytes.iter().map(|&byte| f64::from(byte)).collect(),
        Dtype::Uint16 => {
            bytes.as_chunks().0.iter().map(|two| f64::from(u16::from_le_bytes(*two))).collect()
        }
        dtype => floats(dtype, bytes),
    }
}

/// Maximum and mean tolerance compared with TensorFlow's numbers.
struct Near {
    most: f64,
    mean: f64,
}

fn near(name: &str, dtype: Dtype) -> Near {
    let exact = Near { most: 0.0, mean: 0.0 };
    // A gamma in the file is not applied; TensorFlow applies it when it converts colours to grey.
    if name.starts_with("png gamma to 1") {
        let scale = if dtype == Dtype::Uint8 { 1.0 } else { 257.0 };
        return Near { most: 10.0 * scale, mean: 2.0 * scale };
    }
    // TensorFlow uses the faster, less accurate of its methods by default.
    if name.starts_with("jpeg") || name.starts_with("hostile") {
        return Near { most: 8.0, mean: 2.0 };
    }
    if !name.starts_with("resize") || name.contains("nearest") {
        return exact;
    }
    // For this case TensorFlow uses a table of 1024 weights.
    if name.contains("bicubic") && !name.contains("antialias") {
        return match dtype {
            Dtype::Uint8 => Near { most: 1.0, mean: 0.3 },
            _ if name.contains("uint16") => Near { most: 7.0, mean: 1.0 },
            _ => Near { most: 0.03, mean: 0.005 },
        };
    }
    match dtype {
        // A rounding error of 1, as rows and columns are rounded one after the other.
        Dtype::Uint8 | Dtype::Uint16 => Near { most: 1.0, mean: 0.3 },
        _ if name.contains("uint16") => Near { most: 0.05, mean: 0.01 },
        _ => Near { most: 2e-4, mean: 5e-5 },
    }
}

fn goldens() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/images.json");
    let Goldens { cases } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    cases
}

#[test]
fn image_operators_give_what_tensorflow_gives() {
    let cases = goldens();
    assert!(cases.len() > 350);
    let (mut kinds, mut wrong) = (BTreeSet::new(), vec![]);
    for Case { name, columns, operators, answer } in cases {
        kinds.insert(name.split(' ').next().unwrap().to_owned());
        let strings = |(name, rows): (String, Vec<String>)| {
            (name, rows.iter().map(|row| BASE64_STANDARD.decode(row).unwrap()).collect())
        };
        let columns = columns.into_iter().map(strings).collect();
        match (ours(&columns, operators), answer) {
            (
                Ok((dtype, shape, bytes)),
                Answer::Ok { dtype: wanted, shape: like, bytes: theirs },
            ) => {
                assert_eq!((dtype, shape), (wanted, like), "{name}");
                let pairs =
                    numbers(dtype, &bytes).into_iter().zip(numbers(dtype, &inflated(&theirs)));
                // For a file without alpha, TensorFlow makes grey and palettes of less than 8 bits
                // almost transparent; shardfeed makes them opaque.
                let few_bits = ["grey 1", "grey 2", "grey 4", "palette 4"];
                let is_few = few_bits.iter().any(|few| name.contains(&format!("png {few} to 4")));
                let white = if dtype == Dtype::Uint8 { 255.0 } else { 65535.0 };
                let pairs =
                    pairs.enumerate().map(|(at, (ours, theirs))| match is_few && at % 4 == 3 {
                        true => (ours, white),
                        false => (ours, theirs),
                    });
                let apart: Vec<f64> = pairs.map(|(a, b)| (a - b).abs()).collect();
                let most = apart.iter().copied().fold(0.0, f64::max);
                let mean = apart.iter().sum::<f64>() / apart.len() as f64;
                let near = near(&name, dtype);
                if most > near.most || mean > near.mean {
                    wrong.push(format!("{name}: {most} apart, {mean} in the mean"));
                }
            }
            (Err(error), Answer::Error(_)) => {
                assert!(error.starts_with("column `"), "{name}: {error}");
            }
            (Err(error), Answer::Ok { .. }) => wrong.push(format!("{name}: {error}")),
            (Ok(_), Answer::Error(theirs)) => {
                wrong.push(format!("{name}: TensorFlow says {theirs}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(
        Vec::from_iter(kinds).join(" "),
        "accurate crop flip hostile jpeg layout png resize"
    );
}

/// Mutates every image `SHARDFEED_FUZZ_ROUNDS` times, else a few times: any bytes give an image or
/// an error, and no more memory is allocated than the header's limits permit.
#[test]
fn disturbed_images_are_images_or_errors() {
    let of_decoding =
        |case: &Case| serde_json::to_string(&case.operators).unwrap().contains("decode_image");
    let cases: Vec<Case> = goldens().into_iter().filter(of_decoding).collect();
    let whole: Vec<Vec<u8>> =
        cases.iter().map(|case| BASE64_STANDARD.decode(&case.columns["x"][0]).unwrap()).collect();
    let (mut good, mut bad) = (0, 0);
    for (number, case) in cases.iter().enumerate() {
        for round in 0..rounds(4) {
            let mut dice = Dice((number as u64) << 32 | round);
            let mut image = whole[number].clone();
            disturb(&mut image, &whole, &mut dice);
            let columns = BTreeMap::from([("x".to_owned(), vec![image])]);
            match ours(&columns, case.operators.clone()) {
                Ok(_) => good += 1,
                Err(error) => {
                    assert!(error.starts_with("column `"), "{error}");
                    bad += 1;
                }
            }
        }
    }
    assert!(good > 0 && bad > 0, "{good} images, {bad} errors");
}

#[test]
fn every_image_that_cannot_be_used_says_why() {
    let case = goldens().into_iter().find(|case| case.name.starts_with("png")).unwrap();
    let image = BASE64_STANDARD.decode(&case.columns["x"][0]).unwrap();
    let decode = |size: Value| {
        json!({"decode_image":
            {"input": "x", "channels": 3, "dtype": "uint8", "size": size}})
    };
    let crop = json!({"crop": {"input": "y", "size": [1000, 1]}});
    let random = json!({"random_crop": {"input": "y", "size": [1, 1000]}});
    let resize = json!({"resize":
        {"input": "y", "size": [4, 5], "method": "bilinear", "antialias": true}});
    let said = |image: &[u8], operations: &[&Value]| {
        let columns = BTreeMap::from([("x".to_owned(), vec![image.to_vec()])]);
        let operators: Vec<_> = operations
            .iter()
            .map(|operation| json!({"output": "y", "operation": operation}))
            .collect();
        ours(&columns, serde_json::from_value(json!(operators)).unwrap()).unwrap_err()
    };
    let (any, small) = (decode(Value::Null), decode(json!([1, 2])));
    let said = [
        said(&image, &[&small]),
        said(&image, &[&any, &crop]),
        said(&image, &[&any, &random]),
        said(b"no image", &[&any, &resize]),
        said(&image[..40], &[&any, &resize]),
        said(&image[..image.len() / 2], &[&any, &resize]),
    ];
    assert_eq!(
        said,
        [
            "column `y`: an image of 21x19 pixels, but all are said to have 1x2; leave size out, \
             and resize or crop",
            "column `y`: a part of 1000x1 pixels from (0, 0) does not lie in an image of 21x19; \
             resize it before",
            "column `y`: a part of 1x1000 pixels from (0, 0) does not lie in an image of 21x19; \
             resize it before",
            "column `y`: neither JPEG nor PNG: 8 bytes that begin with \"no image\"; other formats \
             have to be converted when the dataset is written",
            "column `y`: damaged PNG of 40 bytes: unexpected end of file",
            "column `y`: damaged PNG of 244 bytes: unexpected end of file",
        ]
    );
}
