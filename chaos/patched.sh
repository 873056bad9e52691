#!/bin/sh
# Builds the simulation from a copy of the working tree with patches applied; prints the path of the command.
# usage: chaos/patched.sh FILE.diff...
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work="$root/target/chaos"
copy="$work/copy"
mkdir -p "$copy"
# Only changed files are copied, so that a second build is small. The copy is inside the tree, where
# cargo already reads .cargo/config.toml: a second one would repeat its flags.
cd "$root"
git ls-files --cached --others --exclude-standard | grep -v '^\.cargo/' > "$work/copy.list"
fresh="$work/fresh"
rm -rf "$fresh"
mkdir -p "$fresh"
while IFS= read -r file; do [ -f "$file" ] && printf '%s\n' "$file"; done < "$work/copy.list" > "$work/copy.files"
tar -cf - -T "$work/copy.files" | tar -xf - -C "$fresh"
for patch in "$@"; do
  case "$patch" in /*) ;; *) patch="$root/$patch" ;; esac
  (cd "$fresh" && patch --quiet --forward --no-backup-if-mismatch -p1 < "$patch") \
    || { echo "error: $patch does not apply" >&2; exit 1; }
done
# With another version the copy's crates are different packages, so that tree and copy share a
# target folder and its compiled dependencies.
sed -i 's/^version = "0.1.0"$/version = "0.1.0-patched"/' "$fresh/Cargo.toml"
sed -i '/^name = "shardfeed/{n;s/^version = .*/version = "0.1.0-patched"/}' "$fresh/Cargo.lock"
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
# Builds all members and a test, so that the features of the dependencies equal those of the tree's
# build.
CARGO_TARGET_DIR="$root/target" "${CARGO:-cargo}" build --quiet --locked --workspace \
  --bin shardfeed-chaos --test determinism >&2
cp "$root/target/debug/shardfeed-chaos" "$work/patched"
echo "$work/patched"
