# Shared by the scripts beside this file: packages and builds. Sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

packages=(build-essential cmake ninja-build pkg-config libopenblas-openmp-dev libsqlite3-dev
  libjansson-dev libcmocka-dev)

# Installs those of the given Debian packages that are not there.
need_packages() {
  local missing=() package run=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  [ "$(id -u)" = 0 ] || run=(sudo)
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${run[@]}" apt-get update -qq
  "${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# build FOLDER [cmake options]: configures and builds everything there.
build() {
  local folder=$1
  shift
  cmake -S "$root" -B "$folder" -G Ninja "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; return 1; }
  ninja -C "$folder" ${targets:-} >"$folder.log" 2>&1 || { cat "$folder.log"; return 1; }
  rm -f "$folder.log"
}
