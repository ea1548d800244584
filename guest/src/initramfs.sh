#!/bin/busybox sh
# The first process: mounts the host's root, read-only, under an overlay in memory, and goes there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
case "$($b cat /proc/cmdline)" in
*guest.probe*) echo "guest: alive"; exec $b poweroff -f ;;
esac
give_up() { echo "guest: $1"; exec $b poweroff -f; }
for module in /modules/*; do $b insmod "$module" || give_up "cannot load $module"; done
options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o "$options,cache=loose,ro" host /host || give_up "cannot mount the host's root"
$b mount -t tmpfs -o size=75% memory /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root ||
    give_up "cannot mount the root"
for dir in proc sys dev; do
    $b mkdir -p /root/$dir
    $b mount --move /$dir /root/$dir
done
$b mkdir -p /root/mnt/guest
$b mount -t 9p -o "$options" out /root/mnt/guest || give_up "cannot mount the shared directory"
exec $b switch_root /root /bin/bash /mnt/guest/.guest/init
