//! Zones of which members can only read their part.
//!
//! Such a part is lost as long as the others are enough, so that the zone can be written. Otherwise it counts, and the
//! zone can only be read, and is left alone as one that is offline. That is as exact as without wear:
//!
//! - A part that is not marked as lost holds all that was promised, since nothing is answered without it before the mark
//!   is safe; and what is in a zone that can only be read stays as it is. Where the zone ended is decided as ever.
//! - What was in the ZRWA of such a part may be gone. A ZRWA is lost as a whole and reads as zeros then. So if there is
//!   nothing else than zeros above the write pointer, nothing there counts.
//! - Drives may say anything of where the write pointer of such a zone is, and mostly that it is at the end. So it counts
//!   only before the end; and what lies behind the end of the zone that follows is read as an error, not as zeros.
//! - A full zone that was finished holds all that it will; so does one with a ZRWA of which all other parts are full,
//!   since explicit flushes, which come when everything is complete, have brought them there.

use crate::{
    format::record::{Record, TailRecord},
    raid::{
        parts::Raid,
        policy::zrwa::Refusal,
        recover::{
            judge::is_in_doubt,
            verdict::{Tail, Verdict, ZoneView},
        },
    },
    zone::{ZoneIndex, ZoneInfo, ZoneState, is_worn},
};

impl Raid {
    /// As [`Raid::judge`], of a zone of which members may have parts that can only be read. Such a part is lost as long as
    /// the others are enough, so that the zone can be written. Otherwise it counts, and the zone can only be read.
    pub async fn judge_worn(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        let found = view.info.clone();
        self.count_read_only(view).await;
        let verdict = self.judge(view).await;
        let verdict = match verdict {
            Ok(Verdict::Open(tail) | Verdict::Finish(Some(tail))) if view.read_only != 0 => {
                Ok(Verdict::ReadOnly(tail))
            }
            Ok(verdict @ (Verdict::Empty | Verdict::Reset | Verdict::Finish(None))) => {
                // There is nothing in it, and they will never hold anything.
                view.record.lost |= view.read_only;
                Ok(verdict)
            }
            verdict => verdict,
        };
        if !matches!(verdict, Ok(Verdict::ReadOnly(_))) {
            self.zones.unstick(&(view.zone.0..view.zone.0 + 1));
        }
        view.info = found;
        verdict
    }

    /// Has parts that can only be read count, if there are not enough others.
    async fn count_read_only(&self, view: &mut ZoneView<'_>) {
        let (policy, superblock) = (self.layout.policy, self.membership.superblock().clone());
        let used_blocks = self.layout.rows * self.layout.chunk_blocks;
        let is_sound = |info: &ZoneInfo| !is_worn(info.state) && !is_in_doubt(info);
        let trusted = || view.present().filter(|(m, _)| view.trusts(*m));
        let sound: Vec<ZoneState> = trusted().map(|(_, i)| *i).filter(is_sound).map(|i| i.state).collect();
        let are = |state| !sound.is_empty() && sound.iter().all(|of| *of == state);
        let (are_full, are_empty) = (are(ZoneState::Full), are(ZoneState::Empty));
        // Where write pointers of small zones or of appended blocks are, is not known of a zone that is worn.
        let is_exact = superblock.group_blocks <= 1 && (superblock.aggregate <= 1 || !policy.uses_zrwa());
        let is_finished = view.record.finished.is_some();
        let counted: Vec<(usize, ZoneInfo)> = trusted()
            .filter(|(_, info)| info.state == ZoneState::ReadOnly)
            .filter_map(|(member, info)| {
                let wp_blocks = info.wp_blocks;
                let state = match wp_blocks {
                    // With a ZRWA write pointers get there last.
                    _ if are_full && (is_finished || policy.uses_zrwa() || wp_blocks >= used_blocks) => {
                        ZoneState::Full
                    }
                    0 if are_empty => ZoneState::Empty,
                    _ if is_exact && wp_blocks < used_blocks => ZoneState::Closed,
                    _ => return None,
                };
                let zrwa = state == ZoneState::Closed && policy.uses_zrwa();
                Some((member, ZoneInfo { state, zrwa, ..*info }))
            })
            .collect();
        let needed = self.layout.fewest_members();
        if view.record.resetting || sound.len() >= needed || sound.len() + counted.len() < needed {
            return;
        }
        for (member, info) in counted {
            let window = info.wp_blocks..used_blocks.min(info.wp_blocks + self.layout.window_blocks());
            if info.zrwa && self.is_blank(view.zone, member, window).await == Some(true) {
                self.zones.cut_part(view.zone, member, info.wp_blocks);
            }
            view.read_only |= 1 << member;
            view.info[member] = Some(info);
        }
    }

    /// Has the end of a zone that can only be read be found again, if nothing but the tails of a process that died tells
    /// it: with the policy `log` write pointers do.
    pub async fn record_end(&self, zone: ZoneIndex, tail: &Tail) {
        // A record without write pointers that have moved would say that ZRWAs were lost.
        if !self.layout.policy.uses_zrwa() || tail.positions.iter().all(|position| *position == 0) {
            return;
        }
        let epoch = self.catalog.epoch(zone);
        let logged = self.members.logs().filter_map(|log| log.live.borrow().tails.get(&zone.0).copied());
        let logged = logged.filter(|logged| logged.epoch == epoch);
        let newest = logged.max_by_key(|logged| (logged.generation, logged.tail_blocks));
        if newest.is_some_and(|newest| newest.tail_blocks >= tail.blocks) {
            return;
        }
        let generation = newest.map_or(0, |newest| newest.generation);
        let record = TailRecord { zone: zone.0, generation, epoch, tail_blocks: tail.blocks };
        let sequence = self.membership.next_sequence();
        self.broadcast(Record::Tail(record), sequence).await;
    }
}
