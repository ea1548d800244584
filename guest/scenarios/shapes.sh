# Arrays of drives with metadata in each block, other ZRWAs, or odd capacities; drives with blocks of 512 bytes are
# refused.
# guest: --drives 4:metadata=64,size=256M
# guest: --drives 3:size=256M,capacity=19M,zrwa=512K,granularity=32K,open=8,active=10
# guest: --drives 3:lba=512,size=256M,zone=16M,capacity=15M

# lives CHUNK CHECKSUMS DRIVE...: writes an array, degrades it, reads it, and rebuilds a member on its own drive
lives() {
    local chunk=$1 checksums=$2 name=tank$3 log=/mnt/guest/acknowledged$3
    shift 2
    step "drives $* with chunks of $chunk, checksums $checksums"
    zoneraid create --yes --chunk "$chunk" --checksums "$checksums" "$name" $(drives "$@")
    start_array "$name"
    grep . "$QUEUE"/{chunk_sectors,logical_block_size,max_open_zones}
    guest load "$DEVICE" --log "$log" --zones 4 --seconds $((LONG ? 60 : 4))
    guest verify "$DEVICE" --log "$log"
    stop_array "$name"
    remove_drive "$2"
    start_array "$name"
    array_is degraded "$name" || fail "not degraded"
    guest verify "$DEVICE" --log "$log"
    guest load "$DEVICE" --log "$log" --zones 4 --seconds 1
    guest verify "$DEVICE" --log "$log"
    add_drives
    wait_for 30 drive "$2" >/dev/null
    zoneraid replace --yes "$name" 1 "$(drive "$2")"
    array_is healthy "$name" || fail "not healthy"
    guest verify "$DEVICE" --log "$log"
    stop_array "$name"
}

lives 32K on 0 1 2 3
lives 64K off 4 5 6

step "blocks of 512 bytes, of which QEMU's drives do not promise to write eight atomically"
if zoneraid create --yes small $(drives 7 8 9) 2>/run/said; then fail "drives that may tear blocks were accepted"; fi
cat /run/said
grep -F "$(drive 7)" /run/said | grep -F "blocks of 512 bytes" | grep -F "does not guarantee atomic writes of 4096 bytes" || fail "the message does not name the drive and the reason"
