//! Checks that docs/CLI.md matches the command's help.

use std::fmt::Write;

use expect_test::expect_file;

use crate::fixture::Place;

const HEAD: &str = "\
# The command

Every verb of `shardfeed` with its help, as the command prints it: made by `UPDATE_EXPECT=1 cargo test -p shardfeed --test all reference`,
and tested to be current. [OPERATIONS.md](OPERATIONS.md) explains the options of coordinators and workers.
";

/// Appends the help of a verb and its subcommands.
fn tell(place: &Place, verb: &[String], out: &mut String) {
    let words: Vec<&str> = verb.iter().map(String::as_str).chain(["--help"]).collect();
    let help = place.ok(&words);
    let name = [&["shardfeed".to_owned()], verb].concat().join(" ");
    let level = "#".repeat(2 + verb.len().min(2));
    write!(out, "\n{level} {name}\n\n```text\n{}```\n", trimmed(&help)).unwrap();
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in below.take_while(|line| !line.is_empty()) {
        // Continuation lines are indented further.
        let Some(first) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')) else {
            continue;
        };
        let word = first.split(' ').next().unwrap();
        if word != "help" {
            tell(place, &[verb, &[word.to_owned()]].concat(), out);
        }
    }
}

/// Removes trailing spaces from the help.
fn trimmed(help: &str) -> String {
    help.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

#[test]
fn of_the_command_is_current() {
    let mut text = HEAD.to_owned();
    tell(&Place::new(), &[], &mut text);
    for verb in
        ["shardfeed events", "shardfeed shard history", "shardfeed job cancel", "shardfeed up"]
    {
        assert!(text.contains(&format!(" {verb}\n")), "{verb} is missing");
    }
    expect_file!["../../../docs/CLI.md"].assert_eq(&text);
}
