# Common functions of the tests; sourced before each of them. Tests run with `set -euo pipefail`.

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# Prints the next step, with the time since boot.
step() { echo "== $(cut -d' ' -f1 /proc/uptime) s: $*"; }

# wait_for SECONDS COMMAND...: waits until the command succeeds
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || fail "timeout: $*"
        sleep 0.1
    done
}

# refused COMMAND...: the command has to fail
refused() {
    if "$@" >/dev/null 2>&1; then fail "was not refused: $*"; fi
}

# draw LIMIT WORD...: a number below LIMIT, derived from the seed and the words that name the choice
draw() { echo $((16#$(echo "$GUEST_SEED $*" | sha256sum | head -c 12) % $1)); }

# The controller (as nvme3) with the serial number driveN; PCI probes controllers in any order.
controller() {
    local serial
    for serial in /sys/class/nvme/*/serial; do
        if [[ $(cat "$serial" 2>/dev/null) =~ ^drive$1\ *$ ]]; then
            basename "$(dirname "$serial")"
            return
        fi
    done
    return 1
}

# The path of a drive for zoneraid, and that of its kernel block device.
drive() { local c; c=$(controller "$1") && echo "/dev/ng${c#nvme}n1"; }
block() { local c; c=$(controller "$1") && echo "/dev/${c}n1"; }
drives() { local n; for n in "$@"; do drive "$n"; done; }

# remove_drive N: removes a drive like a pull; add_drives: brings removed drives back
remove_drive() { echo 1 >"/sys/class/nvme/$(controller "$1")/device/remove"; }
add_drives() { echo 1 >/sys/bus/pci/rescan; }

# null_blk NAME MEGABYTES [KEY=VALUE...]: creates a block device in memory with these configfs attributes
null_blk() {
    local name=$1 size=$2 pair
    shift 2
    modprobe null_blk nr_devices=0
    local dir=/sys/kernel/config/nullb/$name
    mkdir "$dir"
    for pair in blocksize=4096 "size=$size" memory_backed=1 irqmode=0 "$@" power=1; do
        echo "${pair#*=}" >"$dir/${pair%%=*}"
    done
    wait_for 5 test -b "/dev/$name"
}

# smr_disks: creates four host-managed SMR disks in memory, with conventional zones at the start, and prints their paths
smr_disks() {
    modprobe sd_mod
    modprobe scsi_debug zbc=host-managed zone_size_mb=4 zone_nr_conv=2 zone_max_open=12 dev_size_mb=96 \
        sector_size=4096 per_host_store=1 add_host=4 max_luns=1 num_tgts=1
    disks() { ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*; }
    four() { [[ $(disks 2>/dev/null | wc -l) == 4 ]]; }
    wait_for 30 four
    local disk
    for disk in $(disks); do echo "/dev/$(basename "$disk")"; done
}

# create_array NAME DRIVE...; start_array NAME OPTION...: sets DEVICE to its block device, and DAEMON to its process
create_array() {
    local name=$1
    shift
    zoneraid create --yes "$name" "$@"
}
start_array() {
    modprobe ublk_drv
    # The daemon prints this when it is ready; the link may be left from a killed daemon.
    : >/run/started
    zoneraid start "$@" >/run/started &
    DAEMON=$!
    ready() { kill -0 "$DAEMON" 2>/dev/null || fail "zoneraid start has ended"; [[ -s /run/started ]]; }
    wait_for 120 ready
    cat /run/started
    DEVICE=$(readlink -f "/dev/zoneraid/$1")
    QUEUE=/sys/block/$(basename "$DEVICE")/queue
}
stop_array() {
    zoneraid stop "$1"
    wait "$DAEMON"
    [[ ! -e $DEVICE ]] || fail "$DEVICE is still there"
}
# device NAME: the block device of a volume or namespace of the array tank
device() { readlink -f "/dev/zoneraid/tank/$1"; }
# killed DEVICE...: kills the daemon of the array tank and starts it again; these block devices have to outlive the former
killed() {
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    local shown
    for shown in "$@"; do [[ -b $shown ]] || fail "$shown did not outlive the daemon"; done
    start_array tank
}
# lines LOG: the number of lines of a log that may be growing. A read at the end of such a file can fail with ENODATA on
# 9p without a cache; the lines before the end are counted all the same.
lines() { wc -l <"$1" 2>/dev/null || true; }
# loaded PROCESS LOG: waits until the load with this log has had some more writes acknowledged
loaded() {
    local load=$1 log=$2 before
    wait_for 60 test -e "$log"
    before=$(lines "$log")
    more() { kill -0 "$load" || fail "the load has failed"; (($(lines "$log") > before + 20)); }
    wait_for 60 more
}
# array_is STATE NAME: tests the state that `status` reports
array_is() { [[ $(zoneraid --json status "$2" | jq -r .state) == "$1" ]]; }

# zone_line DEVICE ZONE: the kernel's report of a zone
zone_line() {
    local sectors
    sectors=$(cat "/sys/block/$(basename "$1")/queue/chunk_sectors")
    blkzone report --count 1 --offset $(($2 * sectors)) "$1"
}
# zone_do VERB DEVICE ZONE [COUNT]: executes a zone command of blkzone
zone_do() {
    local sectors
    sectors=$(cat "/sys/block/$(basename "$2")/queue/chunk_sectors")
    blkzone "$1" --offset $(($3 * sectors)) --count "${4:-1}" "$2"
}

# check_f2fs DEVICE: fsck.f2fs 1.15 miscounts free segments on any drive whose zone capacity is less than the zone size;
# other errors are failures.
check_f2fs() {
    fsck.f2fs --dry-run "$1" >/run/fsck 2>&1 || true
    grep -q '^\[FSCK\]' /run/fsck || { cat /run/fsck; fail "fsck.f2fs printed no results"; }
    if grep -E '\[Fail\]|\[ASSERT\]' /run/fsck | grep -v 'free segment_count'; then fail "fsck.f2fs"; fi
}

# Writers that run until the power is cut, and log durable data outside of the guest.
# keep_files LOG DIR PREFIX SYNC...: writes files with the output of `content N`, by default random bytes; SYNC are
# arguments of sync in addition to the file
content() { head -c $((4096 * (1 + $1 % 40))) /dev/urandom; }
keep_files() {
    local log=$1 dir=$2 prefix=$3 n=0 name sum
    shift 3
    while true; do
        n=$((n + 1))
        name=$prefix$n
        sum=$(content "$n" | tee "$dir/$name" | sha256sum | cut -c1-64)
        sync "$@" "$dir/$name"
        echo "$name $sum" >>"$log"
    done
}
# keep_rows LOG DATABASE: inserts rows into a table. A transaction is committed when its journal is unlinked, and only
# EXTRA syncs the directory after that.
keep_rows() {
    local n=0
    while true; do
        n=$((n + 1))
        sqlite3 "$2" "PRAGMA synchronous=EXTRA; INSERT INTO t VALUES ($n, hex(randomblob(200)));"
        echo "$n" >>"$1"
    done
}
new_table() {
    sqlite3 "$1" "PRAGMA synchronous=EXTRA; CREATE TABLE t (n INTEGER PRIMARY KEY, sum TEXT);"
    sync
}
# several LOG...: whether each log has enough entries for a test, however slow the machine is
several() {
    local log
    for log in "$@"; do [[ -f $log ]] && (($(lines "$log") > 3)) || return; done
}
# same_files LOG DIR; same_rows LOG DATABASE: check that all acknowledged data is there
same_files() {
    local name sum
    while read -r name sum; do
        [[ $(sha256sum <"$2/$name" | cut -c1-64) == "$sum" ]] || fail "$name differs from the acknowledged data"
    done <"$1"
}
same_rows() {
    local rows found
    rows=$(wc -l <"$1")
    [[ $(sqlite3 "$2" "PRAGMA integrity_check") == ok ]] || fail "the database is damaged"
    found=$(sqlite3 "$2" "SELECT count(*) FROM t WHERE n <= $rows")
    ((found == rows)) || fail "only $found of $rows acknowledged rows are there"
}
