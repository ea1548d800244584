# Snapshots and clones of a volume with a file system: they have their contents while the volume is written, the daemon is
# killed, and after a power cut with a drive removed; and the volume gets back the contents of one.
# guest: --drives 6:size=512M,zone=8M,capacity=6M --reboots --time-limit 1500 --memory 3G

# snapshots: their number
snapshots() { zoneraid --json volume list tank | jq '[.volumes[].snapshots[]] | length'; }
# holds VOLUME TREE: whether the file system on a volume has a copy of TREE, and is whole
holds() {
    e2fsck -fp "$(device "$1")" >/run/fsck 2>&1 || (($? == 1)) || { cat /run/fsck; fail "e2fsck of $1"; }
    mount "$(device "$1")" /run/other
    diff -r "$2" /run/other/tree || fail "the files of $1 differ"
    umount /run/other
}
mkdir -p /run/mail /run/other

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    zoneraid volume create tank/mail --size 1500M
    start_array tank
    mkfs.ext4 -q "$(device mail)"
    mount "$(device mail)" /run/mail
    cp -r engine/src /run/mail/tree
    sync -f /run/mail

    step "a snapshot while files are written"
    fio --name=load --directory=/run/mail --size=64M --rw=randwrite --bsrange=4k-64k --time_based --runtime=600 \
        --ioengine=libaio --iodepth=8 --output=/run/load.fio &
    fio=$!
    sleep 2
    zoneraid volume snapshot tank/mail@monday
    rm -r /run/mail/tree
    cp -r sim/src /run/mail/tree
    sync -f /run/mail
    zoneraid volume clone tank/mail@monday copy
    holds copy engine/src
    killed
    zoneraid volume snapshot tank/mail@tuesday
    rm -r /run/mail/tree
    sync -f /run/mail
    refused zoneraid volume remove tank/mail@monday --yes
    refused zoneraid volume remove tank/mail --yes
    refused zoneraid volume rollback tank/mail@tuesday --yes
    for number in {1..20}; do
        zoneraid volume snapshot "tank/mail@s$number" >/dev/null
        ((number < 5)) || zoneraid volume remove "tank/mail@s$((number - 3))" --yes >/dev/null
    done
    [[ $(snapshots) == 6 ]] || fail "$(snapshots) snapshots"
    holds copy engine/src
    kill -0 "$fio" || { cat /run/load.fio; fail "fio"; }
    guest ask reset --after $((500 + $(draw 3000 after)))
    for number in {21..99}; do
        zoneraid volume snapshot "tank/mail@s$number" >/dev/null
        zoneraid volume remove "tank/mail@s$((number - 3))" --yes >/dev/null
    done
    sleep 60
fi

lost=$(draw 5 lost)
step "boot after the power cut: drive $lost is gone"
remove_drive "$lost"
start_array tank
holds copy engine/src
zoneraid volume clone tank/mail@tuesday second
holds second sim/src
zoneraid volume remove tank/second --yes

step "the volume returns to a snapshot"
for name in $(zoneraid --json volume list tank | jq -r '.volumes[].snapshots[].name' | grep '^s'); do
    zoneraid volume remove "tank/mail@$name" --yes
done
[[ $(snapshots) == 2 ]] || fail "$(snapshots) snapshots"
stop_array tank
zoneraid volume rollback tank/mail@tuesday --yes
start_array tank
holds mail sim/src
zoneraid volume remove tank/copy --yes
zoneraid volume remove tank/mail@monday --yes
zoneraid volume remove tank/mail@tuesday --yes
holds mail sim/src
stop_array tank
