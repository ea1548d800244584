# fio on the array's block device: writes with verification, random reads, and open zones up to the limit.
# guest: --drives 5

create_array tank $(drives 0 1 2 3 4)
start_array tank
blkzone report "$DEVICE" | head -n 3
grep . "$QUEUE"/{zoned,chunk_sectors,nr_zones,max_open_zones,max_active_zones,zone_append_max_bytes,max_sectors_kb,fua,write_cache,logical_block_size}
[[ $(cat "$QUEUE/zoned") == host-managed ]] || fail "$DEVICE is not zoned"
zones=$(cat "$QUEUE/nr_zones")
open=$(cat "$QUEUE/max_open_zones")
[[ $(blkzone report "$DEVICE" | grep -c '(em)') == "$zones" ]] || fail "a new array has zones that are not empty"

run() {
    fio --filename="$DEVICE" --direct=1 --zonemode=zbd --ioengine=libaio --group_reporting \
        --output-format=terse --terse-version=3 --output=/run/fio "$@" ||
        { cat /run/fio; fail "fio $*"; }
    # Fields of a terse line: read KiB and KiB/s at 6 and 7, written ones at 47 and 48.
    awk -F';' 'NF > 50 { printf "   %s: read %d KiB (%d KiB/s), written %d KiB (%d KiB/s)\n", $3, $6, $7, $47, $48 }' /run/fio
}

zone=0
for shape in 4k:1:1 4k:16:1 16k:8:2 64k:16:2 256k:4:2; do
    IFS=: read -r size depth jobs <<<"$shape"
    step "writes of $size, queue depth $depth, $jobs zones at once, with verification"
    run --name="write-$shape" --rw=write --bs="$size" --iodepth="$depth" --numjobs="$jobs" --verify=crc32c \
        --offset="${zone}z" --size=1z --offset_increment=1z --io_size=$((LONG ? 64 : 6))M
    zone=$((zone + jobs))
done
step "writes of all sizes to all zones, open zones at the limit"
run --name=mixed --rw=randwrite --bsrange=4k-256k --bs_unaligned=0 --iodepth=8 --verify=crc32c \
    --max_open_zones="$open" --io_size=$((LONG ? 512 : 24))M
step "random reads"
run --name=read --rw=randread --bs=4k --iodepth=16 --numjobs=2 --io_size=2M
step "reads and writes at the same time"
run --name=both --rw=randrw --bs=32k --iodepth=8 --max_open_zones=4 --io_size=16M

step "open zones up to the limit"
blkzone reset "$DEVICE"
zone_do open "$DEVICE" 0 "$open"
refused zone_do open "$DEVICE" "$open"
refused dd if=/dev/zero of="$DEVICE" oflag=direct bs=4k count=1 seek=$((open * $(cat "$QUEUE/chunk_sectors") / 8))
zone_do close "$DEVICE" 0
zone_do reset "$DEVICE" 1
dd if=/dev/zero of="$DEVICE" oflag=direct bs=4k count=1 status=none
zone_line "$DEVICE" 0 | grep -q 'wptr 0x000008' || fail "the write pointer after a write to a closed zone is wrong"
zone_do finish "$DEVICE" 0
zone_line "$DEVICE" 0 | grep -q '(fu)' || fail "zone 0 is not finished"
blkzone reset "$DEVICE"
[[ $(blkzone report "$DEVICE" | grep -c '(em)') == "$zones" ]] || fail "zones are not empty after a reset of all"

array_is healthy tank || fail "the array is not healthy"
stop_array tank
