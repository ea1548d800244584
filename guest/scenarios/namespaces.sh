# Namespaces of one array are created, resized and removed while another one is written and the daemon is killed. Then
# F2FS, btrfs, and a volume with ext4 and SQLite are under fio at once while a drive is pulled and the daemon is killed;
# then the power is cut and a drive is removed. Each tenant's data is there, and no data of another tenant.
# guest: --drives 6:size=1G,zone=8M,capacity=6M,open=40,active=40,zrwa=128K --drives 1:size=256M,conventional=yes --reboots --time-limit 1500 --memory 3G

acknowledged=/mnt/guest/acknowledged
tenants=(f2fs btrfs ext4)
mkdir -p "${tenants[@]/#//run/}"

# F2FS records its devices by name, and this one has another name at each boot.
ln -s "$(block 6)" /dev/helper

# number FILTER: a field of the namespaces' status
number() { zoneraid --json status tank | jq -r ".namespaces$1"; }

mounted() {
    mount -t f2fs /dev/helper /run/f2fs
    mount -t btrfs "$(device btrfs)" /run/btrfs
    mount -t ext4 "$(device ext4)" /run/ext4
}
unmounted() { local tenant; for tenant in "${tenants[@]}"; do umount "/run/$tenant"; done; }
# A power cut may leave a zone that ends inside a btrfs node; btrfs continues from there with unaligned nodes, which its
# check reports as errors, since systems with 64 KiB pages cannot read them. Other messages are failures.
only_unaligned() {
    local fine='^(\[[1-7]/7\] |Opening filesystem|Checking filesystem on|UUID: |found [0-9]+ bytes used, error\(s\) found$|total |btree space|file data blocks| referenced )'
    local unaligned='^(WARNING: tree block .* is not nodesize aligned|bad metadata .* crossing stripe boundary$|ERROR: errors found in extent allocation tree or chunk allocation$)'
    ((GUEST_BOOT > 1)) && ! grep -vE "$fine|$unaligned" "$1"
}
checked() {
    check_f2fs /dev/helper
    btrfs check "$(device btrfs)" >/run/check 2>&1 || only_unaligned /run/check || { cat /run/check; fail "btrfs check"; }
    e2fsck -fn "$(device ext4)" >/run/fsck 2>&1 || { cat /run/fsck; fail "e2fsck"; }
}
# fill TENANT ZONES RATE: writes zones slowly, and reads them back
fill() {
    local device size
    device=$(device "$1")
    size=$(($2 * $(cat "/sys/block/$(basename "$device")/queue/chunk_sectors") * 512))
    fio --name="$1" --filename="$device" --direct=1 --zonemode=zbd --ioengine=libaio --iodepth=4 --rw=write --bs=64k \
        --size="$size" --rate="$3" --verify=crc32c --output="/run/$1.fio" || { cat "/run/$1.fio"; fail "fio on $1"; }
}
# While another tenant is being written.
at_work() {
    step "namespaces are created, resized and removed while the array runs"
    local first new size
    refused zoneraid namespace remove --yes tank/f2fs
    fill f2fs 8 12M &
    first=$!
    zoneraid namespace create tank/btrfs --size 450M --active 8 --weight 2
    zoneraid namespace create tank/logs --size 100M --active 2 --iops 5000
    [[ $(number '.list[2].limits.requests_per_second') == 5000 ]] || fail "the new namespace has no limit"
    head -c 4M /dev/urandom >/run/logs
    same() { cmp -n 4194304 /run/logs "$(device logs)" || fail "data of logs differs"; }
    dd if=/run/logs of="$(device logs)" bs=64k oflag=direct status=none
    same
    zoneraid export nvmet tank/logs --transport tcp --address 127.0.0.1 --any-host --dry-run | grep -q "$(device logs)" ||
        fail "a new namespace cannot be exported"
    refused zoneraid namespace create tank/logs --size 100M
    refused zoneraid namespace create tank/more --size 100T
    refused zoneraid namespace remove tank/logs
    exec 9<"$(device logs)"
    refused zoneraid namespace remove --yes tank/logs
    refused zoneraid namespace resize tank/logs --size 200M
    exec 9<&-
    refused zoneraid namespace resize tank/logs --size 100T
    size=$(blockdev --getsz "$(device logs)")
    same
    zoneraid namespace resize tank/logs --size 200M
    (($(blockdev --getsz "$(device logs)") > size)) || fail "logs has not grown"
    same
    fill logs 3 10M &
    new=$!
    sleep 2
    step "SIGKILL after a namespace was created"
    killed /dev/zoneraid/tank/{f2fs,btrfs,logs}
    wait "$new" || fail "fio on logs failed"
    zoneraid namespace remove --yes tank/logs
    [[ ! -e /dev/zoneraid/tank/logs ]] || fail "the removed namespace logs still has a block device"
    kill -0 "$first" || fail "the load on f2fs ended too early"
    step "SIGKILL after a namespace was removed"
    killed /dev/zoneraid/tank/{f2fs,btrfs}
    [[ $(number '.list | map(.name) | join(" ")') == "f2fs btrfs" ]] || fail "the list of namespaces is wrong"
    wait "$first" || fail "fio on f2fs failed"
    stop_array tank
}

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    # The minimum numbers of active zones of each file system.
    zoneraid namespace create tank/f2fs --size 1360M --active 6
    start_array tank
    at_work
    zoneraid namespace create tank/ext4 --size 870M --active 6 --iops 200
    zoneraid volume create tank/ext4
    start_array tank
    fio --name=limited --filename="$(device ext4)" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \
        --time_based --runtime=4 --output-format=json --output=/run/limited &
    sleep 1
    (($(zoneraid --json top tank | jq '.devices[2].writes.requests_per_second | floor') <= 230)) || fail "top shows a rate above the limit"
    wait $!
    iops=$(jq '.jobs[0].write.iops | floor' /run/limited)
    ((iops > 100 && iops <= 215)) || fail "$iops requests per second with a limit of 200"
    # At runtime: requests that wait for the old limit continue with the new one.
    zoneraid namespace set tank/ext4 --iops 1
    fio --name=waits --filename="$(device ext4)" --direct=1 --ioengine=libaio --iodepth=64 --rw=randwrite --bs=4k \
        --number_ios=100 --output=/run/waits &
    sleep 1
    zoneraid namespace set tank/ext4 --iops 500
    timeout 30 tail --pid=$! -f /dev/null || fail "requests wait because of the previous limit"
    zoneraid namespace set tank/ext4
    # A new limit starts without the queue of the previous one.
    zoneraid namespace set tank/ext4 --iops 1
    fio --name=waits --filename="$(device ext4)" --direct=1 --ioengine=libaio --iodepth=64 --rw=randwrite --bs=4k \
        --number_ios=100 --output=/run/waits &
    sleep 1
    zoneraid namespace set tank/ext4
    timeout 30 tail --pid=$! -f /dev/null || fail "requests wait after the limit was removed"
    zoneraid namespace set tank/ext4 --iops 1
    timeout 20 dd if=/dev/zero of="$(device ext4)" bs=4k count=1 oflag=direct status=none || fail "a request waits for requests before the new limit"
    zoneraid namespace set tank/ext4
    refused zoneraid namespace set tank/none
    # No device answers within a microsecond, so the other tenants are throttled for this target until the throttle has
    # proved useless. Therefore the target is set again and again.
    fio --name=class --filename="$(device ext4)" --direct=1 --rw=randwrite --bs=4k --time_based --runtime=60 --output=/run/class &
    class=$!
    timeout 60 bash -c "while dd if='$(device f2fs)' of=/dev/null bs=64k iflag=direct status=none; do :; done" &
    beside=$!
    held=null
    for try in {1..40}; do
        zoneraid namespace set tank/ext4 --latency $((1 + try % 2))
        for _ in {1..5}; do
            held=$(number '.list[0].held_to_bytes_per_second')
            [[ $held == null ]] || break 2
        done
    done
    [[ $held != null ]] || fail "no namespace is throttled"
    kill -0 "$beside" || fail "the other tenant's load ended too early"
    zoneraid namespace set tank/ext4
    [[ $(zoneraid --json top tank | jq '.devices[0].held_to_bytes_per_second') == null ]] || fail "a namespace is throttled without a latency target"
    refused zoneraid namespace set tank/ext4 --iops 1 --floor-iops 2
    kill "$class" "$beside" || true
    wait "$class" "$beside" || true
    stop_array tank
    start_array tank
    [[ $(number '.list[2].limits.requests_per_second') == null ]] || fail "the removed limit is back"
    [[ $(cat "/sys/block/$(basename "$(device btrfs)")/queue/zoned") == host-managed ]] || fail "namespace btrfs is not zoned"
    [[ $(cat "/sys/block/$(basename "$(device ext4)")/queue/zoned") == none ]] || fail "the volume is zoned"
    refused zoneraid namespace remove --yes tank/ext4
    refused zoneraid zone write tank/f2fs 0 </dev/null
    zoneraid export nvmet tank/f2fs --transport tcp --address 127.0.0.1 --any-host --dry-run | grep -q "$(device f2fs)" ||
        fail "a namespace cannot be exported"
    mkfs.f2fs -f -m -c "$(device f2fs)" /dev/helper >/run/mkfs || { cat /run/mkfs; fail "mkfs.f2fs"; }
    mkfs.btrfs -q -f -O zoned -d single -m single "$(device btrfs)" >/run/mkfs 2>&1 || { cat /run/mkfs; fail "mkfs.btrfs"; }
    mkfs.ext4 -q "$(device ext4)"
    mounted

    step "fio on all namespaces, a drive is pulled, SIGKILL of the daemon"
    loads=()
    for tenant in "${tenants[@]}"; do
        fio --name="$tenant" --directory="/run/$tenant" --size=16M --rw=randwrite --bsrange=4k-64k --fsync=32 --loops=2 \
            --verify=crc32c --output="/run/$tenant.fio" &
        loads+=($!)
    done
    pulled=$(draw 5 pulled)
    sleep "0.$(draw 10 pull)"
    remove_drive "$pulled"
    kills=0
    while ((kills < (LONG ? 12 : 3))) && sleep "$((1 + $(draw 3 kill "$kills"))).$(draw 10 tenth "$kills")" &&
        kill -0 "${loads[@]}" 2>/dev/null; do
        kills=$((kills + 1))
        step "SIGKILL number $kills"
        killed "${tenants[@]/#//dev/zoneraid/tank/}"
    done
    for load in "${!loads[@]}"; do
        wait "${loads[load]}" || { cat "/run/${tenants[load]}.fio"; fail "fio on ${tenants[load]}"; }
    done
    ((kills > 0)) || fail "fio ended before the first SIGKILL"
    array_is degraded tank || fail "not degraded without drive $pulled"
    zoneraid status tank || true
    (($(number '.list | length') == 3)) || fail "the number of namespaces is not three"
    (($(number '.list[1].own_spares') >= $(number '.list[0].own_spares'))) || fail "spare zones do not follow the weights"
    step "drive 5 replaces drive $pulled"
    zoneraid replace --yes tank "$pulled" "$(drive 5)"
    array_is healthy tank || fail "not healthy after the rebuild"
    echo "$pulled" >/mnt/guest/pulled
    unmounted
    checked
    mounted
    refused zoneraid stop tank
    refused zoneraid namespace remove --yes tank/f2fs
    { zoneraid stop tank 2>&1 || true; } | grep -q '/dev/zoneraid/tank/' || fail "stop does not name the block device in use"

    step "files and rows are written until the power is cut"
    new_table /run/ext4/db
    for tenant in "${tenants[@]}"; do keep_files "$acknowledged.$tenant" "/run/$tenant" "$tenant-" -f & done
    keep_rows "$acknowledged.rows" /run/ext4/db &
    wait_for 180 several "${tenants[@]/#/$acknowledged.}" "$acknowledged.rows"
    guest ask reset --after "$((1000 + $(draw 4000 after)))"
    sleep 120
    fail "the machine did not crash"
fi

pulled=$(cat /mnt/guest/pulled)
members=(0 1 2 3 4)
members[pulled]=5
lost=${members[$(draw 5 lost)]}
rows=$(wc -l <"$acknowledged.rows")
step "boot after the power cut: drive $lost is gone; $rows rows and $(cat "$acknowledged".*[24s] | wc -l) files"
# That drive is not a member any more.
remove_drive "$pulled" || true
remove_drive "$lost"
start_array tank
array_is degraded tank || fail "not degraded without drive $lost"
mounted
for tenant in "${tenants[@]}"; do
    several "$acknowledged.$tenant" || fail "too few files on $tenant were acknowledged for a test"
    same_files "$acknowledged.$tenant" "/run/$tenant"
    others=$(find "/run/$tenant" -name '*-*' ! -name "$tenant-*" ! -name 'db-*')
    [[ -z $others ]] || fail "$tenant has files of other tenants: $others"
done
same_rows "$acknowledged.rows" /run/ext4/db
unmounted
checked
! dmesg | grep -E 'I/O error.*ublk|hung task|blocked for more' || fail "errors in the kernel log"
stop_array tank
zoneraid namespace list tank
