//! Help of the cluster's verbs, word for word.

use expect_test::expect;

use crate::help::check;

#[test]
fn of_the_processes() {
    check(
        &["coordinator"],
        &expect![[r#"
            The process that decides who reads what

            Usage: shardfeed coordinator [OPTIONS] <COMMAND>

            Commands:
              start  Run a coordinator until SIGTERM or SIGINT
              help   Print this message or the help of the given subcommand(s)

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
        &["coordinator", "start"],
        &expect![[r#"
            Run a coordinator until SIGTERM or SIGINT

            It decides which rank reads what, and keeps that in its data folder: start it with the same folder
            again and it goes on where it was. When it serves, it prints one line on stdout; logs go to stderr.

            Usage: shardfeed coordinator start [OPTIONS]

            Options:
                  --config <FILE>
                      TOML file with options, listed below; flags win over it

                      [env: SHARDFEED_COORDINATOR__CONFIG]

                  --data <DIR>
                      Folder for all that outlives the process; made if it is missing

                      [env: SHARDFEED_COORDINATOR__DATA_DIR]

                  --listen <IP:PORT>
                      Address for workers and people, gRPC; port 0 takes a free one [default: 127.0.0.1:7070]

                      [env: SHARDFEED_COORDINATOR__LISTEN]

                  --http <IP:PORT>
                      Address for health and metrics, HTTP; port 0 takes a free one [default: 127.0.0.1:7071]

                      [env: SHARDFEED_COORDINATOR__HTTP]

                  --node-id <NODE>
                      This node's number in its cluster, kept from the first start on [default: 1]

                      [env: SHARDFEED_COORDINATOR__NODE_ID]

                  --advertise <HOST:PORT>
                      Where workers, people and other nodes reach this one [default: what --peers says, else
                      --listen]

                      [env: SHARDFEED_COORDINATOR__ADVERTISE]

                  --peers <NODE=HOST:PORT>
                      The 3 or 5 nodes that found a cluster, this one among them: 1=HOST:PORT,2=HOST:PORT,...

                      [env: SHARDFEED_COORDINATOR__PEERS]

                  --join <HOST:PORT>
                      Nodes of a cluster to be added to; `cluster add` there lets this one in

                      [env: SHARDFEED_COORDINATOR__JOIN]

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

            Tuning:
                  --peer-heartbeat-ms <MS>
                      How often the leader tells the other nodes that it is there, ms [default: 100]

                      [env: SHARDFEED_COORDINATOR__PEER_HEARTBEAT_MS]

                  --election-min-ms <MS>
                      Without the leader for so long at least, a node wants to lead, ms [default: 300]

                      [env: SHARDFEED_COORDINATOR__ELECTION_MIN_MS]

                  --election-max-ms <MS>
                      And for so long at most, ms [default: 600]

                      [env: SHARDFEED_COORDINATOR__ELECTION_MAX_MS]

                  --snapshot-every <N>
                      Log entries between two snapshots [default: 10000]

                      [env: SHARDFEED_COORDINATOR__SNAPSHOT_EVERY]

                  --cluster-name <NAME>
                      Name of the cluster, kept from the first start on [default: shardfeed]

                      [env: SHARDFEED_COORDINATOR__CLUSTER_NAME]

                  --session-ttl-ms <MS>
                      A worker that is silent for so long is gone, ms [default: 10000]

                      [env: SHARDFEED_COORDINATOR__SESSION_TTL_MS]

                  --heartbeat-ms <MS>
                      How often workers speak, ms; a third of that at most [default: 2000]

                      [env: SHARDFEED_COORDINATOR__HEARTBEAT_MS]

                  --unreferenced-bytes-max <BYTES>
                      Chunks that no dataset refers to, bytes at most [default: 4294967296]

                      [env: SHARDFEED_COORDINATOR__UNREFERENCED_BYTES_MAX]

            Options in FILE, with their defaults:
              data-dir = "DIR"             # log, snapshots, chunks; required
              listen = "127.0.0.1:7070"    # gRPC; port 0 takes a free one
              http = "127.0.0.1:7071"      # /livez, /readyz, /metrics; likewise
              node-id = 1                  # this node's number, kept from the first start on
              peers = []                   # ["1=HOST:PORT", ...]: 3 or 5 found a cluster
              join = []                    # ["HOST:PORT", ...]: a cluster to be added to
              peer-heartbeat-ms = 100      # how often the leader tells others of itself, ms
              election-min-ms = 300        # without it for so long, a node wants to lead,
              election-max-ms = 600        # ms: at least, and at most
              snapshot-every = 10000       # log entries between two snapshots
              cluster-name = "shardfeed"   # kept from the first start on
              session-ttl-ms = 10000       # a worker that is silent for so long is gone, ms
              heartbeat-ms = 2000          # how often workers speak, ms; a third of it at most
              unreferenced-bytes-max = 4294967296   # chunks of no dataset, bytes

            and, if other nodes, workers and people do not reach it at what `peers` or `listen` says:
            advertise = "HOST:PORT"

            Examples:
              shardfeed coordinator start --data /var/lib/shardfeed --listen 0.0.0.0:7070
              shardfeed coordinator start --config /etc/shardfeed/coordinator.toml
              shardfeed coordinator start --data DIR --listen 0.0.0.0:7070 --node-id 1 \
                  --peers 1=head-1:7070,2=head-2:7070,3=head-3:7070      # the same on 2 and 3, with their
                  numbers
        "#]],
    );
    check(
        &["worker", "start"],
        &expect![[r#"
            Run a worker until SIGTERM or SIGINT

            It reads, checks and batches for the trainers of its host, which find it by its socket. When its
            coordinator knows it, it prints one line on stdout; logs go to stderr. A coordinator that does not
            answer is waited for.

            Usage: shardfeed worker start [OPTIONS]

            Options:
                  --config <FILE>
                      TOML file with options, as below; flags win over it

                      [env: SHARDFEED_WORKER__CONFIG]

                  --coordinator <HOST:PORT>
                      Address of the coordinator; of several, with commas; required

                      [env: SHARDFEED_COORDINATOR]

                  --socket <PATH>
                      Path of the socket for trainers [default: /run/shardfeed/worker.sock as root, else
                      $XDG_RUNTIME_DIR/shardfeed/worker.sock]

                      [env: SHARDFEED_WORKER__SOCKET]

                  --name <NAME>
                      Name in the cluster, unique there [default: the host's name]

                      [env: SHARDFEED_WORKER__NAME]

                  --memory-budget <SIZE>
                      Memory for records and batches of all its trainers [default: a quarter of what there is]

                      [env: SHARDFEED_WORKER__MEMORY_BUDGET]

                  --threads <N>
                      Computing threads [default: chosen as it goes, within the cores]

                      [env: SHARDFEED_WORKER__THREADS]

                  --cache-dir <DIR>
                      Folder for what is kept of files [default: SHARDFEED_CACHE_DIR, else ~/.cache/shardfeed]

                      [env: SHARDFEED_WORKER__CACHE_DIR]

                  --cache-bytes <SIZE>
                      Space for bytes of files in object stores; all of the host's workers with the same folder
                      share it [default: 0, none are kept]

                      [env: SHARDFEED_WORKER__CACHE_BYTES]

                  --allow-uid <UID>
                      Users whose trainers are served, besides the worker's own and root; again or with commas
                      for more [default: all whom the socket's file lets in, its owner and group]

                      [env: SHARDFEED_WORKER__ALLOW_UID]

                  --allow-gid <GID>
                      Groups whose trainers are served, likewise

                      [env: SHARDFEED_WORKER__ALLOW_GID]

                  --socket-gid <GID>
                      Group that the socket's file is given [default: the worker's]

                      [env: SHARDFEED_WORKER__SOCKET_GID]

                  --http <IP:PORT>
                      Address for /livez, /readyz and /metrics, HTTP; port 0 takes a free one [default: none is
                      served]

                      [env: SHARDFEED_WORKER__HTTP]

                  --cluster-id <ID>
                      Id of the only cluster to join [default: the one that answers first]

                      [env: SHARDFEED_WORKER__CLUSTER_ID]

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

            FILE has the same options, under their long names and without the dashes:
              coordinator = "10.0.0.7:7070"  memory-budget = "16GiB"     # or a number, bytes
              allow-uid = [1000, 1001]

            Examples:
              shardfeed worker start --coordinator 10.0.0.7:7070 --memory-budget 16GiB
              shardfeed worker start --config /etc/shardfeed/worker.toml
        "#]],
    );
    check(
        &["up"],
        &expect![[r#"
            Run a coordinator and a worker in one process, for a first try

            Usage: shardfeed up [OPTIONS]

            Options:
                  --data <DIR>            Folder for all that outlives the process [default: a temporary one,
                                          removed at the end]
                  --listen <IP:PORT>      Address for workers and people, gRPC; port 0 takes a free one
                                          [default: 127.0.0.1:7070]
                  --http <IP:PORT>        Address for health and metrics, HTTP; port 0 takes a free one
                                          [default: 127.0.0.1:7071]
                  --socket <PATH>         Path of the socket for trainers [default: /run/shardfeed/worker.sock
                                          as root, else $XDG_RUNTIME_DIR/shardfeed/worker.sock]
                  --memory-budget <SIZE>  Memory for records and batches of all trainers [default: a quarter of
                                          what there is]
              -o, --output <FORMAT>       How results are printed: for people, with more columns, or for
                                          programs, complete and with lasting names: as one document, a line for
                                          each thing, or their names [default: table] [possible values: table,
                                          wide, json, jsonl, name]
                  --no-headers            Leave the first line of tables out
              -w, --watch                 Look again every two seconds until Ctrl-C, at what only shows
              -h, --help                  Print help

            Examples:
              shardfeed up
              shardfeed up --data ~/shardfeed --listen 127.0.0.1:0 --http 127.0.0.1:0
        "#]],
    );
}

#[test]
fn of_the_verbs_on_datasets() {
    check(
        &["dataset", "add"],
        &expect![[r#"
            Give a dataset to the cluster, and wait until its workers have scanned it

            The files must be at the same paths on every worker. What a name stands for never changes: the same
            name with other files is refused, the same again is not.

            Usage: shardfeed dataset add [OPTIONS] <NAME> <PATTERN>...

            Arguments:
              <NAME>
                      The dataset's name

              <PATTERN>...
                      Its files: paths, or globs in quotes (*, ?, [a-z], **); the workers look for them

            Options:
                  --compression <SCHEME>
                      How the files are compressed

                      [default: auto]
                      [possible values: auto, none, gzip, zlib]

                  --corrupt <POLICY>
                      What is left out of damaged files: nothing, it is an error; what follows where the framing
                      breaks; any file with damage

                      [default: error]
                      [possible values: error, skip-record, skip-file]

                  --wait
                      Wait until it is ready, the default; Ctrl-C ends the waiting, not the scan

                  --no-wait
                      Do not wait until it is ready

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
              shardfeed dataset add train '/data/train-*.tfrecord'
              shardfeed dataset add --no-wait train '/data/train-*.tfrecord.gz'
        "#]],
    );
    check(
        &["dataset", "list"],
        &expect![[r#"
            List the cluster's datasets

            Usage: shardfeed dataset list [OPTIONS]

            Options:
                  --all              Show all datasets, not only the first 20
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
        &["dataset", "show"],
        &expect![[r#"
            Show a dataset of the cluster

            Usage: shardfeed dataset show [OPTIONS] <NAME>

            Arguments:
              <NAME>  The dataset's name

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
}

#[test]
fn of_the_verbs_on_workers() {
    check(
        &["worker"],
        &expect![[r#"
            The processes that read for the trainers of their hosts

            Usage: shardfeed worker [OPTIONS] <COMMAND>

            Commands:
              start     Run a worker until SIGTERM or SIGINT
              list      List the cluster's workers
              show      Show a worker, and the ranks that it serves
              cordon    Give a worker nothing new: trainers that start beside it read in their own processes
              uncordon  Give a worker that was cordoned or drained work again
              drain     Take a worker's work from it, without a trainer waiting, and wait until it serves
                        nothing
              help      Print this message or the help of the given subcommand(s)

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
        &["worker", "list"],
        &expect![[r#"
            List the cluster's workers

            Usage: shardfeed worker list [OPTIONS]

            Options:
                  --all              Show also workers that are gone, as far as they are remembered, and more
                                     than 20
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
        &["worker", "show"],
        &expect![[r#"
            Show a worker, and the ranks that it serves

            Usage: shardfeed worker show [OPTIONS] <NAME>

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
        &["status"],
        &expect![[r#"
            Show the cluster as a whole

            Usage: shardfeed status [OPTIONS]

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
}

#[test]
fn of_the_verbs_on_jobs() {
    check(
        &["job"],
        &expect![[r#"
            What fixes an order in the cluster, and the generations in which ranks followed it

            Usage: shardfeed job [OPTIONS] <COMMAND>

            Commands:
              list    List the jobs
              show    Show a job: what fixes its order, and its generations
              pause   Let a job's trainers wait for their next batch until it is resumed
              resume  Let a paused job go on, or the ranks of a cancelled one start again
              cancel  End a job: its trainers' loaders fail, and no rank may start until it is resumed
              remove  Remove a job and what is known of its generations
              help    Print this message or the help of the given subcommand(s)

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
        &["job", "list"],
        &expect![[r#"
            List the jobs

            Usage: shardfeed job list [OPTIONS]

            Options:
                  --all              Show all jobs, not only the first 20
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
        &["job", "show"],
        &expect![[r#"
            Show a job: what fixes its order, and its generations

            Usage: shardfeed job show [OPTIONS] <NAME>

            Arguments:
              <NAME>  The job's name

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
        &["epoch"],
        &expect![[r#"
            How much of a job's epochs was delivered, and what is waited for

            Usage: shardfeed epoch [OPTIONS] <COMMAND>

            Commands:
              list  List the epochs of a job that are over or under way, the last one first
              show  Show an epoch: what was delivered, dropped, lost, and what it waits for
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
        &["epoch", "list"],
        &expect![[r#"
            List the epochs of a job that are over or under way, the last one first

            Usage: shardfeed epoch list [OPTIONS] --job <JOB>

            Options:
                  --job <JOB>        The job's name
                  --all              Show all epochs, not only the last 20
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
        &["epoch", "show"],
        &expect![[r#"
            Show an epoch: what was delivered, dropped, lost, and what it waits for

            Usage: shardfeed epoch show [OPTIONS] --job <JOB>

            Options:
                  --job <JOB>        The job's name
                  --epoch <EPOCH>    Epoch, from 0 [default: the one that the slowest rank is in]
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
        &["shard"],
        &expect![[r#"
            Where each shard of an epoch is

            Usage: shardfeed shard [OPTIONS] <COMMAND>

            Commands:
              list     List the shards of an epoch: state, ranks, worker, progress
              history  Show every lease of a shard in an epoch, and why it moved
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
        &["shard", "list"],
        &expect![[r#"
            List the shards of an epoch: state, ranks, worker, progress

            Usage: shardfeed shard list [OPTIONS] --job <JOB>

            Options:
                  --job <JOB>
                      The job's name

                  --epoch <EPOCH>
                      Epoch, from 0 [default: the one that the slowest rank is in]

                  --state <STATE>
                      Only shards in this state; again or with commas for more

                      Possible values:
                      - pending: No worker serves its ranks
                      - leased:  A worker will read it
                      - reading: It is being read, or delivered in part
                      - done:    All of it that this epoch delivers is delivered
                      - skipped: It is left out

                  --rank <RANK>
                      Only shards that this rank reads

                  --worker <NAME>
                      Only shards of ranks that this worker serves

                  --file <TEXT>
                      Only shards whose path has this in it

                  --all
                      Show all shards, not only the first 20

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
              shardfeed shard list --job resnet
              shardfeed shard list --job resnet --state reading,leased -o wide
              shardfeed shard list --job resnet --rank 3 --file part-0001 --all
              shardfeed shard list --job resnet --epoch 2 -o json | jq '.shards[] | select(.records_done == 0)'
        "#]],
    );
    check(
        &["rank"],
        &expect![[r#"
            Who serves each rank of a job, and how far it is

            Usage: shardfeed rank [OPTIONS] <COMMAND>

            Commands:
              list  List the ranks of a job: who serves each, and how far it is
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
        &["rank", "list"],
        &expect![[r#"
            List the ranks of a job: who serves each, and how far it is

            Usage: shardfeed rank list [OPTIONS] --job <JOB>

            Options:
                  --job <JOB>        The job's name
                  --all              Show all ranks, not only the first 20
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
}
