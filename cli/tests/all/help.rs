//! Help, word for word.

use expect_test::{Expect, expect};

use crate::fixture::Place;

pub(crate) fn check(command: &[&str], expected: &Expect) {
    let help = Place::new().ok(&[command, &["--help"]].concat());
    // Blank lines of options keep their indentation; here it would only be noise.
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    expected.assert_eq(&(lines.join("\n") + "\n"));
}

#[test]
fn of_the_program() {
    check(
        &[],
        &expect![[r#"
            Look at, check and write TFRecord datasets, run a cluster, and ask what an epoch is made of

            Usage: shardfeed [OPTIONS] <COMMAND>

            Commands:
              dataset      What a dataset holds, whether it is whole, and how to make one
              plan         What an epoch looks like
              batch        Which records a batch is made of, and which batch a record is in
              job          What fixes an order in the cluster, and the generations in which ranks followed it
              epoch        How much of a job's epochs was delivered, and what is waited for
              shard        Where each shard of an epoch is
              rank         Who serves each rank of a job, and how far it is
              worker       The processes that read for the trainers of their hosts
              coordinator  The process that decides who reads what
              cluster      The coordinators of a cluster: who leads, members, backups
              events       What happened: workers, datasets, jobs, generations, ranks that moved
              context      Clusters by names, for people who work with several
              why          Say what limits a job, and what to change
              bench        Read a job, or files, with a trainer that does nothing, and say how fast that is
              trace        Record what each thread of this host's worker does, as a timeline for Perfetto
              doctor       Check whether this host is fit for a coordinator, a worker and a trainer
              health       Say whether a coordinator or worker of this host serves
              config       The options of coordinators and workers: files, environment, defaults
              wait         Wait until something is so: a leader, a dataset, a worker, the end of an epoch
              completion   Write what a shell needs to complete this command
              man          Write manual pages
              status       Show the cluster as a whole
              up           Run a coordinator and a worker in one process, for a first try
              help         Print this message or the help of the given subcommand(s)

            Options:
              -o, --output <FORMAT>  How results are printed: for people, with more columns, or for programs,
                                     complete and with lasting names: as one document, a line for each thing, or
                                     their names [default: table] [possible values: table, wide, json, jsonl,
                                     name]
                  --no-headers       Leave the first line of tables out
              -w, --watch            Look again every two seconds until Ctrl-C, at what only shows
              -h, --help             Print help
              -V, --version          Print version

            Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or damage found, 2
            wrong usage, 3 not found, 4 denied, 5 conflict, 6 no coordinator answers or leads, 7 not in time.
            SHARDFEED_CACHE_DIR is where indexes are kept (`off`: nowhere), SHARDFEED_LOG what is logged (for
            example `debug`), SHARDFEED_LOG_FORMAT how (`text` or `json`), SHARDFEED_COORDINATOR where the
            coordinators are, with commas.
        "#]],
    );
}

#[test]
fn of_dataset() {
    check(
        &["dataset"],
        &expect![[r#"
            What a dataset holds, whether it is whole, and how to make one

            Usage: shardfeed dataset [OPTIONS] <COMMAND>

            Commands:
              inspect  Show what a dataset holds: shards, records, sizes, digest, and the features of a record
              stats    Read every record and say what is in them, and what about the files could be better
              verify   Read every byte and report every damaged record
              write    Write a folder of files, a list of files or a CSV file as TFRecord shards
              add      Give a dataset to the cluster, and wait until its workers have scanned it
              list     List the cluster's datasets
              show     Show a dataset of the cluster
              remove   Remove a dataset from the cluster; its files stay as they are
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
        &["dataset", "inspect"],
        &expect![[r#"
            Show what a dataset holds: shards, records, sizes, digest, and the features of a record

            Usage: shardfeed dataset inspect [OPTIONS] <FILES>...

            Arguments:
              <FILES>...  TFRecord files: paths, or globs in quotes (*, ?, [a-z], **)

            Options:
                  --compression <SCHEME>  How the files are compressed [default: auto] [possible values: auto,
                                          none, gzip, zlib]
                  --corrupt <POLICY>      What is left out of damaged files, as in the run: nothing, it is an
                                          error; what follows where the framing breaks; any file with damage
                                          [default: error] [possible values: error, skip-record, skip-file]
                  --no-cache              Scan the files, and keep nothing of it
                  --all                   Show all shards, not only the first 20
                  --unscanned             Scan nothing: numbers of records are those that .idx files of
                                          tfrecord2idx and TFDS's dataset_info.json say, where such files lie
                                          beside the shards
              -o, --output <FORMAT>       How results are printed: for people, with more columns, or for
                                          programs, complete and with lasting names: as one document, a line for
                                          each thing, or their names [default: table] [possible values: table,
                                          wide, json, jsonl, name]
                  --no-headers            Leave the first line of tables out
              -w, --watch                 Look again every two seconds until Ctrl-C, at what only shows
              -h, --help                  Print help

            Examples:
              shardfeed dataset inspect 'train/*.tfrecord'
              shardfeed dataset inspect -o json 'train/*.tfrecord.gz' | jq .content_digest
              shardfeed dataset inspect --unscanned 'tensorflow_datasets/mnist/3.0.1/*.tfrecord*'
        "#]],
    );
    check(
        &["dataset", "stats"],
        &expect![[r#"
            Read every record and say what is in them, and what about the files could be better

            Of each feature: its type, in how many records it is, how many values it has there, the range of its
            numbers or lengths, and how many different values there are, up to 4,096 of at most 64 bytes.
            Records that are no tf.train.Example are counted. Sizes are of records without framing; p50 and p99
            are up to 1/128 too high. Every checksum is checked; a damaged record is an error.

            Usage: shardfeed dataset stats [OPTIONS] <FILES>...

            Arguments:
              <FILES>...
                      TFRecord files: paths, or globs in quotes (*, ?, [a-z], **)

            Options:
                  --compression <SCHEME>
                      How the files are compressed

                      [default: auto]
                      [possible values: auto, none, gzip, zlib]

                  --world-size <RANKS>
                      Say also what is too few for this many ranks

                  --all
                      Show all features and their values, not only the first 20

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

            Examples:
              shardfeed dataset stats 'train/*.tfrecord'
              shardfeed dataset stats --world-size 64 's3://bucket/train/*.tfrecord'
              shardfeed dataset stats -o json 'train/*' | jq '.features[] | {name, dtype, suggested}'
        "#]],
    );
    check(
        &["dataset", "verify"],
        &expect![[r#"
            Read every byte and report every damaged record

            Checks the length and the data of each record against their checksums. Behind damaged data reading
            goes on; behind a damaged length, a cut or a damaged compressed stream no record of the file can be
            found any more. Offsets are of the uncompressed file. Numbers of records are compared with what .idx
            files of tfrecord2idx and TFDS's dataset_info.json beside the files say: a file that ends too early
            between two records looks whole otherwise. Exits with 1 if anything is damaged, or says otherwise.

            Usage: shardfeed dataset verify [OPTIONS] <FILES>...

            Arguments:
              <FILES>...
                      TFRecord files: paths, or globs in quotes (*, ?, [a-z], **)

            Options:
                  --compression <SCHEME>
                      How the files are compressed

                      [default: auto]
                      [possible values: auto, none, gzip, zlib]

                  --exclude <OUT>
                      Write the paths of the undamaged files to OUT, one a line: a dataset that has nothing to
                      skip

                  --all
                      Show all files, not only damaged ones and the first 20 others

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

            Examples:
              shardfeed dataset verify 'train/*.tfrecord'
              shardfeed dataset verify --exclude whole.txt 'train/*.tfrecord'; shardfeed plan show $(cat
              whole.txt)
              shardfeed dataset verify -o json 'train/*' | jq '.files[] | select(.damage != [])'
        "#]],
    );
    check(
        &["dataset", "write"],
        &expect![[r#"
            Write a folder of files, a list of files or a CSV file as TFRecord shards

            A folder: each file is one Example with `data` (bytes, the file) and `path` (bytes, relative to
            SOURCE). If the files are in subfolders, these are classes: `class` (bytes) is the first folder of
            the path, `label` (int64) its number in the bytewise order of those that hold files. Names that
            start with a dot are passed over.

            A .csv file: the first row names the columns, each further row is one Example. A column whose every
            value is an integer is int64, else if every value is a number float32, else bytes. An empty cell is
            a feature that is absent.

            A .txt file: each line is the path of a file, relative to the list, with `data` and `path` (as in
            the list). Behind a tab, or in all lines behind a space, may stand a label: integers are `label`
            (int64); if any is no integer, all are names of classes, as folders are above.

            With --voc a list is one of images, JPEG or PNG, and FOLDER holds an annotation of each as the
            Pascal VOC challenges have them: photos/7.jpg is described by FOLDER/7.xml. The features are those
            of TensorFlow's Object Detection API: `image/encoded`, `image/format`, `image/filename`,
            `image/source_id`, `image/width`, `image/height`, and for each object one value in
            `image/object/bbox/xmin`, `ymin`, `xmax` and `ymax` (float32, parts of the image's size),
            `image/object/class/text`, `image/object/class/label` (from 1, in the bytewise order of the names,
            or as in --classes), `image/object/difficult` and `truncated`. A label of the list is
            `image/class/label` and `text`.

            Records are divided among the shards at random, so that shards are alike; the same source and
            options give the same bytes. The shards appear under their names when all of them are written.

            Usage: shardfeed dataset write [OPTIONS] <SOURCE> <OUT_DIR>

            Arguments:
              <SOURCE>
                      A folder of files, or a .csv or .txt file

              <OUT_DIR>
                      Folder for the shards; made if it is not there

            Options:
                  --shard-bytes <SIZE>
                      Size of a shard before compression, about: KB, MB, GB, KiB, MiB or GiB

                      [default: 150MB]

                  --seed <SEED>
                      Seed of the division among the shards

                      [default: 0]

                  --compression <SCHEME>
                      How the shards are compressed

                      [default: none]
                      [possible values: none, gzip, zlib]

                  --prefix <NAME>
                      What shards' names start with; without it the source's name

                  --force
                      Replace shards with this prefix that are already in OUT_DIR

                  --voc <FOLDER>
                      Folder of annotations with boxes, Pascal VOC's XML: one for each image of a list

                  --classes <FILE>
                      Names of the classes of boxes, one a line, numbered from 1: the same for each part of a
                      dataset

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

            Examples:
              shardfeed dataset write photos/ out/ --shard-bytes 150MB
              shardfeed dataset write prices.csv out/ --compression gzip --prefix train
              shardfeed dataset write train.txt out/ --voc VOC2012/Annotations --classes classes.txt
        "#]],
    );
}

#[test]
fn of_plan() {
    check(
        &["plan"],
        &expect![[r#"
            What an epoch looks like

            Usage: shardfeed plan [OPTIONS] <COMMAND>

            Commands:
              show  Show an epoch: samples, steps, what is dropped or padded, and its lanes
              help  Print this message or the help of the given subcommand(s)

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
        &["plan", "show"],
        &expect![[r#"
            Show an epoch: samples, steps, what is dropped or padded, and its lanes

            Usage: shardfeed plan show [OPTIONS] <FILES>...

            Arguments:
              <FILES>...  TFRecord files: paths, or globs in quotes (*, ?, [a-z], **)

            Options:
                  --all                   Show all lanes, not only the first 20
                  --compression <SCHEME>  How the files are compressed [default: auto] [possible values: auto,
                                          none, gzip, zlib]
                  --corrupt <POLICY>      What is left out of damaged files, as in the run: nothing, it is an
                                          error; what follows where the framing breaks; any file with damage
                                          [default: error] [possible values: error, skip-record, skip-file]
                  --no-cache              Scan the files, and keep nothing of it
              -o, --output <FORMAT>       How results are printed: for people, with more columns, or for
                                          programs, complete and with lasting names: as one document, a line for
                                          each thing, or their names [default: table] [possible values: table,
                                          wide, json, jsonl, name]
                  --no-headers            Leave the first line of tables out
              -w, --watch                 Look again every two seconds until Ctrl-C, at what only shows
              -h, --help                  Print help

            Order, as a loader is given it:
                  --epoch <EPOCH>             Epoch, from 0; without it 0, or the token's
                  --seed <SEED>               Seed of the order [default: 0]
                  --no-shuffle                Keep the order of the files
                  --shuffle-window <SAMPLES>  Samples of a lane that are shuffled among each other [default:
                                              10000]
                  --interleave <SHARDS>       Shards that are read in turn [default: 16]
                  --block-length <SAMPLES>    Consecutive samples taken from a shard in its turn [default: 1]
                  --lanes <LANES>             Equal pieces of the epoch, each with its own shuffle; without it
                                              as many as ranks, or the token's
                  --batch-size <SAMPLES>      Samples per rank and step; without it 1, or what the token and
                                              --world-size give
                  --world-size <RANKS>        Data-parallel ranks; without it 1
                  --tail <TAIL>               What becomes of samples that do not fill the last step [default:
                                              drop] [possible values: drop, pad, uneven]
                  --limit <SAMPLES>           Samples of the epoch at most
                  --token <FILE>              File with a loader's state_dict() as JSON: goes on from there

            Examples:
              shardfeed plan show --batch-size 32 --world-size 8 'train/*.tfrecord'
              shardfeed plan show -o json --epoch 3 --tail pad 'train/*.tfrecord' | jq .steps
        "#]],
    );
}

#[test]
fn of_batch() {
    check(
        &["batch"],
        &expect![[r#"
            Which records a batch is made of, and which batch a record is in

            Usage: shardfeed batch [OPTIONS] <COMMAND>

            Commands:
              show  Show the records of a batch, or with --find the batch of a record
              help  Print this message or the help of the given subcommand(s)

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
        &["batch", "show"],
        &expect![[r#"
            Show the records of a batch, or with --find the batch of a record

            The answer is computed, not logged: it holds for every run of this order, also for steps that are
            yet to come. Ranks are those of --world-size, also for steps before a token that other ranks took.
            With --job the coordinator answers, for the order and the ranks of that job.

            Usage: shardfeed batch show [OPTIONS] [FILES]...

            Arguments:
              [FILES]...
                      TFRecord files: paths, or globs in quotes (*, ?, [a-z], **)

            Options:
                  --step <STEP>
                      Step of the epoch, from 0

                  --rank <RANK>
                      Rank, from 0; without it 0, or with --job all

                  --job <JOB>
                      Show a batch of this job of the cluster, which knows files and order

                  --find <PATH:ORDINAL>
                      Show where this record is delivered: a shard's path and the record's number in it, from 0

                  --compression <SCHEME>
                      How the files are compressed

                      [default: auto]
                      [possible values: auto, none, gzip, zlib]

                  --corrupt <POLICY>
                      What is left out of damaged files, as in the run: nothing, it is an error; what follows
                      where the framing breaks; any file with damage

                      [default: error]
                      [possible values: error, skip-record, skip-file]

                  --no-cache
                      Scan the files, and keep nothing of it

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

            Order, as a loader is given it:
                  --epoch <EPOCH>
                      Epoch, from 0; without it 0, or the token's

                  --seed <SEED>
                      Seed of the order

                      [default: 0]

                  --no-shuffle
                      Keep the order of the files

                  --shuffle-window <SAMPLES>
                      Samples of a lane that are shuffled among each other

                      [default: 10000]

                  --interleave <SHARDS>
                      Shards that are read in turn

                      [default: 16]

                  --block-length <SAMPLES>
                      Consecutive samples taken from a shard in its turn

                      [default: 1]

                  --lanes <LANES>
                      Equal pieces of the epoch, each with its own shuffle; without it as many as ranks, or the
                      token's

                  --batch-size <SAMPLES>
                      Samples per rank and step; without it 1, or what the token and --world-size give

                  --world-size <RANKS>
                      Data-parallel ranks; without it 1

                  --tail <TAIL>
                      What becomes of samples that do not fill the last step

                      [default: drop]
                      [possible values: drop, pad, uneven]

                  --limit <SAMPLES>
                      Samples of the epoch at most

                  --token <FILE>
                      File with a loader's state_dict() as JSON: goes on from there

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
              shardfeed batch show --step 120 --rank 3 --batch-size 32 --world-size 8 'train/*.tfrecord'
              shardfeed batch show --step 0 --token checkpoint/loader.json 'train/*.tfrecord'
              shardfeed batch show --job resnet --epoch 2 --step 120
              shardfeed batch show --find train-00003.tfrecord:17 --batch-size 32 'train/*.tfrecord'
        "#]],
    );
}
