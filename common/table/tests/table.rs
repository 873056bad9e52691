//! Tables written and read: every key finds its row, and changed bytes give errors.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use shardfeed_plan::Digest;
use shardfeed_table::{Column, Key, Keys, Layout, Table, TableError, WriteError};

fn column(name: &str, bytes: usize) -> Column {
    Column { name: name.to_owned(), dtype: "uint8".to_owned(), shape: vec![bytes], bytes }
}

/// Writes rows of `bytes` bytes each.
fn write(
    path: &Path,
    keys: Keys<'_>,
    bytes: usize,
    rows: &[Vec<u8>],
) -> Result<Digest, WriteError> {
    Layout::new(keys, vec![column("x", bytes)])?.write(path, |which, out| {
        for (out, &row) in out.chunks_exact_mut(bytes).zip(which) {
            out.copy_from_slice(&rows[row]);
        }
        Ok(())
    })
}

fn numbers(path: &Path, rows: &BTreeMap<i64, Vec<u8>>, bytes: usize) -> Digest {
    let keys: Vec<i64> = rows.keys().copied().collect();
    let rows: Vec<_> = rows.values().cloned().collect();
    write(path, Keys::Int64(&keys), bytes, &rows).unwrap()
}

fn find(table: &Table, key: Key<'_>) -> Result<Option<Vec<u8>>, TableError> {
    table.find(key, <[u8]>::to_vec)
}

/// Returns rows that contain their key.
fn rows(keys: i64, bytes: usize) -> BTreeMap<i64, Vec<u8>> {
    let row = |key: i64| key.to_le_bytes().iter().copied().cycle().take(bytes).collect();
    (0..keys).map(|key| (key * 7 - 50, row(key))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_key_finds_its_row(
        rows in btree_map(any::<i64>(), vec(any::<u8>(), 5), 0..1500),
        others in vec(any::<i64>(), 50),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.sft");
        numbers(&path, &rows, 5);
        let table = Table::open(&path).unwrap();
        prop_assert_eq!(table.keys(), rows.len() as u64);
        for key in rows.keys().copied().chain(others) {
            let row = find(&table, Key::Int64(key)).unwrap();
            prop_assert_eq!(row.as_ref(), rows.get(&key));
        }
        table.verify(&mut |_| {}).unwrap();
    }

    #[test]
    fn so_does_every_string(
        rows in btree_map(vec(any::<u8>(), 0..20), vec(any::<u8>(), 3), 0..600),
        others in vec(vec(any::<u8>(), 0..3), 50),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.sft");
        let keys: Vec<&[u8]> = rows.keys().map(Vec::as_slice).collect();
        let values: Vec<_> = rows.values().cloned().collect();
        write(&path, Keys::Bytes(&keys), 3, &values).unwrap();
        let table = Table::open(&path).unwrap();
        for key in rows.keys().cloned().chain(others) {
            let row = find(&table, Key::Bytes(&key)).unwrap();
            prop_assert_eq!(row.as_ref(), rows.get(&key));
        }
        prop_assert!(find(&table, Key::Int64(3)).unwrap().is_none());
        table.verify(&mut |_| {}).unwrap();
    }
}

#[test]
fn the_same_content_is_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let rows = rows(3000, 10);
    let digest = numbers(&one, &rows, 10);
    let keys: Vec<i64> = rows.keys().rev().copied().collect();
    let values: Vec<_> = rows.values().rev().cloned().collect();
    assert_eq!(write(&other, Keys::Int64(&keys), 10, &values).unwrap(), digest);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());
    // Later versions must read and write the same: docs/OPERATORS.md promises it for a state.
    assert_eq!(digest.to_string(), WRITTEN);
    let changed = numbers(&other, &rows.into_iter().skip(1).collect(), 10);
    assert_ne!(changed, digest);
}

const WRITTEN: &str = "b49b58d03b00eff7a39c3acffebb9936406bedd717ed2365096138aadec9cf73";

#[test]
fn rows_of_all_sizes() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [1, 8, 2046, 2047, 4092, 4093, 100_000] {
        let path = folder.path().join(bytes.to_string());
        let rows = rows(30, bytes);
        numbers(&path, &rows, bytes);
        let table = Table::open(&path).unwrap();
        for (key, row) in &rows {
            assert_eq!(find(&table, Key::Int64(*key)).unwrap().as_ref(), Some(row), "{bytes}");
        }
        table.verify(&mut |_| {}).unwrap();
    }
}

#[test]
fn a_changed_byte_is_an_error_or_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let rows = rows(600, 6);
    numbers(&path, &rows, 6);
    let good = fs::read(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let mut errors = 0;
    for at in (0..good.len()).step_by(3) {
        file.write_all_at(&[good[at] ^ 0x41], at as u64).unwrap();
        let answers = Table::open(&path).and_then(|table| {
            let all: Result<Vec<_>, _> =
                rows.keys().map(|key| find(&table, Key::Int64(*key))).collect();
            assert!(table.verify(&mut |_| {}).is_err(), "byte {at}");
            all
        });
        match answers {
            Ok(answers) => assert!(answers.iter().map(Option::as_ref).eq(rows.values().map(Some))),
            Err(error) => {
                assert!(error.to_string().starts_with(error.file()), "{error}");
                errors += 1;
            }
        }
        file.write_all_at(&good[at..=at], at as u64).unwrap();
    }
    // Every byte is needed by one of the keys.
    assert_eq!(errors, good.len().div_ceil(3));
}

#[test]
fn a_file_that_was_cut_off_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    numbers(&path, &rows(600, 6), 6);
    let good = fs::read(&path).unwrap();
    for len in (0..good.len()).step_by(97) {
        fs::write(&path, &good[..len]).unwrap();
        let error = Table::open(&path).unwrap_err().to_string();
        let says = ["is no table", "cut off", "its header says"];
        assert!(says.iter().any(|what| error.contains(what)), "{len}: {error}");
    }
    fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    let none = folder.path().join("none");
    assert!(Table::open(&none).unwrap_err().is_missing());
    let said = [path.as_path(), folder.path(), &none].map(|path| refused(path, folder.path()));
    assert_eq!(
        said,
        [
            "DIR/t.sft: has 16385 bytes, but its header says 16384: it was cut off, or is still being \
             written; copy it again",
            "DIR: is no file",
            "DIR/none: cannot open the table: No such file or directory (os error 2)",
        ]
    );
}

/// Returns the error for a file that is not a table, without its folder's name.
fn refused(path: &Path, folder: &Path) -> String {
    let error = Table::open(path).unwrap_err().to_string();
    error.replace(folder.to_str().unwrap(), "DIR")
}

#[test]
fn what_happens_to_a_table_in_use_gives_no_other_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let first = rows(20_000, 1000);
    numbers(&path, &first, 1000);
    let table = Table::open(&path).unwrap();
    let key = |number: i64| Key::Int64(number * 7 - 50);
    // Another table takes its name: the open table is still the first one.
    let other =
        first.iter().map(|(key, row)| (*key, row.iter().map(|b| b ^ 1).collect())).collect();
    numbers(&path, &other, 1000);
    assert_eq!(find(&table, key(3)).unwrap().as_ref(), first.values().nth(3));
    // The file is overwritten: the same keys lead to blocks of another table.
    let table = Table::open(&path).unwrap();
    assert_eq!(find(&table, key(3)).unwrap().as_ref(), other.values().nth(3));
    let again = folder.path().join("again");
    numbers(&again, &first, 1000);
    fs::copy(&again, &path).unwrap();
    let error = find(&table, key(19_000)).unwrap_err().to_string();
    assert_eq!(
        error.replace(folder.path().to_str().unwrap(), "DIR"),
        "DIR/t.sft: damaged at offset 98304: a page of keys does not fit its checksum; copy the \
         table again, and leave it alone while it is used"
    );
    // The file is truncated: an error, and no signal.
    let table = Table::open(&path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let error = find(&table, key(19_000)).unwrap_err().to_string();
    assert_eq!(
        error.replace(folder.path().to_str().unwrap(), "DIR"),
        "DIR/t.sft: damaged at offset 98304: the file ends before it; it was cut off after it was \
         opened; copy the table again, and leave it alone while it is used"
    );
}

#[test]
fn what_is_no_table_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let rows = vec![vec![1; 4]; 3];
    let twice = write(&path, Keys::Int64(&[5, 9, 5]), 4, &rows).unwrap_err().to_string();
    let refused = |columns| Layout::new(Keys::Int64(&[1]), columns).unwrap_err().to_string();
    let named_at_length = Layout::new(Keys::Int64(&[1]), vec![column(&"a".repeat(1 << 20), 4)]);
    let named_at_length = named_at_length.unwrap().write(&path, |_, _| Ok(())).unwrap_err();
    // Rows that differ between the two calls.
    let mut calls = 0;
    let layout = Layout::new(Keys::Int64(&[1]), vec![column("a", 4)]).unwrap();
    let changing = layout.write(&path, |_, out| {
        calls += 1;
        out.fill(calls);
        Ok(())
    });
    let said = [
        twice,
        refused(vec![]),
        refused(vec![column("a", 1), column("a", 2)]),
        refused(vec![column("a", 0)]),
        refused(vec![column("a", 1 << 30)]),
        named_at_length.to_string(),
        changing.unwrap_err().to_string(),
    ];
    assert_eq!(
        said,
        [
            "rows 0 and 2 have the same key; a key identifies one row",
            "a table has at least one column",
            "two columns have the name `a`",
            "column `a` has no bytes",
            "a row has more than 536870912 bytes",
            "its columns take more than 1048576 bytes to name",
            "the rows changed while they were written",
        ]
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_header_that_asks_for_much_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let texts = [
        r#"{"key":"int64","keys":1,"seed":0,"pages":18446744073709551615,"block_rows":4092,"columns":[{"name":"x","dtype":"uint8","shape":[1],"bytes":1}]}"#,
        r#"{"key":"int64","keys":1,"seed":0,"pages":1,"block_rows":0,"columns":[{"name":"x","dtype":"uint8","shape":[1],"bytes":1}]}"#,
        r#"{"key":"int64","keys":1,"seed":0,"pages":1,"block_rows":1,"columns":[{"name":"x","dtype":"uint8","shape":[1],"bytes":18446744073709551615},{"name":"y","dtype":"uint8","shape":[1],"bytes":2}]}"#,
        r#"{"key":"int64","keys":0,"seed":0,"pages":1,"block_rows":4092,"columns":[{"name":"x","dtype":"uint8","shape":[1],"bytes":1}]}"#,
        r#"{"key":"int32"}"#,
        "[[[[[[[[[[[[[[[[[[[[",
        r#"{"key":"int64","keys":0,"seed":0,"pages":1,"block_rows":1,"columns":[]}"#,
        r#"{"key":"int64","keys":0,"seed":0,"pages":1,"block_rows":1,"columns":[],"digest":"12"}"#,
    ];
    let said = texts.map(|text| {
        let mut bytes = b"SHFTABLE\x01\0\0\0".to_vec();
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes.resize(8192, 0);
        bytes.truncate(bytes.len().div_ceil(4096) * 4096);
        fs::write(&path, bytes).unwrap();
        refused(&path, folder.path())
    });
    assert_eq!(
        said,
        [
            "DIR/t.sft: damaged at offset 0: it would have more bytes than a file can; copy the table \
             again, and leave it alone while it is used",
            "DIR/t.sft: damaged at offset 0: its pages or blocks have a size that no table has; copy \
             the table again, and leave it alone while it is used",
            "DIR/t.sft: damaged at offset 0: a row has more than 536870912 bytes; copy the table \
             again, and leave it alone while it is used",
            "DIR/t.sft: damaged at offset 0: it has no digest; copy the table again, and leave it \
             alone while it is used",
            "DIR/t.sft: damaged at offset 0: its header cannot be read: unknown variant `int32`, \
             expected `int64` or `bytes` at line 1 column 14; copy the table again, and leave it alone \
             while it is used",
            "DIR/t.sft: damaged at offset 0: its header cannot be read: expected value at line 1 \
             column 2; copy the table again, and leave it alone while it is used",
            "DIR/t.sft: damaged at offset 0: a table has at least one column; copy the table again, \
             and leave it alone while it is used",
            "DIR/t.sft: damaged at offset 0: its header cannot be read: a digest is 64 hex digits, not \
             2 characters of `12` at line 1 column 85; copy the table again, and leave it alone while it is \
             used",
        ]
    );
    let heads: [&[u8]; 3] = [
        b"SHFTABLE\x02\0\0\0\xff\xff\xff\xff",
        b"SHFTABLE\x01\0\0\0\xff\xff\xff\xff",
        b"SHFTABLE\x01\0\0\0\xff\0\0\0",
    ];
    let said = heads.map(|head| {
        fs::write(&path, head).unwrap();
        refused(&path, folder.path())
    });
    assert_eq!(
        said,
        [
            "DIR/t.sft: is a table of version 2, and this software reads version 1; use the same \
             version of shardfeed for both",
            "DIR/t.sft: damaged at offset 0: its header says that it has 4294967295 bytes; copy \
             the table again, and leave it alone while it is used",
            "DIR/t.sft: damaged at offset 0: its header is cut off; copy the table again, and \
             leave it alone while it is used",
        ]
    );
    let mut damaged = b"SHFTABLE\x01\0\0\0\x02\0\0\0{}".to_vec();
    damaged.resize(4096, 0);
    fs::write(&path, damaged).unwrap();
    assert_eq!(
        refused(&path, folder.path()),
        "DIR/t.sft: damaged at offset 0: its header does not fit its checksum; copy the table again, \
         and leave it alone while it is used"
    );
}
