//! Checks that the table in docs/OPERATORS.md has every operator, in the order of their declaration.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use expect_test::expect_file;
use shardfeed_pipeline::Operation;

const HEAD: &str = "| operator | result | equivalent | compared |\n| --- | --- | --- | --- |\n";

#[test]
fn the_table_of_operators_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/OPERATORS.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let rows: String = Operation::rows().iter().map(|row| format!("| {row} |\n")).collect();
    expect_file![path].assert_eq(&format!("{before}{HEAD}{rows}\n{after}"));
}
