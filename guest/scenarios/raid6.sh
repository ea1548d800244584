# RAID-6: two drives are pulled under load and replaced at once; then the power is cut, and two other drives are removed
# at the next boot. No write fails, and all acknowledged data is there.
# guest: --drives 8 --reboots --time-limit 900

log=/mnt/guest/acknowledged
may_be_lost() { [[ $(zoneraid --json status tank | jq -r .may_be_lost) == "$1" ]]; }
none() { may_be_lost 0; }
one() { may_be_lost 1; }
first=$(draw 6 first)
second=$(((first + 1 + $(draw 5 second)) % 6))
# The drives that are not pulled, and the indexes of those that are removed later.
others=()
for n in 0 1 2 3 4 5; do ((n == first || n == second)) || others+=("$n"); done
third=$(draw 4 third)
fourth=$(((third + 1 + $(draw 3 fourth)) % 4))

if ((GUEST_BOOT > 1)); then
    step "boot after the power cut: drives ${others[third]} and ${others[fourth]} are gone"
    remove_drive "${others[third]}"
    remove_drive "${others[fourth]}"
    start_array tank
    array_is degraded tank || fail "not degraded without two drives"
    guest verify "$DEVICE" --log "$log"
    for role in "${others[third]}" "${others[fourth]}"; do
        # The pulled drives are present again after the boot.
        ((role == others[third])) && spare=$first || spare=$second
        zoneraid replace --yes tank "$role" "$(drive "$spare")"
    done
    array_is healthy tank || fail "not healthy after two rebuilds"
    guest verify "$DEVICE" --log "$log"
    stop_array tank
    exit 0
fi

create_array tank --level raid6 $(drives 0 1 2 3 4 5)
start_array tank
guest load "$DEVICE" --log "$log" --zones 5 &
load=$!
loaded "$load" "$log"
step "drive $first is pulled from the bus"
remove_drive "$first"
wait_for 60 one
loaded "$load" "$log"
step "drive $second is pulled from the bus"
remove_drive "$second"
wait_for 60 none
loaded "$load" "$log"
zoneraid --json status tank >/run/status || true
jq -e "([.members[] | select(.state != \"active\").role] | sort) == ([$first, $second] | sort)" /run/status ||
    { cat /run/status; fail "status does not name the pulled drives"; }
step "drives 6 and 7 replace both at once"
zoneraid replace tank "$first" "$(drive 6)" &
replacement=$!
out() { [[ $(zoneraid --json status tank | jq -r ".members[$first].state") == out ]]; }
in_place() { ! out; }
wait_for 60 in_place
zoneraid replace tank "$second" "$(drive 7)"
wait "$replacement"
array_is healthy tank || fail "not healthy after the rebuilds"
loaded "$load" "$log"
after=$((500 + $(draw 1500 after)))
step "power cut in $after ms"
guest ask reset --after "$after"
sleep 120
fail "the machine did not crash"
