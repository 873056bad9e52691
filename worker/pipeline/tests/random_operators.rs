//! Random operators: the result for a sample depends on the sample, never on its batch.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Assembler, DrawKey, PIXEL_CONTRACT, RecordSpec, Row, Schema};

use common::{Stored, key, stored};

const SIDE: usize = 24;
const IMAGES: usize = 60;

/// Images in which every pixel contains its position.
fn images() -> Stored {
    let pixels =
        |_| (0..SIDE * SIDE).flat_map(|at| [(at / SIDE) as u8, (at % SIDE) as u8, 7]).collect();
    stored((0..IMAGES).map(pixels))
}

fn decoded() -> Value {
    let fields = json!({"input": "record", "dtype": "uint8", "shape": [SIDE, SIDE, 3], "little_endian": true});
    json!({"output": "image", "operation": {"decode_raw": fields}})
}

fn assembler(operators: &[Value]) -> Assembler {
    let mut all = vec![decoded()];
    all.extend(
        operators.iter().map(|operation| json!({"output": "image", "operation": operation})),
    );
    let spec: RecordSpec =
        serde_json::from_value(json!({"operators": all, "outputs": ["image"]})).unwrap();
    Assembler::new(Arc::new(Schema::new(spec).unwrap()), SlotPool::new(1))
}

/// Returns the result for each sample, in batches of `size`.
fn made(
    assembler: &Assembler,
    rows: &[Row<'_>],
    size: usize,
    key: &DrawKey,
) -> BTreeMap<u64, Vec<u8>> {
    let mut made = BTreeMap::new();
    for rows in rows.chunks(size) {
        let mut batch = assembler.assemble(rows, key).unwrap();
        let bytes = batch.slot.read(&batch.columns[0].values.clone());
        let each = bytes.chunks(bytes.len() / rows.len());
        made.extend(rows.iter().map(|row| row.sample.ordinal).zip(each.map(<[u8]>::to_vec)));
    }
    made
}

fn random() -> Vec<Value> {
    vec![
        json!({"random_resized_crop": {"input": "image", "scale": [0.2, 0.9], "ratio": [0.75, 1.33]}}),
        json!({"flip": {"input": "image", "axis": "horizontal", "probability": 0.5}}),
        json!({"resize": {"input": "image", "size": [12, 12], "method": "bilinear", "antialias": true}}),
        json!({"random_crop": {"input": "image", "size": [9, 9]}}),
        json!({"flip": {"input": "image", "axis": "vertical", "probability": 0.5}}),
    ]
}

#[test]
fn a_sample_becomes_the_same_in_any_batch() {
    let (assembler, images, key) = (assembler(&random()), images(), key());
    let mut rows = images.rows();
    let all = made(&assembler, &rows, IMAGES, &key);
    assert!(all.values().collect::<std::collections::BTreeSet<_>>().len() > IMAGES * 9 / 10);
    rows.reverse();
    assert_eq!(made(&assembler, &rows, 7, &key), all);
    assert_eq!(made(&assembler, &rows[20..30], 1, &key).len(), 10);
    assert!(made(&assembler, &rows[20..30], 1, &key).iter().all(|(at, bytes)| all[at] == *bytes));
    // The result differs in another epoch, with another seed, for other counts, and for padding.
    let differs = |other: &BTreeMap<u64, Vec<u8>>| {
        let changed = all.iter().filter(|(at, bytes)| other[at] != **bytes).count();
        assert!(changed > IMAGES * 9 / 10, "{changed}");
    };
    differs(&made(&assembler, &rows, 7, &DrawKey { epoch: 1, ..key.clone() }));
    differs(&made(&assembler, &rows, 7, &DrawKey { seed: 8, ..key.clone() }));
    let digest = shardfeed_plan::OrderDigest::of_parts([b"others".as_slice()]);
    differs(&made(&assembler, &rows, 7, &DrawKey { digest, ..key.clone() }));
    rows.iter_mut().for_each(|row| row.occurrence = 1);
    differs(&made(&assembler, &rows, 7, &key));
}

#[test]
fn two_of_the_same_operator_draw_apart() {
    let crop = json!({"random_crop": {"input": "image", "size": [20, 20]}});
    let flip = json!({"flip": {"input": "image", "axis": "horizontal", "probability": 0.5}});
    // If both drew the same number, an image would be flipped twice or not at all.
    let twice = made(&assembler(&[flip.clone(), flip]), &images().rows(), 9, &key());
    let turned = twice.values().filter(|bytes| bytes[1] != 0).count();
    assert!((IMAGES / 4..IMAGES * 3 / 4).contains(&turned), "{turned}");
    let second = json!({"random_crop": {"input": "image", "size": [16, 16]}});
    let corners = made(&assembler(&[crop, second]), &images().rows(), 9, &key());
    // The first crop has 5 positions; the sum of both crops' positions has more than 5 values.
    let tops: std::collections::BTreeSet<_> = corners.values().map(|bytes| bytes[0]).collect();
    assert!(tops.len() > 5, "{tops:?}");
}

/// Counts the top left pixels of crops: how often each position is drawn.
#[test]
fn crops_are_from_everywhere_and_within() {
    let crop = json!({"random_crop": {"input": "image", "size": [SIDE - 1, SIDE - 2]}});
    let assembler = assembler(&[crop]);
    let mut seen = BTreeMap::new();
    for epoch in 0..40 {
        for bytes in
            made(&assembler, &images().rows(), IMAGES, &DrawKey { epoch, ..key() }).values()
        {
            *seen.entry((bytes[0], bytes[1])).or_insert(0) += 1;
            // Consecutive rows of the crop are consecutive in the image.
            assert_eq!(bytes[3 * (SIDE - 2)], bytes[0] + 1);
        }
    }
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    );
    assert!(seen.values().all(|count| (300..500).contains(count)), "{seen:?}");
}

/// Counts how often a flip with a probability occurs.
#[test]
fn flips_are_as_likely_as_they_say() {
    for (probability, range) in [(0.0, 0..1), (0.25, 450..750), (1.0, 2400..2401)] {
        let flip =
            json!({"flip": {"input": "image", "axis": "horizontal", "probability": probability}});
        let assembler = assembler(&[flip]);
        let turned = |epoch| {
            let made = made(&assembler, &images().rows(), IMAGES, &DrawKey { epoch, ..key() });
            made.values().filter(|bytes| bytes[1] != 0).count()
        };
        let turned: usize = (0..40).map(turned).sum();
        assert!(range.contains(&turned), "{probability}: {turned}");
    }
}

#[test]
fn images_of_many_sizes_are_in_no_batch() {
    let new = |operators: Value, outputs: Value| {
        let spec = json!({"operators": operators, "outputs": outputs});
        let spec: RecordSpec = serde_json::from_value(spec).unwrap();
        Schema::new(spec)
            .map(|schema| schema.columns()[0].1.clone())
            .map_err(|error| error.to_string())
    };
    let decode = json!({"output": "image", "operation":
        {"decode_image": {"input": "record", "channels": 3, "dtype": "uint8"}}});
    let resize = json!({"output": "small", "operation":
        {"resize": {"input": "image", "size": [4, 5], "method": "bilinear", "antialias": true}}});
    let error = new(json!([decode]), Value::Null).unwrap_err();
    assert_eq!(
        error,
        "operator 0 (output `image`): its images differ in size from row to row, and nothing makes them one \
         size; resize or crop them"
    );
    let error = new(json!([decode, resize]), json!(["image"])).unwrap_err();
    assert_eq!(
        error,
        "outputs name `image`, whose images differ in size from row to row; name a column made of \
         them"
    );
    let cast = json!({"output": "y", "operation": {"cast": {"input": "image", "dtype": "int32"}}});
    let error = new(json!([decode, cast]), Value::Null).unwrap_err();
    assert_eq!(
        error,
        "operator 1 (output `y`): the images of `image` differ in size from row to row; resize or \
         crop them first"
    );
    let kind = new(json!([decode, resize]), json!(["small"])).unwrap();
    assert_eq!(format!("{kind:?}"), "Dense { dtype: Uint8, shape: [4, 5, 3] }");
}

#[test]
fn what_images_cannot_be_is_told_before_anything_is_read() {
    let new = |operation: Value| {
        let operators = json!([decoded(), {"output": "y", "operation": operation}]);
        let spec: RecordSpec = serde_json::from_value(json!({"operators": operators})).unwrap();
        Schema::new(spec).unwrap_err().to_string()
    };
    let said = [
        json!({"crop": {"input": "image", "size": [25, 3]}}),
        json!({"crop": {"input": "image", "size": [3, 3], "offset": [22, 0]}}),
        json!({"crop": {"input": "image", "size": [0, 3]}}),
        json!({"random_crop": {"input": "image", "size": [25, 3]}}),
        json!({"random_resized_crop": {"input": "image", "scale": [0.5, 1.5], "ratio": [1, 1]}}),
        json!({"random_resized_crop": {"input": "image", "scale": [0.5, 1], "ratio": [2, 1]}}),
        json!({"flip": {"input": "image", "axis": "vertical", "probability": 1.1}}),
        json!({"resize": {"input": "image", "size": [1 << 20, 1 << 20], "method": "nearest", "antialias": false}}),
        json!({"resize": {"input": "image", "size": [1, 1], "method": "nearest", "antialias": false, "dtype": "int8"}}),
        json!({"decode_image": {"input": "image", "channels": 3, "dtype": "uint8"}}),
        json!({"decode_image": {"input": "record", "channels": 2, "dtype": "uint8"}}),
        json!({"decode_image": {"input": "record", "channels": 3, "dtype": "float32"}}),
        json!({"crop": {"input": "record", "size": [3, 3]}}),
        json!({"reshape": {"input": "image", "shape": ["image", 24, 3]}}),
        json!({"reshape": {"input": "image", "shape": ["image", -1, 3]}}),
        json!({"reshape": {"input": "image", "shape": ["image", "image"]}}),
        json!({"reshape": {"input": "record", "shape": ["record", "record", 3]}}),
        json!({"decode_raw": {"input": "image", "dtype": "uint8", "shape": ["image", "image", 3],
            "little_endian": true}}),
        json!({"layout": {"input": "record", "to": "chw"}}),
    ]
    .map(new);
    assert_eq!(
        said,
        [
            "operator 1 (output `y`): a part of 25x3 from (0, 0) does not lie in images of 24x24",
            "operator 1 (output `y`): a part of 3x3 from (22, 0) does not lie in images of 24x24",
            "operator 1 (output `y`): size is 0x3; both are 1 or more, and together at most \
             67108864 pixels",
            "operator 1 (output `y`): a part of 25x3 from (0, 0) does not lie in images of 24x24",
            "operator 1 (output `y`): scale is from 0.5 to 1.5; it has to rise, from more than 0 \
             to at most 1",
            "operator 1 (output `y`): ratio is from 2 to 1; it has to rise, from more than 0 to at \
             most 1000000",
            "operator 1 (output `y`): probability is 1.1; it is from 0 to 1",
            "operator 1 (output `y`): size is 1048576x1048576; both are 1 or more, and together at \
             most 67108864 pixels",
            "operator 1 (output `y`): dtype is uint8 or float32, not int8; cast afterwards",
            "operator 1 (output `y`): it takes one byte string a row, not uint8 of shape [24, 24, \
             3]",
            "operator 1 (output `y`): channels is 1, 3 or 4, not 2",
            "operator 1 (output `y`): dtype is uint8 or uint16, not float32; cast afterwards",
            "operator 1 (output `y`): it takes images, [height, width, channels], or some in each \
             row, [images, height, width, channels], not bytes of shape []",
            "operator 1 (output `y`): column `image` is uint8 of shape [24, 24, 3]; a size is one \
             int64 a row",
            "operator 1 (output `y`): -1 and names of columns are not both in a shape",
            "operator 1 (output `y`): a shape with names of columns is [height, width, channels], \
             channels a number",
            "operator 1 (output `y`): it takes numbers; decode_raw takes strings, with names in \
             its shape",
            "operator 1 (output `y`): it takes byte strings, not uint8",
            "operator 1 (output `y`): it takes numbers, but its input is byte strings of shape []; \
             decode them first",
        ]
    );
    let resize = |channels: usize, dtype: &str| {
        let decode = json!({"decode_raw":
            {"input": "record", "dtype": dtype, "shape": [2, 2, channels], "little_endian": true}});
        let resize = json!({"resize":
            {"input": "image", "size": [4, 5], "method": "bilinear", "antialias": true}});
        let operators = json!([{"output": "image", "operation": decode},
            {"output": "y", "operation": resize}]);
        let spec: RecordSpec = serde_json::from_value(json!({"operators": operators})).unwrap();
        Schema::new(spec).unwrap_err().to_string()
    };
    assert_eq!(
        [resize(5, "uint8"), resize(3, "int64")],
        [
            "operator 1 (output `y`): it takes images of uint8, uint16 or float32 with 1 to 4 \
             channels, not uint8 with 5; cast them",
            "operator 1 (output `y`): it takes images of uint8, uint16 or float32 with 1 to 4 \
             channels, not int64 with 3; cast them",
        ]
    );
}

#[test]
fn a_job_that_decodes_images_pins_the_pixel_contract() {
    let decode = json!({"decode_image":
        {"input": "record", "channels": 3, "dtype": "uint8", "size": [4, 5]}});
    let operators = json!([{"output": "image", "operation": decode}]);
    let spec: RecordSpec = serde_json::from_value(json!({"operators": operators})).unwrap();
    assert_eq!(Schema::new(spec).unwrap().decoder(), PIXEL_CONTRACT);
    assert_eq!(Schema::raw().decoder(), "none");
}
