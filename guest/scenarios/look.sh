# A user with only read access to namespaces and block devices can inspect and read an array, also while a daemon runs
# it under load.
# guest: --drives 3:size=512M --memory 3G

# nobody COMMAND...: runs a command as an unprivileged user
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

# seen NAME DRIVE...: checks all read-only commands as an unprivileged user
seen() {
    local name=$1
    shift
    [[ $(nobody zoneraid --json status "$name" | jq -r .state) == healthy ]] || fail "status of $name for the unprivileged user is not healthy"
    nobody zoneraid zone read "$name" 0 | cmp - /run/data
    nobody zoneraid zone report "$name" >/dev/null
    nobody zoneraid list >/dev/null
    for drive in "$@"; do
        nobody zoneraid examine "$drive" | grep -F "'$name', role " || fail "examine for the unprivileged user finds no member on $drive"
    done
}

# looked NAME DRIVE...: creates an array and inspects it with and without read access to its drives
looked() {
    local name=$1
    step "$*"
    create_array "$@"
    shift
    zoneraid zone write "$name" 0 --fua </run/data
    chmod 444 "$@"
    seen "$name" "$@"
    if nobody zoneraid zone reset "$name" 1 2>/run/said; then fail "the unprivileged user reset a zone"; fi
    grep -F "permission denied" /run/said
    chmod 000 "$@"
    if nobody zoneraid status "$name" 2>/run/said; then fail "the unprivileged user can inspect $name without permission"; fi
    grep -F "$1 cannot be opened: permission denied" /run/said
    chmod 444 "$@"
}

head -c 3M /dev/urandom >/run/data
looked tank $(drives 0 1 2)
for n in 0 1 2; do
    null_blk "zoned$n" 96 zoned=1 zone_size=4 zone_nr_conv=2 zone_max_open=12 zone_max_active=12
done
looked pond /dev/zoned0 /dev/zoned1 /dev/zoned2

step "inspection while a daemon runs under load"
start_array pond
guest load "$DEVICE" --log /mnt/guest/acknowledged --zones 4 --seconds 20 &
load=$!
looks=0
while kill -0 $load 2>/dev/null; do
    # The unprivileged user may not connect to the daemon, so the command reads the drives. Writes in flight make the
    # members inconsistent in that view: a zone of which a member seems to lack its part is reported as unknown.
    nobody zoneraid status || fail "status fails for the unprivileged user while a daemon runs"
    nobody zoneraid examine /dev/zoned1 | grep -F "in use: by \`zoneraid start pond\`" >/dev/null || fail "examine does not name the daemon"
    zoneraid status pond >/dev/null
    ((looks += 1))
done
wait $load || fail "the load has failed"
((looks > 0)) || fail "no inspection while the load ran"
guest verify "$DEVICE" --log /mnt/guest/acknowledged
array_is healthy pond || fail "pond is not healthy"
stop_array pond
! dmesg | grep -E 'I/O error|hung task|blocked for more' || fail "errors in the kernel log"
