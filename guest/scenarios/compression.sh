# ext4 on a compressed volume that holds more bytes of real files than its usable capacity: its daemon is killed, then
# the power is cut and a drive is removed, and all acknowledged data is there. Compression is switched off and on again
# with zstd meanwhile; existing data stays readable.
# guest: --drives 3:size=256M,zone=8M,capacity=6M --reboots --time-limit 900 --memory 3G

acknowledged=/mnt/guest/acknowledged
mkdir -p /run/mnt
# number PATH: a field of the volume's status
number() { zoneraid --json status tank | jq -r ".volume.$1"; }
trees=(engine/src/volume docs)
program=$(command -v qemu-system-x86_64)
# tree N: copies real files: text, and a large program
tree() {
    mkdir "/run/mnt/tree$1"
    cp -r --parents "${trees[@]}" "/run/mnt/tree$1"
    cp "$program" "/run/mnt/tree$1/program"
}
# Checks all copies against the originals.
same_trees() {
    local there
    for there in /run/mnt/tree*; do
        (cd "$there" && sha256sum --quiet -c /mnt/guest/sums) || fail "files in $there differ from the originals"
    done
}

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2)
    zoneraid volume create tank --size 1G --compression lz4
    start_array tank
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$DEVICE"
    mount "$DEVICE" /run/mnt

    find "${trees[@]}" -type f -exec sha256sum {} + >/mnt/guest/sums
    sha256sum <"$program" | sed 's/-$/program/' >>/mnt/guest/sums
    step "more files than fit without compression"
    usable=$(number usable_bytes)
    n=0
    while (($(number used_bytes) < usable + (8 << 20))); do
        n=$((n + 1))
        tree "$n"
        sync -f /run/mnt
        ((n < 60)) || fail "$n trees, and $(number used_bytes) of $usable bytes are used"
    done
    sync -f /run/mnt
    zoneraid status tank
    (($(number physical_bytes) < usable)) || fail "more physical bytes are used than are usable"
    jq -en "$(number compression_ratio) > 1.3" >/dev/null || fail "the compression ratio is $(number compression_ratio)"

    step "compression off, SIGKILL of the daemon, compression on"
    zoneraid volume set tank --compression off
    tree without
    sync -f /run/mnt
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    start_array tank
    [[ $(number compression) == off ]] || fail "the compression setting was not kept"
    zoneraid volume set tank --compression zstd:3
    umount /run/mnt
    e2fsck -fn "$DEVICE" >/run/fsck 2>&1 || { cat /run/fsck; fail "e2fsck"; }
    mount "$DEVICE" /run/mnt
    same_trees

    step "fstrim frees room"
    before=$(number physical_bytes)
    rm -r /run/mnt/tree[1-4]
    sync -f /run/mnt
    fstrim /run/mnt
    (($(number physical_bytes) + (4 << 20) < before)) || fail "fstrim freed little: $before before, $(number physical_bytes) after"

    step "files are written until the power is cut"
    files=(engine/src/volume/*.rs docs/*.md)
    content() { local file=${files[$1 % ${#files[@]}]}; cat "$file" "$file"; }
    keep_files "$acknowledged" /run/mnt file /run/mnt &
    wait_for 60 several "$acknowledged"
    guest ask reset --after $((8000 + $(draw 4000 after)))
    sleep 120
    fail "the machine did not crash"
fi

lost=$(draw 3 lost)
count=$(wc -l <"$acknowledged")
step "boot after the power cut: drive $lost is gone; $count files were acknowledged"
several "$acknowledged" || fail "too few files were acknowledged for a test"
remove_drive "$lost"
start_array tank
array_is degraded tank || fail "not degraded without drive $lost"
mount "$DEVICE" /run/mnt
same_files "$acknowledged" /run/mnt
same_trees
zoneraid status tank || true
jq -en "$(number compression_ratio) > 1.3" >/dev/null || fail "the compression ratio is $(number compression_ratio)"
umount /run/mnt
e2fsck -fn "$DEVICE" >/run/fsck 2>&1 || { cat /run/fsck; fail "e2fsck"; }
stop_array tank
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
