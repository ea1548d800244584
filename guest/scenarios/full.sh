# ext4 and XFS on an over-committed volume: filled until writes are refused, unmounted, mounted, overwritten until the
# power is cut; then mounted again, emptied, trimmed, checked, and written again. A write that waits for room (`volume
# set --when-full queue`) completes when some of the reserve is lent.
# long
# guest: --drives 3:size=256M,zone=8M,capacity=6M --reboots --time-limit 900

acknowledged=/mnt/guest/acknowledged
mkdir -p /run/mnt
# number PATH: a field of the volume's status, also if the exit status reports an alarm
number() { { zoneraid --json status tank || true; } | jq -r ".volume.$1"; }
# filled NAME: writes files of 4 MiB until one is refused; logs the durable ones
filled() {
    local n=0
    while dd if=/dev/urandom of="/run/mnt/$1$n" bs=1M count=4 conv=fsync status=none 2>/run/dd; do
        sha256sum "/run/mnt/$1$n" >>"$acknowledged"
        n=$((n + 1))
        ((n < 300)) || fail "no write was refused"
    done
    rm -f "/run/mnt/$1$n"
    ((n > 3)) || { cat /run/dd; fail "only $n files were written"; }
}
# fill_up FILESYSTEM: fills the file system, and overwrites a file until the power is cut
fill_up() {
    : >"$acknowledged"
    mount "$DEVICE" /run/mnt
    step "$1: filled until a write is refused"
    filled file
    zoneraid status tank || true
    (($(number free_bytes) < 8 << 20)) || fail "$(number free_bytes) bytes are free"
    umount /run/mnt
    step "$1: mounted when full, and overwritten until the power is cut"
    mount "$DEVICE" /run/mnt
    sha256sum --quiet -c "$acknowledged" || fail "files differ after unmounting"
    guest ask reset --after $((3000 + $(draw 4000 "$1")))
    while true; do
        dd if=/run/mnt/file1 of=/run/mnt/file0 bs=1M conv=notrunc,fsync status=none || fail "an overwrite was refused"
        dd if=/run/mnt/file2 of=/run/mnt/file0 bs=1M conv=notrunc,fsync status=none || fail "an overwrite was refused"
    done
}
# use_again FILESYSTEM CHECKER...: checks and uses the file system after the power cut
use_again() {
    local before name=$1
    shift
    step "$name: mounted after the power cut"
    start_array tank
    mount "$DEVICE" /run/mnt
    if [[ $name == ext4 ]]; then
        # Bitmap blocks may never have been written: ext4 has recorded refused writes, and needs a repair.
        umount /run/mnt
        e2fsck -fy "$DEVICE" >/run/fsck 2>&1 || (($? < 4)) || { cat /run/fsck; fail "e2fsck"; }
        mount "$DEVICE" /run/mnt
    fi
    # The first file was being overwritten.
    sed -i '1d' "$acknowledged"
    sha256sum --quiet -c "$acknowledged" || fail "files differ after the power cut"
    if [[ $name == ext4 ]]; then
        # A trim would be too late: a file system may have to write queued data before it can delete any.
        step "$name: a write waits until reserve is lent"
        zoneraid volume set tank --when-full queue:200
        # The start has lent half of the reserve already.
        dd if=/dev/urandom of=/run/mnt/late bs=1M count=$(($(number free_bytes) / (1 << 20) + 2)) conv=fsync status=none &
        local late=$!
        waits() { (($(number waiting_writes) > 0)); }
        wait_for 60 waits
        zoneraid volume set tank --lend 1G
        wait "$late" || fail "the waiting write was refused"
        zoneraid volume set tank --when-full fail
    fi
    step "$name: emptied and trimmed"
    before=$(number used_bytes)
    rm /run/mnt/file[1-9] /run/mnt/file1?
    sync -f /run/mnt
    fstrim /run/mnt
    (($(number used_bytes) < before)) || fail "fstrim freed nothing: $before bytes before"
    dd if=/dev/urandom of=/run/mnt/new bs=1M count=4 conv=fsync status=none || fail "the volume is still full"
    umount /run/mnt
    "$@" "$DEVICE" >/run/fsck 2>&1 || { cat /run/fsck; fail "$*"; }
}

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2)
    zoneraid volume create tank --size 1G
    start_array tank
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$DEVICE"
    fill_up ext4
elif ((GUEST_BOOT == 2)); then
    use_again ext4 e2fsck -fn
    mkfs.xfs -q -f "$DEVICE"
    fill_up XFS
fi
use_again XFS xfs_repair -n
stop_array tank
