//! Arguments of `volume` on the command line. Doc comments of commands and options are the help texts.

use crate::{
    control::{
        name::{ArrayName, NamespaceName, SnapshotOfArray},
        qos::QosChange,
    },
    process::size,
    report::{Compression, WhenFull},
};
use clap::{ArgGroup, Args, Subcommand};
use engine::volume::{SectorSize, Unit};

/// Parses a size in whole blocks, or 0.
fn lent_blocks(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size::parse_blocks(text) }
}

/// Blocks a second; 0 for no limit.
fn limit_blocks(text: &str) -> Result<u32, String> {
    u32::try_from(lent_blocks(text)?).map_err(|_| "a bandwidth is less than 16 TiB a second".into())
}

/// Value name of [`Compression`] in help texts.
const COMPRESSION: &str = "off|lz4|zstd[:LEVEL]";

fn sector_size(text: &str) -> Result<SectorSize, String> {
    let size = text.parse().ok().and_then(SectorSize::from_bytes);
    size.ok_or_else(|| "sectors have 512 or 4096 bytes".into())
}

fn unit(text: &str) -> Result<Unit, String> {
    let unit = size::parse(text).ok().and_then(Unit::from_bytes);
    unit.ok_or_else(|| "units are 4K, 8K, 16K, 32K or 64K".into())
}

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Create a volume on an empty array or namespace, or one of several
    ///
    /// With the name of an array, the volume has all of it. With ARRAY/NAME it is one of any number of volumes, which
    /// share the space of the array (a pool): the first one requires an empty array. On an array that is divided into
    /// namespaces, ARRAY/NAME is a volume that has all of a namespace, which is added if it does not exist and --size is
    /// given, and ARRAY/NAMESPACE/NAME is one of several on a namespace. Volumes can be larger than the space below
    /// (overcommitted): blocks that were never written, or were discarded, take no space.
    Create {
        /// Name, UUID or path of the array, ARRAY/NAME, or ARRAY/NAMESPACE/NAME
        array: ArrayName,
        /// Size, a multiple of 4096 bytes; the available space by default, of a volume that has all of an array or
        /// namespace
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        size: Option<u64>,
        /// Compression of new data; to use the space gained by it, give a larger --size as well
        #[arg(long, value_name = COMPRESSION, default_value_t = Compression(None))]
        compression: Compression,
        /// Compression unit, 4K to 64K: larger units compress better, and make small reads slower
        #[arg(long, value_name = "SIZE", value_parser = unit, default_value = "4K")]
        unit: Unit,
        /// Logical sector size. 512 is for software that requires it: writes of partial blocks of 4096 bytes
        /// cost an additional read
        #[arg(long, value_name = "BYTES", value_parser = sector_size, default_value = "4096")]
        sector_size: SectorSize,
        #[command(flatten)]
        shares: ShareOptions,
    },
    /// List the volumes of a pool
    List {
        /// Name, UUID or path of the array, or ARRAY/NAMESPACE
        array: ArrayName,
    },
    /// Rename a volume of a pool; the array must not be running
    Rename {
        /// ARRAY/NAME, or ARRAY/NAMESPACE/NAME
        volume: NamespaceName,
        /// The new name
        name: String,
    },
    /// Remove a volume of a pool with all its data, or a snapshot
    ///
    /// Its space is free at the return. If the command is interrupted, the volume is there, or its removal continues at
    /// the next start. A volume is removed after its snapshots, and a snapshot after its clones.
    Remove {
        /// ARRAY/NAME or ARRAY/VOLUME@SNAPSHOT; on a namespace, ARRAY/NAMESPACE in the place of ARRAY
        volume: NamespaceName,
        /// Confirm that the data is destroyed
        #[arg(long)]
        yes: bool,
    },
    /// Make snapshots of volumes of a pool
    ///
    /// A snapshot keeps the contents that its volume has at this moment, and takes space for data that is changed
    /// afterwards. Several snapshots of one command, of different volumes of an array, are of the same moment. The array may
    /// be running or not.
    Snapshot {
        /// ARRAY/VOLUME@SNAPSHOT
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<SnapshotOfArray>,
    },
    /// Create a volume with the contents of a snapshot
    ///
    /// The clone takes space only for data that is changed in it. Its snapshot cannot be removed before it.
    Clone {
        /// ARRAY/VOLUME@SNAPSHOT
        snapshot: SnapshotOfArray,
        /// Name of the clone, a volume of the same array
        name: String,
    },
    /// Give a volume the contents of a snapshot
    ///
    /// All later changes of the volume are lost. The array may be running or not; the volume must not be in use, and gets its
    /// block device anew. If the command is interrupted, the volume is unchanged, or gets the contents of the snapshot when
    /// the array is used next.
    Rollback {
        /// ARRAY/VOLUME@SNAPSHOT
        snapshot: SnapshotOfArray,
        /// Remove later snapshots of the volume first
        #[arg(long)]
        remove_later: bool,
        /// Confirm that later changes are destroyed
        #[arg(long)]
        yes: bool,
    },
    /// List the ranges of a volume that may have changed since a snapshot
    ///
    /// Ranges that are not listed are the same in both. Of very many ranges the closest ones are joined.
    Diff {
        /// ARRAY/VOLUME@SNAPSHOT
        snapshot: SnapshotOfArray,
        /// Name of a later snapshot of the same volume to compare with, in place of the volume itself
        later: Option<String>,
    },
    /// Change the size of a volume
    ///
    /// The array may be running or not. Its block device has the new size at once from Linux 6.16 on, and with older
    /// kernels when the array is stopped and started again. If the command is interrupted, the volume has its former size
    /// or the new one. A volume can be larger than its array (overcommitted). A volume of a
    /// pool can become smaller if the end that is cut off has no data: shrink the file system first, and discard the
    /// rest (blkdiscard -o NEW_SIZE_IN_BYTES DEVICE).
    Resize {
        /// Name, UUID or path of the array, ARRAY/NAME, or ARRAY/NAMESPACE/NAME
        array: ArrayName,
        /// New size, a multiple of 4096 bytes
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        size: u64,
    },
    /// Change the compression of a volume, its limits, floors, and behaviour when full
    ///
    /// Existing data stays unchanged and readable. The array may be running or not; --lend needs a running one. Limits,
    /// floors, latency target and guaranteed space are those of one volume of a pool, and hold at once. Settings that are
    /// not given stay unchanged.
    #[command(group(ArgGroup::new("change").required(true).multiple(true).args(
        [
            "compression",
            "unit",
            "lend",
            "when_full",
            "iops",
            "bandwidth",
            "floor_iops",
            "floor_bandwidth",
            "latency",
            "guarantee",
        ]
    )))]
    Set {
        /// Name, UUID or path of the array, ARRAY/NAME, or ARRAY/NAMESPACE/NAME
        array: ArrayName,
        /// Compression of new data
        #[arg(long, value_name = COMPRESSION)]
        compression: Option<Compression>,
        /// Compression unit, 4K to 64K; unchanged by default
        #[arg(long, value_name = "SIZE", value_parser = unit)]
        unit: Option<Unit>,
        /// Part of the reserve of an overcommitted volume that new blocks may use until the next start, so that
        /// files can be deleted in a full file system. 0 revokes the unused rest
        #[arg(long, value_name = "SIZE", value_parser = lent_blocks)]
        lend: Option<u64>,
        /// Behaviour of writes without free space: fail at once, or wait for space, for 1 to 255 seconds (60 by
        /// default)
        #[arg(long, value_name = "fail|queue|queue:SECONDS")]
        when_full: Option<WhenFull>,
        #[command(flatten)]
        shares: ShareOptions,
    },
}

/// Limits, floors, latency target and guaranteed space of a volume of a pool.
#[derive(Clone, Copy, Args)]
pub struct ShareOptions {
    /// Limit of reads and writes per second of a volume of a pool and its snapshots; 0 for none
    #[arg(long, value_name = "N")]
    pub iops: Option<u32>,
    /// Limit of bytes read and written per second of a volume of a pool and its snapshots; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = limit_blocks)]
    pub bandwidth: Option<u32>,
    /// Guaranteed reads and writes per second of a volume of a pool under sufficient load, at most --iops: other volumes
    /// are throttled for it; 0 for none
    #[arg(long, value_name = "N")]
    pub floor_iops: Option<u32>,
    /// Guaranteed bytes read and written per second of a volume of a pool under sufficient load, at most --bandwidth; 0
    /// for none
    #[arg(long, value_name = "SIZE", value_parser = limit_blocks)]
    pub floor_bandwidth: Option<u32>,
    /// Latency target in microseconds for 99.9 % of the reads and writes of a volume of a pool: other volumes are
    /// throttled for it; 0 for none
    #[arg(long, value_name = "US")]
    pub latency: Option<u32>,
    /// Space that only this volume of a pool and its snapshots may take, so that their writes are not refused; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = lent_blocks)]
    pub guarantee: Option<u64>,
}

impl ShareOptions {
    /// The limits, floors and latency target.
    pub fn qos(self) -> QosChange {
        QosChange {
            limits: [self.iops, self.bandwidth],
            floors: [self.floor_iops, self.floor_bandwidth],
            latency_us: self.latency,
        }
    }
}
