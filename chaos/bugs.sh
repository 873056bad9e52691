#!/bin/sh
# Every deliberate bug in chaos/bugs must be found, within the seeds that chaos/bugs/SEEDS allows it.
# All of them are built in at once, into a copy of the tree; a variable chooses one. Nothing of them is in the product.
set -eu
cd "$(dirname "$0")/.."
command=$(chaos/patched.sh chaos/bugs/*.diff)
echo "none: $("$command" run --seeds "${CLEAN:-20}" | tail -1)"
missed=0
while read -r name seeds; do
  case "$name" in '' | '#'*) continue ;; esac
  if [ -n "${ONLY:-}" ] && [ "$ONLY" != "$name" ]; then continue; fi
  said=$(SHARDFEED_BUG=$name "$command" run --seeds "$seeds" --until-breach) && found=no || found=yes
  if [ "$found" = yes ]; then
    echo "$name: found after $(echo "$said" | tail -1 | sed 's/.*: \([0-9]*\) runs.*/\1/') runs; $(echo "$said" | head -1 | cut -c1-160)"
  else
    echo "$name: NOT FOUND in $seeds seeds"
    missed=1
  fi
done < chaos/bugs/SEEDS
exit $missed
