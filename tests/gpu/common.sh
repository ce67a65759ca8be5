# Common parts of the scripts that check a machine with a GPU. Source it, then call `begin BINARY OUT`.
#
# Every step has its own time limit. Its output and its row of the table are written as soon as it ends, so
# that a run that is cut off still reports what it measured. OUT holds three files, since lent machines
# return few: log.txt (all output), report.md (device, table, the end of each step's output), clocks.txt.

# begin BINARY OUT: checks the arguments, finds skein-dev, the device and NVIDIA's libraries, starts the
# report. Ends the script with success if there is no GPU. Paths are relative to the directory that the script
# came from.
begin() {
  local from=${OLDPWD:-$PWD}
  [ $# -ge 2 ] || refuse "usage: $0 path/to/skein OUT"
  binary=$(cd "$from" && realpath -e "$1") && [ -f "$binary" ] && [ -x "$binary" ] || refuse "$1 is not a program"
  dev=$(dirname "$binary")/skein-dev
  [ -x "$dev" ] || refuse "$dev is missing: it makes the models; tests/gpu/pack packs it, cargo build -p skein-dev builds it"
  out=$(cd "$from" && mkdir -p "$2" && realpath "$2") && [ -w "$out" ] || refuse "$2 is not a folder that can be written"
  [[ device =~ ${ONLY:-} ]]
  [ $? != 2 ] || refuse "ONLY=$ONLY is not a regular expression"
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
    echo "SKIPPED: no NVIDIA GPU on this machine"
    exit 0
  fi
  work=$(mktemp -d) || refuse "no temporary folder; set TMPDIR"
  failed=0 ran=0 running='' python=${PYTHON:-python3} dry=''
  [ "${DRY_RUN:-0}" = 0 ] || dry=1
  export SKEIN_KERNEL_CACHE=$work/cache HOME=${HOME:-$work} PYTHONUNBUFFERED=1
  rows=$work/rows
  : >"$rows" >"$out/log.txt"
  find_libraries
  # It holds the device, so that no step pays for the driver's start.
  nvidia-smi dmon -d 1 -s pucm >"$out/clocks.txt" 2>&1 &
  clocks=$!
  trap finish EXIT
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM HUP
  ONLY='' step device 30 "$binary" gpu-check device
  built_in "$work/device.log" || exit 1
  ran=0
}

refuse() {
  echo "$1" >&2
  exit 2
}

# interrupted STATUS: ends the running step, keeps what it said, and ends the script.
interrupted() {
  trap '' INT TERM HUP
  if [ -n "$running" ]; then
    kill "$running" 2>/dev/null
    wait "$running"
    record "$current" interrupted 0 $((SECONDS - started))
  fi
  exit "$1"
}

# ended: the script's last line.
ended() {
  [ -z "${ONLY:-}" ] || [ "$ran" -gt 0 ] || { echo "ONLY=$ONLY: no step has such a name" && failed=1; }
  exit "$failed"
}

# Puts CUDA's libraries on LD_LIBRARY_PATH unless the loader finds them, all from one installation.
find_libraries() {
  local folders
  [ -z "${LD_LIBRARY_PATH:-}" ] || ! has_cublaslt "${LD_LIBRARY_PATH//:/ }" || return 0
  folders=$("$python" - 2>/dev/null <<'PY'
import pathlib
import nvidia
for root in nvidia.__path__:
    if (pathlib.Path(root) / "cu13/lib/libcublasLt.so.13").exists():
        print(f"{root}/cu13/lib:{root}/nccl/lib")
        break
PY
  )
  if [ -z "$folders" ] && ! ldconfig -p | grep -q 'libcublasLt\.so\.13'; then
    folders=$(dirname "$(find / -xdev -name libcublasLt.so.13 -not -path '/proc/*' -print -quit 2>/dev/null)")
    [ "$folders" != . ] || folders=
  fi
  [ -z "$folders" ] || export LD_LIBRARY_PATH=$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

has_cublaslt() {
  local folder
  for folder in $1; do
    [ ! -e "$folder/libcublasLt.so.13" ] || return 0
  done
  return 1
}

# step NAME SECONDS COMMAND...: runs the command within the time and records the result. The last lines that
# say something go into the table. With ONLY, a regular expression, steps with other names are left out, but
# for the first, `device`.
step() {
  local name=$1 limit=$2 status
  shift 2
  [[ $name =~ ${ONLY:-} ]] || return 0
  limit=$(within "$limit") started=$SECONDS current=$name ran=$((ran + 1))
  # Longer than gpu-check waits for a process that the driver does not let go.
  timeout --kill-after=15 "$limit" "$@" >"$work/$name.log" 2>&1 &
  running=$!
  wait "$running"
  status=$?
  running=
  record "$name" "$status" "$limit" $((SECONDS - started))
}

# record NAME STATUS LIMIT SECONDS: adds the output in $work/NAME.log and a row.
record() {
  local said
  case $2 in
    0) said=passed ;;
    77) said=SKIPPED ;;
    interrupted) said="**interrupted**" failed=1 ;;
    124 | 137) said="**stopped after $3 s**" failed=1 ;;
    *) said="**FAILED** ($2)" failed=1 ;;
  esac
  { printf '\n== %s: %s, %s s\n' "$1" "$said" "$4"; cat "$work/$1.log"; } >>"$out/log.txt"
  local line
  line=$(grep -E "${SHOWN:-passed|FAILED|failed|SKIPPED|tok/s|tokens/s|differ|GB/s}" "$work/$1.log" | tail -n "${LINES_SHOWN:-2}" | cut -c1-140 |
    tr '|\n' '/;')
  printf '| %s | %s | %s | %s |\n' "$1" "$said" "$4" "$line" | tee -a "$rows"
}

# within SECONDS: a limit of time. The emulated device is slow, and its machine may be busy.
within() {
  echo $((dry ? 10 * $1 : $1))
}

# skipped NAME WHY
skipped() {
  printf '| %s | SKIPPED | | %s |\n' "$1" "$2" | tee -a "$rows"
}

# built_in LOG: whether the kernels were compiled with the binary. NVRTC would take minutes of a lent machine.
built_in() {
  [ -z "$dry" ] || return 0
  grep -q 'built into this binary' "$1" && return 0
  echo "| kernels | **FAILED** | | not built into this binary: tests/gpu/pack makes one with SKEIN_CUDA_TARGETS=90a |" | tee -a "$rows"
  return 1
}

# shape NAME [FORM]: directory of a model of that shape without weights, and of a form of codes if one is
# named.
shape() {
  local folder=$work/shape-$1${2:+-$2}
  [ -d "$folder" ] || "$dev" make-model --shape "$1" --no-weights ${2:+--quantization "$2"} --out "$folder" >/dev/null || return 1
  echo "$folder"
}

# Writes report.md; called at the end, whatever the end.
finish() {
  kill "$clocks" 2>/dev/null
  {
    echo "# $(basename "$0")"
    echo
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    "$binary" version
    head -n 1 "$work/device.log" 2>/dev/null
    echo
    echo "| step | outcome | s | |"
    echo "|---|---|--:|---|"
    cat "$rows"
    for log in $(ls -tr "$work"/*.log 2>/dev/null); do
      printf '\n## %s\n\n```text\n%s\n```\n' "$(basename "$log" .log)" "$(tail -n "${TAIL:-60}" "$log")"
    done
  } >"$out/report.md"
  printf '\n'
  sed '/^## /,$d' "$out/report.md"
  rm -rf "$work"
}
