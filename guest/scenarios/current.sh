# On a current kernel (7 or newer): a volume whose daemon is killed and taken over, zoned XFS under SIGKILL, and fio on
# the zones.
# long
# guest: --kernel 7 --tools xfsprogs=6.15 --drives 5:size=1G,zone=16M,capacity=12M --memory 3G --time-limit 1800

uname -r
mkdir -p /run/mnt

step "fio on the zones under SIGKILL of the daemon"
create_array tank $(drives 0 1 2 3 4)
start_array tank
fio --name=zones --filename="$DEVICE" --direct=1 --zonemode=zbd --ioengine=libaio --rw=write --bs=64k --iodepth=8 \
    --numjobs=2 --offset_increment=2z --size=2z --verify=crc32c --group_reporting --output=/run/fio &
fio=$!
sleep 3
killed "$DEVICE"
wait "$fio" || { cat /run/fio; fail "fio on zones"; }
blkzone reset "$DEVICE"

step "zoned XFS under SIGKILL"
null_blk helper 320
mkfs.xfs -q -f -d rtinherit=1 -r zoned=1,rtdev="$DEVICE" /dev/helper >/run/mkfs 2>&1 || { cat /run/mkfs; fail "mkfs.xfs"; }
mount -t xfs -o rtdev="$DEVICE" /dev/helper /run/mnt
fio --name=files --directory=/run/mnt --size=48M --rw=randwrite --bs=16k --fsync=64 --verify=crc32c --output=/run/fio &
fio=$!
sleep 3
killed "$DEVICE"
wait "$fio" || { cat /run/fio; fail "fio on XFS"; }
cp -r engine/src /run/mnt/tree
umount /run/mnt
mount -t xfs -o rtdev="$DEVICE" /dev/helper /run/mnt
diff -r engine/src /run/mnt/tree || fail "the files differ"
umount /run/mnt
blkzone reset "$DEVICE"

step "ext4 on a volume under SIGKILL and take-over of the daemon"
stop_array tank
zoneraid volume create tank
start_array tank
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /run/mnt
fio --name=files --directory=/run/mnt --size=48M --rw=randwrite --bs=4k --fsync=32 --verify=crc32c --output=/run/fio &
fio=$!
sleep 3
killed "$DEVICE"
wait "$fio" || { cat /run/fio; fail "fio on ext4"; }
umount /run/mnt
e2fsck -fn "$DEVICE" >/run/fsck 2>&1 || { cat /run/fsck; fail "e2fsck"; }
stop_array tank
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
