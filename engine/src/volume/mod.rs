//! A block device on one zoned device: blocks of 4 KiB, written in any order.
//!
//! docs/VOLUME.md is the design: the on-disk layout, why recovery is exact, and the requirements on the device. In
//! reading order: `format`, `root`, `map`, `space` and `victim` make decisions and never wait; `stream` and `core` hold the
//! state of a running volume; `request`, `checkpoint`, `gc` and `recover` are its operations. `shards` and `thin` combine
//! several of these logs, and `part` and `pool` divide them among several volumes.

mod address;
mod admit;
mod audit;
mod checkpoint;
mod commit;
mod compress;
mod core;
mod error;
mod extent_room;
mod format;
mod gc;
mod grow;
mod guarantee;
mod handle;
mod hot_window;
mod map;
mod options;
mod packed;
mod part;
mod piece;
mod pool;
mod pool_table;
mod recover;
mod request;
mod root;
mod scan;
mod shards;
mod shares;
mod shrink;
mod snapshot;
mod space;
mod state;
mod status;
mod stored;
mod stream;
mod thin;
mod usage;
mod victim;
mod waiting;
mod window;

pub use self::{
    address::Unit,
    error::{NoVolume, PoolError, VolumeError},
    handle::Volume,
    options::{VolumeCreateOptions, VolumeOptions},
    piece::{Codec, CompressionJob, CompressionWorkers, Level, PendingJob, PieceEncoder},
    pool::{NewVolume, Opened, Pool, open},
    root::{PoolShape, SectorSize},
    shards::VolumePlan,
    snapshot::NewSnapshot,
    space::pages_in,
    status::{SpaceUse, VolumeStatus, WrittenBlocks},
    stored::StoredBlocks,
    victim::Choice,
};
