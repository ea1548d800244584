# The machine crashes under load and a drive is lost when it boots again: all acknowledged data is there. Each round
# cuts the power, panics, or reboots without stopping the daemon (which shuts the drives' controllers down), removes the
# next member, assembles without it, compares, and rebuilds on the drive that the previous round had removed.
# guest: --drives 6 --reboots --time-limit 900

log=/mnt/guest/acknowledged
rounds=$((LONG ? 30 : 3))
round=$((GUEST_BOOT - 1))
if ((round == 0)); then
    echo 0 1 2 3 4 >/mnt/guest/members
    echo 5 >/mnt/guest/spare
    create_array tank $(drives 0 1 2 3 4)
    start_array tank
else
    read -ra members </mnt/guest/members
    spare=$(cat /mnt/guest/spare)
    role=$(((round + $(draw 5 role)) % 5))
    lost=${members[role]}
    step "boot after crash $round (of $rounds): drive $lost, role $role, is gone"
    remove_drive "$lost"
    start_array tank
    array_is degraded tank || fail "not degraded without drive $lost"
    guest verify "$DEVICE" --log "$log"
    step "drive $spare replaces drive $lost"
    zoneraid replace --yes tank "$role" "$(drive "$spare")"
    array_is healthy tank || fail "not healthy after the rebuild"
    members[role]=$spare
    echo "${members[@]}" >/mnt/guest/members
    echo "$lost" >/mnt/guest/spare
    if ((round == rounds)); then
        guest verify "$DEVICE" --log "$log"
        stop_array tank
        exit 0
    fi
fi
guest load "$DEVICE" --log "$log" --zones 5 &
after=$((1500 + $(draw 2500 after "$round")))
case $(draw 3 how "$round") in
0)
    step "power cut in $after ms"
    guest ask reset --after "$after"
    ;;
1)
    step "panic in $after ms"
    sleep "$((after / 1000)).$((after % 1000 / 100))"
    echo c >/proc/sysrq-trigger
    ;;
2)
    step "reboot in $after ms"
    sleep "$((after / 1000)).$((after % 1000 / 100))"
    busybox reboot -f
    ;;
esac
sleep 120
fail "the machine did not crash"
