# F2FS, btrfs and zonefs on the array, and on a single drive for comparison.
# guest: --drives 5:size=1G,zone=16M,capacity=12M --drives 1:size=1G,zone=16M,capacity=12M,zrwa=0 --memory 3G

null_blk helper 256
mkdir -p /run/mnt
tree=/run/tree
mkdir $tree
cp -r engine sim host docs $tree

# filled NAME: copies the tree twice, removes one copy, and unmounts
filled() {
    cp -r $tree /run/mnt/a
    cp -r $tree /run/mnt/b
    sync -f /run/mnt
    rm -r /run/mnt/a
    umount /run/mnt
}
compared() {
    diff -r $tree /run/mnt/b || fail "files differ"
    [[ ! -e /run/mnt/a ]] || fail "a removed directory is back"
    umount /run/mnt
}

on_f2fs() {
    mkfs.f2fs -f -m -c "$1" /dev/helper >/run/mkfs || { cat /run/mkfs; fail "mkfs.f2fs"; }
    mount -t f2fs /dev/helper /run/mnt
    filled
    check_f2fs /dev/helper
    mount -t f2fs /dev/helper /run/mnt
    compared
    blkzone reset "$1"
}

on_btrfs() {
    mkfs.btrfs -q -f -O zoned -d single -m single "$1" >/run/mkfs 2>&1 || { cat /run/mkfs; fail "mkfs.btrfs"; }
    mount -t btrfs "$1" /run/mnt
    filled
    btrfs check "$1" >/run/check 2>&1 || { cat /run/check; fail "btrfs check"; }
    mount -t btrfs "$1" /run/mnt
    compared
    blkzone reset "$1"
}

# A superblock in the format of mkzonefs (linux/fs/zonefs/zonefs.h): magic, CRC, and zeros for defaults.
zonefs_super() {
    local magic=SFOZ crc
    crc=$({ printf '%s' $magic; head -c 4092 /dev/zero; } | gzip -c | tail -c 8 | head -c 4 | od -An -tu4)
    crc=$((crc ^ 0xffffffff))
    printf '%s' $magic
    printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((crc & 255)) $((crc >> 8 & 255)) $((crc >> 16 & 255)) $((crc >> 24)))"
    head -c 4088 /dev/zero
}

on_zonefs() {
    local zones
    zones=$(cat "/sys/block/$(basename "$1")/queue/nr_zones")
    zonefs_super >/run/super
    dd if=/run/super of="$1" oflag=direct bs=4k status=none
    mount -t zonefs "$1" /run/mnt
    (($(find /run/mnt/seq -type f | wc -l) == zones - 1)) || fail "zonefs has no file for some zones"
    tar -C $tree -cf /run/tar .
    truncate --size %64K /run/tar # dd writes a part of a block without O_DIRECT, which zonefs refuses
    dd if=/run/tar of=/run/mnt/seq/3 oflag=direct,append conv=notrunc bs=64k status=none
    refused dd if=/run/tar of=/run/mnt/seq/3 oflag=direct bs=4k count=1 conv=notrunc
    umount /run/mnt
    mount -t zonefs "$1" /run/mnt
    cmp /run/tar /run/mnt/seq/3 || fail "data on zonefs differs"
    truncate --size 0 /run/mnt/seq/3
    truncate --size "$(stat -fc %s /run/mnt >/dev/null && blkzone report --count 1 "$1" | sed -n 's/.*cap \(0x[0-9a-f]*\).*/\1/p' | xargs printf '%d\n' | awk '{ print $1 * 512 }')" /run/mnt/seq/4
    zone_line "$1" 4 | grep -q '(em)' || fail "truncation does not reset"
    zone_line "$1" 5 | grep -q '(fu)' || fail "truncation to the capacity does not finish"
    umount /run/mnt
    blkzone reset "$1"
}

create_array tank $(drives 0 1 2 3 4)
start_array tank
for fs in f2fs btrfs zonefs; do
    modprobe $fs
    step "$fs on the array"
    on_$fs "$DEVICE"
done
array_is healthy tank || fail "the array is not healthy"
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
stop_array tank
for fs in f2fs btrfs zonefs; do
    step "$fs on a drive"
    on_$fs "$(block 5)"
done
