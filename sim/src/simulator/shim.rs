//! Stands in for the drive's own power cut until that is there.
use crate::{rng::Rng, ssd::Ssd};
use engine::device::{Command, Zones};
use engine::zone::ZoneIndex;

#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    pub cache_lost: bool,
    pub zrwa_lost: bool,
}

pub trait PowerCut {
    fn power_cut(&mut self, in_flight: &[Command], rng: &mut Rng, cut: Cut);
}

impl PowerCut for Ssd {
    fn power_cut(&mut self, in_flight: &[Command], rng: &mut Rng, _cut: Cut) {
        let mut commands = in_flight.to_vec();
        rng.shuffle(&mut commands);
        for command in commands {
            if rng.chance(1, 2) && !matches!(command, Command::Read { .. }) {
                self.execute(command);
            }
        }
        for zone in 0..self.geometry().zones {
            self.execute(Command::Close { zones: Zones::One(ZoneIndex(zone)) });
        }
    }
}
