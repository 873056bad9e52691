#!/bin/sh
# Puts into one folder what the images are made of: the command and the Python package that `make build` left, numpy,
# and the examples. The folder is Docker's build context.
#
#   deploy/docker/context.sh [FOLDER]      # default target/deploy/context; prints it
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/target/deploy/context}
binary=${SHARDFEED_BINARY:-$root/target/release/shardfeed}
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$binary" ] || { echo "error: $binary is missing; \`make build\` makes it" >&2; exit 1; }
ls "$root"/python/python/shardfeed/_native*.so > /dev/null || {
  echo "error: the Python package has no extension module; \`make build\` makes it" >&2; exit 1; }

mkdir -p "$folder/packages"
install -m 0755 "$binary" "$folder/shardfeed"
# The package works with every CPython from 3.11 on; numpy's file is for one of them.
if ! ls -d "$folder"/packages/numpy > /dev/null 2>&1; then
  "$python" -m pip install --quiet --disable-pip-version-check --target "$folder/packages" --no-deps \
    --only-binary=:all: --python-version "${PYTHON_VERSION:-3.11}" 'numpy>=2.1,<3'
fi
rm -rf "$folder/packages/shardfeed" "$folder/examples"
cp -R "$root/python/python/shardfeed" "$folder/packages/"
cp -R "$root/examples" "$folder/"
find "$folder/packages/shardfeed" "$folder/examples" -name __pycache__ -prune -exec rm -r {} +
echo "$folder"
