# A volume below ext4, XFS and SQLite: its daemon is killed, then the power is cut and a drive is removed, and all
# acknowledged data is there. The whole device is written three times in random order, which needs garbage collection;
# trimmed blocks become free; NBD clients read the same data.
# guest: --drives 6:size=256M,zone=8M,capacity=6208K --reboots --time-limit 1500 --memory 3G

acknowledged=/mnt/guest/acknowledged
mkdir -p /run/mnt
# used: used bytes of the volume; number PATH: a field of the status
number() { zoneraid --json status tank | jq -r "$1"; }
used() { number .volume.used_bytes; }

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    start_array tank
    refused zoneraid volume create tank
    stop_array tank
    zoneraid volume create tank
    refused zoneraid volume create tank
    start_array tank
    for expected in zoned:none logical_block_size:4096 discard_granularity:4096 fua:1 "write_cache:write back"; do
        [[ $(cat "$QUEUE/${expected%%:*}") == "${expected#*:}" ]] || fail "${expected%%:*} is $(cat "$QUEUE/${expected%%:*}")"
    done
    (($(cat "$QUEUE/discard_max_bytes") > 0 && $(cat "$QUEUE/write_zeroes_max_bytes") > 0)) || fail "no discard"

    step "random writes of the whole device, three times, under SIGKILL of the daemon"
    # The first pass draws blocks uniformly, the second one prefers a few of them, the third one writes each once. If
    # all passes had the same order (fio uses the same order for every seed), whole zones would become free and nothing
    # would have to be collected.
    all() {
        fio --name="all$1" --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \
            --randseed="$1" --verify=crc32c --output=/run/fio "${@:2}"
    }
    { all 1 --do_verify=0 --norandommap && all 2 --do_verify=0 --random_distribution=zipf:0.9 && all 3 --do_verify=0; } &
    fio=$!
    collected=0
    while sleep 5 && kill -0 "$fio" 2>/dev/null; do
        # The count starts anew with each process.
        collected=$((collected + $(number .volume.collection.collected_zones)))
        step "SIGKILL at $(used) bytes, $collected zones collected"
        killed "$DEVICE"
        sleep 10
    done
    wait "$fio" || { cat /run/fio; fail "fio"; }
    all 3 --verify_only || { cat /run/fio; fail "data differs from that of fio"; }
    ((collected + $(number .volume.collection.collected_zones) > 0)) || fail "no zone was collected"
    zoneraid status tank

    step "discarded blocks are free"
    blkdiscard "$DEVICE"
    [[ $(used) == 0 ]] || fail "$(used) bytes are in use after the discard"
    cmp -n $((64 << 20)) "$DEVICE" /dev/zero || fail "discarded blocks are not zeros"

    step "ext4 under SIGKILL"
    mkfs.ext4 -q "$DEVICE"
    mount "$DEVICE" /run/mnt
    fio --name=files --directory=/run/mnt --size=32M --rw=randwrite --bs=4k --fsync=32 --verify=crc32c --output=/run/fio &
    fio=$!
    sleep 2
    killed "$DEVICE"
    wait "$fio" || { cat /run/fio; fail "fio on ext4"; }
    cp -r engine/src /run/mnt/tree
    before=$(used)
    rm /run/mnt/files*
    sync -f /run/mnt
    fstrim /run/mnt
    (($(used) + (24 << 20) < before)) || fail "fstrim freed little: $before before, $(used) after"
    umount /run/mnt
    e2fsck -fn "$DEVICE" >/run/fsck 2>&1 || { cat /run/fsck; fail "e2fsck"; }
    mount "$DEVICE" /run/mnt
    diff -r engine/src /run/mnt/tree || fail "the files differ"
    umount /run/mnt

    step "files and rows are written on XFS until the power is cut"
    mkfs.xfs -q -f "$DEVICE"
    mount "$DEVICE" /run/mnt
    new_table /run/mnt/db
    keep_files "$acknowledged.files" /run/mnt file /run/mnt &
    keep_rows "$acknowledged.rows" /run/mnt/db &
    wait_for 60 several "$acknowledged.files" "$acknowledged.rows"
    after=$((4000 + $(draw 4000 after)))
    guest ask reset --after "$after"
    sleep 120
    fail "the machine did not crash"
fi

lost=$(draw 5 lost)
files=$(wc -l <"$acknowledged.files")
rows=$(wc -l <"$acknowledged.rows")
step "boot after the power cut: drive $lost is gone; $files files and $rows rows were acknowledged"
remove_drive "$lost"
start_array tank
array_is degraded tank || fail "not degraded without drive $lost"
same() {
    same_files "$acknowledged.files" /run/mnt
    same_rows "$acknowledged.rows" /run/mnt/db
}
mount "$DEVICE" /run/mnt
same
umount /run/mnt
xfs_repair -n "$DEVICE" >/run/fsck 2>&1 || { cat /run/fsck; fail "xfs_repair"; }

step "drive 5 replaces drive $lost"
zoneraid replace --yes tank "$lost" "$(drive 5)"
array_is healthy tank || fail "not healthy after the rebuild"
stop_array tank

step "the same data for NBD clients"
zoneraid serve tank --nbd /run/nbd.sock >/run/served &
DAEMON=$!
served() { [[ -s /run/served ]]; }
wait_for 60 served
cat /run/served
uri="nbd+unix:///?socket=/run/nbd.sock"
[[ $(nbdinfo --size "$uri") == $(number .volume.size_bytes) ]] || fail "nbdinfo shows another size"
modprobe nbd
nbd-client -unix /run/nbd.sock /dev/nbd0 -b 4096
mount /dev/nbd0 /run/mnt
same
umount /run/mnt
refused zoneraid stop tank
nbd-client -d /dev/nbd0
gone() { zoneraid stop tank 2>/run/refused; }
wait_for 20 gone
wait "$DAEMON" || fail "the server failed"
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
