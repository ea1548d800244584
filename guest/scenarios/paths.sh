# Drives that several controllers may share: one is reset under load, one is pulled while the array is idle. Also drives
# with hidden block devices, because the kernel cannot use zones of their size.
# guest: --drives 4:shared=yes --drives 3:zone=12M,capacity=12M,size=240M,zrwa=512K

log=/mnt/guest/acknowledged
create_array tank $(drives 0 1 2 3)
start_array tank
[[ -e /sys/class/nvme-generic/$(basename "$(drive 0)")/device/subsysnqn ]] || fail "drive 0 is its only controller's"
guest load "$DEVICE" --log "$log" --zones 5 &
load=$!
for n in 0 1 2 3; do
    loaded "$load" "$log"
    step "the controller of drive $n is reset"
    echo 1 >"/sys/class/nvme/$(controller "$n")/reset_controller"
done
loaded "$load" "$log"
kill "$load"
wait "$load" 2>/dev/null || true
array_is healthy tank || fail "a drive is out because of a reset"
guest verify "$DEVICE" --log "$log"

lost=$(draw 4 lost)
step "drive $lost is pulled, and nothing but reads tells"
remove_drive "$lost"
guest verify "$DEVICE" --log "$log"
wait_for 10 array_is degraded tank
stop_array tank

step "zones of 12 MiB, of which the kernel makes no block device: $(drives 4 5 6 | xargs)"
[[ ! -e $(block 4) ]] || fail "there is a block device"
create_array hidden $(drives 4 5 6)
zoneraid list | grep hidden || fail "it is not found"
start_array hidden
log=/mnt/guest/hidden
guest load "$DEVICE" --log "$log" --zones 3 --seconds 2
stop_array hidden
remove_drive 5
start_array hidden
array_is degraded hidden || fail "not degraded"
guest verify "$DEVICE" --log "$log"
stop_array hidden
