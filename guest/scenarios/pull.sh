# Drives are pulled under load: no write fails, replacements are rebuilt, all data is there.
# guest: --drives 7

log=/mnt/guest/acknowledged
create_array tank $(drives 0 1 2 3 4)
start_array tank

guest load "$DEVICE" --log "$log" --zones 5 &
load=$!

first=$(draw 5 first)
second=$(((first + 1 + $(draw 4 second)) % 5))
loaded "$load" "$log"
step "drive $first is pulled"
guest ask unplug "$first"
wait_for 60 array_is degraded tank
loaded "$load" "$log"
zoneraid --json status tank >/run/status || true
jq -e "[.members[] | select(.state != \"active\").role] == [$first]" /run/status || { cat /run/status; fail "status does not name the pulled drive"; }
jq -e '.action | test("replace")' /run/status || fail "status does not recommend replace"
step "drive 5 replaces drive $first"
zoneraid replace tank "$first" "$(drive 5)"
array_is healthy tank || fail "not healthy after the rebuild"
loaded "$load" "$log"
step "drive $second is pulled from the bus"
remove_drive "$second"
wait_for 60 array_is degraded tank
loaded "$load" "$log"
kill "$load"
wait "$load" 2>/dev/null || true
guest verify "$DEVICE" --log "$log"
step "drive 6 replaces drive $second"
zoneraid replace tank "$second" "$(drive 6)"
array_is healthy tank || fail "not healthy after the second rebuild"
stop_array tank
start_array tank
guest verify "$DEVICE" --log "$log"
array_is healthy tank || fail "not healthy after a restart"
stop_array tank
