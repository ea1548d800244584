# The array behaves like the kernel's zoned null_blk device, command by command.
# Checksums take the 64 KiB above 24 MiB of each zone: null_blk has capacities of whole MiB.
# guest: --drives 5:capacity=24640K --memory 3G

create_array tank $(drives 0 1 2 3 4)
start_array tank
zone_mb=$(($(cat "$QUEUE/chunk_sectors") / 2048))
zones=$(cat "$QUEUE/nr_zones")
capacity=$(blkzone report --count 1 "$DEVICE" | sed -n 's/.*cap \(0x[0-9a-f]*\).*/\1/p')
((capacity % 2048 == 0)) || fail "zones of $capacity sectors are not whole MiB"
limit=$(cat "$QUEUE/max_open_zones")
null_blk model $((zones * zone_mb)) zoned=1 zone_size=$zone_mb zone_capacity=$((capacity / 2048)) \
    zone_max_open="$limit" zone_max_active="$(cat "$QUEUE/max_active_zones")"

# These commands are executed on both devices and have to print the same.
transcript() {
    local device=$1 n zone=$(($(cat "/sys/block/$(basename "$1")/queue/chunk_sectors") / 8)) cap=$((capacity / 8))
    local queue=/sys/block/$(basename "$device")/queue
    # said WHAT COMMAND...: prints the exit status of a command, and its error message
    said() {
        local what=$1 status=0
        shift
        "$@" >/run/said 2>&1 || status=$?
        echo "$what: $status $(grep -o -E 'Input/output error|Invalid argument|Operation not supported|No space left on device|Value too large|too many|Numerical result out of range|Remote I/O error|Device or resource busy|No buffer space available' /run/said | sort -u | tr '\n' ',')"
    }
    # The write pointer of a full zone is undefined.
    state() {
        blkzone report --offset $((zone * 8 * $1)) --count "${2:-1}" "$device" | sed '/(fu)/s/wptr 0x[0-9a-f]*/wptr -/'
    }
    # put BLOCK COUNT and get BLOCK COUNT: one request each
    put() { dd if=/run/random of="$device" oflag=direct bs=$(($2 * 4096)) count=1 seek=$(($1 * 4096)) oflag=seek_bytes,direct conv=notrunc status=none; }
    get() { dd if="$device" iflag=direct,skip_bytes bs=$(($2 * 4096)) count=1 skip=$(($1 * 4096)) status=none | sha256sum; }

    for n in zoned chunk_sectors nr_zones max_open_zones max_active_zones logical_block_size physical_block_size \
        zone_write_granularity; do
        echo "$n: $(cat "$queue/$n")"
    done
    state 0 "$zones"
    said "report from the middle of a zone" blkzone report --offset $((zone * 8 + 8)) --count 1 "$device"
    cat /run/said
    said "report of the last zone" state $((zones - 1))
    said "report past the end" blkzone report --offset $((zone * 8 * zones)) "$device"
    said "write at the start" put 0 4
    said "write below the write pointer" put 0 1
    said "write past the write pointer" put 5 1
    # After an error the kernel does not trust its own write pointer until it gets a zone report.
    state 0
    said "write at the write pointer" put 4 1
    said "write of half a block" dd if=/run/random of="$device" oflag=direct,seek_bytes bs=512 count=1 seek=$((5 * 4096))
    state 0
    said "read below the write pointer" get 0 5
    cat /run/said
    # Reads above the write pointer are not defined: the array returns zeros, null_blk ones.
    said "read across the write pointer" get 3 4
    said "read above the write pointer" get 100 4
    said "read above the capacity" get $((cap + 4)) 4
    said "read across two zones" get $((zone - 2)) 4
    said "read past the end" get $((zone * zones)) 1
    said "write to the last zone" put $((zone * (zones - 1))) 1
    said "write past the end" put $((zone * zones)) 1
    said "open an empty zone" zone_do open "$device" 1
    state 1
    said "open it again" zone_do open "$device" 1
    said "write to it" put "$zone" 8
    said "close it" zone_do close "$device" 1
    state 1
    said "close it again" zone_do close "$device" 1
    said "write to it when closed" put $((zone + 8)) 8
    state 1
    said "finish it" zone_do finish "$device" 1
    state 1
    said "finish it again" zone_do finish "$device" 1
    said "open it when full" zone_do open "$device" 1
    said "close it when full" zone_do close "$device" 1
    said "write to it when full" put $((zone + 16)) 1
    said "read what it has" get "$zone" 16
    cat /run/said
    said "reset it" zone_do reset "$device" 1
    state 1
    said "reset it when empty" zone_do reset "$device" 1
    said "read it when empty" get "$zone" 16
    said "close an empty zone" zone_do close "$device" 2
    state 2
    said "open and close without a write" zone_do open "$device" 2
    # NVMe zones are closed then, SCSI zones are empty: null_blk is of the latter kind.
    said "open and close without a write" zone_do close "$device" 2
    said "reset it" zone_do reset "$device" 2
    said "finish an empty zone" zone_do finish "$device" 3
    state 3
    said "reset from the middle of a zone" blkzone reset --offset $((zone * 8 + 8)) --count 1 "$device"
    said "reset of a part of a zone" blkzone reset --offset $((zone * 8)) --length 8 "$device"
    said "reset of all" blkzone reset "$device"
    state 0 "$zones"
    said "fill a zone but for a block" dd if=/dev/zero of="$device" oflag=direct,seek_bytes bs=384k count=$((cap / 96)) seek=$((4 * zone * 4096))
    state 4
    said "write past the capacity" put $((4 * zone + cap)) 1
    state 4
    said "open to the limit" zone_do open "$device" 5 $((zones - 5))
    said "open to the limit" zone_do open "$device" 0 $((limit - zones + 5))
    said "open one more" zone_do open "$device" 4
    said "open one more" zone_do open "$device" 3
    said "write to one more" put $((3 * zone)) 1
    said "close one" zone_do close "$device" 5
    said "write to one more" put $((3 * zone)) 1
    said "write to the closed one" put $((5 * zone)) 1
    state 0 "$zones"
    said "reset of all" blkzone reset "$device"
    said "two zones in one request" dd if=/dev/zero of="$device" oflag=direct,seek_bytes bs=1M count=1 seek=$(((zone - 128) * 4096))
    said "discard" blkdiscard --offset 0 --length 1M "$device"
    said "zeros" blkdiscard --zeroout --offset $((6 * zone * 4096)) --length 1M "$device"
    state 6
    said "write through the page cache" dd if=/run/random of="$device" bs=4k count=1 seek=$((7 * zone))
    state 7
}
head -c 64k /dev/urandom >/run/random
transcript /dev/model >/mnt/guest/model
transcript "$DEVICE" >/mnt/guest/array
diff /mnt/guest/model /mnt/guest/array || fail "the array (>) differs from null_blk (<)"
wc -l </mnt/guest/array
array_is healthy tank || fail "the array is not healthy"
stop_array tank
