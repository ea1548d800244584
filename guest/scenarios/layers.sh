# A partition with LVM, dm-crypt, and XFS, each on a volume of a pool: files are written while the daemon is killed, a
# snapshot is made, and the power is cut. With a drive removed each has all acknowledged files, and a clone of the snapshot has
# those that were acknowledged before it.
# guest: --drives 6:size=512M,zone=8M,capacity=6M --reboots --time-limit 900 --memory 3G

acknowledged=/mnt/guest/acknowledged
# Without udev the programs make the device files themselves.
export DM_DISABLE_UDEV=1
mkdir -p /run/lvm /run/lvm-mnt /run/crypt-mnt /run/xfs-mnt /run/copy-mnt
modprobe dm_crypt
modprobe xfs
quietly() { "$@" >/run/said 2>&1 || { cat /run/said; fail "$*"; }; }
cipher() { echo -n secret | quietly cryptsetup "$@" --key-file -; }
mounted() {
    quietly vgchange -q -ay pool
    cipher open --allow-discards "$(device crypt)" secret
    mount /dev/mapper/pool-data /run/lvm-mnt
    mount -o discard /dev/mapper/secret /run/crypt-mnt
    mount "$(device xfs)" /run/xfs-mnt
}

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    for name in lvm crypt xfs; do zoneraid volume create tank/$name --size 330M; done
    start_array tank
    step "a partition table with LVM, dm-crypt, XFS"
    echo 'label: gpt
size=300MiB' | quietly sfdisk "$(device lvm)"
    wait_for 10 test -b "$(device lvm)p1"
    quietly pvcreate -q "$(device lvm)p1"
    quietly vgcreate -q pool "$(device lvm)p1"
    quietly lvcreate -q -an -Zn -L 128M -n data pool
    quietly vgchange -q -ay pool
    quietly mkfs.ext4 -q /dev/mapper/pool-data
    cipher luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$(device crypt)"
    cipher open "$(device crypt)" secret
    quietly mkfs.ext4 -q /dev/mapper/secret
    cryptsetup close secret
    quietly mkfs.xfs -q "$(device xfs)"
    mounted

    step "files are written until the power is cut, with a SIGKILL of the daemon and a snapshot"
    for of in lvm crypt xfs; do keep_files $acknowledged.$of /run/$of-mnt "$of-" -f & done
    wait_for 120 several $acknowledged.{lvm,crypt,xfs}
    killed
    cp $acknowledged.xfs $acknowledged.copy
    zoneraid volume snapshot tank/xfs@kept tank/lvm@kept
    guest ask reset --after "$((2000 + $(draw 3000 after)))"
    sleep 120
    fail "the machine did not crash"
fi

lost=$(draw 5 lost)
step "boot after the power cut: drive $lost is gone; $(cat $acknowledged.{lvm,crypt,xfs} | wc -l) files were acknowledged"
remove_drive "$lost"
start_array tank
mounted
for of in lvm crypt xfs; do same_files $acknowledged.$of /run/$of-mnt; done
zoneraid volume clone tank/xfs@kept copy
mount -o nouuid "$(device copy)" /run/copy-mnt
same_files $acknowledged.copy /run/copy-mnt
umount /run/copy-mnt /run/lvm-mnt /run/crypt-mnt /run/xfs-mnt
quietly xfs_repair -n "$(device copy)"
quietly xfs_repair -n "$(device xfs)"
quietly e2fsck -fn /dev/mapper/pool-data
quietly e2fsck -fn /dev/mapper/secret
quietly vgchange -q -an pool
cryptsetup close secret
! dmesg | grep -E 'I/O error.*ublk|hung task|blocked for more' || fail "errors in the kernel log"
stop_array tank
