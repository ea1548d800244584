# A member is missing at the start: nothing is written without it, and it is a member again when it returns.
# guest: --drives 5

flags() { zoneraid --json status tank >/run/status || true; jq -r '[.state, .provisional, .read_only] | join(" ")' /run/status; }
is() { [[ $(flags) == "$1" ]]; }
same() { cmp -n $((8 << 20)) /run/data "$DEVICE" || fail "the data differs"; }
event() { zoneraid --json examine "$(drive 0)" | jq .superblock.event; }

create_array tank $(drives 0 1 2 3 4)
start_array tank
head -c $((8 << 20)) /dev/urandom >/run/data
dd if=/run/data of="$DEVICE" bs=256k oflag=direct conv=fsync status=none
stop_array tank
before=$(event)

step "member 2 is missing"
remove_drive 2
start_array tank
is "degraded true false" || { cat /run/status; fail "the array is not in deferred-write mode"; }
same
step "SIGKILL of the daemon"
kill -KILL "$DAEMON"
wait "$DAEMON" 2>/dev/null || true
start_array tank
is "degraded true false" || { cat /run/status; fail "the array is not in deferred-write mode after SIGKILL"; }
same
step "member 2 returns"
add_drives
wait_for 60 is "healthy false false"
same
stop_array tank

step "read-only start"
remove_drive 3
start_array tank --read-only
is "degraded false true" || { cat /run/status; fail "the array is not read-only"; }
[[ $(blockdev --getro "$DEVICE") == 1 ]] || fail "the block device is not read-only"
same
refused dd if=/run/data of="$DEVICE" bs=256k count=1 oflag=direct status=none
stop_array tank
refused timeout 60 zoneraid start tank --complete

step "the first write takes the missing member out"
start_array tank
is "degraded true false" || { cat /run/status; fail "the array is not in deferred-write mode"; }
zone_do reset "$DEVICE" 1
is "degraded false false" || { cat /run/status; fail "the array is still in deferred-write mode"; }
step "SIGKILL of the daemon"
kill -KILL "$DAEMON"
wait "$DAEMON" 2>/dev/null || true
add_drives
start_array tank
is "degraded false false" || { cat /run/status; fail "the stale member was taken back"; }
same
zoneraid replace --yes tank 3 "$(drive 3)"
array_is healthy tank || fail "not healthy after the rebuild"
same
stop_array tank
(($(event) > before)) || fail "the event number did not increase"
