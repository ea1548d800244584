# The policies log and inplace through kills, a power cut and lost drives, on NVMe namespaces, null_blk devices and SMR
# disks.
# guest: --drives 4:zrwa=0,size=512M --drives 4:metadata=16,size=512M --reboots --memory 3G --time-limit 600

log=/mnt/guest/acknowledged

# policy_is POLICY NAME
policy_is() { [[ $(zoneraid --json status "$2" | jq -r .policy) == "$1" ]] || fail "$2 is not of policy $1"; }

# killed NAME ACKNOWLEDGED: kills the daemon under load, and takes the array over by a new start
killed() {
    guest load "$DEVICE" --log "$2" --zones 4 --seconds 3 &
    local load=$!
    sleep "1.$(draw 10 kill "$1")"
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    start_array "$1"
    wait "$load" || fail "the load of $1 has failed"
    guest verify "$DEVICE" --log "$2"
}

# replaced NAME ACKNOWLEDGED ROLE DRIVE: verifies the degraded array, and rebuilds on the drive
replaced() {
    array_is degraded "$1" || fail "$1 is not degraded"
    guest verify "$DEVICE" --log "$2"
    guest load "$DEVICE" --log "$2" --zones 4 --seconds 1
    zoneraid replace --yes "$1" "$3" "$4"
    array_is healthy "$1" || fail "$1 is not healthy after the rebuild"
    guest verify "$DEVICE" --log "$2"
    stop_array "$1"
}

# lives NAME POLICY DRIVE...: creates an array of all drives but the last one, which later replaces a member
lives() {
    local name=$1 policy=$2 acknowledged=/mnt/guest/$1
    shift 2
    step "$name: $*"
    create_array "$name" --policy "$policy" "${@:1:$#-1}"
    policy_is "$policy" "$name"
    start_array "$name"
    killed "$name" "$acknowledged"
    zoneraid fail "$name" 1
    replaced "$name" "$acknowledged" 1 "${@: -1}"
}

if ((GUEST_BOOT == 1)); then
    step "namespaces: $(drives 0 1 2 3 | xargs)"
    create_array tank $(drives 0 1 2)
    policy_is log tank
    start_array tank
    killed tank "$log"
    guest load "$DEVICE" --log "$log" --zones 4 &
    step "power cut under load"
    guest ask reset --after "$((1500 + $(draw 1500 cut)))"
    sleep 60
    fail "the power was not cut"
fi
step "drive 1 is gone"
remove_drive 1
start_array tank
replaced tank "$log" 1 "$(drive 3)"

lives metadata inplace $(drives 4 5 6 7)

for n in 0 1 2 3; do
    null_blk "zoned$n" 96 zoned=1 zone_size=4 zone_nr_conv=2 zone_max_open=12 zone_max_active=12
done
lives null log /dev/zoned0 /dev/zoned1 /dev/zoned2 /dev/zoned3

step "a worn zone of a block device, then the loss of the disk"
disk_blk() { null_blk "worn$1" 96 zoned=1 zone_size=4 zone_nr_conv=2 zone_max_open=12 zone_max_active=12; }
for n in 0 1 2; do disk_blk "$n"; done
create_array worn --policy log --spare-zones 0 /dev/worn0 /dev/worn1 /dev/worn2
start_array worn
worn=/mnt/guest/worn
guest load "$DEVICE" --log "$worn" --zones 4 --seconds 1
members() { zoneraid --json status worn | jq -c '[.members[].state]'; }
# The first zone of the array, behind two conventional zones and two metadata zones.
echo $((4 * 8192)) >/sys/kernel/config/nullb/worn1/zone_readonly
guest load "$DEVICE" --log "$worn" --zones 4 --seconds 2
[[ $(members) == '["active","rebuilding","active"]' ]] || fail "states of members after the loss of one zone: $(members)"
guest verify "$DEVICE" --log "$worn"
echo 0 >/sys/kernel/config/nullb/worn1/power
guest verify "$DEVICE" --log "$worn"
members_are() { [[ $(members) == "$1" ]]; }
wait_for 10 members_are '["active","out","active"]'
stop_array worn

lives disks log $(smr_disks)
! dmesg | grep -v "dev worn1" | grep -E "I/O error|hung task|blocked for more" || fail "errors in the kernel log"
