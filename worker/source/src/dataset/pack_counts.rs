//! Numbers of packs of the blocks of shards, kept beside their sample maps: packing 100 million
//! records in all variants takes minutes.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::Digest;
use shardfeed_tfrecord::NewFile;

use super::samples::{SampleMap, address, checksum};
use crate::cache::warn;

/// First bytes of stored counts; the number is the version of the format and of the packing.
const MAGIC: &[u8] = b"shardfeed packs 1\n";

/// Returns the path of the counts of a map's packs; `None`: packs are no samples.
/// - `map`: path of the map.
fn place(map: &Path, program: &SampleProgram) -> Option<PathBuf> {
    let settings = program.packer()?.spec().settings().key();
    let digest = Digest::of_parts([&settings[..]]).to_string();
    let name = map.file_name()?.to_string_lossy().into_owned();
    Some(map.with_file_name(format!("{name}-{}", &digest[..24])))
}

/// Returns the number of packs of each block of a map, if they are kept.
/// - `map`: path of the map.
pub(super) fn kept(map: &Path, program: &SampleProgram) -> Option<Vec<u64>> {
    let place = place(map, program)?;
    let bytes = fs::read(&place).ok()?;
    let (crc, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    let (numbers, rest) = body.as_chunks::<8>();
    let is_whole = rest.is_empty() && checksum(&address(&place), body) == u32::from_le_bytes(*crc);
    is_whole.then(|| numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
}

/// Keeps the number of packs of each block of a map, if packs are samples.
/// - `place_of_map`: path of the map.
pub(super) fn keep(place_of_map: &Path, program: &SampleProgram, map: &SampleMap) {
    let Some((place, counts)) = place(place_of_map, program).zip(map.pack_counts()) else { return };
    let body: Vec<u8> = counts.into_iter().flat_map(u64::to_le_bytes).collect();
    let crc = checksum(&address(&place), &body).to_le_bytes();
    let write = || -> io::Result<()> {
        let mut file = NewFile::beside(&place)?;
        file.file().write_all(&[MAGIC, &crc[..], &body].concat())?;
        file.finish()
    };
    if let Err(error) = write() {
        warn(&place, "write the numbers of packs, which are counted at each start", &error);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use shardfeed_pipeline::{CountedRecord, RecordSamples, RecordSpec, Schema};

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
    fn kept_counts_are_those_of_the_same_map_and_settings() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("map"), folder.path().join("other"));
        let (program, shard) = (program(16), Digest::from_bytes([1; 32]));
        let mut map = SampleMap::new(&program);
        for tokens in [5, 9, 12, 3, 16, 1, 7, 7, 2, 11, 4] {
            let samples = RecordSamples::Tokens(Some(tokens));
            map.push(&CountedRecord { samples, costs: vec![] }, 100);
        }
        let counted = map.clone();
        map.group(&program, shard, &[]).unwrap();
        assert_eq!(kept(&path, &program), None);
        keep(&path, &program, &map);
        let counts = kept(&path, &program);
        assert_eq!(counts, map.pack_counts());
        let mut again = counted;
        again.group(&program, shard, &counts.unwrap()).unwrap();
        assert_eq!(again, map);
        assert_eq!(kept(&path, &self::program(17)), None, "of other settings");
        // A damaged file, and one under another name, are not read.
        let stored = place(&path, &program).unwrap();
        let bytes = fs::read(&stored).unwrap();
        fs::write(place(&other, &program).unwrap(), &bytes).unwrap();
        assert_eq!(kept(&other, &program), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&stored, damaged).unwrap();
            assert_eq!(kept(&path, &program), None, "byte {at}");
        }
    }
}
