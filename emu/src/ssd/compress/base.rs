//! No compression: each logical page in a flash page of its own.

use super::{PAGE, Piece, ReadUnit, Space, Unit, ZoneLayout, expand};

/// A zone.
#[derive(Clone, Default)]
pub(super) struct BaseZone(Vec<std::rc::Rc<Unit>>);

impl ZoneLayout for BaseZone {
    fn push(&mut self, group: Vec<Unit>) {
        // Data that the layer above has compressed is expanded before it is stored.
        let raw = |unit: Unit| Unit { bytes: expand(&unit.bytes).unwrap_or_default(), ..unit };
        self.0.extend(group.into_iter().map(|unit| raw(unit).into()));
    }

    fn units(&self) -> u64 {
        self.0.len() as u64
    }

    fn flash_pages(&self) -> u64 {
        self.units()
    }

    fn most(&self, units: u64) -> u64 {
        self.units() + units
    }

    fn unit(&self, index: u64) -> Option<ReadUnit> {
        let unit = self.0.get(index as usize)?.as_ref().clone();
        Some(ReadUnit { unit, pieces: vec![Piece { page: index, bytes: PAGE as u64 }] })
    }

    fn take_from(&mut self, index: u64) -> Vec<Unit> {
        let index = (index as usize).min(self.0.len());
        self.0.drain(index..).map(|unit| unit.as_ref().clone()).collect()
    }

    fn space(&self) -> Space {
        let pages = self.units();
        Space { pages, flash_pages: pages, bytes: pages * PAGE as u64, ..Space::default() }
    }

    fn copy(&self) -> Box<dyn ZoneLayout> {
        Box::new(self.clone())
    }
}
