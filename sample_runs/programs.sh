# Shared by the scripts in the folders here: sourced, not run. Sets `root` and UPIPE_BUILD, the folder with
# upipe-train and upipe-report; builds them in build/release unless UPIPE_BUILD is set already.
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
if [ -z "${UPIPE_BUILD:-}" ]; then
  need_packages "${packages[@]}"
  mkdir -p "$root/build"
  targets="upipe-train upipe-report" build "$root/build/release"
  UPIPE_BUILD="$root/build/release"
fi

# sample [options of upipe-train]: records run.db in the present folder, and what the report says of it.
sample() {
  PATH="$UPIPE_BUILD:$PATH"
  upipe-train "$@" --trace run.db
  upipe-report run.db >report.txt
  cat report.txt
}
