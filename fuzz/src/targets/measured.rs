//! Values that sample programs measured, as another host may have written them to a shared index.

use shardfeed_pipeline::{MeasuredColumn, MeasuredColumns, SampleProgram};
use shardfeed_source::SampleMap;

use super::sample_map::program;
use crate::{Target, size};

pub(crate) const TARGET: Target = Target { name: "measured", run, seeds };

/// Forms of [`program`] that keep values: a filter, packs, a cost and windows.
const FORMS: [u8; 4] = [0, 3, 4, 5];

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
    ]
}

/// Returns the columns of a program by its keys, all of one length.
fn columns(program: &SampleProgram, given: Vec<MeasuredColumn>) -> MeasuredColumns {
    let records = given.first().map_or(0, MeasuredColumn::len);
    let same = given.into_iter().filter(|column| column.len() == records);
    let keys = program.columns().expect("records are samples, or in one");
    MeasuredColumns::new(keys.into_iter().zip(same).collect())
}

fn run(input: &[u8]) -> String {
    let Some((form, body)) = input.split_first() else {
        return "nothing".to_owned();
    };
    let Ok(given) = postcard::from_bytes::<Vec<MeasuredColumn>>(body) else {
        return "none".to_owned();
    };
    let form = FORMS[usize::from(form % 4)];
    let program = program(form);
    let columns = columns(&program, given);
    match SampleMap::of_measured(&program, &columns, "a") {
        None => format!("{form} unknown"),
        Some(map) => {
            assert!(map.grouping().is_some() || map.samples() <= columns.records() as u64);
            format!("{form} {} {}", size(map.samples() as usize), size(columns.records()))
        }
    }
}
