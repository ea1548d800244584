# Pools of volumes on namespaces, beside a namespace that is a zoned device: volumes are created and removed, and snapshots
# made, while the daemon is killed, and each has its own data after a power cut with a drive removed.
# guest: --drives 6:size=1G,zone=8M,capacity=6M,open=40,active=40,zrwa=128K --reboots --memory 3G

# volumes NAMESPACE: names of its volumes, in the status of the array
volumes() { zoneraid --json status tank | jq -r ".namespaces.list[] | select(.name == \"$1\") | [.volumes[].name] | join(\" \")"; }
# fill DEVICE SEED [OPTION...]: random writes, or with --verify_only their verification
fill() {
    local log=/run/${1//\//-}.fio
    fio --name=fill --filename="$(device "$1")" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-64k \
        --size=16M --randseed="$2" --verify=crc32c --output="$log" "${@:3}" || { cat "$log"; fail "fio on $1"; }
}
# write_zone: writes random data to a zone; same_zone: compares it
write_zone() {
    head -c 24M /dev/urandom >/mnt/guest/zone
    dd if=/mnt/guest/zone of="$(device zones)" bs=64k oflag=direct conv=fsync,notrunc status=none
}
same_zone() { cmp -n $((24 << 20)) /mnt/guest/zone "$(device zones)" || fail "the data of a zone differs"; }
mkdir -p /run/mail

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    zoneraid namespace create tank/zones --size 200M
    zoneraid namespace create tank/vms --size 1200M --active 6
    zoneraid namespace create tank/other --size 1000M --active 6
    zoneraid volume create tank/vms/mail --size 200M
    zoneraid volume create tank/other/mail --size 64M
    refused zoneraid volume create tank/vms --size 1G
    start_array tank
    [[ -b /dev/zoneraid/tank/vms/mail && -b /dev/zoneraid/tank/other/mail && -b /dev/zoneraid/tank/zones ]] || fail "no links"
    [[ ! -e /dev/zoneraid/tank/vms-mail && $(volumes vms) == mail ]] || fail "the status shows $(volumes vms)"

    step "volumes are created and removed while others are written and the daemon is killed"
    zoneraid volume create tank/vms/logs --size 100M --compression lz4
    mkfs.ext4 -q "$(device vms/mail)"
    mount "$(device vms/mail)" /run/mail
    cp -r sim/src /run/mail/tree
    sync -f /run/mail
    fill vms/logs 1 &
    fio=$!
    fill other/mail 2 &
    other=$!
    write_zone &
    zoned=$!
    sleep 1
    killed /dev/zoneraid/tank/{vms/mail,other/mail,zones}
    wait "$fio" "$other" "$zoned" || fail "fio under SIGKILL"
    fill vms/logs 1 --verify_only
    same_zone
    zoneraid volume snapshot tank/vms/mail@monday
    rm -r /run/mail/tree
    cp -r engine/src /run/mail/tree
    sync -f /run/mail
    zoneraid volume clone tank/vms/mail@monday copy
    zoneraid volume create tank/vms/scratch --size 64M
    fill vms/scratch 3
    refused zoneraid volume remove tank/vms/mail --yes
    refused zoneraid namespace remove tank/vms --yes
    refused zoneraid namespace remove tank/other --yes
    zoneraid volume remove tank/vms/scratch --yes
    [[ ! -e /dev/zoneraid/tank/vms/scratch ]] || fail "a removed volume has a block device"
    zoneraid volume remove tank/other/mail --yes
    [[ ! -e /dev/zoneraid/tank/other ]] || fail "a pool without volumes has a directory of links"
    zoneraid volume create tank/other/mail --size 64M
    cmp -n $((64 << 20)) "$(device other/mail)" /dev/zero || fail "a new volume has data of a removed one"
    fill other/mail 4
    killed /dev/zoneraid/tank/{vms/mail,other/mail,zones}
    zoneraid top tank --json | jq -e '[.devices[].namespace] | index("vms/copy")' >/dev/null || fail "top does not show vms/copy"
    zoneraid volume set tank/vms/logs --iops 50
    iops=$(fio --name=limited --filename="$(device vms/logs)" --direct=1 --rw=randread --bs=4k --ioengine=libaio --iodepth=16 \
        --time_based --runtime=3 --output-format=json | jq '.jobs[0].read.iops | floor')
    ((iops <= 60)) || fail "$iops requests per second with a limit of 50"
    zoneraid volume set tank/vms/logs --iops 0
    zoneraid status tank
    guest ask reset --after $((500 + $(draw 2000 after)))
    while :; do fill vms/logs 1; done
fi

lost=$(draw 5 lost)
step "boot after the power cut: drive $lost is gone"
remove_drive "$lost"
start_array tank
[[ $(volumes vms) == "mail logs copy" && $(volumes other) == mail ]] || fail "volumes $(volumes vms), and $(volumes other)"
# holds VOLUME TREE: whether the file system on a volume has a copy of TREE
holds() {
    e2fsck -fp "$(device "$1")" >/run/fsck 2>&1 || (($? == 1)) || { cat /run/fsck; fail "e2fsck of $1"; }
    mount "$(device "$1")" /run/mail
    diff -r "$2" /run/mail/tree || fail "the files of $1 differ"
    umount /run/mail
}
holds vms/mail engine/src
holds vms/copy sim/src
fill other/mail 4 --verify_only
same_zone
zoneraid replace --yes tank "$lost" "$(drive 5)"
zoneraid volume remove tank/vms/copy --yes
zoneraid volume remove tank/vms/mail@monday --yes
holds vms/mail engine/src
zoneraid stop tank
wait "$DAEMON"
[[ ! -e /dev/zoneraid/tank ]] || fail "links remain after the stop"
zoneraid volume rename tank/vms/mail post
zoneraid namespace remove tank/other --yes
start_array tank
[[ -b $(device vms/post) && ! -e /dev/zoneraid/tank/vms/mail && ! -e /dev/zoneraid/tank/other ]] || fail "links after the changes"
zoneraid stop tank
wait "$DAEMON"
! dmesg | grep -E 'I/O error.*ublk|hung task|blocked for more' || fail "errors in the kernel log"
