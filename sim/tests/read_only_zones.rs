//! Zones that can only be read: the promised data is read, while the array runs and after a restart, and nothing is made
//! up.

use crate::support::array::run;
use emu::ssd::{EmulatedDrive, Fault};
use engine::{
    buf::{BLOCK, Buf},
    device::ZonedDevice,
    runtime::Runtime,
    zone::ZoneIndex,
};
use std::rc::Rc;

/// The zone of a volume's newest root can only be read: the volume starts, and goes on in the other one.
#[test]
fn volume_starts_whose_head_can_only_be_read() {
    use engine::volume::{Volume, VolumeCreateOptions, VolumeOptions};
    let drive = EmulatedDrive::in_memory(&crate::support::volume::geometry());
    let device = || Rc::new(drive.clone()) as Rc<dyn ZonedDevice>;
    let made = VolumeCreateOptions { uuid: [1; 16], ..VolumeCreateOptions::default() };
    run(&Runtime::new(), Volume::create(device(), made)).unwrap();
    let block = |byte: u8| Buf::copy_of(&[byte; BLOCK]);
    for life in 0..4u8 {
        let runtime = Runtime::new();
        let volume = run(&runtime, Volume::open(&runtime, device(), VolumeOptions::default())).unwrap();
        for before in 0..life {
            let read = run(&runtime, volume.read(before as u64, Buf::zeroed(BLOCK))).unwrap();
            assert!(read[..] == block(before + 1)[..], "life {life}, block {before}");
        }
        run(&runtime, volume.write(life as u64, &block(life + 1), true)).unwrap();
        runtime.clear();
        if life == 0 {
            drive.ssd().borrow_mut().faults().after(0, Fault::ReadOnly(ZoneIndex(0)));
        }
    }
}
