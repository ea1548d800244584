# Volumes become larger and smaller, below a mounted file system too. Where the kernel supports that, from Linux 6.16 on,
# their block devices have the new size at once, also after the daemon was killed; otherwise they have it after the next
# start.
# guest: --drives 4:size=512M,zone=8M,capacity=6M --time-limit 900

size() { blockdev --getsize64 "$(device mail)"; }
IFS=.- read -r major minor _ < <(uname -r)
if ((major > 6 || major == 6 && minor >= 16)); then online=true; else online=false; fi
echo "Linux $major.$minor: block devices change their size while they are used: $online"
# resize BYTES: changes the size, and the block device has it, after a start if need be
resize() {
    local before resized mounted=false
    before=$(size)
    resized=$(zoneraid --json volume resize tank/mail --size "$1" | jq .block_device_resized)
    [[ $resized == "$online" ]] || fail "the block device has the new size: $resized"
    if ! $online; then
        [[ $(size) == "$before" ]] || fail "the block device has $(size) bytes"
        if mountpoint -q /run/mail; then mounted=true; umount /run/mail; fi
        stop_array tank
        start_array tank
        if $mounted; then mount "$(device mail)" /run/mail; fi
    fi
    [[ $(size) == "$1" ]] || fail "the block device has $(size) bytes, not $1"
}
GIB=$((1 << 30))
mkdir -p /run/mail

create_array tank $(drives 0 1 2 3)
zoneraid volume create tank/mail --size "$GIB"
zoneraid volume create tank/other --size "$GIB"
start_array tank
mkfs.ext4 -q -b 4096 "$(device mail)"
mount "$(device mail)" /run/mail
cp -r engine/src /run/mail/tree

step "a mounted file system becomes larger"
resize $((2 * GIB))
resize2fs "$(device mail)" >/dev/null 2>&1 || fail "resize2fs"
(($(df --output=size -B1 /run/mail | tail -1) > GIB * 3 / 2)) || fail "the file system has its former size"
killed
[[ $(size) == $((2 * GIB)) ]] || fail "the block device has $(size) bytes after the take-over"
cp -r engine/src /run/mail/again

step "a volume becomes smaller when its end is discarded"
umount /run/mail
head -c 1M /dev/urandom | dd of="$(device mail)" bs=1M seek=2000 oflag=direct iflag=fullblock conv=fsync status=none
refused zoneraid volume resize tank/mail --size "$((GIB / 2))"
refusal=$(zoneraid volume resize tank/mail --size "$((GIB / 2))" 2>&1 || true)
[[ $refusal =~ "data up to byte "([0-9]+) ]] && ((BASH_REMATCH[1] >= 2001 << 20)) || fail "$refusal"
[[ $(size) == $((2 * GIB)) ]] || fail "a refused change has changed the block device"
e2fsck -fp "$(device mail)" >/dev/null || (($? == 1)) || fail "e2fsck"
resize2fs "$(device mail)" 512M >/dev/null 2>&1 || fail "resize2fs to a smaller size"
blkdiscard -f -o $((GIB / 2)) "$(device mail)"
resize $((GIB / 2))
mount "$(device mail)" /run/mail
diff -r engine/src /run/mail/tree || fail "the files differ"
diff -r engine/src /run/mail/again || fail "the files differ"
umount /run/mail

step "a volume that becomes larger again has zeros"
resize "$GIB"
cmp -i $((GIB / 2)) -n $((GIB / 2)) "$(device mail)" /dev/zero 2>/dev/null ||
    cmp -n $((GIB / 2)) <(dd if="$(device mail)" bs=1M skip=512 status=none) /dev/zero || fail "old data"
e2fsck -fn "$(device mail)" >/dev/null || fail "e2fsck at the end"
stop_array tank
