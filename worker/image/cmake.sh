#!/bin/sh
# The cmake that compiles libjpeg-turbo. .cargo/config.toml sets it for every cargo that runs in
# this checkout; the crate turbojpeg-sys calls it. JPEG_SIMD=off compiles without SIMD and without
# nasm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cmake=$here/../../.venv/bin/cmake
[ -x "$cmake" ] || cmake=$(command -v cmake) || {
  echo "error: cmake is missing; it compiles libjpeg-turbo. hint: run \`make build\`, which installs it into .venv, or" \
    "install the system's (Debian: apt install cmake)" >&2
  exit 1
}

case "$1" in
--version)
  exec "$cmake" --version
  ;;
--build)
  # turbojpeg-sys requests the target `install`, which would also compile all programs of
  # libjpeg-turbo.
  "$cmake" --build "$2" --target turbojpeg-static --parallel "${NUM_JOBS:-1}"
  "$cmake" --install "$2" --component include
  mkdir -p "$2/../lib"
  cp "$2/libturbojpeg.a" "$2/../lib/"
  ;;
*)
  if [ "${JPEG_SIMD:-on}" = off ]; then
    exec "$cmake" "$@" -DWITH_SIMD=0 -DREQUIRE_SIMD=0
  fi
  ASM_NASM=$("$here/nasm.sh")
  export ASM_NASM
  exec "$cmake" "$@" -DWITH_SIMD=1 -DREQUIRE_SIMD=1
  ;;
esac
