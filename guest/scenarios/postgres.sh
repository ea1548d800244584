# PostgreSQL on a volume with XFS: transactions run while the daemon is killed and a snapshot is made, until the power is cut.
# With a drive removed, the database and a clone of the snapshot recover, are consistent, and have all transactions that were
# acknowledged, of the clone those before the snapshot.
# long
# guest: --drives 6:size=1G,zone=8M,capacity=6M --reboots --time-limit 1200 --memory 4G

acknowledged=/mnt/guest/acknowledged
bin=$(echo /usr/lib/postgresql/*/bin)
bin=${bin##* }
[[ -x $bin/initdb ]] || fail "this test needs PostgreSQL: apt-get install --no-install-recommends postgresql"
mkdir -p /run/db /run/copy /run/socket
chown postgres /run/socket
modprobe xfs
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=/run/socket "$@"; }
sql() { as_postgres psql -h /run/socket -p "$1" -d postgres -AtXqc "$2"; }
# database PORT DIR: starts the database in a directory
database() {
    as_postgres "$bin/pg_ctl" -s -w -t 180 -D "$2/data" -l "$2/log" start -o "-p $1 -k /run/socket -c listen_addresses= -c shared_buffers=32MB" ||
        { cat "$2/log"; fail "PostgreSQL on $2"; }
}
# keep_transactions LOG: inserts rows and logs those that are committed
keep_transactions() {
    local n=0
    while true; do
        n=$((n + 1))
        sql 5432 "INSERT INTO kept VALUES ($n)"
        echo "$n" >>"$1"
    done
}
# consistent PORT LOG: checks that a database has these transactions, and that its balances agree with its history
consistent() {
    local rows found sums
    rows=$(wc -l <"$2")
    found=$(sql "$1" "SELECT count(*) FROM kept WHERE n <= $rows")
    ((found == rows)) || fail "only $found of $rows acknowledged transactions are there"
    sums=$(sql "$1" "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
        (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)")
    [[ $(echo "$sums" | tr '|' '\n' | sort -u | wc -l) == 1 ]] || fail "the balances are $sums"
    as_postgres "$bin/pg_amcheck" -h /run/socket -p "$1" -d postgres --install-missing >/run/amcheck 2>&1 ||
        { cat /run/amcheck; fail "pg_amcheck"; }
    step "$found transactions are there, balances $sums"
}

if ((GUEST_BOOT == 1)); then
    create_array tank $(drives 0 1 2 3 4)
    zoneraid volume create tank/db --size 900M
    start_array tank
    mkfs.xfs -q "$(device db)"
    mount "$(device db)" /run/db
    chown postgres /run/db
    step "a database is created"
    as_postgres "$bin/initdb" -A trust --no-sync --no-instructions -k -D /run/db/data >/run/initdb 2>&1 || { cat /run/initdb; fail "initdb"; }
    sync -f /run/db
    database 5432 /run/db
    as_postgres pgbench -q -i -s 2 -h /run/socket postgres >/run/pgbench 2>&1 || { cat /run/pgbench; fail "pgbench -i"; }
    sql 5432 "CREATE TABLE kept (n int PRIMARY KEY)"

    step "transactions until the power is cut, with a SIGKILL of the daemon and a snapshot"
    as_postgres pgbench -n -c 4 -T 600 -h /run/socket postgres >/run/pgbench 2>&1 &
    keep_transactions $acknowledged.db &
    wait_for 120 several $acknowledged.db
    killed
    sleep 5
    cp $acknowledged.db $acknowledged.copy
    zoneraid volume snapshot tank/db@kept
    sleep 5
    guest ask reset --after "$((1000 + $(draw 3000 after)))"
    sleep 120
    fail "the machine did not crash"
fi

lost=$(draw 5 lost)
step "boot after the power cut: drive $lost is gone; $(wc -l <$acknowledged.copy) and $(wc -l <$acknowledged.db) transactions were acknowledged"
several $acknowledged.copy || fail "too few transactions for a test"
remove_drive "$lost"
start_array tank
zoneraid volume clone tank/db@kept copy
mount "$(device db)" /run/db
mount -o nouuid "$(device copy)" /run/copy
# That of the processes at the power cut, or at the snapshot.
rm -f /run/db/data/postmaster.pid /run/copy/data/postmaster.pid
database 5432 /run/db
database 5433 /run/copy
consistent 5432 $acknowledged.db
consistent 5433 $acknowledged.copy
for dir in /run/db /run/copy; do as_postgres "$bin/pg_ctl" -s -w -D $dir/data -m fast stop; umount $dir; done
! dmesg | grep -E 'I/O error.*ublk|hung task|blocked for more' || fail "errors in the kernel log"
stop_array tank
