//! Files that become part of a record unchanged.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use shardfeed_tfrecord::ChunkOptions;

use crate::problem::Problem;

/// Rejects paths that are not files, and files too large for a record.
pub(super) fn check(path: &Path, found: &fs::Metadata) -> Result<(), Problem> {
    let most = ChunkOptions::default().record_bytes_max;
    if !found.is_file() {
        let what = format!("{}: neither a file nor a folder", path.display());
        return Err(Problem::failed(what).hint("move it out of the source"));
    }
    // The record is slightly larger than the file.
    if found.len() > most - (1 << 20) {
        let what =
            format!("{}: {} bytes are more than a record may have", path.display(), found.len());
        return Err(
            Problem::failed(what).hint(format!("split it: readers take up to {most} bytes"))
        );
    }
    Ok(())
}

/// Reads a file that had `bytes` when it was found; replaces the content of `data`.
pub(super) fn read(path: &Path, bytes: u64, data: &mut Vec<u8>) -> anyhow::Result<()> {
    data.clear();
    // Reading one more byte than expected detects a file that grew.
    let read = File::open(path)
        .and_then(|source| source.take(bytes + 1).read_to_end(data))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if read as u64 != bytes {
        return Err(changed(path).into());
    }
    Ok(())
}

/// Returns the error for a source that has changed.
pub(super) fn changed(path: &Path) -> Problem {
    Problem::failed(format!("{}: changed while it was read", path.display()))
        .hint("leave the source alone while it is written")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::problem::text;

    #[test]
    fn what_can_be_no_record_is_refused_with_a_way_out() {
        let checked =
            |path: &Path| text(&check(path, &path.metadata().unwrap()).unwrap_err().into());
        expect![[r#"
            error: /dev/null: neither a file nor a folder
            hint: move it out of the source
        "#]]
        .assert_eq(&checked(Path::new("/dev/null")));
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("large");
        // A sparse file takes no disk space.
        let file = File::create(&path).unwrap();
        file.set_len((1 << 30) - (1 << 20)).unwrap();
        assert!(check(&path, &path.metadata().unwrap()).is_ok());
        file.set_len(1 << 30).unwrap();
        expect![[r#"
            error: $DIR/large: 1073741824 bytes are more than a record may have
            hint: split it: readers take up to 1073741824 bytes
        "#]]
        .assert_eq(&checked(&path).replace(home.path().to_str().unwrap(), "$DIR"));
    }

    #[test]
    fn a_file_that_is_not_what_it_was_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "abc").unwrap();
        let mut data = vec![7];
        read(&path, 3, &mut data).unwrap();
        assert_eq!(data, b"abc");
        for bytes in [2, 4] {
            let error = read(&path, bytes, &mut data).unwrap_err();
            expect![[r#"
                error: $DIR/file: changed while it was read
                hint: leave the source alone while it is written
            "#]]
            .assert_eq(&text(&error).replace(home.path().to_str().unwrap(), "$DIR"));
        }
    }
}
