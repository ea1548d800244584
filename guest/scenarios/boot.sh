# Installed, with udev and systemd: arrays start automatically, on NVMe namespaces and on SMR disks, and everything
# works with the hardening options of the unit.
# guest: --drives 6 --systemd --memory 3G

make install-built TARGET="$GUEST_BIN" >/run/install 2>&1 || { cat /run/install; fail "make install-built"; }
systemctl daemon-reload
udevadm control --reload

unit() { echo "zoneraid@$(zoneraid --json status "$1" | jq -r .uuid).service"; }
runs() { [[ $(systemctl is-active "$1") == active ]]; }
pid() { systemctl show -P MainPID "$1"; }
journal() { journalctl --no-pager -o cat -u "$1" | tail -20; }
started() { wait_for 90 runs "$1" || { journal "$1"; fail "$1 is not active"; }; }
# udev probes a drive when its user closes it; a drive that appears later has to wait for that.
appear() {
    udevadm settle
    udevadm trigger --action=add "$@"
}

step "an array on NVMe namespaces"
create_array tank $(drives 0 1 2 3 4) >/run/created
tank=$(unit tank)
[[ $(systemctl is-active "$tank") == active ]] || appear $(drives 0 1 2 3 4)
started "$tank"
wait_for 30 test -b /dev/zoneraid/tank
DEVICE=$(readlink -f /dev/zoneraid/tank)

step "a file system, found by its UUID"
# mkfs closes the device several times. Without the lock udev would probe it in between and miss the final state.
udevadm settle
udevadm lock --device="$DEVICE" mkfs.btrfs -q -O zoned -d single -m single "$DEVICE" >/run/mkfs 2>&1 || { cat /run/mkfs; fail "mkfs.btrfs"; }
uuid=$(blkid -p -s UUID -o value "$DEVICE")
wait_for 30 test -e "/dev/disk/by-uuid/$uuid"
mkdir -p /run/mnt
mount "/dev/disk/by-uuid/$uuid" /run/mnt
cp -r engine/src /run/mnt/before

step "SIGKILL: the unit starts the next daemon, which takes over"
before=$(pid "$tank")
kill -KILL "$before"
again() { runs "$tank" && [[ $(pid "$tank") != "$before" ]]; }
wait_for 60 again || { journal "$tank"; fail "the unit started no new daemon"; }
cp -r engine/src /run/mnt/after
sync -f /run/mnt

step "an upgrade under the file system"
systemctl restart "$tank"
diff -r engine/src /run/mnt/before
diff -r engine/src /run/mnt/after

step "a drive is pulled, and replaced by the daemon in its unit"
guest ask unplug 2
cp -r engine/src /run/mnt/third
sync -f /run/mnt
wait_for 60 array_is degraded tank
zoneraid replace tank 2 "$(drive 5)"
array_is healthy tank || fail "not healthy after the rebuild"
refused zoneraid stop tank
umount /run/mnt
systemctl stop "$tank"
[[ ! -e $DEVICE ]] || fail "$DEVICE is still there"

step "an array on SMR disks"
smr=$(smr_disks)
udevadm settle
zoneraid create --yes pond $smr >/run/created
pond=$(unit pond)
runs "$pond" || appear $smr
started "$pond"
wait_for 30 test -b /dev/zoneraid/pond
head -c 4M /dev/urandom >/run/data
dd if=/run/data of=/dev/zoneraid/pond bs=256k oflag=direct conv=fsync status=none
cmp -n $((4 << 20)) /run/data /dev/zoneraid/pond || fail "the data differs"
systemctl stop "$pond"

step "units and the kernel log"
[[ -z $(systemctl list-units --no-legend --state=failed 'zoneraid@*') ]] || fail "a unit has failed"
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
systemd-analyze --no-pager security "$tank" | tail -1
