//! Models of real drives for emulation.

use engine::{
    buf::BLOCK,
    device::{Geometry, Zrwa},
};

/// A drive model. Others are made by changing the geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name in messages and images.
    pub name: String,
    pub geometry: Geometry,
}

const fn kib(n: u64) -> u64 {
    n * 1024 / BLOCK as u64
}

impl Model {
    /// Names that [`Model::by_name`] accepts.
    pub const NAMES: [&str; 3] = ["zn540", "zn540-4tb", "pm1731a"];

    /// The model of this name.
    pub fn by_name(name: &str) -> Option<Model> {
        match name {
            "zn540" => Some(Model::zn540()),
            "zn540-4tb" => Some(Model::zn540_4tb()),
            "pm1731a" => Some(Model::pm1731a()),
            _ => None,
        }
    }

    /// Western Digital Ultrastar DC ZN540, 1 TB: few large zones. Published: zones, capacity,
    /// limits, ZRWA, OOB. Assumed: a ZRWA for every open zone, transfers up to 1 MiB, a cache
    /// that survives power cuts.
    pub fn zn540() -> Model {
        Model {
            name: "zn540".into(),
            geometry: Geometry {
                zones: 904,
                zone_size_blocks: kib(2 << 20),
                zone_capacity_blocks: kib(1077 << 10),
                max_open: 14,
                max_active: 14,
                zrwa: Some(Zrwa { size_blocks: kib(1024), granularity_blocks: kib(16), max_zones: 14 }),
                oob_bytes: 64,
                max_transfer_blocks: kib(1024) as u32,
                max_append_blocks: kib(1024) as u32,
                volatile_cache: false,
            },
        }
    }

    /// The same drive of 4 TB. Assumed: the ZRWA of the 1 TB drive.
    pub fn zn540_4tb() -> Model {
        let smaller = Model::zn540();
        Model { name: "zn540-4tb".into(), geometry: Geometry { zones: 3690, ..smaller.geometry } }
    }

    /// Samsung PM1731a: many small zones. Published: number and size of zones, active zones,
    /// ZRWA. Assumed: the capacity of a zone is its size, all active zones may be open and have a
    /// ZRWA, OOB of 64 bytes, transfers up to 1 MiB, a cache that survives power cuts.
    pub fn pm1731a() -> Model {
        Model {
            name: "pm1731a".into(),
            geometry: Geometry {
                zones: 40_704,
                zone_size_blocks: kib(96 << 10),
                zone_capacity_blocks: kib(96 << 10),
                max_open: 384,
                max_active: 384,
                zrwa: Some(Zrwa { size_blocks: kib(64), granularity_blocks: kib(32), max_zones: 384 }),
                oob_bytes: 64,
                max_transfer_blocks: kib(1024) as u32,
                max_append_blocks: kib(1024) as u32,
                volatile_cache: false,
            },
        }
    }

    /// A ZNS SSD without ZRWA: a ZN540 otherwise.
    pub fn plain_zns() -> Model {
        let geometry = Geometry { zrwa: None, ..Model::zn540().geometry };
        Model { name: "plain-zns".into(), geometry }
    }

    /// A host-managed SMR disk of 1 TB as the block layer presents it: zones of 256 MiB, 128 of which may be open. It
    /// has no ZRWA, append or block metadata, and its cache is volatile.
    pub fn smr() -> Model {
        Model {
            name: "smr".into(),
            geometry: Geometry {
                zones: 3726,
                zone_size_blocks: kib(256 << 10),
                zone_capacity_blocks: kib(256 << 10),
                max_open: 128,
                max_active: 0,
                zrwa: None,
                oob_bytes: 0,
                max_transfer_blocks: kib(512) as u32,
                max_append_blocks: 0,
                volatile_cache: true,
            },
        }
    }

    /// The same drive with other zones. The zone size is the capacity rounded up to a power of two, or equal to it if
    /// it was equal before; limits and ZRWA are unchanged.
    pub fn scaled(mut self, zones: u32, capacity_blocks: u64) -> Model {
        let g = &mut self.geometry;
        let equal = g.zone_size_blocks == g.zone_capacity_blocks;
        g.zones = zones;
        g.zone_capacity_blocks = capacity_blocks;
        g.zone_size_blocks = if equal { capacity_blocks } else { capacity_blocks.next_power_of_two() };
        self
    }
}
