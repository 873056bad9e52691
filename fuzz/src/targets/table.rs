//! Side tables: rows as written, or an error.

use shardfeed_table::{Column, Key, Keys, Layout, Table};

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "table", run, seeds };

const PAGE: usize = 4096;

fn seeds() -> Vec<Vec<u8>> {
    let column = |bytes| Column {
        name: "x".to_owned(),
        dtype: "uint8".to_owned(),
        shape: vec![bytes],
        bytes,
    };
    let table = |keys: Keys<'_>, bytes: usize| {
        let path = super::scratch("seed");
        let layout = Layout::new(keys, vec![column(bytes)]).expect("keys are there once");
        let fill = |rows: &[usize], out: &mut [u8]| {
            out.chunks_mut(bytes).zip(rows).for_each(|(out, row)| out.fill(*row as u8));
            Ok(())
        };
        layout.write(&path, fill).expect("the scratch folder takes it");
        std::fs::read(&path).expect("it was written")
    };
    let tables = [
        table(Keys::Int64(&[]), 3),
        table(Keys::Int64(&[1, -5, 7]), 3),
        table(Keys::Bytes(&[b"a", b"b"]), 1),
        table(Keys::Int64(&(0..600).collect::<Vec<_>>()), 8),
    ];
    // Without the zeros after the header, the page and the block, so that fewer bytes can be
    // mutated.
    let packed = |file: &Vec<u8>| {
        let text = u32::from_le_bytes(file[12..16].try_into().expect("four bytes")) as usize;
        let head = &file[..16 + text];
        [&[1], head, &file[PAGE..file.len().min(PAGE + 600)]].concat()
    };
    tables.iter().map(packed).collect()
}

/// Returns the file that an input represents.
///
/// The bytes after the header move to the next page, and zeros fill the file up to the length in
/// the header. With `repaired` all checksums are valid.
fn unpacked(input: &[u8], repaired: bool) -> Vec<u8> {
    let Some(length) = input.get(12..16) else {
        return input.to_vec();
    };
    let text = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
    let Some((head, rest)) = input.split_at_checked(text.saturating_add(16)) else {
        return input.to_vec();
    };
    let mut file = head.to_vec();
    file.extend_from_slice(&crc32c::crc32c(head).to_le_bytes());
    file.resize(file.len().next_multiple_of(PAGE), 0);
    let pages_at = file.len();
    file.extend_from_slice(rest);
    let Ok(header) = serde_json::from_slice::<serde_json::Value>(&head[16..]) else {
        return file;
    };
    let number = |name: &str| header[name].as_u64().filter(|&number| number < 1 << 12).unwrap_or(0);
    let row = header["columns"].as_array().map_or(0, |columns| {
        columns
            .iter()
            .map(|column| column["bytes"].as_u64().unwrap_or(0))
            .fold(0, u64::saturating_add)
    });
    let block_rows = number("block_rows").max(1);
    if row == 0 || row > 1 << 12 {
        return file;
    }
    let (pages, blocks) = (number("pages"), number("keys").div_ceil(block_rows));
    let block = (block_rows * row + 4) as usize;
    let end = pages_at + pages as usize * PAGE + blocks as usize * block;
    if end > 1 << 22 {
        return file;
    }
    file.resize(end, 0);
    let digest: Option<Vec<u8>> = header["digest"].as_str().and_then(|text| {
        let pair = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        (0..32).map(|at| pair(2 * at)).collect()
    });
    if let (true, Some(digest)) = (repaired, digest) {
        seal_all(&mut file[pages_at..], &digest, (pages as usize, block));
    }
    file
}

fn seal_all(parts: &mut [u8], digest: &[u8], (pages, block): (usize, usize)) {
    let sum = |kind: u8, number: usize, bytes: &[&[u8]]| {
        let place = [&[kind], &(number as u64).to_le_bytes()[..]].concat();
        crc32c::crc32c(&[&[digest, &place], bytes].concat().concat()).to_le_bytes()
    };
    let (own, blocks) = parts.split_at_mut(pages * PAGE);
    for (number, page) in own.chunks_exact_mut(PAGE).enumerate() {
        let seal = sum(1, number, &[&page[..4], &page[8..]]);
        page[4..8].copy_from_slice(&seal);
    }
    for (number, block) in blocks.chunks_exact_mut(block).enumerate() {
        let (rows, end) = block.split_at_mut(block.len() - 4);
        end.copy_from_slice(&sum(2, number, &[rows]));
    }
}

fn run(input: &[u8]) -> String {
    let Some((&mode, packed)) = input.split_first() else {
        return "empty".to_owned();
    };
    let file = unpacked(packed, mode & 1 != 0);
    let path = super::scratch("table");
    std::fs::write(&path, &file).expect("the scratch folder takes it");
    let table = match Table::open(&path) {
        Ok(table) => table,
        Err(error) => {
            assert!(error.to_string().starts_with(error.file()), "{error}");
            return gist(error.to_string().trim_start_matches(error.file()));
        }
    };
    let row_bytes: usize = table.columns().iter().map(|column| column.bytes).sum();
    let find = |key| table.find(key, <[u8]>::to_vec);
    let mut outcome = format!("{:?}", table.key());
    let keys = [Key::Int64(1), Key::Int64(-5), Key::Int64(400), Key::Bytes(b"a"), Key::Bytes(&[])];
    for key in keys {
        let found = find(key);
        if let Ok(Some(row)) = &found {
            assert_eq!(row.len(), row_bytes);
        }
        assert_eq!(find(key).map_err(|e| e.to_string()), found.map_err(|e| e.to_string()));
        outcome.push_str(match find(key) {
            Ok(Some(_)) => " row",
            Ok(None) => " none",
            Err(_) => " error",
        });
    }
    let verified = table.verify(&mut |_| ());
    if verified.is_ok() {
        assert!(!outcome.contains("error"), "a whole table has{outcome}");
    }
    let what = verified
        .map_or_else(|e| gist(e.to_string().trim_start_matches(e.file())), |()| "whole".to_owned());
    format!("{outcome} {} {what}", size(table.keys() as usize))
}
