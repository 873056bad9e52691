#!/bin/sh
# Collects the contents of the images in one folder, Docker's build context: the command and the
# Python package from `make build`, numpy, and the examples.
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
# Without debug information, which is most of the file. (binutils come with the C compiler.)
strip -o "$folder/shardfeed" "$binary"
chmod 0755 "$folder/shardfeed"
# The package works with every CPython from 3.11 on; numpy's wheel is for one version.
if ! ls -d "$folder"/packages/numpy > /dev/null 2>&1; then
  "$python" -m pip install --quiet --disable-pip-version-check --target "$folder/packages" --no-deps \
    --only-binary=:all: --python-version "${PYTHON_VERSION:-3.11}" 'numpy>=2.1,<3'
fi
rm -rf "$folder/packages/shardfeed" "$folder/examples"
cp -R "$root/python/python/shardfeed" "$folder/packages/"
cp -R "$root/examples" "$folder/"
find "$folder/packages/shardfeed" "$folder/examples" -name __pycache__ -prune -exec rm -r {} +
echo "$folder"
