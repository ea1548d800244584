# Cost of a 4 KiB request through block device and array for the daemon: system calls, processor time.
# guest: --drives 5
#
# The calls are counted and limited; the time is only printed, since QEMU's emulated processor has
# little to do with a real one.

create_array tank $(drives 0 1 2 3 4)
start_array tank

# load NAME SECONDS OPTIONS...: prints the number of requests
load() {
    local name=$1 seconds=$2
    shift 2
    fio --name="$name" --filename="$DEVICE" --direct=1 --zonemode=zbd --ioengine=libaio --bs=4k --group_reporting \
        --time_based --runtime="$seconds" --output-format=json --output=/run/fio.json "$@" || fail "fio $name"
    jq '[.jobs[] | .read.total_ios + .write.total_ios] | add' /run/fio.json
}
# ticks: user and system time of the daemon, in hundredths of a second
ticks() { awk '{ print $14, $15 }' "/proc/$DAEMON/stat"; }
per() { awk -v n="$1" -v d="$2" 'BEGIN { printf "%.2f", n / d }'; }

printf '%-22s %10s %10s %14s %10s %12s %12s\n' LOAD REQUESTS ENTER/REQ COPY/REQ OTHER/REQ USER_US/REQ SYSTEM_US/REQ
measure() {
    local name=$1 limit=$2 user system after_user after_system requests cpu_requests calls
    shift 2
    blkzone reset "$DEVICE"
    [[ $* == *randread* ]] && dd if=/dev/zero of="$DEVICE" oflag=direct bs=256k count=64 status=none
    read -r user system < <(ticks)
    cpu_requests=$(load "$name" 3 "$@")
    read -r after_user after_system < <(ticks)
    [[ $* == *randread* ]] || blkzone reset "$DEVICE"
    strace --follow-forks --summary-only --summary-sort-by=calls --output=/run/strace --attach="$DAEMON" &
    local tracer=$!
    sleep 1
    requests=$(load "$name" 3 "$@")
    kill -INT "$tracer"
    wait "$tracer" || true
    calls=$(awk '$NF == "io_uring_enter" { enter = $4 } $NF ~ /^p(read|write)/ { copy += $4 }
        $NF == "total" { total = $3 ~ /^[0-9]+$/ && $4 == "total" ? $3 : $4 } END { print enter + 0, copy + 0, total + 0 }' /run/strace)
    read -r enter copy total <<<"$calls"
    printf '%-22s %10d %10s %14s %10s %12d %12d\n' "$name" "$requests" "$(per "$enter" "$requests")" \
        "$(per "$copy" "$requests")" "$(per $((total - enter - copy)) "$requests")" \
        $(((after_user - user) * 10000 / cpu_requests)) $(((after_system - system) * 10000 / cpu_requests))
    awk -v n="$total" -v r="$requests" -v limit="$limit" 'BEGIN { exit !(n <= limit * r) }' ||
        { cat /run/strace; fail "$name: more than $limit system calls a request"; }
}

measure write-alone 5 --rw=write --iodepth=1 --size=4z
measure write-32-in-flight 2 --rw=write --iodepth=4 --numjobs=8 --offset_increment=1z --size=1z
measure read-32-in-flight 2 --rw=randread --iodepth=32 --size=1z --io_size=1G
array_is healthy tank || fail "the array is not healthy"
stop_array tank
