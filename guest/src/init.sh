#!/bin/bash
# The first process on the guest's root: prepares what commands expect, runs the command once.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LANG=C.UTF-8
room=/mnt/guest/.guest
. $room/environment # GUEST_KERNEL, GUEST_BIN, GUEST_CWD, GUEST_SEED

mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -sfn /proc/self/fd /dev/fd
ln -sfn fd/0 /dev/stdin
ln -sfn fd/1 /dev/stdout
ln -sfn fd/2 /dev/stderr
release=$(uname -r)
mkdir -p /lib/modules
ln -sfn "$GUEST_KERNEL/lib/modules/$release" "/lib/modules/$release"
hostname guest
ip link set lo up
modprobe -a configfs nvme
mount -t configfs configfs /sys/kernel/config
mount -t debugfs debugfs /sys/kernel/debug
echo 1 >/proc/sys/kernel/sysrq

# Every controller is live before the command starts: they are probed in the background.
for _ in $(seq 100); do
    [[ $(grep -lx live /sys/class/nvme/*/state 2>/dev/null | wc -l) == "$GUEST_DRIVES" ]] && break
    sleep 0.1
done

export GUEST_SEED GUEST_BOOT=$(($(cat $room/boot 2>/dev/null || echo 0) + 1))
echo $GUEST_BOOT >$room/boot
PATH=$GUEST_BIN:$PATH
cd "$GUEST_CWD" || exit
setsid bash $room/command </dev/null >>/mnt/guest/log 2>&1
status=$?
dmesg >/mnt/guest/dmesg
echo $status >$room/status.new
mv $room/status.new $room/status
sync
exec busybox poweroff -f
