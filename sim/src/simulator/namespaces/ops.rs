//! Outstanding operations of the tenants, and changes of their namespaces and of their QoS.

use engine::{device::Completion, qos::Qos};

/// Tenant, and zone of its namespace.
pub(super) type Place = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespaceOpKind {
    Write {
        place: Place,
        from: u64,
        blocks: u64,
        fua: bool,
        append: bool,
        epoch: u64,
    },
    /// `below` is the end of the completed blocks at the start of the read, in this epoch.
    Read {
        place: Place,
        from: u64,
        below: u64,
        epoch: u64,
    },
    Flush {
        tenant: usize,
    },
    Change {
        place: Place,
    },
}

impl NamespaceOpKind {
    pub(super) fn tenant(&self) -> usize {
        match *self {
            NamespaceOpKind::Write { place, .. }
            | NamespaceOpKind::Read { place, .. }
            | NamespaceOpKind::Change { place } => place.0,
            NamespaceOpKind::Flush { tenant } => tenant,
        }
    }
}

/// QoS limits and guarantees of a tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TenantQos {
    /// Values last confirmed, by a command or a recovery.
    pub(super) by: Qos,
    /// Values of a change that has not completed, and that may be in effect.
    pub(super) or_by: Option<Qos>,
}

impl TenantQos {
    /// Checks the values found by a recovery, and takes them as confirmed.
    pub(super) fn recovered(&mut self, found: Qos) -> Result<(), String> {
        if found != self.by && Some(found) != self.or_by {
            return Err(format!("is limited to {found:?}, and should be to {self:?}"));
        }
        *self = TenantQos { by: found, or_by: None };
        Ok(())
    }
}

/// An addition, resize or removal of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reshape {
    pub(super) tenant: usize,
    /// Number of zones afterwards; `None` for a removal.
    pub(super) to: Option<u32>,
    /// Commands of the namespace were in flight at its start.
    pub(super) in_use: bool,
}

pub(super) struct NamespaceOp {
    pub(super) kind: NamespaceOpKind,
    pub(super) completion: Completion,
    /// For a flush: completed blocks of each zone at its start, and the zone's epoch.
    pub(super) seen: Vec<(u64, u64)>,
}
