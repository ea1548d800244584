# Drives that several controllers can share: the controller of each is reset under load, and one is pulled while nothing
# is written. Also drives whose block device the kernel hides because of their zone size.
# guest: --drives 4:shared=yes --drives 3:zone=12M,capacity=12M,size=240M,zrwa=512K

log=/mnt/guest/acknowledged
create_array tank $(drives 0 1 2 3)
start_array tank
[[ -e /sys/class/nvme-generic/$(basename "$(drive 0)")/device/subsysnqn ]] || fail "drive 0 cannot be shared by controllers"
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
array_is healthy tank || fail "a controller reset took a drive out"
guest verify "$DEVICE" --log "$log"

lost=$(draw 4 lost)
step "drive $lost is pulled, and only reads detect it"
remove_drive "$lost"
guest verify "$DEVICE" --log "$log"
wait_for 10 array_is degraded tank
stop_array tank

step "zones of 12 MiB, for which the kernel provides no block device: $(drives 4 5 6 | xargs)"
[[ ! -e $(block 4) ]] || fail "drive 4 has a block device"
create_array hidden $(drives 4 5 6)
zoneraid list | grep hidden || fail "list does not find the array"
start_array hidden
log=/mnt/guest/hidden
guest load "$DEVICE" --log "$log" --zones 3 --seconds 2
stop_array hidden
remove_drive 5
start_array hidden
array_is degraded hidden || fail "not degraded"
guest verify "$DEVICE" --log "$log"
stop_array hidden
