//! Sample maps: samples that the records have, or none.

use std::sync::Arc;

use shardfeed_pipeline::{
    BalanceSpec, Edge, PackSpec, ParseSpec, RecordSpec, SampleProgram, Schema, UnbatchColumn,
    UnbatchSpec, WindowSpec,
};
use shardfeed_plan::{Digest, LongSequences, PackMethod, PartialWindows};
use shardfeed_source::{CountedFile, SampleMap, SampleMaps};
use shardfeed_tfrecord::example::{DType, Feature, FeatureSpec, Partition};

use crate::{Target, size};

pub(crate) const TARGET: Target = Target { name: "sample_map", run, seeds };

const MAGIC: &[u8] = b"shardfeed samples 2\n";

/// Bytes of data of the file.
const DATA_BYTES: u64 = 1 << 14;

/// Maximum number of samples, and of blocks of packs, that are looked at.
const LOOKED_AT: u64 = 200;

/// Returns the program of an input's first byte, modulo 8.
pub(super) fn program(form: u8) -> Arc<SampleProgram> {
    let feature = Feature::VarLen { dtype: DType::Int64 };
    let parse = ParseSpec::Example(vec![FeatureSpec { name: "x".to_owned(), feature }]);
    let column = UnbatchColumn { name: "x".to_owned(), offsets: None };
    let unbatch = UnbatchSpec { columns: vec![column], edge: Edge::Drop, stride: 1 };
    let pack = PackSpec {
        columns: vec!["x".to_owned()],
        length: 32,
        block: 16,
        variants: 2,
        method: PackMethod::Fit,
        long: LongSequences::Split,
        append: vec![],
    };
    let fixed = Feature::FixedLen { shape: vec![], dtype: DType::Int64, default: None };
    let fixed = ParseSpec::Example(vec![FeatureSpec { name: "x".to_owned(), feature: fixed }]);
    let windows = RecordSpec { parse: Some(fixed), ..RecordSpec::default() };
    let window = WindowSpec {
        columns: vec!["x".to_owned()],
        size: 3,
        stride: 2,
        by: Some("x".to_owned()),
        partial: PartialWindows::Pad,
    };
    let plain = RecordSpec { parse: Some(parse), ..RecordSpec::default() };
    let partitions = vec![Partition::RowLengths("n".to_owned())];
    let ragged = Feature::Ragged { dtype: DType::Int64, value_key: None, partitions };
    let ragged = ParseSpec::Example(vec![FeatureSpec { name: "x".to_owned(), feature: ragged }]);
    let turns = RecordSpec { parse: Some(ragged), ..RecordSpec::default() };
    let spec = match form % 8 {
        0 => RecordSpec { filter: Some("len(x) > 0".to_owned()), ..plain },
        1 => RecordSpec { unbatch: Some(unbatch), ..plain },
        2 => RecordSpec { unbatch: Some(unbatch), filter_rows: Some("x > 0".to_owned()), ..plain },
        3 => RecordSpec { pack: Some(pack), ..plain },
        4 => RecordSpec {
            balance: Some(BalanceSpec { by: "len(x)".to_owned(), window: 8 }),
            ..plain
        },
        5 => RecordSpec { window: Some(window), ..windows },
        6 => RecordSpec { unbatch: Some(unbatch), window: Some(window), ..plain },
        _ => RecordSpec { unbatch: Some(unbatch), pack: Some(pack), ..turns },
    };
    let schema = Schema::new(spec).expect("the program fits its feature");
    Arc::clone(schema.samples().expect("it has a program"))
}

/// Words after the forms and the bytes of data; the first one is the number of records.
fn seeds() -> Vec<Vec<u8>> {
    let map = |form: u8, forms: u64, words: &[u64]| {
        let words = [forms, 90].into_iter().chain(words.iter().copied());
        [form].into_iter().chain(words.flat_map(u64::to_le_bytes)).collect()
    };
    vec![
        map(0, 2, &[10, 0b10_1101_0011]),
        map(0, 2, &[70, u64::MAX, 0b101]),
        map(1, 1, &[3, 7, 0b011_0110]),
        map(2, 3, &[3, 7, 0b011_0110, 4, 0b1010]),
        map(3, 4, &[3, 7 | 40 << 32, 5]),
        map(5, 18, &[5, 0b1_1011, 0b0101]),
        map(4, 10, &[3, 0b101, 2, 7 | 300 << 16]),
        map(6, 19, &[3, 7, 0b011_0110, 4, 0b1101, 3, 0b101]),
        map(7, 5, &[3, 7, 0b011_0110, 7 | 40 << 32, 5]),
    ]
}

fn run(input: &[u8]) -> String {
    let Some((form, body)) = input.split_first() else {
        return "nothing".to_owned();
    };
    let program = program(*form);
    let word = |at: usize| body.get(8 * at..8 * at + 8).map(|word| word.try_into().expect("eight"));
    let records = word(2).map_or(0, u64::from_le_bytes);
    // The checksum is right, so that the code after it is reached.
    let file = [MAGIC, &crc32c::crc32c(body).to_le_bytes(), body].concat();
    let digest = Digest::from_bytes([7; 32]);
    let counted = CountedFile { records, data_bytes: DATA_BYTES, digest };
    let read =
        |bytes: &[u8], counts: &[u64]| SampleMap::from_bytes(bytes, counted, &program, counts);
    let Some(map) = read(&file, &[]) else {
        return "none".to_owned();
    };
    assert_eq!(read(&map.to_bytes(), &map.pack_counts().unwrap_or_default()).as_ref(), Some(&map));
    match map.grouping() {
        None => (0..map.samples().min(LOOKED_AT)).for_each(|sample| {
            let place = map.place_of(sample).expect("there are so many samples");
            assert!(place.record < records && map.samples_before(place.record) <= sample);
            assert!(map.parts(place.record).any(|part| part == place.part));
        }),
        Some(grouping) => (0..grouping.blocks().min(LOOKED_AT)).for_each(|block| {
            let maps = SampleMaps::new(vec![map.clone().into()], vec![], 0);
            for part in maps.open(0, block, 1).into_iter().flatten() {
                assert!(part.record < records && part.tokens > 0);
            }
        }),
    }
    format!("{} {} {}", form % 6, size(map.samples() as usize), size(records as usize))
}
