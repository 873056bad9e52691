//! Index files as DALI's and vahidk's `tfrecord2idx` write them: one line for each record, with the
//! offset and the bytes of its frame.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use shardfeed_tfrecord::{Compression, FOOTER_BYTES, HEADER_BYTES, decode_header, detect};

/// Maximum bytes of a line: two numbers of 20 digits.
const LINE_BYTES_MAX: u64 = 64;

/// Frames that are compared with the shard: enough to recognize the index of another file.
const FRAMES_CHECKED: usize = 64;

/// Shard extensions that an index may have replaced by its own.
const SHARD_EXTENSIONS: [&str; 4] = ["tfrecord", "tfrecords", "tfrec", "tfr"];

/// Contents of a consistent index file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Idx {
    pub(super) records: u64,
    end: u64,
    /// Offset and bytes of some frames, evenly distributed and in order, with the first one.
    some: Vec<(u64, u64)>,
}

pub(super) fn names(shard: &Path) -> impl Iterator<Item = PathBuf> {
    let mut behind = shard.file_name().unwrap_or_default().to_os_string();
    behind.push(".idx");
    let extension = shard.extension().and_then(|extension| extension.to_str());
    let is_replaced = extension.is_some_and(|extension| SHARD_EXTENSIONS.contains(&extension));
    let replaced = ["idx", "tfindex"].iter().filter(move |_| is_replaced);
    let replaced = replaced.map(|extension| shard.with_extension(extension));
    std::iter::once(shard.with_file_name(behind)).chain(replaced)
}

impl Idx {
    /// Reads an index.
    ///
    /// # Errors  Its fault, as a phrase: a line is not one of an index, or the frames are not
    /// contiguous from the beginning of the file.
    pub(super) fn read(mut source: impl BufRead) -> Result<Self, String> {
        let mut idx = Self { records: 0, end: 0, some: Vec::new() };
        let mut line = Vec::new();
        let mut every = 1;
        loop {
            line.clear();
            let number = idx.records + 1;
            let read = source.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            match read.map_err(|error| format!("cannot be read: {error}"))? {
                0 => return Ok(idx),
                _ => line = line.trim_ascii().to_vec(),
            }
            let (offset, bytes) = numbers(&line).ok_or_else(|| {
                format!("line {number} is not `OFFSET BYTES`, as tfrecord2idx writes")
            })?;
            if offset != idx.end || bytes < (HEADER_BYTES + FOOTER_BYTES) as u64 {
                return Err(format!(
                    "line {number} says {bytes} bytes at {offset}, but a frame has at least 16, and the one before \
                     ends at {}",
                    idx.end
                ));
            }
            if idx.records.is_multiple_of(every) {
                if idx.some.len() == FRAMES_CHECKED {
                    every *= 2;
                    let mut index = 0;
                    idx.some.retain(|_| {
                        index += 1;
                        index % 2 == 1
                    });
                }
                if idx.records.is_multiple_of(every) {
                    idx.some.push((offset, bytes));
                }
            }
            idx.records += 1;
            idx.end =
                offset.checked_add(bytes).ok_or(format!("line {number} is beyond any file"))?;
        }
    }

    /// Checks that this is the index of a file. A compressed file is not checked, as offsets refer
    /// to its uncompressed contents: only a scan can compare it.
    ///
    /// # Errors  The reason, as a phrase, if it is not.
    pub(super) fn check(&self, shard: &File) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("its shard cannot be read: {error}");
        let mut first = [0; HEADER_BYTES];
        let size = shard.metadata().map_err(failed)?.len();
        let read = read_at(shard, &mut first, 0).map_err(failed)?;
        if detect(&first[..read]) != Compression::None {
            return Ok(());
        }
        if self.end != size {
            return Err(format!(
                "the frames end at byte {}, but the shard has {size} bytes: it is of another file, or of this one \
                 as it was once",
                self.end
            ));
        }
        for &(offset, bytes) in &self.some {
            let mut header = [0; HEADER_BYTES];
            let read = read_at(shard, &mut header, offset).map_err(failed)?;
            let data_bytes = bytes - (HEADER_BYTES + FOOTER_BYTES) as u64;
            if read < HEADER_BYTES || decode_header(&header) != Ok(data_bytes) {
                return Err(format!("no frame of {bytes} bytes is at byte {offset} of the shard"));
            }
        }
        Ok(())
    }
}

fn numbers(line: &[u8]) -> Option<(u64, u64)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let number =
        |word: &str| word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok());
    let found = (number(words.next()?)??, number(words.next()?)??);
    words.next().is_none().then_some(found)
}

/// Reads until `out` is full or the file ends.
fn read_at(file: &File, out: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut read = 0;
    while read < out.len() {
        match file.read_at(&mut out[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

pub(super) fn read(path: &Path) -> Result<Idx, String> {
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    Idx::read(BufReader::new(file))
}

#[cfg(test)]
mod tests {
    use shardfeed_tfrecord::{RecordWriter, create};

    use super::*;

    fn idx(text: &str) -> Result<Idx, String> {
        Idx::read(text.as_bytes())
    }

    /// Creates a shard of records of these sizes, and its index.
    fn shard(folder: &Path, sizes: &[usize], compression: Compression) -> (File, String) {
        let path = folder.join("a.tfrecord");
        let mut writer = create(&path, compression).unwrap();
        let mut lines = String::new();
        for &size in sizes {
            lines += &format!("{} {}\n", writer.bytes(), size + 16);
            writer.write(&vec![7; size]).unwrap();
        }
        writer.finish().unwrap();
        (File::open(path).unwrap(), lines)
    }

    #[test]
    fn an_index_of_its_file_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let sizes: Vec<_> = (0..1_000).map(|index| index % 50).collect();
        for compression in [Compression::None, Compression::Gzip] {
            let (file, lines) = shard(folder.path(), &sizes, compression);
            let read = idx(&lines).unwrap();
            assert_eq!(read.records, 1_000);
            assert!((32..=64).contains(&read.some.len()), "{}", read.some.len());
            assert_eq!(read.check(&file), Ok(()));
            // Without a final line end, and with Windows line ends.
            assert_eq!(idx(lines.trim_end()).unwrap(), read);
            assert_eq!(idx(&lines.replace('\n', "\r\n")).unwrap(), read);
        }
        let (file, _) = shard(folder.path(), &[], Compression::None);
        assert_eq!(idx("").unwrap().check(&file), Ok(()));
    }

    #[test]
    fn what_is_no_index_is_refused() {
        for (line, text) in [
            (1, "v1.2 3\n"),
            (2, "0 16\n16\n"),
            (1, "0 16 1\n"),
            (1, "+0 16\n"),
            (1, "0 18446744073709551616\n"),
            (2, "0 16\n\n16 16\n"),
            (1, &"0".repeat(1 << 20)),
        ] {
            let said = format!("line {line} is not `OFFSET BYTES`, as tfrecord2idx writes");
            assert_eq!(idx(text).unwrap_err(), said, "{text:.40?}");
        }
        let said = [
            idx("16 16\n").unwrap_err(),
            idx("0 15\n").unwrap_err(),
            idx("0 20\n21 20\n").unwrap_err(),
            idx("0 18446744073709551615\n18446744073709551615 16\n").unwrap_err(),
            read(Path::new("/nowhere.idx")).unwrap_err(),
        ];
        assert_eq!(
            said,
            [
                "line 1 says 16 bytes at 16, but a frame has at least 16, and the one before ends \
                 at 0",
                "line 1 says 15 bytes at 0, but a frame has at least 16, and the one before ends \
                 at 0",
                "line 2 says 20 bytes at 21, but a frame has at least 16, and the one before ends \
                 at 20",
                "line 2 is beyond any file",
                "cannot be read: No such file or directory (os error 2)",
            ]
        );
    }

    #[test]
    fn an_index_of_another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (_, other) = shard(folder.path(), &[10, 20, 30, 40], Compression::None);
        let (file, _) = shard(folder.path(), &[10, 20, 30], Compression::None);
        let said = idx(&other).unwrap().check(&file).unwrap_err();
        assert_eq!(
            said,
            "the frames end at byte 164, but the shard has 108 bytes: it is of another file, or of \
             this one as it was once"
        );
        // Same size, other frames.
        let (_, other) = shard(folder.path(), &[20, 10, 30], Compression::None);
        let (file, _) = shard(folder.path(), &[10, 20, 30], Compression::None);
        let said = idx(&other).unwrap().check(&file).unwrap_err();
        assert_eq!(said, "no frame of 36 bytes is at byte 0 of the shard");
        // Not a TFRecord file.
        let path = folder.path().join("text");
        std::fs::write(&path, [b'x'; 40]).unwrap();
        assert!(idx("0 40\n").unwrap().check(&File::open(path).unwrap()).is_err());
    }

    #[test]
    fn the_names_are_those_that_people_give() {
        let all = |shard: &str| {
            names(Path::new(shard)).map(|p| p.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(all("d/a.tfrecord"), ["d/a.tfrecord.idx", "d/a.idx", "d/a.tfindex"]);
        assert_eq!(all("d/train-00000-of-00001"), ["d/train-00000-of-00001.idx"]);
        assert_eq!(
            all("d/m-train.tfrecord-00000-of-00001"),
            ["d/m-train.tfrecord-00000-of-00001.idx"]
        );
    }

    #[test]
    fn a_writer_and_its_index_agree_at_any_size() {
        let mut writer = RecordWriter::new(Vec::new(), Compression::None);
        let mut lines = String::new();
        for size in [0, 1, 300_000] {
            lines += &format!("{} {}\n", writer.bytes(), size + 16);
            writer.write(&vec![1; size]).unwrap();
        }
        assert_eq!(idx(&lines).unwrap().end, writer.bytes());
    }
}
