#!/bin/bash
# Runs a command of a batch job with a coordinator on the job's first node and a worker on each
# node, as steps of the same allocation that overlap with the command. Ends them with the command,
# and returns its exit status.
#
#   #SBATCH ...
#   export SHARDFEED_STATE=$SLURM_SUBMIT_DIR/.shardfeed/$SLURM_JOB_ID
#   with-shardfeed.sh srun --overlap python train.py
#
# Sets SHARDFEED_COORDINATOR, SHARDFEED_WORKER and SHARDFEED_TLS, a trainer's certificate, for the
# command. After a requeue the coordinator continues from the same SHARDFEED_STATE on any node, so
# that must be a folder that all nodes share and that outlives the job's nodes. Root is not needed,
# and no process remains on the nodes.
#
# Only this user can read SHARDFEED_STATE/pki, which is required to connect to the job's
# coordinator:
#
#   shardfeed top --coordinator @$SHARDFEED_STATE/cluster.json --tls $SHARDFEED_STATE/pki/admin
#
#   SHARDFEED_STATE      folder for the coordinator's data and the job's certificates; required
#   SHARDFEED_INTERFACE  network interface of the coordinator, such as hsn0 or ib0; default: the node's address in Slurm
#   SHARDFEED_PORT       port of the coordinator; default: a free one, as jobs may share a node
#   SHARDFEED_WORKER_OPTIONS   additional options of `shardfeed worker start`, such as "--memory-budget 64GiB"
set -euo pipefail

: "${SLURM_JOB_ID:?this is no batch job}" "${SHARDFEED_STATE:?a folder that all nodes share}"
(($# > 0)) || { echo "usage: with-shardfeed.sh COMMAND..." >&2; exit 2; }
shardfeed=$(command -v "${SHARDFEED_BINARY:-shardfeed}") || { echo "error: the command shardfeed is not in PATH" >&2; exit 2; }

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# A folder on the node's own disk: the path of a socket must be short, and each job has a separate
# one.
run=/tmp/shardfeed-$SLURM_JOB_ID
here=(--overlap --nodes=1 --ntasks=1 --nodelist="$head")
# A worker uses no GPU, and shares the processors with the trainers.
everywhere=(--overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --gres=none)

if [ -n "${SHARDFEED_INTERFACE:-}" ]; then
  address=$(srun "${here[@]}" ip -4 -o address show dev "$SHARDFEED_INTERFACE" | awk '{sub("/.*", "", $4); print $4; exit}')
else
  name=$(scontrol show node --oneliner "$head" | grep -o ' NodeAddr=[^ ]*' | cut -d= -f2)
  address=$(srun "${here[@]}" getent ahostsv4 "$name" | awk '{print $1; exit}')
fi
[ -n "$address" ] || { echo "error: $head has no IPv4 address; set SHARDFEED_INTERFACE" >&2; exit 1; }
mkdir -p "$SHARDFEED_STATE"
# The coordinator writes this file when it serves; workers and ranks wait for it. After the loss of
# a node the old file still has the old address.
endpoint=$(realpath "$SHARDFEED_STATE")/cluster.json
rm -f "$endpoint"
# Certificates of this start, in a temporary folder first: an interrupted start leaves either none
# or all of them. The authority's key is deleted once they exist; a requeued job creates another
# authority.
pki=$(realpath "$SHARDFEED_STATE")/pki
rm -rf "$pki.new"
(
  umask 077
  "$shardfeed" tls init "$pki.new" --coordinator "$address" > /dev/null
  "$shardfeed" tls issue "$pki.new" trainer trainer > /dev/null
)
rm -f "$pki.new/ca.key"
rm -rf "$pki"
mv "$pki.new" "$pki"
export SHARDFEED_COORDINATOR=@$endpoint SHARDFEED_WORKER=$run/worker.sock SHARDFEED_TLS=$pki/trainer
echo "shardfeed: this job's cluster: shardfeed top --coordinator @$endpoint --tls $pki/admin" >&2

logs=$SHARDFEED_STATE/log-${SLURM_RESTART_COUNT:-0}
mkdir -p "$logs"
servers=()
# Stops a step gracefully. A signal to its srun would kill its tasks at once.
end_step() {
  local name=$1 server=$2 step
  step=$(scontrol show step --oneliner "$SLURM_JOB_ID" | grep " Name=$name " | grep -o 'StepId=[^ ]*' | cut -d= -f2)
  if [ -n "$step" ]; then
    scancel --quiet --signal=TERM "$step" 2> /dev/null || true
  else
    kill -TERM "$server" 2> /dev/null || true
  fi
  wait "$server" || true
}
end() {
  # Workers first: they report to the coordinator that they leave.
  ((${#servers[@]} < 2)) || end_step shardfeed-worker "${servers[1]}"
  ((${#servers[@]} < 1)) || end_step shardfeed-coordinator "${servers[0]}"
}
trap end EXIT
# Slurm signals only the batch script; the trap ends the steps.
trap 'exit 143' TERM

# The coordinator listens on the job's network, which other jobs and users may share.
srun "${here[@]}" --gres=none --job-name=shardfeed-coordinator \
  --output="$logs/coordinator.out" --error="$logs/coordinator.log" \
  "$shardfeed" coordinator start --data "$SHARDFEED_STATE/coordinator" --listen "$address:${SHARDFEED_PORT:-0}" --http 127.0.0.1:0 \
  --tls "$pki/$address" --endpoint-file "$endpoint" &
servers+=($!)
# shellcheck disable=SC2086  # several options, separated by spaces
srun "${everywhere[@]}" --job-name=shardfeed-worker --output="$logs/worker-%N.out" --error="$logs/worker-%N.log" \
  "$shardfeed" worker start --socket "$run/worker.sock" --cache-dir "$run/cache" --tls "$pki/worker" \
  ${SHARDFEED_WORKER_OPTIONS:-} &
servers+=($!)

# Waits until the worker of each node serves. Workers wait for the coordinator.
ready='for _ in $(seq 600); do "$0" health --worker > /dev/null 2>&1 && exit 0; sleep 0.1; done; exec "$0" health --worker'
srun "${everywhere[@]}" sh -c "$ready" "$shardfeed" > /dev/null || {
  echo "error: not every worker serves; see $logs" >&2
  exit 1
}

"$@" &
command=$!
wait "$command"
