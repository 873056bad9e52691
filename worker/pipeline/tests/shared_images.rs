//! Images of a record whose rows are samples: made together, they are those that are made one by
//! one, and each image is decoded once.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Stored, key, stored};
use jpeg_encoder::{ColorType, Encoder};
use proptest::prelude::*;
use rayon::prelude::*;
use serde_json::{Value as Json, json};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{
    Assembler, Batch, Begun, RecordSpec, Row, RowError, Schema, Stage, Watch,
};
use shardfeed_plan::Sample;
use shardfeed_tfrecord::example::{Value as Field, encode_example};

const SIZE: (u16, u16) = (48, 40);

/// Counts decoded images that have a damage which the decoder passes over.
#[derive(Debug, Default)]
struct Decoded(AtomicU64);

impl Watch for Decoded {
    fn begin(&self) -> Begun {
        Begun { cpu_ns: 0, wall_ns: 0 }
    }

    fn end(&self, _: Stage, _: Begun) {}

    fn suspect_images(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Returns an image of a record.
/// - `cut`: bytes that are missing at its end.
fn jpeg(number: usize, cut: usize) -> Vec<u8> {
    let (width, height) = (usize::from(SIZE.0), usize::from(SIZE.1));
    let pixel = |at: usize| ((at * (7 + number)) ^ (at / 31)) as u8;
    let pixels: Vec<u8> = (0..width * height * 3).map(pixel).collect();
    let mut bytes = vec![];
    Encoder::new(&mut bytes, 80).encode(&pixels, SIZE.0, SIZE.1, ColorType::Rgb).unwrap();
    // Bytes between two segments are a damage that decoders pass over.
    let segment = u16::from_be_bytes([bytes[4], bytes[5]]);
    let end = 4 + usize::from(segment);
    bytes.splice(end..end, [1, 2, 3]);
    bytes.truncate(bytes.len() - cut);
    bytes
}

/// Returns a schema of crops: a random part of the box of each row, resized, and then changed by
/// an operator on numbers; and the whole image, resized.
fn schema() -> Arc<Schema> {
    let on = |output: &str, name: &str, fields: Json| json!({"output": output, "operation": {name: fields}});
    let bounds = json!({"column": "box", "format": "yxyx", "normalized": true});
    let size = json!([12, 10]);
    let spec: RecordSpec = serde_json::from_value(json!({
        "parse": [
            {"name": "box", "feature":
                {"fixed_len_sequence": {"shape": [4], "dtype": "float32", "allow_missing": true}}},
            {"name": "image", "feature": {"fixed_len": {"shape": [], "dtype": "bytes"}}},
        ],
        "operators": [
            on("pixels", "decode_image", json!({"input": "image", "channels": 3, "dtype": "uint8"})),
            on("crop", "crop", json!({"input": "pixels", "box": bounds})),
            on("crop", "random_resized_crop", json!({"input": "crop", "scale": [0.3, 1.0], "ratio": [0.5, 2.0]})),
            on("crop", "resize", json!({"input": "crop", "size": size, "method": "bilinear", "antialias": false})),
            on("numbers", "scale", json!({"input": "crop", "scale": [0.5], "offset": [1.0], "dtype": "float32"})),
            on("small", "resize", json!({"input": "pixels", "size": size, "method": "nearest", "antialias": false})),
        ],
        "outputs": ["box", "crop", "numbers", "small"],
        "unbatch": {"columns": [{"name": "box"}], "edge": "drop", "stride": 1},
    }))
    .unwrap();
    Arc::new(Schema::new(spec).unwrap())
}

/// A record: the boxes of its rows, and its image.
struct Record {
    boxes: Vec<[f32; 4]>,
    /// Bytes that are missing at the end of the image.
    cut: usize,
}

fn encoded(records: &[Record]) -> Stored {
    stored(records.iter().enumerate().map(|(number, record)| {
        let (image, boxes) = (jpeg(number, record.cut), record.boxes.as_flattened());
        let mut bytes = vec![];
        let fields = [("box", Field::Float32(boxes)), ("image", Field::Bytes(&[&image]))];
        encode_example(&fields, &mut bytes);
        bytes
    }))
}

/// Returns the columns of a batch, or its error.
fn columns(made: Result<Batch, RowError>) -> Result<Vec<Vec<u8>>, String> {
    let mut batch = made.map_err(|error| format!("{:?}: {}", error.sample, error.fault))?;
    let columns = batch.columns.clone();
    Ok(columns.iter().map(|column| batch.slot.read(&column.values)).collect())
}

/// Returns each row of each record, in this order.
fn rows<'s>(records: &[Record], stored: &'s Stored) -> Vec<Row<'s>> {
    let mut rows = vec![];
    for (record, row) in records.iter().zip(stored.rows()) {
        for part in 0..record.boxes.len() as u32 {
            let sample = Sample { shard: 0, ordinal: rows.len() as u64 };
            rows.push(Row { sample, part, offset: row.sample.ordinal, ..row });
        }
    }
    rows
}

/// Returns an assembler that makes the rows of a record together.
fn together(assembler: Assembler, records: &[Record]) -> Assembler {
    let counts: Vec<u32> = records.iter().map(|record| record.boxes.len() as u32).collect();
    assembler.of_rows(move |sample, most| {
        let mut first = 0;
        for count in &counts {
            let end = first + u64::from(*count);
            if sample.ordinal < end {
                return if u64::from(*count) > most {
                    vec![]
                } else {
                    (first..end).zip(0..).collect()
                };
            }
            first = end;
        }
        unreachable!("{sample:?} is a row of a record")
    })
}

fn boxes() -> impl Strategy<Value = [f32; 4]> {
    // Some are empty, which is an error of their row.
    (0.0_f32..0.8, 0.0_f32..0.8, 0.0_f32..0.7, 0.0_f32..0.7).prop_map(
        |(top, left, height, width)| [top, left, (top + height).min(1.0), (left + width).min(1.0)],
    )
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let cut = prop_oneof![4 => Just(0_usize), 1 => 1_usize..900];
    let record = (prop::collection::vec(boxes(), 1..7), cut);
    prop::collection::vec(record.prop_map(|(boxes, cut)| Record { boxes, cut }), 1..6)
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} without {} bytes", self.boxes, self.cut)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn rows_made_together_are_those_made_one_by_one(
        records in records(),
        order in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 1..40),
        size in 1_usize..9,
        is_parallel: bool,
        (bytes, batches) in prop_oneof![Just((1 << 20, 100)), (0_u64..4_000, 0_u64..3)],
    ) {
        let stored = encoded(&records);
        let all = rows(&records, &stored);
        // Any order, with padding, substitutes of corrupt records, and rows that never come.
        let mut seen = std::collections::BTreeSet::new();
        let rows: Vec<_> = order.iter().map(|(at, other)| {
            let (row, other) = (*at.get(&all), *other.get(&all));
            match seen.insert(row.sample) {
                true => row,
                false if row.sample.ordinal % 2 == 0 => Row { occurrence: 1, valid: false, ..row },
                false => Row { sample: row.sample, valid: false, ..other },
            }
        }).collect();
        let schema = schema();
        let alone = Assembler::new(Arc::clone(&schema), SlotPool::new(1));
        let shared = together(Assembler::new(schema, SlotPool::new(1)), &records);
        shared.bound_images(bytes, batches);
        let expected: Vec<_> =
            rows.chunks(size).map(|batch| columns(alone.assemble(batch, &key()))).collect();
        // Of several rows with errors, the first one is named.
        let each = |batch: &[Row<'_>]| columns(shared.assemble(batch, &key()));
        let found: Vec<_> = match is_parallel {
            true => rows.par_chunks(size).map(each).collect(),
            false => rows.chunks(size).map(each).collect(),
        };
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn an_image_is_decoded_once_for_all_rows_of_its_record() {
    let part = |row: usize| [0.1 * row as f32, 0.2, 0.1 * row as f32 + 0.3, 0.9];
    let records: Vec<Record> =
        (0..5).map(|_| Record { boxes: (0..6).map(part).collect(), cut: 0 }).collect();
    let stored = encoded(&records);
    let mut rows = rows(&records, &stored);
    // The rows of each record come far apart.
    rows.sort_by_key(|row| row.part);
    let decoded = |rows: &[Row<'_>], assembler: Assembler, bytes: u64| {
        let watch = Arc::new(Decoded::default());
        let assembler = assembler.watched(watch.clone());
        assembler.bound_images(bytes, 100);
        for batch in rows.chunks(4) {
            assembler.assemble(batch, &key()).unwrap();
        }
        watch.0.load(Ordering::Relaxed)
    };
    let alone = || Assembler::new(schema(), SlotPool::new(1));
    // Two columns are made of each image.
    assert_eq!(decoded(&rows, alone(), 0), 2 * 30);
    assert_eq!(decoded(&rows, together(alone(), &records), 1 << 20), 2 * 5);
    assert_eq!(decoded(&rows, together(alone(), &records), 0), 2 * 30, "there is no memory");
    // In the order of the records, rows of one follow each other in a batch.
    rows.sort_by_key(|row| row.sample.ordinal);
    assert!(decoded(&rows, together(alone(), &records), 0) < 2 * 15);
    // The row of a corrupt record is another record's, and gives it no image.
    rows.sort_by_key(|row| row.part);
    rows[7] = Row { sample: rows[7].sample, valid: false, ..rows[3] };
    assert_eq!(decoded(&rows, together(alone(), &records), 1 << 20), 2 * 6);
}
