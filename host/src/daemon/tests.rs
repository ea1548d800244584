//! Set-up for the unit tests of the daemon: the daemon of an array of image files.

use super::{start, state::Daemon};
use crate::{
    control::name::ArrayName,
    members::{FoundArray, OpenDrive, StartTerms},
    reactor::Reactor,
};
use emu::ssd::{EmulatedDrive, Model};
use engine::array::{Array, CreateOptions};
use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

/// Number of members of the array.
pub(super) const MEMBERS: u8 = 5;

/// The image of a drive in `dir`.
pub(super) fn image(dir: &Path, number: u8) -> PathBuf {
    dir.join(format!("drive{number}.img"))
}

/// Runs `test` with a directory and the daemon of an array of small drives in it, and ends the daemon. Does nothing on
/// a machine without io_uring.
pub(super) fn with_daemon(parities: usize, test: impl FnOnce(&Path, &Rc<Daemon>)) {
    let dir = tempfile::tempdir().unwrap();
    if Reactor::default().ring().is_err() {
        return;
    }
    let daemon = daemon_in(dir.path(), parities);
    test(dir.path(), &daemon);
    daemon.give_up();
}

fn daemon_in(dir: &Path, parities: usize) -> Rc<Daemon> {
    let (reactor, model) = (Reactor::default(), Model::zn540().scaled(16, 2048));
    let open = |number| {
        EmulatedDrive::create_image(&image(dir, number), &model, [number; 16]).unwrap();
        OpenDrive::open(&reactor, &image(dir, number)).unwrap().drive()
    };
    let options = CreateOptions { parities, spare_zones: Some(0), ..CreateOptions::new("tank", [7; 16]) };
    let made = Array::create(reactor.runtime(), options, (0..MEMBERS).map(open).collect());
    drop(reactor.wait(made).unwrap().unwrap());
    reactor.runtime().clear();
    let found = FoundArray::by_name(&ArrayName::from(dir.to_path_buf())).unwrap();
    start(found, &dir.join("run"), None, StartTerms::default()).unwrap()
}
