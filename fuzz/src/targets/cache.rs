//! Index cache: returns the stored entries, or none.

use shardfeed_source::fuzzing::{index_cache, kept_again};
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
    // Fix the length and the checksum of the first segment, so that the code after them is reached.
    let mut file = input.to_vec();
    let (magic, body) = (b"shardfeed index 4\n".len(), b"shardfeed index 4\n".len() + 12);
    if file.len() > body && file[0] == b's' {
        let length = file.len() - body;
        file[magic + 4..body].copy_from_slice(&(length as u64).to_le_bytes());
        let sum = crc32c::crc32c(&file[magic + 4..]);
        file[magic..magic + 4].copy_from_slice(&sum.to_le_bytes());
    }
    let Some((entries, again)) = kept_again(&file) else {
        return "nothing".to_owned();
    };
    // Storing the entries again gives the same bytes.
    assert_eq!(kept_again(&again), Some((entries, again.clone())));
    format!("{} {}", size(entries), size(again.len()))
}
