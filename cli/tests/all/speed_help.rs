//! Help of the verbs about speed, word for word; and what they refuse.

use expect_test::expect;

use crate::fixture::Place;
use crate::help::check;

#[test]
fn of_why() {
    check(
        &["why"],
        &expect![[r#"
            Say what limits a job, and what to change

            All ranks of a job go in step, so the one that waits longest for its batches decides; if none waits,
            trainers do. Figures are of the last seconds, as the workers measured them; of a rank that waits for
            one batch for long, since the batch before. `shardfeed bench JOB` says how fast it could be read.

            Usage: shardfeed why [OPTIONS] <JOB>

            Arguments:
              <JOB>
                      The job's name

            Options:
                  --all
                      Show all ranks, not only the first 20

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
fn of_bench() {
    check(
        &["bench"],
        &expect![[r#"
            Read a job, or files, with a trainer that does nothing, and say how fast that is

            It reads in this process, on this host's cores, from files that this host can open: one rank of the
            job's own order, with its features and operators, from the beginning of an epoch. The coordinator is
            asked what the job is and nothing else, so ranks that run are not disturbed, beyond what the
            processors and the storage have to do. A dynamic job is read as if its order were fixed.

            Usage: shardfeed bench [OPTIONS] [JOB]

            Arguments:
              [JOB]
                      The job's name

            Options:
                  --files <FILES>
                      TFRecord files instead of a job, read as they are: paths, or globs in quotes; again for
                      more

                  --duration <TIME>
                      How long to read, after the first batch

                      [default: 10s]

                  --batches <N>
                      Batches to read at most

                  --rank <RANK>
                      Rank of the job to read

                      [default: 0]

                  --epoch <EPOCH>
                      Epoch to begin with

                      [default: 0]

                  --batch-size <SAMPLES>
                      Samples per batch [default: the job's, else 32]

                  --corrupt <POLICY>
                      What happens at a corrupt record: `error`, `skip-record` or `skip-file` [default: what the
                      job's dataset was added with; what its ranks were told besides is not known]

                  --prefetch <BATCHES>
                      Batches ahead at most [default: chosen as it goes]

                  --memory-budget <SIZE>
                      Memory for records and batches ahead [default: a quarter of what there is]

                  --threads <N>
                      Computing threads [default: chosen as it goes]

                  --table <FILE>
                      A table that the job looks things up in, as this host has it; again for more

                  --trace <FILE>
                      Write a timeline of it for Perfetto

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

            Examples:
              shardfeed bench digits
              shardfeed bench --files 'train/*.tfrecord' --batch-size 256 --duration 30s
              shardfeed bench digits --threads 2 --trace timeline.json
        "#]],
    );
}

#[test]
fn of_trace() {
    check(
        &["trace"],
        &expect![[r#"
            Record what each thread of this host's worker does, as a timeline for Perfetto

            Open FILE at https://ui.perfetto.dev. It shows the reading threads (chunk, read), the thread that
            plans (room: enough is ahead; fill window, gather, wait for shard, grant), the computing threads
            (assemble: check and parse, operate and write) and the ones that send. Nothing is recorded before
            and after. For loaders that work in their trainer's process set SHARDFEED_TRACE=DIR there: each
            writes DIR/rank-R-PID.json when it is closed.

            Usage: shardfeed trace [OPTIONS] <FILE>

            Arguments:
              <FILE>
                      File to write

            Options:
                  --duration <TIME>
                      How long to record, at most 60s

                      [default: 5s]

                  --worker <PATH>
                      Path of the worker's socket [default: SHARDFEED_WORKER, else the usual place]

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
        "#]],
    );
}

#[test]
fn what_has_no_meaning_is_refused() {
    let place = Place::with_shards(&[4]);
    expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          <JOB>

        Usage: shardfeed bench <JOB>

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["bench"]));
    expect![[r#"
        exit 1
        error: an epoch has no batch of 8 for 1 rank(s)
        hint: use a smaller --batch-size
    "#]]
    .assert_eq(&place.fails(&["bench", "--files", "s-*.tfrecord", "--batch-size", "8"]));
    expect![[r#"
        exit 2
        error: invalid value '2min' for '--duration <TIME>': must be 60s at most

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["trace", "t.json", "--duration", "2min"]));
}
