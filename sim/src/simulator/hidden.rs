//! Detection of a volume, or of namespaces, on an array in any state: with members absent, or replaced by drives that
//! are still empty. It must never be denied that they exist. Also flips single bits of their metadata.

use super::command_queue::{Bay, CommandQueue};
use emu::{
    rng::Rng,
    ssd::{Fault, Ssd},
};
use engine::{
    array::{Array, Drive, Tails},
    buf::BLOCK,
    device::{Command, ZonedDevice},
    evidence::Presence,
    runtime::Runtime,
    volume::Volume,
    vzone::Namespaces,
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Zones of a member that hold the metadata of the array.
const META_ZONES: u32 = 2;

/// First bytes of the header of a group.
const GROUP: &[u8; 4] = b"zvg1";
/// First bytes of metadata blocks: roots and the map, groups, and the journal of namespaces.
const MAGICS: [&[u8; 4]; 3] = [b"zvs1", GROUP, b"zvj3"];
/// Byte of the header of a group with the grain at which its first piece begins; 0 if that is in the next block.
const FIRST_GRAIN: usize = 45;
/// Bytes of a grain.
const GRAIN: usize = 64;

/// The layer that is looked for.
#[derive(Clone, Copy, Debug)]
pub enum HiddenLayer {
    Volume,
    Namespaces,
}

/// Assembles an array without some of its members, and detects the layer on it. A refused assembly passes.
///
/// # Errors
/// An existing layer is denied, or zones are said to hide one although none is offline.
pub async fn ask(
    runtime: Runtime,
    drives: Vec<Drive>,
    left: Option<Tails>,
    wanted: HiddenLayer,
) -> Result<(), String> {
    let array = match &left {
        Some(left) => Array::take_over(&runtime, drives, left).await,
        None => Array::assemble(&runtime, drives).await,
    };
    let Ok(array) = array else { return Ok(()) };
    let offline = array.status().offline.len();
    let device: Rc<dyn ZonedDevice> = Rc::new(array);
    let presence = match wanted {
        HiddenLayer::Volume => Volume::is_on(device).await.map_err(|error| error.to_string())?,
        HiddenLayer::Namespaces => Namespaces::are_on(device).await.map_err(|error| error.to_string())?,
    };
    match presence {
        Presence::No => Err(format!("what is there is denied ({wanted:?}), and {offline} zones are offline")),
        Presence::Unknown(zones) if offline == 0 => {
            Err(format!("zones {zones:?} are said to hide something ({wanted:?}), and none is offline"))
        }
        _ => Ok(()),
    }
}

/// Puts a new drive in the place of a member that is not among `drives`, without rebuilding it.
///
/// # Errors
/// The array does not assemble, or refuses the drive.
pub async fn attach(
    runtime: Runtime,
    (drives, left): (Vec<Drive>, Option<Tails>),
    member: usize,
    new: Drive,
) -> Result<(), String> {
    let array = match &left {
        Some(left) => Array::take_over(&runtime, drives, left).await,
        None => Array::assemble(&runtime, drives).await,
    };
    let array = array.map_err(|error| error.to_string())?;
    array.attach(member, new).await.map_err(|error| error.to_string())
}

/// Flips a bit of a metadata block on one of the drives, all of which are idle; describes the bit.
pub fn flip(command_queue: &Rc<CommandQueue>, bays: &[Bay], rng: &mut Rng) -> Option<String> {
    let bay = *rng.pick(bays);
    let mut ssd = command_queue.ssd(bay);
    let found = metadata(&mut ssd);
    let (lba, bytes) = *found.get(rng.below(found.len().max(1) as u64) as usize)?;
    let bit = rng.below(8 * bytes as u64) as u32;
    ssd.faults().after(0, Fault::Corrupt { lba, bit });
    drop(ssd);
    // Faults take effect with a command.
    let report = Command::Report { first: ZoneIndex(0), count: 1 };
    let reported = command_queue.drive(bay).submit(report);
    command_queue.run_all();
    drop(reported);
    Some(format!("bit {bit} of block {} of drive{bay} flips", lba.0))
}

/// The blocks of metadata, and the number of bytes before the data of users in each.
fn metadata(ssd: &mut Ssd) -> Vec<(Lba, usize)> {
    let geometry = ssd.geometry().clone();
    let mut found = Vec::new();
    for zone in (META_ZONES..geometry.zones).map(ZoneIndex) {
        let start = geometry.start(zone).0;
        for lba in (start..start + geometry.zone_capacity_blocks).map(Lba) {
            let block = ssd.stored(lba).ok().flatten();
            let Some(block) = block.filter(|block| MAGICS.iter().any(|magic| block.starts_with(&magic[..])))
            else {
                continue;
            };
            let first_grain = block[FIRST_GRAIN] as usize;
            let is_shared = block.starts_with(GROUP) && first_grain > 0;
            found.push((lba, if is_shared { first_grain * GRAIN } else { BLOCK }));
        }
    }
    found
}
