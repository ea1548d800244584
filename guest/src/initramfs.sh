#!/bin/busybox sh
# The first process: mounts the host's root, read-only, under an overlay in memory, prepares the environment of
# commands, and changes its root to it. Programs start from memory here and slowly from the host's root, so as much as
# possible is done here.
export PATH=/bin
mount() { busybox mount "$@" || give_up "cannot mount $*"; }
give_up() {
    echo "guest: $1"
    busybox poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
case "$(busybox cat /proc/cmdline)" in
*guest.probe*)
    echo "guest: alive"
    busybox poweroff -f
    ;;
esac
for module in /modules/*; do busybox insmod "$module" || give_up "cannot load $module"; done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$options,cache=loose,ro" host /host
mount -t tmpfs -o size=75% memory /memory
busybox mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root
busybox mkdir -p /root/mnt/guest
mount -t 9p -o "$options" out /root/mnt/guest
. /root/mnt/guest/.guest/environment # GUEST_KERNEL, GUEST_BIN, GUEST_CWD, GUEST_SEED, GUEST_INIT

# Every controller is live before the command starts: they are probed in the background.
present() { busybox grep -lx 0x010802 /sys/bus/pci/devices/*/class | busybox wc -l; }
live() { busybox grep -lx live /sys/class/nvme/*/state 2>/dev/null | busybox wc -l; }
for _ in $(busybox seq 200); do
    [ "$(live)" = "$(present)" ] && break
    busybox sleep 0.1
done

mount -t configfs configfs /sys/kernel/config
mount -t debugfs debugfs /sys/kernel/debug
busybox mkdir /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
busybox ln -s /proc/self/fd /dev/fd
busybox ln -s fd/0 /dev/stdin
busybox ln -s fd/1 /dev/stdout
busybox ln -s fd/2 /dev/stderr
echo 1 >/proc/sys/kernel/sysrq
busybox hostname guest
busybox ip link set lo up
for dir in proc sys dev; do mount --move /$dir /root/$dir; done
mount -t tmpfs -o mode=755 run /root/run
busybox mkdir /root/run/lock /root/run/guest
busybox cp /bin/busybox /command.sh /root/run/guest/
release=$(busybox uname -r)
busybox mkdir -p /root/lib/modules
busybox ln -sfn "$GUEST_KERNEL/lib/modules/$release" "/root/lib/modules/$release"
if [ "$GUEST_INIT" = systemd ]; then
    busybox mkdir -p /root/run/systemd/system
    busybox cp /guest.service /root/run/systemd/system/
    exec busybox switch_root /root /lib/systemd/systemd --unit=guest.service
fi
exec busybox switch_root /root /run/guest/busybox sh /run/guest/command.sh
