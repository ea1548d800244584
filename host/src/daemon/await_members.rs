//! Waits for missing members, as long as nothing has been written without them.

use super::{
    state::{Daemon, Phase, log},
    status,
};
use crate::{
    drive::{self, label::Content},
    members::OpenDrive,
    reactor::Reactor,
};
use anyhow::{Context, Result, anyhow};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Interval at which new drives are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longest interval between two examinations of an unidentified drive.
const PATIENCE: Duration = Duration::from_secs(30);

/// Identifies a drive under any path, see [`drive::identity`].
pub(super) type Identity = (u64, u64);

/// The drives in the array's directory that have been examined, by result.
#[derive(Default)]
pub(super) struct Others {
    /// Drives of members, and drives that are no members.
    known: BTreeSet<Identity>,
    /// Unidentified drives, each with the time of the next examination and the interval. Their contents may change: a
    /// member may be being copied to one of them.
    doubtful: BTreeMap<Identity, (Instant, Duration)>,
}

impl Others {
    /// State at the start: the `damaged` drives have been reported already.
    pub fn new<'a>(known: impl Iterator<Item = &'a Path>, damaged: impl Iterator<Item = &'a Path>) -> Others {
        let mut others = Others { known: known.filter_map(identity).collect(), ..Others::default() };
        damaged.filter_map(identity).for_each(|identity| _ = others.doubt(identity));
        others
    }

    /// Whether a drive is to be examined now.
    fn is_due(&self, identity: &Identity) -> bool {
        let later = |(when, _): &(Instant, Duration)| *when > Instant::now();
        !self.known.contains(identity) && !self.doubtful.get(identity).is_some_and(later)
    }

    /// Records that a drive could not be identified, and doubles its interval; `true` the first time.
    fn doubt(&mut self, identity: Identity) -> bool {
        let before = self.doubtful.get(&identity).map(|(_, pause)| *pause);
        let pause = before.map_or(LOOK_EVERY, |pause| (pause * 2).min(PATIENCE));
        self.doubtful.insert(identity, (Instant::now() + pause, pause));
        before.is_none()
    }

    /// Forgets drives that are not `there` any more.
    fn keep(&mut self, there: &[(Identity, PathBuf)]) {
        let there: BTreeSet<Identity> = there.iter().map(|(identity, _)| *identity).collect();
        self.known.retain(|identity| there.contains(identity));
        self.doubtful.retain(|identity, _| there.contains(identity));
    }
}

fn identity(path: &Path) -> Option<Identity> {
    drive::identity(path).ok()
}

/// Looks for the missing members among drives in `place` other than `others`, until all are there or the array has
/// begun to write without them.
pub(super) async fn await_missing(daemon: Rc<Daemon>, place: PathBuf, mut others: Others) {
    let Ok(ring) = daemon.reactor.ring().cloned() else { return };
    while daemon.array.is_deferred() && daemon.phase.get() == Phase::Running {
        let listed = place.clone();
        // A directory that cannot be listed may be listed later.
        if let Ok(Some(drives)) =
            daemon.reactor.offload(move || drives_in(&listed).ok()).await.map(Option::flatten)
        {
            others.keep(&drives);
            for (identity, path) in drives {
                if !others.is_due(&identity) {
                    continue;
                }
                match welcome(&daemon, &path).await {
                    Ok(()) => _ = others.known.insert(identity),
                    Err(error) if others.doubt(identity) => {
                        log(&format!("{}: {error:#}", path.display()));
                    }
                    Err(_) => {}
                }
            }
        }
        ring.sleep(LOOK_EVERY).await;
    }
}

/// Adds the drive at `path` if it is a missing member; an error if it cannot be identified.
async fn welcome(daemon: &Daemon, path: &Path) -> Result<()> {
    let status = daemon.array.status();
    let is_member = |content: Content| match content {
        Content::Member(label) => Ok(label.uuid == status.uuid),
        Content::Blank | Content::Filled(_) => Ok(false),
        Content::Other(what) => Err(anyhow!("{what}")),
    };
    // Read before it is claimed: drives of other arrays are not locked even for a moment. On a thread of its own,
    // since a dead drive may block the read.
    let file = path.to_path_buf();
    let look = move || anyhow::Ok(OpenDrive::look(&Reactor::default(), &file)?.content);
    let looked = daemon.reactor.offload(look).await?.context("the thread that examined the drive failed")?;
    if !is_member(looked?)? {
        return Ok(());
    }
    let drive = OpenDrive::open_beside(&daemon.reactor, path, status.read_only).await?;
    if is_member(drive.content.clone())? {
        daemon.array.complete(drive.drive()).await?;
        log(&format!("'{}': {} is present again, without missed writes", status.name, path.display()));
        daemon.drives.borrow_mut().push(drive);
        status::publish_status(daemon);
    }
    Ok(())
}

/// The drives in a directory.
fn drives_in(place: &Path) -> io::Result<Vec<(Identity, PathBuf)>> {
    let drives = drive::entries(place)?.into_iter().filter(|(_, is_drive)| matches!(is_drive, Ok(true)));
    Ok(drives.filter_map(|(path, _)| Some((drive::identity(&path).ok()?, path))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tests::{MEMBERS, image, with_daemon};
    use emu::ssd::{EmulatedDrive, Model};
    use engine::array::{Array, CreateOptions};

    #[test]
    fn member_of_another_array_is_left_alone() {
        with_daemon(1, |dir, daemon| {
            let other = dir.join("other");
            std::fs::create_dir(&other).unwrap();
            let (reactor, model) = (Reactor::default(), Model::zn540().scaled(16, 2048));
            let open = |number: u8| {
                let path = image(&other, number);
                EmulatedDrive::create_image(&path, &model, [100 + number; 16]).unwrap();
                OpenDrive::open(&reactor, &path).unwrap().drive()
            };
            let options = CreateOptions { spare_zones: Some(0), ..CreateOptions::new("pool", [8; 16]) };
            let made = Array::create(reactor.runtime(), options, (0..MEMBERS).map(open).collect());
            drop(reactor.wait(made).unwrap().unwrap());
            reactor.runtime().clear();
            // Taken for a member, it would be claimed and refused.
            daemon.reactor.wait(welcome(daemon, &image(&other, 0))).unwrap().unwrap();
        });
    }

    #[test]
    fn unreadable_drive_is_rechecked_and_reported_once() {
        let drives = [1, 2, 3].map(|number| ((0, number), PathBuf::new()));
        let ids = [0, 1, 2].map(|number: usize| drives[number].0);
        let mut others = Others::default();
        let now = |others: &Others| ids.map(|id| others.is_due(&id));
        assert_eq!(now(&others), [true; 3]);
        others.known.insert(ids[0]);
        assert_eq!([others.doubt(ids[1]), others.doubt(ids[1])], [true, false]);
        assert_eq!(now(&others), [false, false, true]);
        others.doubtful.entry(ids[1]).and_modify(|(when, _)| *when -= 2 * LOOK_EVERY);
        assert_eq!(now(&others), [false, true, true]);
        // The interval has a limit.
        (0..100).for_each(|_| _ = others.doubt(ids[1]));
        assert_eq!(others.doubtful[&ids[1]].1, PATIENCE);
        // Another drive may get the path, or the number, of one that is gone.
        others.keep(&drives[2..]);
        assert_eq!(now(&others), [true; 3]);
        assert!(others.doubt(ids[1]));
    }
}
