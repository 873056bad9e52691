//! States: a state that is unchanged when it is serialized again, or an error.

use shardfeed_plan::LoaderState;

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "state", run, seeds };

fn seeds() -> Vec<Vec<u8>> {
    let digest = "0123456789abcdef".repeat(4);
    let state = |more: &str, segments: &str| {
        format!(
            r#"{{"shardfeed_state":1,"order":0,"job":"{digest}","checks":"00112233","lanes":2,"epoch":3,"segments":{segments}{more}}}"#
        )
    };
    let one = r#"[{"lanes":2,"global_batch":8,"steps":5}]"#;
    let two = r#"[{"lanes":2,"global_batch":8,"steps":5},{"lanes":4,"global_batch":16,"steps":0}]"#;
    let listed =
        r#"[{"lanes":2,"global_batch":8,"steps":[5,4]},{"lanes":4,"global_batch":16,"steps":0}]"#;
    let states = [
        state("", one),
        state(r#","generation":2"#, two),
        state(r#","speaks_for":[0,2]"#, listed),
        state(r#","cluster":"c","generation":7"#, one),
    ];
    states.into_iter().map(String::into_bytes).collect()
}

fn run(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else {
        return "no text".to_owned();
    };
    match LoaderState::from_json(text) {
        Err(error) => gist(error),
        Ok(state) => {
            let json = state.to_json();
            let again =
                LoaderState::from_json(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(again, state);
            format!("{} {}", size(state.step() as usize), size(json.len()))
        }
    }
}
