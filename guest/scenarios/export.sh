# The array exported over NVMe/TCP: a host has the same zones and can use them. Namespaces, one of them with a volume,
# are exported to one host each.
# guest: --drives 5:zone=8M,capacity=6M

create_array tank $(drives 0 1 2 3 4)
start_array tank
modprobe -a nvmet nvmet-tcp nvme-tcp
friend=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
zoneraid export nvmet tank --transport tcp --address 127.0.0.1 --host $friend --host nqn.2014-08.org.example:other
nqn=$(basename /sys/kernel/config/nvmet/subsystems/*)
connect() { echo "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=$nqn,hostnqn=$1,hostid=$2" >/dev/nvme-fabrics; }
if connect nqn.2014-08.org.example:stranger 22222222-2222-4333-8444-555555555555; then fail "a host that is not allowed can connect"; fi
connect $friend 11111111-2222-4333-8444-555555555555
imported() {
    local c
    for c in /sys/class/nvme/*; do
        [[ $(cat "$c/subsysnqn") == "$nqn" ]] && remote=/dev/$(basename "$(echo "$c"/nvme*n1 | sed 's/c[0-9]*n/n/')") && [[ -b $remote ]] && return
    done
    return 1
}
wait_for 30 imported
blkzone report "$DEVICE" | cut -d, -f1-3 >/run/here
blkzone report "$remote" | cut -d, -f1-3 >/run/there
diff /run/here /run/there || fail "zones on the host differ"
fio --name=remote --filename="$remote" --direct=1 --zonemode=zbd --ioengine=libaio --iodepth=8 --rw=randwrite \
    --bsrange=4k-128k --verify=crc32c --max_open_zones=4 --io_size=$((LONG ? 256 : 16))M --output=/run/fio ||
    { cat /run/fio; fail "fio"; }
blkzone report "$DEVICE" | sed 's/.*wptr/wptr/' >/run/here
blkzone report "$remote" | sed 's/.*wptr/wptr/' >/run/there
diff /run/here /run/there || fail "write pointers on the host differ"
refused zoneraid stop tank
nvme disconnect -n "$nqn"
zoneraid export remove tank

step "a host without the secret cannot connect"
secret() { nvme gen-dhchap-key --nqn "$friend" | grep -o 'DHHC-1:.*'; }
(umask 077; secret >/run/secret)
zoneraid export nvmet tank --transport tcp --address 127.0.0.1 --host $friend --key /run/secret
known() { connect "$friend" "11111111-2222-4333-8444-555555555555$1"; }
if known ""; then fail "a host without the secret can connect"; fi
if known ",dhchap_secret=$(secret)"; then fail "a host with another secret can connect"; fi
known ",dhchap_secret=$(cat /run/secret)"
wait_for 30 imported
blkzone report "$remote" | sed 's/.*wptr/wptr/' >/run/there
diff /run/here /run/there || fail "write pointers on the authenticated host differ"
nvme disconnect -n "$nqn"
zoneraid export remove tank
[[ ! -e /sys/kernel/config/nvmet/hosts/$friend ]] || fail "the kernel still has the host and its secret"
stop_array tank

step "one namespace for each host"
zoneraid destroy --yes tank
create_array tank $(drives 0 1 2 3 4)
zoneraid namespace create tank/zones --size 200M --active 3
zoneraid namespace create tank/plain --size 400M --active 5
zoneraid volume create tank/plain --sector-size 512
start_array tank
one=nqn.2014-08.org.example:one other=nqn.2014-08.org.example:other
zoneraid export nvmet tank/zones --transport tcp --address 127.0.0.1 --host $one
zoneraid export nvmet tank/plain --transport tcp --address 127.0.0.1 --host $other
# subsystem NAMESPACE: the NVMe subsystem that exports it
subsystem() {
    local path
    path=$(grep -lx "$(readlink -f "/dev/zoneraid/tank/$1")" /sys/kernel/config/nvmet/subsystems/*/namespaces/1/device_path)
    basename "${path%/namespaces/*}"
}
nqn=$(subsystem zones)
if connect $other 22222222-2222-4333-8444-555555555555; then fail "the host of another namespace can connect"; fi
connect $one 33333333-2222-4333-8444-555555555555
wait_for 30 imported
diff <(blkzone report /dev/zoneraid/tank/zones) <(blkzone report "$remote") || fail "zones of the namespace on the host differ"
nqn=$(subsystem plain)
connect $other 22222222-2222-4333-8444-555555555555
wait_for 30 imported
[[ $(cat "/sys/block/$(basename "$remote")/queue/zoned") == none ]] || fail "the volume is zoned on the host"
for device in "$remote" /dev/zoneraid/tank/plain; do
    [[ $(blockdev --getss --getpbsz "$device" | xargs) == "512 4096" ]] || fail "sector sizes of $device are wrong"
done
# Partial blocks, several requests to one block at the same time.
fio --name=volume --filename="$remote" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=512-16k \
    --size=16M --io_size=8M --verify=crc32c --output=/run/fio || { cat /run/fio; fail "fio on the volume"; }
cmp -n $((16 << 20)) "$remote" /dev/zoneraid/tank/plain || fail "data on the host differs"
blkdiscard --length 16M "$remote"
# The data that was read here before is in the kernel's cache.
blockdev --flushbufs /dev/zoneraid/tank/plain
cmp -n $((16 << 20)) /dev/zoneraid/tank/plain /dev/zero || fail "blocks that the host has discarded are not zeros"
# The bandwidth limit counts a partial block as a whole one.
zoneraid namespace set tank/plain --bandwidth 64K
begun=$SECONDS
dd if=/dev/zero of=/dev/zoneraid/tank/plain bs=512 count=64 oflag=direct status=none
((SECONDS - begun >= 3)) || fail "64 sectors were written in $((SECONDS - begun)) s, above the limit of 64 KiB/s"
zoneraid namespace set tank/plain
nvme disconnect -n "$nqn"
nvme disconnect -n "$(subsystem zones)"
zoneraid export remove tank/zones
zoneraid export remove tank/plain
zoneraid stop tank
