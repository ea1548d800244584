//! Arguments of the command line. Doc comments of commands and options are the help texts.

use crate::{
    bench, export,
    name::{ArrayName, NamespaceName},
    nbd,
    report::{Compression, WhenFull},
    size,
};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use engine::volume::{SectorSize, Unit};
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
ARRAY is the name or UUID of an array, the path of one of its members, or the directory that holds \
them. A name is looked for among the arrays that run, then among the drives of this machine, in \
$ZONERAID_DIR and in the current directory. Where it may mean two things it is refused.
SIZE is in bytes, or has one of the suffixes K, M, G, T (powers of 1024).
Exit codes: 0 done, or healthy; 1 degraded (status), or not all was rebuilt (replace, rebuild); \
2 unusable (status); 4 the command failed, or some daemons do not say how their arrays are (status).";

#[derive(clap::Args)]
pub struct Start {
    /// Name, UUID or path of the array
    pub array: ArrayName,
    /// How long to wait for missing members, at most 86400 (a day)
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = value_parser!(u32).range(..=86400))]
    pub wait: u32,
    /// Only to be read: nothing is written on the drives, whoever is missing
    #[arg(long)]
    pub read_only: bool,
    /// Only if no member is missing or out
    #[arg(long)]
    pub complete: bool,
    /// With members that are stale if too many others are missing: reads only what cannot have changed
    ///
    /// Zones that were full when a stale member went, and are full on all others that are there, are read.
    /// All others are offline until a missing member is back; the start says how many these are. Use it with
    /// --read-only first.
    #[arg(long, conflicts_with = "complete")]
    pub force: bool,
    /// Without what a volume on it has lost
    ///
    /// A volume does not start while the array cannot read something that it may have promised, since a member that is
    /// missing may bring that back. This gives it up, for good: what was written since the volume last noted where
    /// everything is may be undone, block by block, and blocks of zones that are offline cannot be read until they
    /// are written again. Use it with --read-only first.
    #[arg(long)]
    pub give_up: bool,
    /// Memory for the map of each volume; 128 MiB a TiB of its size by default, and no less than 64 MiB
    ///
    /// A volume that is written at random places all over is many times faster if all of its map is in memory, which
    /// takes 1 GiB a TiB, and half as much again if it compresses.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub map_memory: Option<u64>,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Make emulated drives: image files that behave like ZNS SSDs
    #[command(subcommand)]
    Emulate(Emulate),
    /// Make an array; everything on its drives is destroyed
    Create(Create),
    /// Run an array: show it to the kernel as a zoned block device
    ///
    /// If the array carries a volume, that is shown, as an ordinary block device.
    /// Stays in the foreground; `systemctl start zoneraid@UUID` does the same in the background.
    /// Without members, nothing is written before somebody else writes: until then a member is simply back
    /// when its drive is. Told to end (SIGTERM, SIGINT, or SIGHUP without nohup), it takes the block device
    /// down if nothing uses it; otherwise the block device stays for the next start.
    Start(Start),
    /// Run an array: serve the volume that it carries to NBD clients
    ///
    /// Stays in the foreground, and needs neither root nor help of the kernel. Says so in one line when clients can
    /// connect. Nothing is encrypted and nobody is asked for a name: who can open SOCKET, or reach ADDRESS, has all of
    /// the volume.
    Serve {
        #[command(flatten)]
        start: Start,
        /// Path of a socket, or address to listen at (port 10809 if none is given)
        #[arg(long, value_name = "SOCKET|ADDRESS", value_parser = nbd::parse_place)]
        nbd: nbd::Place,
    },
    /// Make a block device of an array: any file system on zoned drives
    #[command(subcommand)]
    Volume(Volume),
    /// Take the block device of a running array down
    Stop {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Say how an array is, what is wrong and what to do
    ///
    /// Without ARRAY: all arrays, a line each. With several: a line for each of these.
    Status {
        /// Name, UUID or path of the array
        #[arg(id = "array", value_name = "ARRAY")]
        arrays: Vec<ArrayName>,
    },
    /// Watch what block devices of a running array are asked for, and how long it takes
    ///
    /// On a terminal until it is interrupted, anew each second; otherwise, and with --json, one second, once.
    Top {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Say what a drive is and which array it belongs to
    Examine {
        /// Image, NVMe namespace (/dev/ngXnY) or zoned block device
        drive: PathBuf,
        /// Print what the udev rule needs to know instead: nothing about what is none of ours
        #[arg(long)]
        export: bool,
    },
    /// List arrays and blank drives
    List {
        /// Directories to look in; the current one and the drives of this machine by default
        #[arg(id = "dir", value_name = "DIR")]
        dirs: Vec<PathBuf>,
    },
    /// Work on the zones of an array
    #[command(subcommand)]
    Zone(Zone),
    /// Divide an array among tenants: namespaces, which are zoned devices of their own
    ///
    /// The first one needs an empty array, which must not run. `zone` works on the zones of ARRAY/NAME as it does
    /// on those of an array.
    #[command(subcommand)]
    Namespace(Namespace),
    /// Put a blank drive in the place of a member
    ///
    /// OLD is the path of the member, which need not exist any more, or its role as `status`
    /// shows it; a role needs ARRAY before it. A member that still works is copied, and stays in the
    /// array until NEW holds the same, so that the array can lose a drive all the while. What cannot be
    /// copied is rebuilt from the other members, and everything if OLD is gone or out. Where two members of a
    /// RAID-6 array are gone, they are replaced one after the other.
    ///
    /// A copy that is interrupted, by a signal, a crash or a power cut, continues with what is complete: by itself when
    /// the array is started again, or with the same command. `--cancel` ends it: NEW is blank then, and OLD stays.
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
        /// Take OLD out first, and rebuild NEW from the other members
        #[arg(long)]
        now: bool,
        /// Destroy what is on NEW
        #[arg(long)]
        yes: bool,
    },
    /// Go on with a rebuild that was interrupted
    Rebuild {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Show a running array to other machines
    #[command(subcommand)]
    Export(Export),
    /// Take a member out of an array
    Fail {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Path of the member, or its role as status shows it
        member: PathBuf,
    },
    /// Give an array another name
    ///
    /// It must not run. A member that is away learns of it when it is there again.
    Rename {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Its new name: 1 to 64 bytes that show, no '/'
        new: String,
    },
    /// Make this host the owner of an array
    ///
    /// An array starts by itself only on the host that made it, or adopted it last. By hand it starts anywhere.
    Adopt {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Say whether an array starts by itself on the host that it belongs to
    Autostart {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Whether it does
        #[arg(value_enum)]
        starts: YesNo,
    },
    /// Destroy an array: its drives become blank
    ///
    /// It must not run. Zones of its drives are reset, and nothing is overwritten: zoneraid, file systems and
    /// other programs find nothing there any more, and reads give zeros, but what was there may still be on
    /// the medium. A destruction that is cut off says so, and is run again. A member that is not there, and
    /// comes back later, belongs to nothing any more: make it blank with `wipe`.
    Destroy {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Destroy what is on it
        #[arg(long)]
        yes: bool,
    },
    /// Make drives blank, whatever is on them
    ///
    /// What nobody can miss goes at once: a former member, what is left of a creation or destruction that was
    /// cut off. Anything else takes --yes: a member, also of an array of which too little is there, damaged
    /// metadata, the data of others. A member of an array that runs is refused.
    Wipe {
        /// Destroy what is on the drives
        #[arg(long)]
        yes: bool,
        /// Images, NVMe namespaces (/dev/ngXnY) or zoned block devices
        #[arg(required = true, value_name = "DRIVE")]
        drives: Vec<PathBuf>,
    },
    /// Cut the power and lose a drive at the same moment, on your files
    Demo {
        /// File or directory to store; the project's own sources by default
        path: Option<PathBuf>,
        /// Decides where the power is cut and which drives are lost; random by default
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Measure what the engine, or a request to the daemon, costs on this machine
    Bench {
        /// What is measured
        #[arg(value_enum, default_value_t = Benched::Engine)]
        what: Benched,
        /// Rounds that each figure is the median of, 1 to 1000
        #[arg(
            long,
            value_name = "N",
            default_value_t = bench::ROUNDS as u32,
            value_parser = value_parser!(u32).range(1..=1000)
        )]
        rounds: u32,
        /// What is measured: an array of 4 data members and 1 parity, or 2
        #[arg(long, value_enum, default_value_t = Level::Raid5)]
        level: Level,
        /// Measure a volume instead: blocks at random places
        #[arg(long, conflicts_with = "level")]
        volume: bool,
        /// Measure a namespace instead: blocks one behind the other
        #[arg(long, conflicts_with_all = ["level", "volume"])]
        namespaces: bool,
    },
    /// Print what makes a shell complete commands, arrays, drives and zones
    Completions {
        /// The shell that shall understand it
        shell: Shell,
    },
    /// Write manual pages to a directory
    Man {
        /// Directory, made if it is not there
        dir: PathBuf,
    },
}

#[derive(Subcommand)]
pub enum Emulate {
    /// Make DIR/drive0.img, DIR/drive1.img, ...
    Create {
        /// Directory, made if it is not there
        dir: PathBuf,
        /// Number of drives, 1 to 32
        #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=32))]
        count: u32,
        /// What the drives are like
        #[arg(long, value_enum, default_value_t = Model::Zn540)]
        model: Model,
        /// Zones of each drive, at least 1; the model's number by default, which is the most
        #[arg(long, value_parser = value_parser!(u32).range(1..))]
        zones: Option<u32>,
        /// Writable size of a zone in whole blocks of 4096 bytes; the model's by default, which is the most
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        zone_capacity: Option<u64>,
    },
    /// Make an emulated drive misbehave, also while it is in use, to watch what happens
    ///
    /// The fault lasts over restarts, until the same command with `clear`; it is kept in DRIVE.faults.
    /// A drive that is in use suffers from it with its next command. Zones and blocks are those of the
    /// drive, not of an array on it.
    Fault {
        /// Image file that `zoneraid emulate create` made
        drive: PathBuf,
        #[command(subcommand)]
        fault: Fault,
    },
}

/// Parses a size in whole blocks, or 0.
fn lent_blocks(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size::parse_blocks(text) }
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
pub enum Volume {
    /// Make a volume on an empty array
    ///
    /// It can be larger than the array, as long as not all of it is used at once: blocks that were never written,
    /// or were discarded, take no room.
    Create {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Its size in whole blocks of 4096 bytes; as much as there is room for by default
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        size: Option<u64>,
        /// How what is written is compressed; a volume that shall hold more than there is room for without needs
        /// --size as well
        #[arg(long, value_name = COMPRESSION, default_value_t = Compression(None))]
        compression: Compression,
        /// How much of a write is compressed together, 4K to 64K. More of it is shorter, and takes longer to read a
        /// part of
        #[arg(long, value_name = "SIZE", value_parser = unit, default_value = "4K")]
        unit: Unit,
        /// What users may write at least. 512 is for software that can do nothing else: what is smaller than 4096 bytes
        /// costs a read as well
        #[arg(long, value_name = "BYTES", value_parser = sector_size, default_value = "4096")]
        sector_size: SectorSize,
    },
    /// Change how a volume compresses, and what it does when it is full
    ///
    /// What has been written stays as it is, and is read as ever. The array may be running or not, but to lend
    /// something.
    #[command(group(ArgGroup::new("change").required(true).multiple(true).args(["compression", "unit", "lend", "when_full"])))]
    Set {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// How what is written from now on is compressed
        #[arg(long, value_name = COMPRESSION)]
        compression: Option<Compression>,
        /// How much of a write is compressed together, 4K to 64K; as before by default
        #[arg(long, value_name = "SIZE", value_parser = unit)]
        unit: Option<Unit>,
        /// How much of the reserve of a volume that is larger than its room new blocks may take, until the next start:
        /// to delete something in a file system that is full. 0 takes back what is left of it
        #[arg(long, value_name = "SIZE", value_parser = lent_blocks)]
        lend: Option<u64>,
        /// What becomes of a write that finds no room: it fails at once, or waits for room, for 60 seconds or as many
        /// as are said, up to 255
        #[arg(long, value_name = "fail|queue|queue:SECONDS")]
        when_full: Option<WhenFull>,
    },
}

#[derive(Clone, Copy, Subcommand)]
pub enum Fault {
    /// A zone can only be read any more
    ReadOnly {
        /// Number of the zone, from 0
        zone: u32,
    },
    /// A zone is lost
    Offline {
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Reads of a block fail, until it is written again or its zone is reset
    Unreadable {
        /// Number of the block of 4 KiB, from 0
        lba: u64,
    },
    /// A bit of a block that is written changes and no error tells, until it is written again
    Flip {
        /// Number of the block of 4 KiB, from 0
        lba: u64,
    },
    /// Commands take so many times as long as the image file takes
    Slow {
        /// 1 to 1000000; 1 is as fast as before
        #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
        factor: u32,
    },
    /// The drive does not answer any more
    Gone,
    /// Take all faults back: the drive is as it was, with what has been written since
    Clear,
}

#[derive(Subcommand)]
pub enum Export {
    /// With the kernel's NVMe target, as a zoned namespace
    ///
    /// Who may connect has to be said: hosts by their names (/etc/nvme/hostnqn there), which prove nothing but
    /// keep accidents away unless --key asks for proof, or any. Nothing is encrypted: protect the network.
    Nvmet {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// What hosts connect over
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
        /// Hosts have to prove that they know the secret in FILE, as `nvme gen-dhchap-key` prints it
        ///
        /// The kernel's target asks for it (DH-HMAC-CHAP, CONFIG_NVME_TARGET_AUTH), and knows one for each host,
        /// until no export lets that host in any more.
        #[arg(long, value_name = "FILE", conflicts_with = "any_host")]
        key: Option<PathBuf>,
        /// Only say what would be written
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
pub enum Benched {
    /// What the engine costs, with members in memory
    Engine,
    /// What a request and a command to a drive cost the daemon, with members in files, as the lab takes it
    Host,
    /// How long a quiet client waits beside eight greedy ones, and the longest turn of the event loop
    Fairness,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// One member's worth of parity: any one member may be lost; 3 members or more
    Raid5,
    /// Two members' worth of parity: any two members may be lost; 4 members or more
    Raid6,
}

impl Level {
    /// Number of parities: the members that may be lost.
    pub fn parities(self) -> usize {
        match self {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// RAIZN: parity of partial stripes goes to log zones; any zoned drive will do
    Log,
    /// ZRAID: it goes to the random write area (ZRWA) of the data zones; drives with a ZRWA
    Zrwa,
    /// Zebra: it is updated in place, and block metadata tells what is complete; drives with a ZRWA and
    /// at least 16 bytes of metadata a block
    Inplace,
    /// ZapRAID: as `log`, and zones are written by zone append, several at once; drives with that and at least 16
    /// bytes of metadata a block
    Append,
}

#[derive(Args)]
pub struct Create {
    /// Name of the array: 1 to 64 bytes that show, no '/'
    pub name: String,
    /// How many members may be lost
    #[arg(long, value_enum, default_value_t = Level::Raid5)]
    pub level: Level,
    /// Bytes on one member before the next one is used: a power of two from 8K to 16M
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks, default_value = "64K")]
    pub chunk: u64,
    /// How stripes that are not full are protected; `zrwa` by default if all drives can do that, else `log`
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Distance between the starts of two zones of the array, a power of two of one stripe at least; the next
    /// one above what a zone holds by default
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub zone_size: Option<u64>,
    /// Zones of each drive that are kept for those that wear out; one in 128 by default
    #[arg(long, value_name = "COUNT")]
    pub spare_zones: Option<u32>,
    /// Only say what would be done, or why it is refused
    #[arg(long)]
    pub dry_run: bool,
    /// Start it by hand only; otherwise it starts by itself on this host when its drives are there
    #[arg(long)]
    pub no_autostart: bool,
    /// Destroy what is on the drives
    #[arg(long)]
    pub yes: bool,
    /// Drives, 3 to 32 with RAID-5 and 4 to 32 with RAID-6, in the order of their roles
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<PathBuf>,
}

#[derive(Subcommand)]
pub enum Zone {
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
    /// Empty a zone; its data is gone
    Reset {
        /// Name, UUID or path of the array
        array: ArrayName,
        /// Number of the zone, from 0
        zone: u32,
    },
    /// Make a zone full; it takes no more writes until it is reset
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
pub enum Namespace {
    /// Add a namespace to an array
    Create(CreateNamespace),
    /// List the namespaces of an array
    List {
        /// Name, UUID or path of the array
        array: ArrayName,
    },
    /// Make a namespace larger, or smaller behind what it holds
    Resize {
        /// ARRAY/NAME
        namespace: NamespaceName,
        /// What it is to hold, rounded up to whole zones
        #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
        size: u64,
    },
    /// Limit what the block device of a namespace may be asked for, and promise what it gets
    ///
    /// Who asks for more has to wait; others are held back for the sake of floors and latency. What is not given is
    /// neither limited nor promised any more. The array may be running or not.
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
        /// Destroy what is in it
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub struct CreateNamespace {
    /// ARRAY/NAME; a name has 1 to 32 letters, digits, '-', '_' or '.'
    pub namespace: NamespaceName,
    /// What it holds, rounded up to whole zones
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub size: u64,
    /// Its part of the active zones that nobody has for certain, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub weight: u32,
    /// How many of its zones may be active at once; 4 by default, or all if it has fewer
    #[arg(long, value_name = "N")]
    pub active: Option<u32>,
    /// Zones of the array that each of these has for certain: a power of two
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub width: u32,
    #[command(flatten)]
    pub qos: QosOptions,
}

#[derive(Args)]
pub struct QosOptions {
    /// Reads and writes a second, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iops: Option<u32>,
    /// Bytes a second that are read and written, at most
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub bandwidth: Option<u64>,
    /// Reads and writes a second, at least, while so many are asked for; no more than --iops
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub floor_iops: Option<u32>,
    /// Bytes a second that are read and written, at least, while so many are asked for; no more than --bandwidth
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks)]
    pub floor_bandwidth: Option<u64>,
    /// Microseconds that 999 of 1000 reads and writes are to take at most: others are held back for that
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..))]
    pub latency: Option<u32>,
}

#[derive(Args)]
pub struct ZoneWrite {
    /// Name, UUID or path of the array
    pub array: ArrayName,
    /// Number of the zone, from 0
    pub zone: u32,
    /// Make every write durable by itself; otherwise a flush does it every 8 MiB and at the end
    #[arg(long)]
    pub fua: bool,
    /// Bytes in a write: whole blocks of 4096, as many as the array takes at once (mostly 16M)
    #[arg(long, value_name = "SIZE", value_parser = size::parse_blocks, default_value = "256K")]
    pub block_size: u64,
    /// Writes on the way at the same time, 1 to 1024
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024), default_value_t = 4)]
    pub queue_depth: u32,
    /// Add a line to FILE whenever more bytes are durable: their number from the start of the zone
    #[arg(long, value_name = "FILE")]
    pub ack_log: Option<PathBuf>,
}
