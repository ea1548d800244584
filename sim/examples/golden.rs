//! Creates golden images of the current format version of arrays, volumes or namespaces:
//!
//!     cargo run -p zoneraid-sim --example golden -- fixtures/v10
//!     cargo run -p zoneraid-sim --example golden -- fixtures/volume-v7
//!     cargo run -p zoneraid-sim --example golden -- fixtures/pool-v7
//!     cargo run -p zoneraid-sim --example golden -- fixtures/namespaces-v4
//!
//! Only for a new version, into a new directory. Images of a version are never created again, since they preserve the
//! output of that version's code.

#[path = "../tests/support/golden.rs"]
mod golden;
#[path = "../tests/support/golden_layers.rs"]
mod golden_layers;

use anyhow::{Context, Result, ensure};
use emu::ssd::EmulatedDrive;
use engine::{
    array::{Array, Drive, MemberState},
    device::{Command, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use flate2::{Compression, write::GzEncoder};
use golden::{Golden, ZONES};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

fn main() -> Result<()> {
    let target = PathBuf::from(std::env::args_os().nth(1).context("give the directory to make")?);
    fs::create_dir(&target)
        .with_context(|| format!("{} cannot be made; images are never made again", target.display()))?;
    let name = target.file_name().and_then(|name| name.to_str()).context("the directory has no name")?;
    let temporary = tempfile::tempdir()?;
    let pack = |name: &str| -> Result<()> {
        let mut image = File::open(temporary.path().join(name))?;
        let file = File::create_new(target.join(format!("{name}.gz")))?;
        let mut encoder = GzEncoder::new(file, Compression::best());
        io::copy(&mut image, &mut encoder)?;
        encoder.finish()?;
        Ok(())
    };
    let (write_layer, model): (fn(&Rc<dyn ZonedDevice>), _) = match name {
        _ if name.starts_with("volume-") => (golden_layers::write_volume, golden_layers::model()),
        _ if name.starts_with("pool-") => (golden_layers::write_pool, golden_layers::pool_model()),
        _ if name.starts_with("namespaces-") => (golden_layers::write_namespaces, golden_layers::model()),
        _ => {
            for golden in [golden::RAID5, golden::RAID6] {
                write_array(&golden, temporary.path())?;
                (0..golden.members).try_for_each(|member| pack(&golden.file_name(member)))?;
            }
            return Ok(());
        }
    };
    let path = temporary.path().join(golden_layers::IMAGE);
    let drive: Rc<dyn ZonedDevice> = Rc::new(EmulatedDrive::create_image(&path, &model, [3; 16])?);
    write_layer(&drive);
    pack(golden_layers::IMAGE)
}

/// A running array and its executor.
struct Session {
    runtime: Runtime,
    array: Array,
}

impl Session {
    fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.runtime.block_on(future, || false).context("the array does not answer")
    }

    fn run(&self, command: Command) -> Result<()> {
        Ok(self.wait(self.array.submit(command))?.result?)
    }

    /// Writes up to `blocks` in pieces of various sizes; the last one with FUA.
    fn write(&self, zone: u32, life: u32, blocks: u64) -> Result<()> {
        let start = self.array.geometry().start(ZoneIndex(zone)).0;
        let mut at = 0;
        for size in [1, 4, 7, 2, 12, 3].into_iter().cycle() {
            if at == blocks {
                break;
            }
            let size = size.min(blocks - at);
            let data = golden::content(zone, life, at, size);
            at += size;
            self.run(Command::write(Lba(start + at - size), data, at == blocks))?;
        }
        Ok(())
    }

    fn reset(&self, zone: u32) -> Result<()> {
        self.run(Command::Reset { zones: Zones::One(ZoneIndex(zone)) })
    }

    fn finish(&self, zone: u32) -> Result<()> {
        self.run(Command::Finish { zones: Zones::One(ZoneIndex(zone)) })
    }
}

fn blank(golden: &Golden, path: &Path, uuid: u8) -> Result<Rc<EmulatedDrive>> {
    Ok(Rc::new(EmulatedDrive::create_image(path, &golden.model(), [uuid; 16])?))
}

/// The drives as members to assemble, except those that are `absent`.
fn offer(golden: &Golden, drives: &[Rc<EmulatedDrive>], absent: &[usize]) -> Vec<Drive> {
    let there = drives.iter().enumerate().filter(|(member, _)| !absent.contains(member));
    there.map(|(member, drive)| Drive { name: golden.file_name(member), device: drive.clone() }).collect()
}

fn assemble(drives: Vec<Drive>) -> Result<Session> {
    let runtime = Runtime::new();
    let array = runtime.block_on(Array::assemble(&runtime, drives), || false);
    Ok(Session { array: array.context("the array does not answer")??, runtime })
}

fn write_array(golden: &Golden, dir: &Path) -> Result<()> {
    let path = |member: usize| dir.join(golden.file_name(member));
    let drives = (0..golden.members).map(|member| blank(golden, &path(member), member as u8));
    let mut drives = drives.collect::<Result<Vec<_>>>()?;
    let offer = |drives: &[Rc<EmulatedDrive>], absent: &[usize]| offer(golden, drives, absent);
    let runtime = Runtime::new();
    let array = runtime.block_on(Array::create(&runtime, golden.options(), offer(&drives, &[])), || false);
    let session = Session { array: array.context("the array does not answer")??, runtime };
    for (zone, plan) in (0..).zip(&ZONES) {
        match plan.earlier_blocks {
            Some(blocks) if plan.blocks == 0 => {
                session.write(zone, 0, blocks)?;
                session.reset(zone)?;
            }
            None if plan.blocks > 0 => {
                session.write(zone, 0, plan.blocks)?;
                if plan.finished {
                    session.finish(zone)?;
                }
            }
            _ => {}
        }
    }
    drop(session);

    // The array is assembled again: the log begins with a checkpoint of the zones in use, and a member is replaced.
    let session = assemble(offer(&drives, &[]))?;
    session.wait(session.array.fail(1))??;
    fs::remove_file(path(1))?;
    drives[1] = blank(golden, &path(1), 0x11)?;
    let replacement = Drive { name: golden.file_name(1), device: drives[1].clone() };
    session.wait(session.array.attach(1, replacement))??;
    drop(session);

    // With as many members absent as there are parities, no written zone can be decided; once they are back, all can.
    let session = assemble(offer(&drives, &[0, 3][..golden.parities]))?;
    ensure!(!session.array.status().offline.is_empty(), "no zone waits for member 0");
    drop(session);
    let session = assemble(offer(&drives, &[]))?;
    session.wait(session.array.rebuild(&|_| ()))??;

    // A life of a zone in which a member loses its part.
    let zone = (0..).zip(&ZONES).find(|(_, plan)| plan.blocks == 0 && plan.earlier_blocks.is_some());
    let (zone, _) = zone.context("there is no zone to be lost")?;
    session.write(zone, 1, 50)?;
    session.wait(drives[2].submit(Command::Reset { zones: Zones::One(ZoneIndex(zone + 2)) }))?.result?;
    session.run(Command::write(
        Lba(session.array.geometry().start(ZoneIndex(zone)).0 + 50),
        golden::content(zone, 1, 50, 20),
        true,
    ))?;
    let lacks = session.array.status().members[2].zones_to_rebuild;
    ensure!(lacks == 1, "member 2 lacks {lacks} zones");
    session.reset(zone)?;
    for (zone, plan) in (0..).zip(&ZONES) {
        if let Some(blocks) = plan.earlier_blocks
            && plan.blocks > 0
        {
            session.write(zone, 0, blocks)?;
            session.reset(zone)?;
            session.write(zone, 1, plan.blocks)?;
        }
        if plan.finished && plan.blocks == 0 {
            session.finish(zone)?;
        }
    }
    let healthy = session.array.status().members.iter().all(|m| m.state == MemberState::Active);
    ensure!(healthy, "the array is not healthy: {:?}", session.array.status());
    Ok(())
}
