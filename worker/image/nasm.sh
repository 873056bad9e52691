#!/bin/sh
# Prints the path of nasm, which assembles libjpeg-turbo's SIMD for x86; other processors need none.
# --fetch: if the system has none, unpacks its Debian package under target/tools, without root and
# without a change to the system.
set -eu
case "$(uname -m)" in
x86_64 | amd64 | i?86) ;;
*) exit 0 ;;
esac
[ "${JPEG_SIMD:-on}" != off ] || exit 0
command -v nasm && exit 0
cd "$(dirname "$0")/../.."
tools=$PWD/target/tools
nasm=$tools/usr/bin/nasm

# If the system has no package lists, as in most containers, reads them into a folder below
# target/tools.
fetch() {
  mkdir -p "$tools/apt/lists/partial" "$tools/apt/cache/archives/partial"
  cd "$tools/apt"
  set -- -qq -o APT::Sandbox::User=root
  apt-get "$@" download nasm 2>/dev/null || {
    set -- "$@" -o Debug::NoLocking=true -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache"
    apt-get "$@" update && apt-get "$@" download nasm
  }
  dpkg-deb -x nasm_*.deb "$tools"
}

if [ ! -x "$nasm" ] && [ "${1:-}" = --fetch ] && command -v apt-get >/dev/null; then
  echo "fetching nasm into target/tools" >&2
  (fetch) >&2 || rm -rf "$tools"
fi
[ -x "$nasm" ] && echo "$nasm" && exit 0
cat >&2 <<END
error: nasm is missing; it assembles libjpeg-turbo's SIMD. hint: type one of
  sudo apt install nasm       or as your system installs packages
  JPEG_SIMD=off make build    without it; JPEGs then take about two and a half times as long
END
exit 1
