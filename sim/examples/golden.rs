//! Makes golden images of the present format version:
//!
//!     cargo run -p zoneraid-sim --example golden -- fixtures/v3
//!
//! Only for a new version, into a new directory: images of a version are never made again, since
//! they stand for what that version's code has written.

#[path = "../tests/support/golden.rs"]
mod golden;

use anyhow::{Context, Result, ensure};
use engine::{
    array::{Array, Drive},
    device::{Command, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use flate2::{Compression, write::GzEncoder};
use golden::ZONES;
use sim::ssd::EmulatedDrive;
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
    let temporary = tempfile::tempdir()?;
    write_array(temporary.path())?;
    for member in 0..golden::MEMBERS {
        let name = golden::file_name(member);
        let mut image = File::open(temporary.path().join(&name))?;
        let file = File::create_new(target.join(name + ".gz"))?;
        let mut encoder = GzEncoder::new(file, Compression::best());
        io::copy(&mut image, &mut encoder)?;
        encoder.finish()?;
    }
    Ok(())
}

/// A running array, and how to give it commands.
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

    /// Writes up to `blocks`, in pieces of all sizes; the last one with FUA.
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

fn blank(path: &Path, uuid: u8) -> Result<Drive> {
    let drive = EmulatedDrive::create_image(path, &golden::model(), [uuid; 16])?;
    Ok(Drive { name: path.display().to_string(), device: Rc::new(drive) })
}

fn write_array(dir: &Path) -> Result<()> {
    let path = |member: usize| dir.join(golden::file_name(member));
    let mut drives =
        (0..golden::MEMBERS).map(|m| blank(&path(m), m as u8)).collect::<Result<Vec<Drive>>>()?;
    let runtime = Runtime::new();
    let array = runtime.block_on(Array::create(&runtime, golden::options(), drives.clone()), || false);
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

    // A second life of the array: the log begins with a checkpoint of what is in use, a member is
    // replaced.
    let runtime = Runtime::new();
    let array = runtime.block_on(Array::assemble(&runtime, drives.clone()), || false);
    let session = Session { array: array.context("the array does not answer")??, runtime };
    session.wait(session.array.fail(1))??;
    fs::remove_file(path(1))?;
    drives[1] = blank(&path(1), 0x11)?;
    session.wait(session.array.attach(1, drives[1].clone()))??;
    drop(session);

    // Once more, for there is nothing behind the checkpoint that a drive is attached with, and what an
    // assembly writes has to be there too.
    let runtime = Runtime::new();
    let array = runtime.block_on(Array::assemble(&runtime, drives), || false);
    let session = Session { array: array.context("the array does not answer")??, runtime };
    session.wait(session.array.rebuild(&|_| ()))??;
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
    let healthy = session.array.status().members.iter().all(|m| m.note.is_empty() && m.zones_to_rebuild == 0);
    ensure!(healthy, "the array is not healthy: {:?}", session.array.status());
    Ok(())
}
