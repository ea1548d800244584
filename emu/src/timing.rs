//! Service times and bandwidths of drives: the parameters of [`crate::ssd::TimedDrive`].
//!
//! One set of parameters for each drive, fitted to published figures of single drives. Sources: ZapRAID (TOS '23) Fig.
//! 1 and §4, ZRAID (ASPLOS '25) §6, eZNS (TOS '24) §3, StoNet NVMeBenchmarks (raw measurements of a 1 TB ZN540 with
//! SPDK). An unpublished value is a guess, and its documentation says so.

/// The medium of the Zone Random Write Area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ZrwaMedium {
    /// Flash: every write costs the drive's write bandwidth, even of a block that is overwritten before the write
    /// pointer passes.
    Flash,
    /// Memory that survives power cuts: overwritten blocks never cost flash bandwidth; the blocks that the write
    /// pointer passes are drained to flash then.
    Dram {
        /// From the transfer to the acknowledgement, in µs.
        acknowledge_us: f64,
    },
}

/// Placement of zones on the dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Program units of all zones go to the dies in turn.
    Striped,
    /// Each zone is on one die: the next in turn when it is written for the first time since its reset (eZNS §3.4).
    ZonePerDie,
}

/// Times of a reset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResetTiming {
    /// Mean service time of the one server for resets, in µs.
    pub server_us: f64,
    /// From then to the acknowledgement, in µs.
    pub fixed_us: f64,
    /// Additional time for a zone that was written to its end, in proportion for others, in µs.
    pub full_us: f64,
    /// Additional time for a zone that has been written and is not full, in µs.
    pub unfinished_us: f64,
    /// Erase time on the die, after the acknowledgement and only when the die is idle, in µs; 0 for none.
    pub erase_us: f64,
}

/// Service times and bandwidths of a drive. Times in µs, bandwidths in 10⁶ bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Mean service time of a write in the firmware.
    pub write_firmware_us: f64,
    /// The factor for a write to a ZRWA. A guess: single ones are as fast as others, several in flight in a zone are
    /// not published.
    pub zrwa_write_factor: f64,
    /// From the end of the transfer of a write to its acknowledgement.
    pub write_acknowledge_us: f64,
    /// Mean service time of an append of one block in the firmware.
    pub append_firmware_us: f64,
    /// Time for which an append of one block delays other appends to its zone.
    pub append_zone_us: f64,
    /// Additional time of both per further block.
    pub append_block_us: f64,
    /// From the end of the transfer of an append to its acknowledgement.
    pub append_acknowledge_us: f64,
    /// Additional time of the first write to an empty zone.
    pub first_write_us: f64,
    /// Additional time of the first append to an empty zone.
    pub first_append_us: f64,
    /// Mean service time of a read in the firmware.
    pub read_firmware_us: f64,
    /// From the end of the transfer of a read to its acknowledgement.
    pub read_acknowledge_us: f64,
    /// Sense time of a page, on average over the pages of a cell: with jitter a third of them takes a fifth less, and a
    /// third a fifth more.
    pub read_page_us: f64,
    /// Time on the channel of the command to read a page.
    pub channel_read_us: f64,
    /// Host link towards the drive.
    pub write_link_mb_s: f64,
    /// Host link from the drive.
    pub read_link_mb_s: f64,
    /// Limit of all writes to flash together, if the dies are not the limit.
    pub drain_mb_s: Option<f64>,
    pub dies: u32,
    pub channels: u32,
    /// Bandwidth of a channel when pages are read.
    pub channel_read_mb_s: f64,
    /// Bandwidth of a channel when units are programmed.
    pub channel_program_mb_s: f64,
    /// Blocks of a flash page.
    pub page_blocks: u64,
    /// Blocks that a die programs at once.
    pub program_blocks: u64,
    /// Time for which a die is busy with that, including the transfer over its channel.
    pub program_us: f64,
    pub placement: Placement,
    pub zrwa: ZrwaMedium,
    /// Memory for writes that have been acknowledged and not programmed, in KiB. A guess.
    pub write_buffer_kib: u64,
    /// Service time of an explicit ZRWA flush in the firmware. Its split between this and the acknowledgement is a
    /// guess; so is all of it for the PM1731a.
    pub zrwa_flush_firmware_us: f64,
    /// From the firmware to the acknowledgement of an explicit ZRWA flush.
    pub zrwa_flush_acknowledge_us: f64,
    /// Opening a zone, in all.
    pub open_us: f64,
    /// Closing a zone, in all.
    pub close_us: f64,
    /// Finishing an empty zone, in all.
    pub finish_empty_us: f64,
    /// Time of finishing another zone, after its rest has been padded.
    pub finish_us: f64,
    pub reset: ResetTiming,
    /// Additional latency of a write on a drive that compresses, and of a read that expands a page, in µs; Braid-ZNS
    /// assumes 0. IBM gives 7 for its FlashSystem 900 (Hardware data compression), without a direction; using it for
    /// both is a guess, and so is that an engine keeps up with its drive.
    pub compress_us: f64,
    pub expand_us: f64,
}

impl Timing {
    /// Parameters that are not published for any of these drives.
    pub const GUESSES: [&str; 8] = [
        "size of the write buffer",
        "dies, channels, program unit and program time of the ZN540, whose write bandwidth is a cap without a cause",
        "writes to a ZRWA of the ZN540 with several on their way in a zone",
        "active zones of the PM1731a (256 or 384 are published)",
        "latency of writes to the ZRWA of the PM1731a",
        "what an explicit ZRWA flush costs the firmware, and all of it on the PM1731a",
        "opening, closing, finishing and appending on the PM1731a",
        "compressing and expanding, on drives that do",
    ];

    /// The timing of the drive of this name, as in [`crate::ssd::Model::NAMES`].
    pub fn by_name(name: &str) -> Option<Timing> {
        match name {
            "zn540" => Some(Timing::zn540()),
            "zn540-4tb" => Some(Timing::zn540_4tb()),
            "pm1731a" => Some(Timing::pm1731a()),
            _ => None,
        }
    }

    /// Western Digital ZN540 of 1 TB.
    pub fn zn540() -> Timing {
        Timing {
            write_firmware_us: 5.35,
            zrwa_write_factor: 1.0,
            write_acknowledge_us: 5.3,
            append_firmware_us: 7.0,
            append_zone_us: 7.56,
            append_block_us: 0.4,
            append_acknowledge_us: 7.1,
            first_write_us: 2.0,
            first_append_us: 2.8,
            read_firmware_us: 2.2,
            read_acknowledge_us: 8.4,
            read_page_us: 47.0,
            channel_read_us: 5.0,
            write_link_mb_s: 3720.0,
            read_link_mb_s: 2628.0,
            drain_mb_s: Some(1203.0),
            dies: 32,
            channels: 8,
            channel_read_mb_s: 480.0,
            channel_program_mb_s: 1200.0,
            page_blocks: 4,
            program_blocks: 48,
            program_us: 455.0,
            placement: Placement::Striped,
            zrwa: ZrwaMedium::Flash,
            write_buffer_kib: 2048,
            zrwa_flush_firmware_us: 1.5,
            zrwa_flush_acknowledge_us: 5.3,
            open_us: 9.6,
            close_us: 11.0,
            finish_empty_us: 13.5,
            finish_us: 2600.0,
            reset: ResetTiming {
                server_us: 0.0,
                fixed_us: 1650.0,
                full_us: 13_700.0,
                unfinished_us: 2750.0,
                erase_us: 0.0,
            },
            compress_us: 7.0,
            expand_us: 7.0,
        }
    }

    /// Western Digital ZN540 of 4 TB.
    pub fn zn540_4tb() -> Timing {
        Timing {
            write_firmware_us: 5.0,
            write_acknowledge_us: 5.46,
            append_firmware_us: 6.75,
            append_zone_us: 7.2,
            append_acknowledge_us: 6.5,
            drain_mb_s: Some(1101.0),
            ..Timing::zn540()
        }
    }

    /// Samsung PM1731a and drives of its class. That a die programs 32 KiB at once is taken from the
    /// flush granularity of its ZRWA; a zone writes 42 MB/s, where 40, 42.5 and 45 are published.
    pub fn pm1731a() -> Timing {
        Timing {
            write_firmware_us: 1.0,
            zrwa_write_factor: 1.0,
            write_acknowledge_us: 86.0,
            append_firmware_us: 1.0,
            append_zone_us: 1.0,
            append_block_us: 0.0,
            append_acknowledge_us: 86.0,
            first_write_us: 0.0,
            first_append_us: 0.0,
            read_firmware_us: 0.3,
            read_acknowledge_us: 7.3,
            read_page_us: 31.3,
            channel_read_us: 17.0,
            write_link_mb_s: 3200.0,
            read_link_mb_s: 3200.0,
            drain_mb_s: None,
            dies: 128,
            channels: 16,
            channel_read_mb_s: 603.0,
            channel_program_mb_s: 603.0,
            page_blocks: 4,
            program_blocks: 8,
            program_us: 780.0,
            placement: Placement::ZonePerDie,
            zrwa: ZrwaMedium::Dram { acknowledge_us: 33.0 },
            write_buffer_kib: 24 << 10,
            zrwa_flush_firmware_us: 1.0,
            zrwa_flush_acknowledge_us: 5.8,
            open_us: 9.6,
            close_us: 11.0,
            finish_empty_us: 13.5,
            finish_us: 0.0,
            reset: ResetTiming {
                server_us: 62.0,
                fixed_us: 142.0,
                full_us: 0.0,
                unfinished_us: 0.0,
                erase_us: 3500.0,
            },
            compress_us: 7.0,
            expand_us: 7.0,
        }
    }
}
