//! Ballooning: the width of stripe groups, and the lending of active zones between namespaces (eZNS §4.4).
//!
//! Each namespace has *essential* active zones, as many as its v-zones can use at once at the least width, and a share
//! of the *spare* ones. A group that is opened is guaranteed its essential zones, and gets spares on top: the
//! namespace's share divided by the number of v-zones that it has been writing lately (*local overdrive*). The unused
//! shares of namespaces that have opened no group for a while go to the others (*global overdrive*).
//!
//! Shares are computed anew whenever a group is opened, from the zones in use at that moment. So no zone has to be
//! marked as lent or recalled: a namespace above its share gets no more until groups of it have ended.

/// Blocks of a stripe unit at the least width: 32 KiB.
pub const BASE_UNIT_BLOCKS: u32 = 8;

/// 1 as a fixed-point number of [`History`].
const ONE: u32 = 256;

/// Moving average of the number of active v-zones of a namespace, sampled when it opens a group; fixed-point, 0 before
/// the first sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History(u32);

impl History {
    /// Adds an observation, with a weight of a quarter.
    pub fn with(self, active: u32) -> History {
        if self.0 == 0 { History(active * ONE) } else { History((3 * self.0 + active * ONE) / 4) }
    }

    /// The average number of v-zones, at least 1, rounded.
    pub fn vzones(self) -> u32 {
        (self.0 + ONE / 2).checked_div(ONE).unwrap_or(1).max(1)
    }
}

/// A namespace in the computation of shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its weight among all namespaces.
    pub weight: u32,
    /// Spares that its groups hold.
    pub used: u32,
    /// Whether it has opened a group within the last allocations.
    pub active: bool,
}

/// Computes the spares of each namespace, used ones included, of `spares` in all.
///
/// The shares of inactive namespaces, less the spares that they hold, go to the active ones by weight.
pub fn shares(spares: u32, accounts: &[Account], shares: &mut Vec<u32>) {
    let weights: u32 = accounts.iter().map(|account| account.weight).sum();
    let active: u32 = accounts.iter().filter(|a| a.active).map(|a| a.weight).sum();
    let own = |account: &Account| spares * account.weight / weights.max(1);
    let lent: u32 = accounts.iter().filter(|a| !a.active).map(|a| own(a).saturating_sub(a.used)).sum();
    shares.clear();
    shares.extend(accounts.iter().map(|account| match account.active {
        true => own(account) + lent * account.weight / active.max(1),
        // No namespace is active that could use them.
        false if active == 0 => own(account),
        false => own(account).min(account.used),
    }));
    let given: u32 = shares.iter().sum();
    assert!(given <= spares, "namespaces have shares of {given} spares, of {spares}");
}

/// Width of a new group in physical zones: `essential`, and the spares of one v-zone; a power of two, at most `most`.
///
/// `share` is the namespace's share of the spares, `used` the spares that its groups hold, `free` those that no group
/// holds.
pub fn width(essential: u32, (share, used, free): (u32, u32, u32), history: History, most: u32) -> u32 {
    let spares = (share / history.vzones()).min(share.saturating_sub(used)).min(free);
    floor_power(essential.saturating_add(spares).min(most))
}

/// Blocks of a stripe unit, 1 to [`BASE_UNIT_BLOCKS`]: in inverse proportion to the width.
pub fn unit_blocks(essential: u32, width: u32) -> u32 {
    (BASE_UNIT_BLOCKS * essential / width.max(1)).clamp(1, BASE_UNIT_BLOCKS)
}

/// Whether a namespace that holds spares has written nothing for `patience_us`: then they are taken back. Times are in
/// microseconds.
pub fn is_frozen(used: u32, last_write_us: u64, now_us: u64, patience_us: u64) -> bool {
    used > 0 && now_us.saturating_sub(last_write_us) >= patience_us
}

/// The largest power of two that is at most `number`; 1 for 0.
pub fn floor_power(number: u32) -> u32 {
    1 << number.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(vzones: u32) -> History {
        (0..30).fold(History::default(), |history, _| history.with(vzones))
    }

    fn shares_of(spares: u32, accounts: &[Account]) -> Vec<u32> {
        let mut found = Vec::new();
        shares(spares, accounts, &mut found);
        found
    }

    /// Fig. 26: a namespace with 32 essential and 32 spare zones, 16 active v-zones.
    #[test]
    fn balloon_local_overdrive_doubles_width_for_four_writers() {
        let wide = |writers| width(2, (32, 0, 32), steady(writers), 16);
        assert_eq!([4, 8, 16].map(wide), [8, 4, 4]);
        assert_eq!([2, 4, 8, 16].map(|width| unit_blocks(2, width)), [8, 4, 2, 1]);
    }

    /// Fig. 27 and 28: three of four namespaces are idle, the fourth borrows three times its spares.
    #[test]
    fn balloon_idle_namespaces_lend_unused_spares_and_reclaim() {
        let idle = Account { weight: 1, used: 0, active: false };
        let busy = Account { weight: 1, used: 32, active: true };
        assert_eq!(shares_of(128, &[idle, idle, idle, busy]), [0, 0, 0, 128]);
        let holding = Account { used: 10, ..idle };
        assert_eq!(shares_of(128, &[holding, idle, idle, busy]), [10, 0, 0, 118]);
        // A namespace that writes again has its share at once, and the borrower gets no more.
        let back = Account { active: true, ..idle };
        let hungry = Account { used: 100, ..busy };
        assert_eq!(shares_of(128, &[back, idle, idle, hungry]), [64, 0, 0, 64]);
        assert_eq!(width(2, (64, 100, 28), steady(8), 16), 2);
        // It begins with the free spares.
        assert_eq!(width(2, (64, 0, 28), steady(2), 16), 16);
        assert_eq!(width(2, (64, 0, 3), steady(2), 16), 4);
    }

    #[test]
    fn balloon_shares_follow_weights_and_never_exceed_total() {
        let of = |weight, used, active| Account { weight, used, active };
        assert_eq!(shares_of(90, &[of(1, 0, true), of(2, 0, true)]), [30, 60]);
        for weight in 1..5 {
            for used in [0, 5, 40] {
                for bits in 0..8 {
                    let account = |n: u32| of(weight + n, used, bits & (1 << n) != 0);
                    let accounts = [account(0), account(1), account(2)];
                    let total: u32 = shares_of(50, &accounts).iter().sum();
                    assert!(total <= 50, "{accounts:?}");
                }
            }
        }
    }

    #[test]
    fn balloon_freezes_only_idle_namespaces_holding_spares() {
        assert!(is_frozen(1, 100, 1100, 1000));
        assert!(!is_frozen(1, 100, 1099, 1000));
        assert!(!is_frozen(0, 100, 9000, 1000));
    }

    #[test]
    fn balloon_history_of_active_vzones_follows_slowly() {
        let history = steady(16).with(4);
        assert_eq!(history.vzones(), 13);
        assert_eq!(History::default().vzones(), 1);
        assert_eq!(steady(4).vzones(), 4);
    }
}
