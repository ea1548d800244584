# Volumes of one array: they are created, filled and removed while the daemon is killed, and each has its own data after a
# power cut with a drive removed. A hundred of them have block devices at once.
# guest: --drives 6:size=512M,zone=8M,capacity=6M --reboots --time-limit 1500 --memory 3G

# volumes: number of the volumes
volumes() { zoneraid --json volume list tank | jq '.volumes | length'; }
# fill VOLUME SEED [OPTION...]: random writes, or with --verify_only their verification
fill() {
    fio --name="$1" --filename="$(device "$1")" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-64k \
        --size=96M --randseed="$2" --verify=crc32c --output="/run/$1.fio" "${@:3}" || { cat "/run/$1.fio"; fail "fio on $1"; }
}
mkdir -p /run/mail

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    zoneraid volume create tank/mail --size 10G
    refused zoneraid volume create tank
    start_array tank
    step "volumes are created and removed while others are written and the daemon is killed"
    zoneraid volume create tank/logs --size 1G --compression lz4
    mkfs.ext4 -q "$(device mail)"
    mount "$(device mail)" /run/mail
    fill logs 1 &
    fio=$!
    sleep 1
    killed /dev/zoneraid/tank/mail
    wait "$fio" || fail "fio under SIGKILL"
    fill logs 1 --verify_only
    zoneraid volume create tank/scratch --size 200M --sector-size 512
    [[ $(blockdev --getss "$(device scratch)") == 512 ]] || fail "sectors of $(blockdev --getss "$(device scratch)") bytes"
    fill scratch 2
    refused zoneraid volume remove tank/mail --yes
    zoneraid volume remove tank/scratch --yes
    [[ ! -e /dev/zoneraid/tank/scratch ]] || fail "a removed volume has a block device"
    zoneraid volume create tank/scratch --size 200M
    cmp -n $((96 << 20)) "$(device scratch)" /dev/zero || fail "a new volume has data of a removed one"

    step "a hundred volumes at once"
    for number in {1..97}; do zoneraid volume create "tank/v$number" --size 1G >/dev/null; done
    [[ $(volumes) == 100 ]] || fail "$(volumes) volumes"
    for number in 1 50 97; do
        dd if=<(yes "$number") of="$(device "v$number")" bs=64k count=4 iflag=fullblock oflag=direct conv=fsync status=none
    done
    killed /dev/zoneraid/tank/mail
    for number in {2..49}; do zoneraid volume remove "tank/v$number" --yes >/dev/null; done
    cp -r engine/src /run/mail/tree
    sync -f /run/mail
    guest ask reset --after $((500 + $(draw 2000 after)))
    while :; do fill logs 1; done
fi

lost=$(draw 5 lost)
step "boot after the power cut: drive $lost is gone"
remove_drive "$lost"
start_array tank
[[ $(volumes) == 52 ]] || fail "$(volumes) volumes"
e2fsck -fp "$(device mail)" >/run/fsck 2>&1 || (($? == 1)) || { cat /run/fsck; fail "e2fsck"; }
mount "$(device mail)" /run/mail
diff -r engine/src /run/mail/tree || fail "the files differ"
umount /run/mail
for number in 1 50 97; do
    cmp -n $((256 << 10)) "$(device "v$number")" <(yes "$number") || fail "data of volume $number"
done
cmp -n $((96 << 20)) "$(device scratch)" /dev/zero || fail "a new volume has data of others"
stop_array tank
zoneraid volume rename tank/mail post
start_array tank
[[ -b $(device post) && ! -e /dev/zoneraid/tank/mail ]] || fail "the block device of the renamed volume"
stop_array tank
