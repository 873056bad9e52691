//! Properties that hold for any records, any bytes and any truncation.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::io::{self, Read, Write};

use proptest::prelude::*;
use shardfeed_tfrecord::example::{
    DType, ExampleParser, Feature, FeatureSpec, ListRef, Value, encode_example, features_of,
};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, IndexOptions,
    ReadErrorKind, RecordWriter, ShardIndex, index_records,
};

fn write(records: &[Vec<u8>], compression: Compression) -> Vec<u8> {
    let mut writer = RecordWriter::new(Vec::new(), compression);
    for record in records {
        writer.write(record).unwrap();
    }
    assert_eq!(writer.records(), records.len() as u64);
    writer.finish().unwrap()
}

/// Returns all readable records, resuming after every error that allows it, and the errors.
fn read(source: impl Read, chunk_bytes: usize) -> (Vec<(u64, Vec<u8>)>, Vec<ReadErrorKind>) {
    let options =
        ChunkOptions { chunk_bytes, record_bytes_max: 1 << 20, ..ChunkOptions::default() };
    let mut reader = ChunkReader::new(source, "f", options);
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => {
                let numbers = chunk.first_ordinal..;
                records.extend(numbers.zip(chunk.iter().map(<[u8]>::to_vec)));
                reader.recycle(chunk.bytes);
            }
            Ok(None) => return (records, errors),
            Err(error) => {
                errors.push(error.kind);
                reader.resume_after_error();
            }
        }
    }
}

fn read_any(bytes: &[u8], chunk_bytes: usize) -> (Vec<(u64, Vec<u8>)>, Vec<ReadErrorKind>) {
    read(Decoder::new(bytes, CompressionChoice::Auto).unwrap(), chunk_bytes)
}

fn numbered(records: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    (0..).zip(records.iter().cloned()).collect()
}

fn index(bytes: &[u8], keep_going: bool) -> ShardIndex {
    let options = IndexOptions { keep_going, verify_data: true, ..IndexOptions::default() };
    index_records(bytes, "f", &options, &mut |_| {}).unwrap()
}

fn any_records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let record = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 0..5000_usize).prop_map(|(byte, len)| vec![byte; len]),
    ];
    prop::collection::vec(record, 0..30)
}

fn any_compression() -> impl Strategy<Value = Compression> {
    prop::sample::select(vec![Compression::None, Compression::Gzip, Compression::Zlib])
}

proptest! {
    #[test]
    fn records_round_trip(
        records in any_records(), compression in any_compression(), chunk_bytes in 1..3000_usize,
    ) {
        let bytes = write(&records, compression);
        let (read, errors) = read_any(&bytes, chunk_bytes);
        prop_assert!(errors.is_empty(), "{:?}", errors);
        prop_assert_eq!(read, numbered(&records));
    }

    #[test]
    fn a_cut_file_gives_its_first_records_and_an_error(
        records in any_records(), compression in any_compression(), cut in any::<prop::sample::Index>(),
    ) {
        let bytes = write(&records, compression);
        let cut = cut.index(bytes.len() + 1);
        let (read, errors) = read(
            Decoder::new(&bytes[..cut], compression.into()).unwrap(),
            1 << 10,
        );
        let whole = numbered(&records);
        prop_assert!(whole.starts_with(&read));
        let ends_between = match compression {
            Compression::None => write(&records[..read.len()], compression).len() == cut,
            _ => cut == 0 || cut == bytes.len(),
        };
        prop_assert_eq!(errors.is_empty(), ends_between);
    }

    #[test]
    fn a_flipped_bit_changes_no_record_unnoticed(
        records in any_records(), compression in any_compression(),
        at in any::<prop::sample::Index>(), bit in 0..8_u32,
    ) {
        let mut bytes = write(&records, compression);
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let (read, errors) = read(Decoder::new(&bytes[..], compression.into()).unwrap(), 1 << 10);
        // In a compressed stream a flipped bit may repeat earlier records, complete and with valid
        // checksums. The records after them are then inconsistent, which is an error.
        if compression == Compression::None || errors.is_empty() {
            for (ordinal, data) in &read {
                prop_assert_eq!(data, &records[*ordinal as usize]);
            }
        }
        // Compressed streams contain bits without meaning: times in headers, padding.
        let harmless = compression != Compression::None && read.len() == records.len();
        prop_assert!(!errors.is_empty() || harmless);
    }

    #[test]
    fn arbitrary_bytes_are_records_or_errors(
        bytes in prop::collection::vec(any::<u8>(), 0..300), chunk_bytes in 1..64_usize,
        compression in any_compression(),
    ) {
        read_any(&bytes, chunk_bytes);
        let (_, errors) = read(Decoder::new(&bytes[..], compression.into()).unwrap(), chunk_bytes);
        prop_assert!(bytes.is_empty() || !errors.is_empty());
    }

    #[test]
    fn bytes_behind_a_compressed_head_are_records_or_errors(
        records in any_records(), tail in prop::collection::vec(any::<u8>(), 1..50),
        compression in any_compression(),
    ) {
        let mut bytes = write(&records, compression);
        bytes.extend(tail);
        let (read, _) = read(Decoder::new(&bytes[..], compression.into()).unwrap(), 100);
        prop_assert!(read.starts_with(&numbered(&records)));
    }

    #[test]
    fn pieces_compressed_apart_read_as_one(
        records in any_records(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        gzip: bool,
    ) {
        let plain = write(&records, Compression::None);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(plain.len() + 1)).collect();
        cuts.extend([0, plain.len()]);
        cuts.sort_unstable();
        let mut bytes = Vec::new();
        for ends in cuts.windows(2) {
            compress(&plain[ends[0]..ends[1]], gzip, &mut bytes);
        }
        let compression = if gzip { Compression::Gzip } else { Compression::Zlib };
        let decoder = Decoder::new(OneByOne(&bytes), compression.into()).unwrap();
        let (read, errors) = read(decoder, 100);
        prop_assert!(errors.is_empty(), "{:?}", errors);
        prop_assert_eq!(read, numbered(&records));
    }

    #[test]
    fn an_index_depends_on_the_records_alone(records in any_records(), cut in any::<prop::sample::Index>()) {
        let plain = index(&write(&records, Compression::None), false);
        for compression in [Compression::Gzip, Compression::Zlib] {
            let mut other = index(&write(&records, compression), false);
            prop_assert_eq!(other.compression, compression);
            other.compression = Compression::None;
            prop_assert_eq!(&other, &plain);
        }
        prop_assert_eq!(plain.records, records.len() as u64);
        let bytes = write(&records, Compression::None);
        let cut = index(&bytes[..cut.index(bytes.len() + 1)], true);
        let mut short = index(&bytes[..cut.stream_bytes as usize], false);
        short.broken.clone_from(&cut.broken);
        prop_assert_eq!(cut, short);
    }

    #[test]
    fn skipping_is_reading_and_dropping(records in any_records(), to in prop::collection::vec(0..40_u64, 1..5)) {
        let bytes = write(&records, Compression::None);
        let options = ChunkOptions { chunk_bytes: 200, ..ChunkOptions::default() };
        let mut reader = ChunkReader::new(&bytes[..], "f", options);
        let mut next = 0;
        for to in to {
            let reached = reader.skip_to(to).unwrap();
            prop_assert_eq!(reached, to.max(next).min((records.len() as u64).max(next)));
            next = reached;
            if let Some(chunk) = reader.next_chunk().unwrap() {
                prop_assert_eq!(chunk.first_ordinal, next);
                let expected = records[next as usize..].iter().take(chunk.records.len());
                prop_assert!(chunk.iter().eq(expected.map(Vec::as_slice)));
                next += chunk.records.len() as u64;
            }
        }
    }

    #[test]
    fn examples_round_trip(
        ints: Vec<i64>, floats: Vec<u32>, strings: Vec<Vec<u8>>, names in names(),
    ) {
        let floats: Vec<f32> = floats.into_iter().map(f32::from_bits).collect();
        let slices: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
        let features = [
            (names[0].as_str(), Value::Int64(&ints)),
            (names[1].as_str(), Value::Float32(&floats)),
            (names[2].as_str(), Value::Bytes(&slices)),
        ];
        let mut record = Vec::new();
        encode_example(&features, &mut record);
        let found = features_of(&record).unwrap();
        let mut sorted = names.clone();
        sorted.sort();
        let found = found.iter().map(|feature| feature.name);
        prop_assert!(found.eq(sorted.iter().map(String::as_bytes)), "{:?}", sorted);

        let specs = features.iter().map(|(name, value)| FeatureSpec {
            name: (*name).to_owned(),
            feature: Feature::VarLen { dtype: value.dtype() },
        });
        let parser = ExampleParser::new(specs.collect()).unwrap();
        let mut located = Vec::new();
        parser.locate(&record, &mut located).unwrap();
        let [Some(i), Some(f), Some(b)] = located[..] else {
            panic!("{located:?}");
        };
        let mut read_ints = vec![0; i.count()];
        i.write_i64(&mut read_ints);
        prop_assert_eq!(read_ints, ints);
        let mut read_floats = vec![0.0; f.count()];
        f.write_f32(&mut read_floats);
        prop_assert!(read_floats.iter().map(|v| v.to_bits()).eq(floats.iter().map(|v| v.to_bits())));
        let mut read_strings = Vec::new();
        b.for_each_bytes(|value| read_strings.push(value));
        prop_assert_eq!(read_strings, slices);
    }

    #[test]
    fn arbitrary_bytes_are_examples_or_errors(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), junk: Vec<u8>,
    ) {
        parse_anything(&junk);
        let mut record = Vec::new();
        let features = [
            ("b", Value::Bytes(&[b"abc", b""])),
            ("f", Value::Float32(&[1.0, 2.0])),
            ("i", Value::Int64(&[1, -1, 300])),
        ];
        encode_example(&features, &mut record);
        for (at, byte) in changes {
            let at = at.index(record.len());
            record[at] = byte;
        }
        parse_anything(&record);
    }
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set("[a-c/]{0,12}", 3)
        .prop_map(|names| names.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

/// Every feature that is found can be decoded.
fn parse_anything(record: &[u8]) {
    let _ = features_of(record);
    for dtype in [DType::Int64, DType::Float32, DType::Bytes] {
        let specs = ["b", "f", "i", ""]
            .map(|name| FeatureSpec { name: name.to_owned(), feature: Feature::VarLen { dtype } });
        for spec in specs {
            let parser = ExampleParser::new(vec![spec]).unwrap();
            let mut located = Vec::new();
            if parser.locate(record, &mut located).is_err() {
                assert!(located.is_empty());
                continue;
            }
            let Some(list) = located[0] else {
                continue;
            };
            let all = values(&list);
            assert_eq!(all.len(), list.count());
            let positions = (0..=all.len()).step_by(1 + all.len() / 8);
            for (first, end) in positions.clone().flat_map(|first| {
                positions.clone().filter(move |end| *end >= first).map(move |end| (first, end))
            }) {
                let range = list.range(first, end - first).unwrap();
                assert_eq!(values(&range), &all[first..end], "{first}..{end}");
                if list.dtype() != DType::Bytes {
                    assert_eq!(packed_again(&range), &all[first..end], "{first}..{end}");
                }
            }
        }
    }
}

/// Returns the values of a list that is written as it is packed, and read again.
fn packed_again(list: &ListRef<'_>) -> Vec<Vec<u8>> {
    let (mut packed, mut record) = (vec![], vec![]);
    list.pack(&mut packed);
    encode_example(&[("x", Value::Packed(list.dtype(), &packed))], &mut record);
    let feature = Feature::VarLen { dtype: list.dtype() };
    let parser = ExampleParser::new(vec![FeatureSpec { name: "x".to_owned(), feature }]).unwrap();
    let mut located = vec![];
    parser.locate(&record, &mut located).unwrap();
    located[0].as_ref().map_or_else(Vec::new, values)
}

/// Returns the values of a list, each in bytes.
fn values(list: &ListRef<'_>) -> Vec<Vec<u8>> {
    let mut values = vec![];
    match list.dtype() {
        DType::Int64 => {
            let mut numbers = vec![0; list.count()];
            list.write_i64(&mut numbers);
            values.extend(numbers.iter().map(|number| number.to_le_bytes().to_vec()));
        }
        DType::Float32 => {
            let mut numbers = vec![0.0; list.count()];
            list.write_f32(&mut numbers);
            values.extend(numbers.iter().map(|number| number.to_le_bytes().to_vec()));
        }
        DType::Bytes => list.for_each_bytes(|value| values.push(value.to_vec())),
    }
    assert_eq!(list.data_bytes(), values.iter().map(Vec::len).sum::<usize>());
    values
}

fn compress(piece: &[u8], gzip: bool, out: &mut Vec<u8>) {
    let level = flate2::Compression::fast();
    if gzip {
        let mut encoder = flate2::write::GzEncoder::new(out, level);
        encoder.write_all(piece).unwrap();
        encoder.finish().unwrap();
    } else {
        let mut encoder = flate2::write::ZlibEncoder::new(out, level);
        encoder.write_all(piece).unwrap();
        encoder.finish().unwrap();
    }
}

/// Source that returns one byte at a time.
struct OneByOne<'a>(&'a [u8]);

impl Read for OneByOne<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let one = out.len().min(1);
        self.0.read(&mut out[..one])
    }
}
