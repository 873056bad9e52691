//! Numbers of packs of the blocks of shards, kept beside their sample maps: packing 100 million
//! records in all variants takes minutes.

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::Digest;

use super::samples::SampleMap;
use crate::cache::object_kind::ObjectKind;

/// Stored counts; the number is the version of their format and of the packing.
pub(super) const KIND: ObjectKind = ObjectKind("shardfeed packs 1\n");

/// Returns the name of the counts of a map's packs; `None`: packs are no samples.
/// - `map`: name of the map.
pub(super) fn name(map: &str, program: &SampleProgram) -> Option<String> {
    let settings = program.packer()?.spec().settings().key();
    let digest = Digest::of_parts([&settings[..]]).to_string();
    Some(format!("{map}-{}", &digest[..24]))
}

/// Returns the stored number of packs of each block of a map, if packs are samples.
pub(super) fn encode(name: &str, map: &SampleMap) -> Option<Vec<u8>> {
    let body: Vec<u8> = map.pack_counts()?.into_iter().flat_map(u64::to_le_bytes).collect();
    Some(KIND.encode(name, &body))
}

/// Returns the number of packs of each block of a map; `None` if they are damaged.
pub(super) fn decode(name: &str, bytes: &[u8]) -> Option<Vec<u64>> {
    let (numbers, rest) = KIND.decode(name, bytes)?.as_chunks::<8>();
    rest.is_empty().then(|| numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use shardfeed_pipeline::{CountedRecords, RecordSpec, Schema};

    use super::*;

    fn program(length: u64) -> Arc<SampleProgram> {
        let parse = json!([{"name": "tokens", "feature": {"var_len": {"dtype": "int64"}}}]);
        let settings = json!({
            "columns": ["tokens"], "length": length, "block": 8, "variants": 2, "method": "fit",
            "long": "split", "append": [],
        });
        let spec = json!({"parse": parse, "pack": settings});
        let spec: RecordSpec = serde_json::from_value(spec).unwrap();
        Arc::clone(Schema::new(spec).unwrap().samples().unwrap())
    }

    #[test]
    fn stored_counts_are_those_of_the_same_map_and_settings() {
        let (program, shard) = (program(16), Digest::from_bytes([1; 32]));
        let mut map = SampleMap::new(&program);
        let tokens = vec![5, 9, 12, 3, 16, 1, 7, 7, 2, 11, 4];
        let bytes = vec![100; tokens.len()];
        map.push(&CountedRecords { bytes, tokens: Some(tokens), ..CountedRecords::default() });
        let counted = map.clone();
        map.group(&program, shard, &[]).unwrap();
        let of_map = name("map", &program).unwrap();
        let stored = encode(&of_map, &map).unwrap();
        let counts = decode(&of_map, &stored);
        assert_eq!(counts, map.pack_counts());
        let mut again = counted;
        again.group(&program, shard, &counts.unwrap()).unwrap();
        assert_eq!(again, map);
        let in_file = postcard::to_stdvec(&map).unwrap();
        assert_eq!(postcard::from_bytes::<SampleMap>(&in_file).unwrap(), map);
        let others = [name("map", &self::program(17)), name("other", &program)];
        for other in others.map(Option::unwrap) {
            assert_ne!(other, of_map);
            assert_eq!(decode(&other, &stored), None, "of other settings, or of another map");
        }
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&of_map, &damaged), None, "byte {at}");
        }
    }
}
