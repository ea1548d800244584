# The guest itself: drives of the requested geometries, pulled drives, drives that keep their state over power cuts.
# guest: --drives 2 --drives 1:lba=512,metadata=8,zrwa=0,zone=16M,capacity=16M --drives 1:conventional=yes
# guest: --reboots

zones() { blkzone report --count 1 --offset $((65536 * $1)) "$(block 0)"; }

case $GUEST_BOOT in
1)
    [[ $(cat "/sys/block/$(basename "$(block 0)")/queue/chunk_sectors") == 65536 ]] || fail "zones of drive 0"
    [[ $(cat "/sys/block/$(basename "$(block 1)")/queue/max_open_zones") == 14 ]] || fail "limits of drive 1"
    [[ $(cat "/sys/block/$(basename "$(block 2)")/queue/chunk_sectors") == 32768 ]] || fail "zones of drive 2"
    [[ $(cat "/sys/block/$(basename "$(block 2)")/queue/logical_block_size") == 512 ]] || fail "blocks of drive 2"
    [[ $(cat "/sys/block/$(basename "$(block 3)")/queue/zoned") == none ]] || fail "drive 3 is zoned"
    null_blk helper 64
    null_blk zoned 64 zoned=1 zone_size=4
    [[ $(cat /sys/block/zoned/queue/zoned) == host-managed ]] || fail "null_blk is not zoned"
    blkzone open --count 1 --offset 65536 "$(block 0)"
    guest ask unplug 2
    gone() { ! controller 2 >/dev/null; }
    wait_for 30 gone
    remove_drive 1
    refused controller 1
    add_drives
    wait_for 30 controller 1
    guest ask reset --after 10
    sleep 60
    fail "no power cut"
    ;;
2)
    zones 0 | grep -q '(em)' || fail "zone 0 has forgotten that it is empty"
    zones 1 | grep -q '(oe)' || fail "zone 1 has forgotten that it is open"
    echo c >/proc/sysrq-trigger
    ;;
3)
    # An orderly end of the kernel shuts the drives down; they close zones, and an open zone without
    # data is empty again.
    zones 1 | grep -q '(oe)' || fail "zone 1 has forgotten that it is open"
    busybox reboot -f
    sleep 60
    ;;
4) zones 1 ;;
esac
