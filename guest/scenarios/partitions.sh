# Partitions of a volume, with udev and systemd: links by content and by the array's name, LVM that is activated
# automatically, and a stop that names the mounted file systems.
# guest: --drives 5:size=1G,zone=16M,capacity=12M --systemd --memory 3G

make install-built TARGET="$GUEST_BIN" >/run/install 2>&1 || { cat /run/install; fail "make install-built"; }
systemctl daemon-reload
udevadm control --reload

create_array tank $(drives 0 1 2 3 4) >/run/created
tank=zoneraid@$(zoneraid --json status tank | jq -r .uuid).service
stopped() { [[ $(systemctl is-active "$tank") != active* && $(systemctl is-active "$tank") != activating ]]; }
# udev may have started the array already, and a volume can only be created while it is stopped.
udevadm settle
systemctl stop "$tank" || true
wait_for 60 stopped
zoneraid volume create tank
running() { [[ $(systemctl is-active "$tank") == active ]] && test -b /dev/zoneraid/tank; }
up() {
    systemctl start "$tank"
    wait_for 90 running
    udevadm settle
}
up
DEVICE=$(readlink -f /dev/zoneraid/tank)

step "a file system and a physical volume in partitions"
printf 'label: gpt\nsize=128MiB, name=first\nsize=256MiB, name=second\n' | udevadm lock --device="$DEVICE" sfdisk -q "$DEVICE"
udevadm settle
wait_for 30 test -b "${DEVICE}p2"
mkfs.ext4 -q -L files "${DEVICE}p1"
pvcreate -q "${DEVICE}p2" >/run/made && vgcreate -q pool "${DEVICE}p2" >>/run/made && lvcreate -q -L 64M -n data pool >>/run/made
mkfs.ext4 -q /dev/pool/data
uuid=$(blkid -p -s UUID -o value "${DEVICE}p1")
partuuid=$(blkid -p -s PART_ENTRY_UUID -o value "${DEVICE}p1")
links() {
    local link
    for link in "by-uuid/$uuid" by-label/files "by-partuuid/$partuuid" by-partlabel/first; do
        [[ $(readlink -f "/dev/disk/$link") == "${DEVICE}p1" ]] || { echo "no /dev/disk/$link" >/run/link; return 1; }
    done
    [[ $(readlink -f /dev/zoneraid/tank-part1) == "${DEVICE}p1" && $(readlink -f /dev/zoneraid/tank-part2) == "${DEVICE}p2" ]]
}
wait_for 30 links
udevadm info -q property -n "${DEVICE}p2" | grep -q '^ID_FS_TYPE=LVM2_member' || fail "udev has not identified the physical volume"

step "stop names the users of the block device"
mkdir -p /run/mnt
mount /dev/zoneraid/tank-part1 /run/mnt
if zoneraid stop tank 2>/run/refused; then fail "the array stopped under a mounted partition"; fi
cat /run/refused
grep -q 'mounted on /run/mnt' /run/refused || fail "the mounted partition is not named"
umount /run/mnt
mkdir -p /run/data
mount /dev/pool/data /run/data
if zoneraid stop tank 2>/run/refused; then fail "the array stopped under a mounted logical volume"; fi
grep -q 'held by dm-.*mounted on /run/data' /run/refused || { cat /run/refused; fail "the mounted logical volume is not named"; }
umount /run/data
vgchange -q -an pool >/run/made

step "partitions and the logical volume return by themselves after a restart"
systemctl stop "$tank"
udevadm settle
[[ ! -e $DEVICE && ! -e /dev/zoneraid/tank-part1 ]] || fail "links remain after the stop"
# LVM activates a volume group once in a boot, and records that in these files.
rm -f /run/lvm/pvs_online/* /run/lvm/vgs_online/*
up
DEVICE=$(readlink -f /dev/zoneraid/tank)
wait_for 60 links
wait_for 60 test -e /dev/pool/data
mount /dev/pool/data /run/data
umount /run/data
vgchange -q -an pool >/run/made
systemctl stop "$tank"
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
