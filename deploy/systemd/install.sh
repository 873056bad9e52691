#!/bin/sh
# Installs the command, the units and the option files. Starts nothing and keeps existing option
# files.
#
#   ./install.sh [ROOT]      # as root; ROOT: another root folder, such as that of an image
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-}
binary=${SHARDFEED_BINARY:-$here/../../target/release/shardfeed}
[ -x "$binary" ] || { echo "error: $binary is missing; \`make build\` makes it" >&2; exit 1; }

install -D -m 0755 "$binary" "$root/usr/bin/shardfeed"
for unit in shardfeed-coordinator@.service shardfeed-worker.service; do
  install -D -m 0644 "$here/$unit" "$root/usr/lib/systemd/system/$unit"
done
install -D -m 0644 "$here/sysusers.conf" "$root/usr/lib/sysusers.d/shardfeed.conf"
for process in coordinator worker; do
  file=$root/etc/shardfeed/$process.toml
  [ -e "$file" ] || install -D -m 0644 "$here/../config/$process.toml" "$file"
done
if [ -n "$root" ]; then
  systemd-sysusers --root="$root" shardfeed.conf
else
  systemd-sysusers shardfeed.conf
  systemctl daemon-reload
fi
