# The daemon is killed and upgraded under a mounted file system and under fio, without an I/O error.
# guest: --drives 5:size=1G,zone=16M,capacity=12M --memory 3G

create_array tank $(drives 0 1 2 3 4)
start_array tank
null_blk helper 256
mkfs.f2fs -f -m -c "$DEVICE" /dev/helper >/run/mkfs || { cat /run/mkfs; fail "mkfs.f2fs"; }
mkdir -p /run/mnt
mount -t f2fs /dev/helper /run/mnt

cp -r engine/src /run/tree
copies() {
    local n=0
    until [[ -e /run/enough ]]; do
        n=$((n + 1))
        cp -r /run/tree "/run/mnt/$n"
        sync -f /run/mnt
        ((n % 4)) || rm -r "/run/mnt/$((n - 2))"
    done
    echo "$n" >/run/copies
}
copies &
load=$!
rounds=$((LONG ? 12 : 3))
for round in $(seq "$rounds"); do
    sleep "$((1 + $(draw 3 pause "$round"))).$(draw 10 tenth "$round")"
    step "SIGKILL number $round"
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    [[ -b $DEVICE ]] || fail "$DEVICE did not outlive the daemon"
    start_array tank
    kill -0 "$load" || fail "the load has failed"
done
step "SIGTERM, as in an upgrade"
kill -TERM "$DAEMON"
wait "$DAEMON" || fail "the daemon failed after SIGTERM"
[[ -b $DEVICE ]] || fail "$DEVICE was removed under a mounted file system"
start_array tank
refused zoneraid stop tank
touch /run/enough
wait "$load" || fail "the load has failed"
echo "   $(cat /run/copies) copies"

step "verification of all copies"
umount /run/mnt
check_f2fs /dev/helper
mount -t f2fs /dev/helper /run/mnt
for copy in /run/mnt/*; do diff -r /run/tree "$copy" || fail "$copy differs"; done
umount /run/mnt

step "SIGKILL under fio"
blkzone reset "$DEVICE"
fio --name=killed --filename="$DEVICE" --direct=1 --zonemode=zbd --ioengine=libaio --iodepth=8 --rw=randwrite \
    --bsrange=4k-128k --verify=crc32c --max_open_zones=4 --io_size=$((LONG ? 512 : 64))M --output=/run/fio &
fio=$!
while sleep 2 && kill -0 "$fio" 2>/dev/null; do
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    start_array tank
done
wait "$fio" || { cat /run/fio; fail "fio"; }
array_is healthy tank || fail "the array is not healthy"
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
stop_array tank
