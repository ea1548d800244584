//! Arguments of the command line. Doc comments of commands and options are the help texts.

use super::volume_args::VolumeCommand;
use crate::{
    bench,
    control::name::{ArrayName, NamespaceName},
    process::size,
    serve::{export, nbd},
};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use std::{net::IpAddr, path::PathBuf};

/// Fault-tolerant storage out of zoned drives.
#[derive(Parser)]
#[command(name = "zoneraid", version, max_term_width = 100, after_help = NOTES)]
pub struct Cli {
    /// Print one JSON object, and errors as JSON too
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub verb: Verb,
}

pub const NOTES: &str = "\
ARRAY is the name or UUID of an array, the path of one of its members, or the directory that contains \
them. A name is searched among the running arrays, then among the drives of this machine, in \
$ZONERAID_DIR and in the current directory. An ambiguous name is refused.
SIZE is in bytes, or has one of the suffixes K, M, G, T (powers of 1024).
Exit codes: 0 success, or healthy; 1 degraded (status), or incomplete rebuild (replace, rebuild); \
2 unusable (status); 4 the command failed, or some daemons do not report the status of their arrays (status).";

#[derive(clap::Args)]
pub struct Start {
    /// Name, UUID or path of the array
    pub array: ArrayName,
    /// How long to wait for missing members, at most 86400 (a day)
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = value_parser!(u32).range(..=86400))]
    pub wait: u32,
    /// Start read-only: nothing is written to the drives, even if members are missing
    #[arg(long)]
    pub read_only: bool,
    /// Start only if no member is missing or out
    #[arg(long)]
    pub complete: bool,
    /// Use stale members if too many others are missing: only data that cannot have changed is read
    ///
    /// Zones that were full when the stale member went out, and are full on all other present members, can be
    /// read. All other zones are offline until a missing member is back; the start prints their number. Use it
    /// with --read-only first.
    #[arg(long, conflicts_with = "complete")]
    pub force: bool,
    /// Start volumes without their lost data
    ///
    /// A volume does not start while acknowledged data may be unreadable, since a missing member may have it.
    /// This option gives such data up for good: writes since the last checkpoint of the volume may be undone,
    /// block by block, and blocks in offline zones cannot be read until they are written again. Use it with
    /// --read-only first.
    #[arg(long)]
    pub give_up: bool,
    /// Memory for the L2P map of each volume; 128 MiB per TiB of its size by default, and at least 64 MiB
    ///
    /// A volume with random writes over all of its blocks is many times faster if its whole map is in memory,
    /// which takes 1 GiB per TiB, or 1.5 GiB with compression.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub map_memory: Option<u64>,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Create emulated drives: image files that behave like ZNS SSDs
    #[command(subcommand)]
    Emulate(Emulate),
    /// Create an array; all data on its drives is destroyed
    Create(Create),
    /// Run an array as a zoned block device
    ///
    /// If the array carries a volume, the volume is a conventional block device. Runs in the foreground;
    /// `systemctl start zoneraid@UUID` does the same in the background. If members are missing, the array is in
    /// deferred-write mode: nothing is written before the first change, and until then a member is used again
    /// as soon as its drive is back. On SIGTERM, SIGINT, or SIGHUP without nohup, the block device is removed
    /// if it is unused; otherwise it stays for the next start.
    Start(Start),
    /// Run an array and serve its volume to NBD clients
    ///
    /// Runs in the foreground, and needs neither root nor kernel support. Prints one line when clients can
    /// connect. There is neither encryption nor authentication: all users that can open SOCKET or reach ADDRESS
    /// can access the whole volume.
    Serve {
        #[command(flatten)]
        start: Start,
        /// Path of a Unix socket, or address to listen at (port 10809 by default)
        #[arg(long, value_name = "SOCKET|ADDRESS", value_parser = nbd::parse_place)]
        nbd: nbd::NbdAddress,
    },
    /// Conventional block devices on arrays, for any file system
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Stop a running array and remove its block device
    Stop {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Show the state of an array, its problems and the recommended action
    ///
    /// Without ARRAY, or with several: one line per array.
    Status {
        /// Name, UUID or path of the array
        #[arg(id = "array", value_name = "ARRAY")]
        arrays: Vec<ArrayName>,
    },
    /// Show request rates and latencies of a running array, its drives and its clients
    ///
    /// On a terminal the display is updated every second until it is interrupted; otherwise, and with --json,
    /// one second is measured once.
    Top {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Show the properties of a drive and the array that it belongs to
    Examine {
        /// Image, NVMe namespace (/dev/ngXnY) or zoned block device
        drive: PathBuf,
        /// Print variables for the udev rule instead; nothing for devices that belong to no array
        #[arg(long)]
        export: bool,
    },
    /// List arrays and blank drives
    List {
        /// Directories to search; the current one and the drives of this machine by default
        #[arg(id = "dir", value_name = "DIR")]
        dirs: Vec<PathBuf>,
    },
    /// Report, read, write and manage the zones of an array
    #[command(subcommand)]
    Zone(ZoneCommand),
    /// Divide an array into namespaces: one zoned device for each tenant
    ///
    /// The first namespace needs an empty array that does not run. `zone` accepts ARRAY/NAME in the place of an
    /// array.
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Replace a member by a blank drive
    ///
    /// OLD is the path of the member, which need not exist any more, or its role as shown by `status`; a role
    /// needs ARRAY before it. A working member is copied, and stays in the array until the copy is complete, so
    /// that redundancy is kept meanwhile. Data that cannot be copied, or all data if OLD is missing or out, is
    /// rebuilt from the other members. If two members of a RAID-6 array are missing, replace them one after the
    /// other.
    ///
    /// An interrupted copy (by a signal, a crash or a power cut) continues with its completed part: by itself when the
    /// array is started again, or with the same command. `--cancel` ends it: NEW is blank then, and OLD stays.
    #[command(
        override_usage = "zoneraid replace [--now] [--yes] [ARRAY] OLD NEW\n       zoneraid replace --cancel ARRAY [MEMBER]"
    )]
    Replace {
        /// [ARRAY] OLD NEW; with --cancel ARRAY, and OLD or NEW if several members are being copied
        #[arg(num_args = 1..=3, required = true, value_names = ["OLD", "NEW"])]
        drives: Vec<PathBuf>,
        /// Cancel the copy of a member to its new drive, also of an array that does not run
        #[arg(long, conflicts_with_all = ["now", "yes"])]
        cancel: bool,
        /// Take OLD out at once, and rebuild NEW from the other members
        #[arg(long)]
        now: bool,
        /// Destroy the data on NEW
        #[arg(long)]
        yes: bool,
    },
    /// Continue an interrupted rebuild (resync, resilver), or wait for the running one
    Rebuild {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Read all blocks of a running array and repair wrong ones (check, verify)
    ///
    /// Every block in use is read with its parity, and compared with its checksum if the array has checksums. Wrong and
    /// unreadable blocks are decoded from the other members and repaired. The array can be used meanwhile: requests
    /// come first. A scrub continues after a restart.
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Export a running array to other hosts
    #[command(subcommand)]
    Export(ExportCommand),
    /// Take a member out of an array (fail, offline)
    ///
    /// The array runs degraded until the member is replaced (`replace`). Refused if data would be lost.
    Fail {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Path of the member, or its role as shown by status
        member: PathBuf,
    },
    /// Rename an array
    ///
    /// The array must not run. A missing member gets the new name when it is present again.
    Rename {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// New name: 1 to 64 bytes of visible characters without '/'
        new: String,
    },
    /// Make this host the owner of an array
    ///
    /// An array is started automatically only on the host that created it or adopted it last. It can be started
    /// manually on any host.
    Adopt {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Set whether an array is started automatically on its host
    Autostart {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// yes or no
        #[arg(value_enum)]
        starts: YesNo,
    },
    /// Set how many blocks of a drive may be repaired before `status` asks for another drive
    ///
    /// Blocks are repaired that a drive could not read, or returned wrong. They are counted on the drives; a new drive
    /// begins with none. The limit is 100 by default.
    ErrorLimit {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of blocks; 0 for no limit
        blocks: u32,
    },
    /// Destroy an array and make its drives blank
    ///
    /// The array must not run. The zones of its drives are reset, not overwritten: programs read zeros, but the
    /// data may still be on the medium. After an interruption run the command again. A member that was missing
    /// must be made blank with `wipe` later.
    Destroy {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Destroy the data of the array
        #[arg(long)]
        yes: bool,
    },
    /// Make drives blank
    ///
    /// Former members, and remains of an interrupted creation or destruction, are wiped at once. Everything else
    /// needs --yes: members, also of an unusable array, damaged metadata, and data of other programs. Members of
    /// a running array are refused.
    Wipe {
        /// Destroy the data on the drives
        #[arg(long)]
        yes: bool,
        /// Images, NVMe namespaces (/dev/ngXnY) or zoned block devices
        #[arg(required = true, value_name = "DRIVE")]
        drives: Vec<PathBuf>,
    },
    /// Demonstrate a simultaneous power cut and drive loss on your files
    Demo {
        /// File or directory to store; the project's sources and build by default, up to 256 MiB
        path: Option<PathBuf>,
        /// Seed of the moment of the power cut and of the lost drives; random by default
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Measure the cost of the engine, or of requests to the daemon, on this machine
    Bench {
        /// Subject of the measurement
        #[arg(value_enum, default_value_t = BenchTarget::Engine)]
        what: BenchTarget,
        /// Number of rounds for the median of each figure, 1 to 1000
        #[arg(
            long,
            value_name = "N",
            default_value_t = bench::ROUNDS as u32,
            value_parser = value_parser!(u32).range(1..=1000)
        )]
        rounds: u32,
        /// Level of the measured array: 4 data members with 1 parity, or 2
        #[arg(long, value_enum, default_value_t = Level::Raid5)]
        level: Level,
        /// Measure random reads and writes of a volume instead
        #[arg(long, conflicts_with = "level")]
        volume: bool,
        /// Number of volumes of the pool that is measured beside one volume
        #[arg(
            long,
            value_name = "N",
            requires = "volume",
            default_value_t = bench::volume::VOLUMES,
            value_parser = value_parser!(u32).range(1..=i64::from(bench::volume::MOST_VOLUMES))
        )]
        volumes: u32,
        /// Measure only this row, or a part of --volume; may be repeated
        #[arg(long = "row", value_enum, value_name = "ROW", conflicts_with = "namespaces")]
        rows: Vec<bench::BenchRow>,
        /// Measure sequential reads and writes of a namespace instead
        #[arg(long, conflicts_with_all = ["level", "volume"])]
        namespaces: bool,
        /// Compare with nbdkit, qemu-nbd and ISA-L instead, where they are installed; fio is the client
        #[arg(long, conflicts_with_all = ["level", "volume", "namespaces", "rows"])]
        peers: bool,
    },
    /// Print the completion script of a shell
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Write manual pages to a directory
    Man {
        /// Directory, created if it does not exist
        dir: PathBuf,
    },
}

#[derive(Subcommand)]
pub enum Emulate {
    /// Create DIR/drive0.img, DIR/drive1.img, ...
    Create {
        /// Directory, created if it does not exist
        dir: PathBuf,
        /// Number of drives, 1 to 32
        #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=32))]
        count: u32,
        /// Model of the drives
        #[arg(long, value_enum, default_value_t = Model::Zn540)]
        model: Model,
        /// Zones of each drive, from 1 to the model's number, which is the default
        #[arg(long, value_parser = value_parser!(u32).range(1..))]
        zones: Option<u32>,
        /// Zone capacity, a multiple of 4096 bytes; at most the model's, which is the default
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        zone_capacity: Option<u64>,
    },
    /// Inject faults into an emulated drive, also while it is in use
    ///
    /// A fault persists over restarts, in DRIVE.faults, until it is removed with `clear`. It takes effect with
    /// the next command to the drive. Zone and block numbers are those of the drive, not of an array on it.
    Fault {
        /// Image file created by `zoneraid emulate create`
        drive: PathBuf,
        #[command(subcommand)]
        fault: Fault,
    },
}

#[derive(Clone, Copy, Subcommand)]
pub enum Fault {
    /// Make a zone read-only
    ReadOnly {
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Make a zone offline
    Offline {
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Make reads of a block fail, until it is written again or its zone is reset
    Unreadable {
        /// Number of the block of 4 KiB, from 0
        lba: u64,
    },
    /// Flip a bit of a written block (silent corruption), until it is written again
    Flip {
        /// Number of the block of 4 KiB, from 0
        lba: u64,
    },
    /// Lose the write of a block (silent corruption), until it is written again
    ///
    /// The block reads as unwritten.
    Drop {
        /// Number of the block of 4 KiB, from 0
        lba: u64,
    },
    /// Misdirect the write of a block to another one (silent corruption)
    ///
    /// The other block has its content, and the block reads as unwritten, until either is written again.
    Misdirect {
        /// Number of the block of 4 KiB, from 0; it reads as unwritten
        lba: u64,
        /// Number of the block that has its content
        to: u64,
    },
    /// Lose all writes of a block without an error: it keeps its present content
    ///
    /// A block that is not written yet reads as zeros once it is. The fault remains after a reset of the zone.
    Stale {
        /// Number of the block of 4 KiB, from 0
        lba: u64,
    },
    /// Slow commands down by a factor
    ///
    /// A command then takes that many times 10 µs, and 1 µs for each block of 4 KiB that it reads or writes.
    Slow {
        /// Factor, 1 to 1000000; 1 for normal speed
        #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
        factor: u32,
    },
    /// Make the drive stop responding
    Gone,
    /// Remove all faults; data written meanwhile is kept
    Clear,
}

#[derive(Subcommand)]
pub enum ExportCommand {
    /// Export with the kernel's NVMe target, as a zoned namespace
    ///
    /// The hosts that may connect must be given by their NQNs (/etc/nvme/hostnqn on the host), or --any-host.
    /// NQNs prevent accidents only; use --key for authentication. Nothing is encrypted: protect the network.
    Nvmet {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Transport
        #[arg(long, value_enum)]
        transport: Transport,
        /// Address of this machine to listen at
        #[arg(long)]
        address: IpAddr,
        /// Port to listen at
        #[arg(long, default_value_t = 4420, value_parser = value_parser!(u16).range(1..))]
        port: u16,
        /// A host that may connect; repeat it for more
        #[arg(
            long = "host",
            value_name = "NQN",
            value_parser = export::parse_nqn,
            required_unless_present = "any_host"
        )]
        hosts: Vec<String>,
        /// Any host may connect that reaches the address
        #[arg(long, conflicts_with = "hosts")]
        any_host: bool,
        /// Require authentication with the secret in FILE, in the format of `nvme gen-dhchap-key`
        ///
        /// The kernel's target (DH-HMAC-CHAP, CONFIG_NVME_TARGET_AUTH) stores one secret per host, as long as
        /// an export allows that host.
        #[arg(long, value_name = "FILE", conflicts_with = "any_host")]
        key: Option<PathBuf>,
        /// Only print the steps
        #[arg(long)]
        dry_run: bool,
    },
    /// End the export of an array
    Remove {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    Tcp,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// WD Ultrastar DC ZN540: zones of 1077 MiB, 1 MiB ZRWA, 14 open zones
    Zn540,
    /// Samsung PM1731a: zones of 96 MiB, 64 KiB ZRWA, 384 open zones
    Pm1731a,
    /// A ZNS SSD without ZRWA: otherwise a ZN540
    PlainZns,
    /// A host-managed SMR disk: zones of 256 MiB, 128 open zones, a volatile cache
    Smr,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum YesNo {
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchTarget {
    /// Cost of the engine, with members in memory
    Engine,
    /// Cost of a request and of a drive command for the daemon, with null drives, as input for the lab
    Host,
    /// Cost of checksums, for the engine and for the daemon
    Checksums,
    /// Latency of a quiet client beside eight greedy ones, and the longest turn of the event loop
    Fairness,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// One member's worth of parity: any one member may be lost; 3 members or more
    Raid5,
    /// Two members' worth of parity: any two members may be lost; 4 members or more
    Raid6,
    /// One drive without parity: if it is lost, all data is lost
    Single,
}

impl Level {
    /// Number of parities: the members that may be lost.
    pub fn parities(self) -> usize {
        match self {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
            Level::Single => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// RAIZN: partial parity in log zones; for any zoned drives
    Log,
    /// ZRAID: partial parity in the ZRWA of the data zones; for drives with a ZRWA
    Zrwa,
    /// Zebra: parity updated in place in the ZRWA, with completion records in block metadata; for drives with a
    /// ZRWA and at least 16 bytes of metadata per block
    Inplace,
    /// ZapRAID: as `log`, with zone appends, several in flight; for drives with zone append and at least 16
    /// bytes of metadata per block
    Append,
}

/// Value of an option that is on or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Args)]
pub struct Create {
    /// Name of the array: 1 to 64 bytes of visible characters without '/'
    pub name: String,
    /// Level: the number of members that may be lost
    #[arg(long, value_enum, default_value_t = Level::Raid5)]
    pub level: Level,
    /// Chunk size: a power of two from 8K to 16M
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks, default_value = "64K")]
    pub chunk: u64,
    /// Partial parity policy; `zrwa` by default if all drives support it, otherwise `log`
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Checksums of all blocks, which detect data that a drive returns wrong without an error; on drives with less than
    /// 20 bytes of metadata a block only with the policies `zrwa` and `log`; by default on if the policy permits them
    #[arg(long, value_enum)]
    pub checksums: Option<Switch>,
    /// Zone size of the array: a power of two, at least one stripe; by default the next one above the zone
    /// capacity
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub zone_size: Option<u64>,
    /// Spare zones of each drive, to replace worn ones; one in 128 by default
    #[arg(long, value_name = "COUNT")]
    pub spare_zones: Option<u32>,
    /// Only print the resulting array, or the reason for a refusal
    #[arg(long)]
    pub dry_run: bool,
    /// Do not start the array automatically; by default it is started on this host when its drives are present
    #[arg(long)]
    pub no_autostart: bool,
    /// Destroy the data on the drives
    #[arg(long)]
    pub yes: bool,
    /// Drives, 3 to 32 with RAID-5 and 4 to 32 with RAID-6, in the order of their roles
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<PathBuf>,
}

#[derive(Subcommand)]
pub enum ScrubCommand {
    /// Start a scrub, or continue a paused one
    Start {
        /// Name, UUID or path of the array
        #[arg(required_unless_present = "all")]
        array: Option<ArrayName>,
        /// Scrub all running arrays
        #[arg(long, conflicts_with_all = ["array", "wait"])]
        all: bool,
        /// Read only zones that the last complete scrub has not read
        #[arg(long)]
        since_last: bool,
        /// Bytes of all members to read per second, at most; while the array is in use 16 MiB, or less
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        rate: Option<u64>,
        /// Wait until the scrub has ended
        #[arg(long)]
        wait: bool,
    },
    /// Pause the scrub; `start` continues it
    Pause {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// End the scrub
    Stop {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Show the scrub and earlier ones: bytes read, errors found and repaired
    Status {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
}

#[derive(Subcommand)]
pub enum ZoneCommand {
    /// List zones: condition, write pointer, capacity
    Report {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Only this zone
        zone: Option<u32>,
    },
    /// Write standard input to a zone, from its write pointer on
    Write(ZoneWrite),
    /// Copy a zone to standard output, up to its write pointer
    Read {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of the zone, from 0
        zone: u32,
        /// Bytes to skip
        #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
        offset: u64,
        /// Bytes to copy; up to the write pointer by default
        #[arg(long, value_name = "BYTES", value_parser = size::parse)]
        length: Option<u64>,
    },
    /// Reset a zone; its data is lost
    Reset {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Finish a zone: it is full, and takes no writes until it is reset
    Finish {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Open a zone explicitly
    Open {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Close an open zone
    Close {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of the zone, from 0
        zone: u32,
    },
}

#[derive(Subcommand)]
pub enum NamespaceCommand {
    /// Add a namespace to an array
    Create(CreateNamespace),
    /// List the namespaces of an array
    List {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Change the number of zones of a namespace; zones with data are kept
    Resize {
        /// ARRAY/NAME
        namespace: NamespaceName,
        /// New capacity, rounded up to whole zones
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        size: u64,
    },
    /// Set limits, guaranteed floors and latency target of a namespace
    ///
    /// Requests above a limit wait; other namespaces are throttled for floors and latency targets. Limits,
    /// floors and targets that are not given are removed. The array may be running or not.
    Set {
        /// ARRAY/NAME
        namespace: NamespaceName,
        #[command(flatten)]
        qos: QosOptions,
    },
    /// Remove a namespace; with the last one the array is empty again
    Remove {
        /// ARRAY/NAME
        namespace: NamespaceName,
        /// Destroy its data
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub struct CreateNamespace {
    /// ARRAY/NAME; a name has 1 to 32 letters, digits, '-', '_' or '.'
    pub namespace: NamespaceName,
    /// Capacity, rounded up to whole zones
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub size: u64,
    /// Weight of its share of the spare active zones, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub weight: u32,
    /// Active zones, at most; 4 by default, or all if it has fewer
    #[arg(long, value_name = "N")]
    pub active: Option<u32>,
    /// Zones of the array guaranteed to each active zone: a power of two
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub width: u32,
    #[command(flatten)]
    pub qos: QosOptions,
}

#[derive(Args)]
pub struct QosOptions {
    /// Limit of reads and writes per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iops: Option<u32>,
    /// Limit of bytes read and written per second
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub bandwidth: Option<u64>,
    /// Guaranteed reads and writes per second under sufficient load; at most --iops
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub floor_iops: Option<u32>,
    /// Guaranteed bytes read and written per second under sufficient load; at most --bandwidth
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub floor_bandwidth: Option<u64>,
    /// Latency target in microseconds for 99.9 % of reads and writes: other namespaces are throttled for it
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..))]
    pub latency: Option<u32>,
}

#[derive(Args)]
pub struct ZoneWrite {
    /// Name, UUID or path of the array
    pub array: ArrayName,
    /// Number of the zone, from 0
    pub zone: u32,
    /// Make every write durable by itself (FUA); otherwise data is flushed every 8 MiB and at the end
    #[arg(long)]
    pub fua: bool,
    /// Size of a write, a multiple of 4096 bytes, up to the array's limit (mostly 16M)
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks, default_value = "256K")]
    pub block_size: u64,
    /// Queue depth: writes in flight, 1 to 1024
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024), default_value_t = 4)]
    pub queue_depth: u32,
    /// Append the number of durable bytes, from the start of the zone, to FILE whenever it grows
    #[arg(long, value_name = "FILE")]
    pub ack_log: Option<PathBuf>,
}
