//! Verbs that change a cluster: help, and what is refused before anything is asked.

use std::net::TcpListener;

use expect_test::expect;

use crate::fixture::Place;
use crate::help::check;

#[test]
fn help_of_the_verbs_on_coordinators() {
    check(
        &["cluster"],
        &expect![[r#"
            The coordinators of a cluster: who leads, members, backups

            Usage: shardfeed cluster [OPTIONS] <COMMAND>

            Commands:
              status           Show the coordinators: who leads, and how far the others are behind
              add              Add a coordinator, which must be running with --join
              remove           Remove a coordinator for good
              transfer-leader  Let another coordinator lead, without a gap
              snapshot         Back up what a cluster knows, and start from a backup
              help             Print this message or the help of the given subcommand(s)

            Options:
              -o, --output <FORMAT>  How results are printed: for people, with more columns, or for programs,
                                     complete and with lasting names: as one document, a line for each thing, or
                                     their names [default: table] [possible values: table, wide, json, jsonl,
                                     name]
                  --no-headers       Leave the first line of tables out
              -w, --watch            Look again every two seconds until Ctrl-C, at what only shows
              -h, --help             Print help
        "#]],
    );
    check(
        &["cluster", "status"],
        &expect![[r#"
            Show the coordinators: who leads, and how far the others are behind

            One coordinator that answers is enough. With `-o wide` and `-o json` each one is also asked for its
            own view.

            Usage: shardfeed cluster status [OPTIONS]

            Options:
              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
    check(
        &["cluster", "add"],
        &expect![[r#"
            Add a coordinator, which must be running with --join

            It gets the log first, and has a vote once it has it. Its number must never have been used in this
            cluster.

            Usage: shardfeed cluster add [OPTIONS] <NODE> <HOST:PORT>

            Arguments:
              <NODE>
                      Number of the new coordinator

              <HOST:PORT>
                      Where the others and the workers reach it

            Options:
              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
    check(
        &["cluster", "remove"],
        &expect![[r#"
            Remove a coordinator for good

            Its number is never used again. Remove one that is dead before another is added in its place.

            Usage: shardfeed cluster remove [OPTIONS] <NODE>

            Arguments:
              <NODE>
                      Number of the coordinator

            Options:
                  --yes
                      Do it: this cannot be taken back

              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
    check(
        &["cluster", "transfer-leader"],
        &expect![[r#"
            Let another coordinator lead, without a gap

            Usage: shardfeed cluster transfer-leader [OPTIONS] [NODE]

            Arguments:
              [NODE]  Number of the coordinator that shall lead [default: the one that is most up to date]

            Options:
              -o, --output <FORMAT>  How results are printed: for people, with more columns, or for programs,
                                     complete and with lasting names: as one document, a line for each thing, or
                                     their names [default: table] [possible values: table, wide, json, jsonl,
                                     name]
                  --no-headers       Leave the first line of tables out
              -w, --watch            Look again every two seconds until Ctrl-C, at what only shows
              -h, --help             Print help

            Cluster:
                  --coordinator <HOST:PORT>  Address of the coordinator; of several, with commas [default: that
                                             of the context, else 127.0.0.1:7070] [env: SHARDFEED_COORDINATOR]
                  --context <NAME>           Cluster, by the name that `shardfeed context` knows [default: the
                                             one in use] [env: SHARDFEED_CONTEXT]
                  --timeout <TIME>           How long to wait for an answer [default: 10s]
        "#]],
    );
    check(
        &["cluster", "snapshot"],
        &expect![[r#"
            Back up what a cluster knows, and start from a backup

            Usage: shardfeed cluster snapshot [OPTIONS] <COMMAND>

            Commands:
              save     Save what the cluster knows as a file
              restore  Make the data folder of a new cluster from such a file
              help     Print this message or the help of the given subcommand(s)

            Options:
              -o, --output <FORMAT>  How results are printed: for people, with more columns, or for programs,
                                     complete and with lasting names: as one document, a line for each thing, or
                                     their names [default: table] [possible values: table, wide, json, jsonl,
                                     name]
                  --no-headers       Leave the first line of tables out
              -w, --watch            Look again every two seconds until Ctrl-C, at what only shows
              -h, --help             Print help
        "#]],
    );
    check(
        &["cluster", "snapshot", "save"],
        &expect![[r#"
            Save what the cluster knows as a file

            Datasets with their manifests, jobs, generations, cursors: what a new cluster goes on from. Records
            are in the shards, not here. The file is whole or not there.

            Usage: shardfeed cluster snapshot save [OPTIONS] <FILE>

            Arguments:
              <FILE>
                      The file to make

            Options:
              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
}

#[test]
fn help_of_the_verbs_that_give_and_take_work() {
    check(
        &["worker", "cordon"],
        &expect![[r#"
            Give a worker nothing new: trainers that start beside it read in their own processes

            Usage: shardfeed worker cordon [OPTIONS] <NAME>

            Arguments:
              <NAME>  The worker's name

            Options:
              -o, --output <FORMAT>  How results are printed: for people, with more columns, or for programs,
                                     complete and with lasting names: as one document, a line for each thing, or
                                     their names [default: table] [possible values: table, wide, json, jsonl,
                                     name]
                  --no-headers       Leave the first line of tables out
              -w, --watch            Look again every two seconds until Ctrl-C, at what only shows
              -h, --help             Print help

            Cluster:
                  --coordinator <HOST:PORT>  Address of the coordinator; of several, with commas [default: that
                                             of the context, else 127.0.0.1:7070] [env: SHARDFEED_COORDINATOR]
                  --context <NAME>           Cluster, by the name that `shardfeed context` knows [default: the
                                             one in use] [env: SHARDFEED_CONTEXT]
                  --timeout <TIME>           How long to wait for an answer [default: 10s]
        "#]],
    );
    check(
        &["worker", "uncordon"],
        &expect![[r#"
            Give a worker that was cordoned or drained work again

            One that was drained has left the cluster: start it again. Trainers come back to it with the next
            epoch, those that it was refused to when they are started anew.

            Usage: shardfeed worker uncordon [OPTIONS] <NAME>

            Arguments:
              <NAME>
                      The worker's name

            Options:
              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
    check(
        &["worker", "drain"],
        &expect![[r#"
            Take a worker's work from it, without a trainer waiting, and wait until it serves nothing

            Its trainers go on in their own processes from the batch that it sent last. Then it leaves the
            cluster, and runs until it is stopped; uncordoned it gets work again when it is started again.

            Usage: shardfeed worker drain [OPTIONS] <NAME>

            Arguments:
              <NAME>
                      The worker's name

            Options:
                  --no-wait
                      Do not wait until it serves nothing

              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
}

#[test]
fn help_of_the_verbs_that_remove() {
    check(
        &["dataset", "remove"],
        &expect![[r#"
            Remove a dataset from the cluster; its files stay as they are

            One that a job reads is refused: remove the job first. The name may stand for other files then.

            Usage: shardfeed dataset remove [OPTIONS] <NAME>

            Arguments:
              <NAME>
                      The dataset's name

            Options:
                  --yes
                      Do it: this cannot be taken back

              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
    check(
        &["job", "remove"],
        &expect![[r#"
            Remove a job and what is known of its generations

            Ranks that it serves are told that it is gone. States that its loaders made stay good, those of a
            dynamic job at the beginning of an epoch only: the same name may begin anew from one.

            Usage: shardfeed job remove [OPTIONS] <NAME>

            Arguments:
              <NAME>
                      The job's name

            Options:
                  --yes
                      Do it: this cannot be taken back

              -o, --output <FORMAT>
                      How results are printed: for people, with more columns, or for programs, complete and with
                      lasting names: as one document, a line for each thing, or their names

                      [default: table]
                      [possible values: table, wide, json, jsonl, name]

                  --no-headers
                      Leave the first line of tables out

              -w, --watch
                      Look again every two seconds until Ctrl-C, at what only shows

              -h, --help
                      Print help (see a summary with '-h')

            Cluster:
                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas [default: that of the context, else
                      127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR]

                  --context <NAME>
                      Cluster, by the name that `shardfeed context` knows [default: the one in use]

                      [env: SHARDFEED_CONTEXT]

                  --timeout <TIME>
                      How long to wait for an answer

                      [default: 10s]
        "#]],
    );
}

#[test]
fn what_is_gone_for_good_must_be_meant() {
    let place = Place::new();
    expect![[r#"
        exit 2
        error: coordinator 3 would be removed; this cannot be taken back
        hint: give --yes if it is meant
    "#]]
    .assert_eq(&place.fails(&["cluster", "remove", "3"]));
    expect![[r#"
        exit 2
        error: dataset `train` would be removed from the cluster; this cannot be taken back
        hint: give --yes if it is meant
    "#]]
    .assert_eq(&place.fails(&["dataset", "remove", "train"]));
    expect![[r#"
        exit 2
        error: job `digits` would be removed; this cannot be taken back
        hint: give --yes if it is meant
    "#]]
    .assert_eq(&place.fails(&["job", "remove", "digits"]));
}

#[test]
fn numbers_and_addresses_that_are_none() {
    let place = Place::new();
    expect![[r#"
        exit 2
        error: invalid value '0' for '<NODE>': 0 is not in 1..18446744073709551615

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["cluster", "add", "0", "a:1"]));
    expect![[r#"
        exit 2
        error: invalid value 'here' for '<HOST:PORT>': write HOST:PORT, such as 127.0.0.1:7070

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["cluster", "add", "4", "here"]));
    expect![[r#"
        exit 2
        error: invalid value 'x' for '[NODE]': invalid digit found in string

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["cluster", "transfer-leader", "x"]));
    expect![[r#"
        exit 2
        error: invalid value 'a:1,,b:2' for '--coordinator <HOST:PORT>': write HOST:PORT, such as 127.0.0.1:7070

        For more information, try '--help'.
    "#]].assert_eq(&place.fails(&["status", "--coordinator", "a:1,,b:2"]));
}

#[test]
fn each_address_of_a_list_is_named_with_what_it_said() {
    let place = Place::new();
    let closed = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (one, two) = (closed(), closed());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let three = silent.local_addr().unwrap().to_string();
    let said = |addresses: &[&str]| {
        let list = addresses.join(",");
        let args = ["cluster", "status", "--timeout", "300ms", "--coordinator", &list];
        let said = place.fails(&args);
        said.replace(&one, "$ONE").replace(&two, "$TWO").replace(&three, "$THREE")
    };
    expect![[r#"
        exit 6
        error: no coordinator answers: $ONE: Connection refused (os error 111), $TWO: Connection refused (os error 111)
        hint: check the address (--coordinator or SHARDFEED_COORDINATOR) and that `shardfeed coordinator start` runs there
    "#]].assert_eq(&said(&[&one, &two]));
    let said = said(&[&one, &three]);
    assert!(said.starts_with("exit 6\nerror: no coordinator answers: $ONE: Connection"), "{said}");
    assert!(said.contains("$THREE: no answer within "), "{said}");
}

#[test]
fn a_backup_overwrites_nothing() {
    let place = Place::new();
    place.file("backup", "precious");
    expect![[r#"
        exit 1
        error: backup is there already
        hint: choose another name, or remove it yourself
    "#]]
    .assert_eq(&place.fails(&["cluster", "snapshot", "save", "backup"]));
    let args = ["cluster", "snapshot", "save", "none/backup"];
    expect![[r#"
        exit 1
        error: cannot write none/backup
          cause: entity not found
        hint: check the path
    "#]]
    .assert_eq(&place.fails(&args));
    assert_eq!(place.names("."), ["backup"]);
}
