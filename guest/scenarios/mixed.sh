# One array as a zoned and as a conventional device: F2FS has its metadata on a volume in a namespace, and its data in the
# zones of another one. Files are written while the daemon is killed and until the power is cut; then a drive is removed,
# and all acknowledged files are there, and more can be written. `mixed_xfs` is the same with zoned XFS.
# guest: --drives 5:size=1G,zone=8M,capacity=6M,open=40,active=40,zrwa=128K --reboots --memory 3G

: "${fs:=f2fs}"
acknowledged=/mnt/guest/acknowledged
zones=/dev/zoneraid/tank/zones
plain=/dev/zoneraid/tank/plain
mkdir -p /run/mnt
modprobe $fs

make_f2fs() { mkfs.f2fs -f -m -c $zones $plain; }
mount_f2fs() { mount -t f2fs $plain /run/mnt; }
repaired_f2fs() { check_f2fs $plain; }

make_xfs() { mkfs.xfs -f -d rtinherit=1 -r zoned=1,rtdev=$zones $plain; }
mount_xfs() { mount -t xfs -o rtdev=$zones $plain /run/mnt; }
repaired_xfs() { xfs_repair -n -r $zones $plain >/run/fsck 2>&1 || { cat /run/fsck; fail "xfs_repair"; }; }


if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    zoneraid namespace create tank/zones --size 1300M --active 8
    zoneraid volume create tank/plain --size 320M
    start_array tank
    [[ $(cat "/sys/block/$(basename "$(readlink -f $zones)")/queue/zoned") == host-managed ]] || fail "$zones is not zoned"
    [[ $(cat "/sys/block/$(basename "$(readlink -f $plain)")/queue/zoned") == none ]] || fail "$plain is zoned"
    (($(blockdev --getsize64 $plain) == 320 << 20)) || fail "$plain has another size"
    refused zoneraid volume create tank/more --size 64M
    make_$fs >/run/mkfs 2>&1 || { cat /run/mkfs; fail "mkfs"; }
    mount_$fs

    step "fio on $fs under SIGKILL of the daemon"
    fio --name=files --directory=/run/mnt --size=32M --rw=randwrite --bs=16k --fsync=32 --verify=crc32c --output=/run/fio &
    fio=$!
    sleep 2
    killed $zones $plain
    wait "$fio" || { cat /run/fio; fail "fio on $fs"; }
    cp -r engine/src /run/mnt/tree
    umount /run/mnt
    repaired_$fs
    mount_$fs
    diff -r engine/src /run/mnt/tree || fail "the files differ"

    step "files are written until the power is cut"
    keep_files $acknowledged /run/mnt file /run/mnt &
    wait_for 60 several $acknowledged
    guest ask reset --after "$((1000 + $(draw 3000 after)))"
    sleep 120
    fail "the machine did not crash"
fi

lost=$(draw 5 lost)
step "boot after the power cut: drive $lost is gone; $(wc -l <$acknowledged) files were acknowledged"
remove_drive "$lost"
start_array tank
array_is degraded tank || fail "not degraded without drive $lost"
mount_$fs
same_files $acknowledged /run/mnt
diff -r engine/src /run/mnt/tree || fail "the files differ"
cp -r sim/src /run/mnt/more
umount /run/mnt
repaired_$fs
mount_$fs
diff -r sim/src /run/mnt/more || fail "files that were written without the drive differ"
umount /run/mnt
! dmesg | grep -E 'I/O error.*ublk|hung task|blocked for more' || fail "errors in the kernel log"
stop_array tank
