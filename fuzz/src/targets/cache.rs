//! The index cache: what was kept, or nothing.

use shardfeed_agent::fuzzing::{index_cache, kept_again};
use shardfeed_tfrecord::{Compression, IndexOptions, RecordWriter, index_records};

use crate::{Target, size};

pub(crate) const TARGET: Target = Target { name: "index_cache", run, seeds };

fn seeds() -> Vec<Vec<u8>> {
    let file = |records: usize| {
        let mut writer = RecordWriter::new(vec![], Compression::None);
        for _ in 0..records {
            writer.write(b"record").expect("memory takes all");
        }
        writer.finish().expect("memory takes all")
    };
    let index = |records| {
        let index = index_records(&file(records)[..], "x", &IndexOptions::default(), &mut |_| ());
        index.expect("it is a file of records")
    };
    vec![index_cache(vec![]), index_cache(vec![index(3)]), index_cache(vec![index(0), index(200)])]
}

fn run(input: &[u8]) -> String {
    // With the checksum that it should have, so that what is behind it is reached.
    let mut file = input.to_vec();
    let head = b"shardfeed index 3\n".len();
    if file.len() > head + 4 && file[0] == b's' {
        let sum = crc32c::crc32c(&file[head + 4..]);
        file[head..head + 4].copy_from_slice(&sum.to_le_bytes());
    }
    let Some((entries, again)) = kept_again(&file) else {
        return "nothing".to_owned();
    };
    // What is kept again is the same from then on.
    assert_eq!(kept_again(&again), Some((entries, again.clone())));
    format!("{} {}", size(entries), size(again.len()))
}
