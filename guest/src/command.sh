# The first process on the guest's root: runs the command once and leaves its exit status.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LANG=C.UTF-8
busybox=/run/guest/busybox
room=/mnt/guest/.guest
. $room/environment
boots=0
[ -e $room/boots ] && read -r boots <$room/boots
export GUEST_SEED GUEST_BOOT=$((boots + 1)) PATH="$GUEST_BIN:${GUEST_TOOLS:+$GUEST_TOOLS:}$PATH"
echo $GUEST_BOOT >$room/boots
cd "$GUEST_CWD" || exit
$busybox setsid bash $room/command </dev/null >>/mnt/guest/log 2>&1
status=$?
$busybox dmesg >/mnt/guest/dmesg
echo $status >$room/status.new
$busybox mv $room/status.new $room/status
# Without writeback, which may block for ever if the device of a file system has gone.
exec $busybox poweroff -n -f
