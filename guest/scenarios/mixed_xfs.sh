# Zoned XFS on one array: its realtime device is a namespace, its data device a volume in another one; as `mixed`, on a
# current kernel (7 or newer).
# long
# guest: --kernel 7 --tools xfsprogs=6.15 --drives 5:size=1G,zone=8M,capacity=6M,open=40,active=40,zrwa=128K --reboots --memory 3G

fs=xfs
source "$(dirname "${BASH_SOURCE[0]}")/mixed.sh"
