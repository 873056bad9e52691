#!/bin/sh
# Builds the simulation from a copy of the working tree with patches applied; prints the path of the command.
# usage: chaos/patched.sh FILE.diff...
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
target="$root/target/chaos"
copy="$target/copy"
mkdir -p "$copy"
# Only files that differ are touched, so that a second build is a small one.
cd "$root"
git ls-files --cached --others --exclude-standard > "$target/copy.list"
fresh="$target/fresh"
rm -rf "$fresh"
mkdir -p "$fresh"
while IFS= read -r file; do [ -f "$file" ] && printf '%s\n' "$file"; done < "$target/copy.list" > "$target/copy.files"
tar -cf - -T "$target/copy.files" | tar -xf - -C "$fresh"
for patch in "$@"; do
  case "$patch" in /*) ;; *) patch="$root/$patch" ;; esac
  (cd "$fresh" && patch --quiet --forward --no-backup-if-mismatch -p1 < "$patch") \
    || { echo "error: $patch does not apply" >&2; exit 1; }
done
(cd "$fresh" && find . -type f) | while IFS= read -r file; do
  if ! cmp -s "$fresh/$file" "$copy/$file"; then
    mkdir -p "$(dirname "$copy/$file")"
    cp "$fresh/$file" "$copy/$file"
  fi
done
(cd "$copy" && find . -type f) | while IFS= read -r file; do
  [ -f "$fresh/$file" ] || rm -f "$copy/$file"
done
rm -rf "$fresh"
cd "$copy"
# A folder of its own: cargo takes the copy for the tree itself, and would run the one for the other.
RUSTFLAGS="--cfg tokio_unstable" CARGO_TARGET_DIR="$target/of-copy" "${CARGO:-cargo}" --config chaos/build.toml build --quiet --locked -p shardfeed-chaos >&2
cp "$target/of-copy/debug/shardfeed-chaos" "$target/patched"
echo "$target/patched"
