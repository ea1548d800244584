# The guest itself: drives with the requested geometry, pulled drives, and zone states that survive power cuts.
# guest: --drives 2 --drives 1:lba=512,metadata=8,zrwa=0,zone=16M,capacity=16M --drives 1:conventional=yes
# guest: --reboots

zones() { blkzone report --count 1 --offset $((65536 * $1)) "$(block 0)"; }

case $GUEST_BOOT in
1)
    [[ $(cat "/sys/block/$(basename "$(block 0)")/queue/chunk_sectors") == 65536 ]] || fail "the zone size of drive 0 is wrong"
    [[ $(cat "/sys/block/$(basename "$(block 1)")/queue/max_open_zones") == 14 ]] || fail "the zone limits of drive 1 are wrong"
    [[ $(cat "/sys/block/$(basename "$(block 2)")/queue/chunk_sectors") == 32768 ]] || fail "the zone size of drive 2 is wrong"
    [[ $(cat "/sys/block/$(basename "$(block 2)")/queue/logical_block_size") == 512 ]] || fail "the block size of drive 2 is wrong"
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
    fail "the power was not cut"
    ;;
2)
    zones 0 | grep -q '(em)' || fail "zone 0 is not empty"
    zones 1 | grep -q '(oe)' || fail "zone 1 is not open"
    echo c >/proc/sysrq-trigger
    ;;
3)
    # An orderly kernel shutdown shuts the drives down, which closes zones and makes open zones without data empty
    # again.
    zones 1 | grep -q '(oe)' || fail "zone 1 is not open"
    busybox reboot -f
    sleep 60
    ;;
4) zones 1 ;;
esac
