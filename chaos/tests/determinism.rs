//! Checks that a seed gives the same run in every process.
#![cfg(tokio_unstable)]

use std::process::Command;

fn run(seed: u64) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardfeed-chaos"));
    let output = command.args(["seed", &seed.to_string()]).output().expect("the simulation starts");
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    let stories: Vec<_> = (0..2).map(|seed| (run(seed), run(seed))).collect();
    for (first, second) in &stories {
        assert_eq!(first, second);
        assert!(first.contains("\"hash\""), "{first}");
    }
    assert_ne!(stories[0], stories[1]);
}
