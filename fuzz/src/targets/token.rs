//! States: a state that is unchanged when it is serialized again, or an error.

use shardfeed_plan::Token;

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "token", run, seeds };

fn seeds() -> Vec<Vec<u8>> {
    let digest = "0123456789abcdef".repeat(4);
    let token = |more: &str, segments: &str| {
        format!(
            r#"{{"shardfeed_token":1,"order":0,"job":"{digest}","checks":"00112233","lanes":2,"epoch":3,"segments":{segments}{more}}}"#
        )
    };
    let one = r#"[{"lanes":2,"global_batch":8,"steps":5}]"#;
    let two = r#"[{"lanes":2,"global_batch":8,"steps":5},{"lanes":4,"global_batch":16,"steps":0}]"#;
    let listed =
        r#"[{"lanes":2,"global_batch":8,"steps":[5,4]},{"lanes":4,"global_batch":16,"steps":0}]"#;
    let tokens = [
        token("", one),
        token(r#","generation":2"#, two),
        token(r#","speaks_for":[0,2]"#, listed),
        token(r#","cluster":"c","generation":7"#, one),
    ];
    tokens.into_iter().map(String::into_bytes).collect()
}

fn run(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else {
        return "no text".to_owned();
    };
    match Token::from_json(text) {
        Err(error) => gist(error),
        Ok(token) => {
            let json = token.to_json();
            let again = Token::from_json(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(again, token);
            format!("{} {}", size(token.step() as usize), size(json.len()))
        }
    }
}
