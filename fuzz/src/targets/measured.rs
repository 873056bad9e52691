//! Values that sample programs measured, as another host may have written them to a shared index.

use shardfeed_pipeline::{MeasuredColumn, MeasuredColumns, SampleProgram};
use shardfeed_source::SampleMap;

use super::sample_map::program;
use crate::{Target, size};

pub(crate) const TARGET: Target = Target { name: "measured", run, seeds };

/// Forms of [`program`]: a filter, packs, a cost, windows, rows, a filter of rows, and windows and
/// packs of rows.
const FORMS: [u8; 8] = [0, 3, 4, 5, 1, 2, 6, 7];

fn seeds() -> Vec<Vec<u8>> {
    let seed = |form: u8, columns: &[MeasuredColumn]| {
        let columns = postcard::to_stdvec(columns).expect("columns are plain data");
        [vec![form], columns].concat()
    };
    let integers = |values: &[i64]| MeasuredColumn::Integers(values.to_vec());
    let texts = MeasuredColumn::Texts(vec![b"a".to_vec(), b"bc".to_vec()]);
    vec![
        seed(0, &[integers(&[3, 0]), integers(&[30, 20])]),
        seed(0, &[integers(&[3, 2, 1]), integers(&[i64::MAX; 3])]),
        seed(1, &[integers(&[30, 20]), integers(&[3, 70])]),
        seed(2, &[integers(&[0, 5]), integers(&[30, 20])]),
        seed(3, &[integers(&[0, 0]), integers(&[30, 20]), integers(&[8, 8])]),
        seed(0, &[MeasuredColumn::Floats(vec![f32::NAN, 1.0]), integers(&[30, 20])]),
        seed(3, &[texts.clone(), integers(&[30, 20]), texts]),
        seed(4, &[integers(&[30, 20]), integers(&[1, 2])]),
        seed(4, &[integers(&[30, 20]), integers(&[i64::MAX, -1])]),
        seed(5, &[integers(&[30, 20]), integers(&[1, 2]), integers(&[7, 0, 1])]),
        seed(5, &[integers(&[30, 20]), integers(&[1, 2]), integers(&[7])]),
        seed(6, &[integers(&[30, 20]), integers(&[1, 2]), integers(&[0; 3]), integers(&[7, 7, 1])]),
        seed(7, &[integers(&[30, 20]), integers(&[1, 2]), integers(&[7, 0, 90])]),
    ]
}

/// Returns the columns of a program by its keys: those of records, all of one length, and those of
/// rows.
fn columns(program: &SampleProgram, given: Vec<MeasuredColumn>) -> Option<MeasuredColumns> {
    let records = given.first().map_or(0, MeasuredColumn::len);
    let keys = program.columns().expect("costs are those of records");
    let mut given = given.into_iter();
    let same = given.by_ref().take(keys.len()).filter(|column| column.len() == records);
    let mut columns = MeasuredColumns::new(keys.iter().cloned().zip(same).collect());
    if let Some((counts, keys)) = program.row_columns() {
        let of_rows = keys.into_iter().zip(given).collect();
        columns.add_rows(counts, of_rows).then_some(())?;
    }
    Some(columns)
}

fn run(input: &[u8]) -> String {
    let Some((form, body)) = input.split_first() else {
        return "nothing".to_owned();
    };
    let Ok(given) = postcard::from_bytes::<Vec<MeasuredColumn>>(body) else {
        return "none".to_owned();
    };
    let form = FORMS[usize::from(form % 8)];
    let program = program(form);
    let Some(columns) = columns(&program, given) else {
        return format!("{form} other rows");
    };
    match SampleMap::of_measured(&program, &columns, "a") {
        None => format!("{form} unknown"),
        Some(map) => {
            let is_of_records = program.row_columns().is_none() && map.grouping().is_none();
            assert!(!is_of_records || map.samples() <= columns.records() as u64);
            format!("{form} {} {}", size(map.samples() as usize), size(columns.records()))
        }
    }
}
