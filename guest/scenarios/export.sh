# The array exported over NVMe/TCP: a host sees the same zones and uses them.
# guest: --drives 5

create_array tank $(drives 0 1 2 3 4)
start_array tank
modprobe -a nvmet nvmet-tcp nvme-tcp
friend=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
zoneraid export nvmet tank --transport tcp --address 127.0.0.1 --host $friend --host nqn.2014-08.org.example:other
nqn=$(basename /sys/kernel/config/nvmet/subsystems/*)
connect() { echo "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=$nqn,hostnqn=$1,hostid=$2" >/dev/nvme-fabrics; }
if connect nqn.2014-08.org.example:stranger 22222222-2222-4333-8444-555555555555; then fail "a stranger may connect"; fi
connect $friend 11111111-2222-4333-8444-555555555555
imported() {
    local c
    for c in /sys/class/nvme/*; do
        [[ $(cat "$c/transport") == tcp ]] && remote=/dev/$(basename "$(echo "$c"/nvme*n1 | sed 's/c[0-9]*n/n/')") && [[ -b $remote ]] && return
    done
    return 1
}
wait_for 30 imported
blkzone report "$DEVICE" | cut -d, -f1-3 >/run/here
blkzone report "$remote" | cut -d, -f1-3 >/run/there
diff /run/here /run/there || fail "the host sees other zones"
fio --name=remote --filename="$remote" --direct=1 --zonemode=zbd --ioengine=libaio --iodepth=8 --rw=randwrite \
    --bsrange=4k-128k --verify=crc32c --max_open_zones=4 --io_size=$((LONG ? 256 : 16))M --output=/run/fio ||
    { cat /run/fio; fail "fio"; }
blkzone report "$DEVICE" | sed 's/.*wptr/wptr/' >/run/here
blkzone report "$remote" | sed 's/.*wptr/wptr/' >/run/there
diff /run/here /run/there || fail "the host sees other write pointers"
refused zoneraid stop tank
nvme disconnect -n "$nqn"
zoneraid export remove tank

step "who cannot prove who he is may not connect"
secret() { nvme gen-dhchap-key --nqn "$friend" | grep -o 'DHHC-1:.*'; }
(umask 077; secret >/run/secret)
zoneraid export nvmet tank --transport tcp --address 127.0.0.1 --host $friend --key /run/secret
known() { connect "$friend" "11111111-2222-4333-8444-555555555555$1"; }
if known ""; then fail "without the secret"; fi
if known ",dhchap_secret=$(secret)"; then fail "with another secret"; fi
known ",dhchap_secret=$(cat /run/secret)"
wait_for 30 imported
blkzone report "$remote" | sed 's/.*wptr/wptr/' >/run/there
diff /run/here /run/there || fail "the host that has proven who it is sees other write pointers"
nvme disconnect -n "$nqn"
zoneraid export remove tank
stop_array tank
