//! Decodes the hexadecimal bytes of golden files.

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let nibble = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}
