//! Suspects: the members that faults may strike.
//!
//! An array survives the loss of as many members as it has parities, at any moments. So at any time no more members
//! than that are suspect: only these may be lost, lose their ZRWA or suffer faults. Another member may be struck only
//! after a suspect has been cleared: the array has reported it active again and it has no media fault left.

/// A member that faults may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    pub member: usize,
    /// Its drive was struck since the power came on.
    pub struck: bool,
    /// Its drive is pulled out: it is not offered to the array.
    pub absent: bool,
    /// The member has lost its ZRWA, and no recovery has ended since.
    pub zrwa_lost: bool,
    /// The member alone has lost its volatile cache, and no recovery has ended since.
    pub cache_lost: bool,
}

impl Suspect {
    pub fn new(member: usize) -> Suspect {
        Suspect { member, struck: false, absent: false, zrwa_lost: false, cache_lost: false }
    }
}

/// All suspects of an array.
#[derive(Clone, Debug)]
pub(super) struct FaultBudget {
    most: usize,
    each: Vec<Suspect>,
}

impl FaultBudget {
    /// No suspects, and `most` at once.
    pub fn new(most: usize) -> FaultBudget {
        FaultBudget { most, each: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Whether no other member may be struck.
    pub fn is_full(&self) -> bool {
        self.each.len() == self.most
    }

    pub fn get(&self, member: usize) -> Option<Suspect> {
        self.each.iter().find(|suspect| suspect.member == member).copied()
    }

    /// The entry of `member`, which is a suspect from now on.
    ///
    /// # Panics
    /// If it is not a suspect and there is no room for another.
    pub fn of(&mut self, member: usize) -> &mut Suspect {
        let at = self.each.iter().position(|suspect| suspect.member == member).unwrap_or_else(|| {
            assert!(!self.is_full(), "member {member} must not be struck beside {:?}", self.each);
            self.each.push(Suspect::new(member));
            self.each.len() - 1
        });
        &mut self.each[at]
    }

    /// Makes `member` a suspect; without room, in the place of a suspect for which `is_sound` is true.
    pub fn take_in(&mut self, member: usize, is_sound: impl Fn(usize) -> bool) {
        let other = self.each.iter().position(|suspect| is_sound(suspect.member));
        match self.get(member) {
            None if !self.is_full() => self.each.push(Suspect::new(member)),
            None => other.into_iter().for_each(|at| self.each[at].member = member),
            Some(_) => (),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Suspect> {
        self.each.iter().copied()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Suspect> {
        self.each.iter_mut()
    }

    /// Keeps the suspects for which `remains` is true.
    pub fn retain(&mut self, remains: impl Fn(&Suspect) -> bool) {
        self.each.retain(remains);
    }

    pub fn members(&self) -> Vec<usize> {
        self.iter().map(|suspect| suspect.member).collect()
    }

    /// Members with drives that are pulled out.
    pub fn absent(&self) -> Vec<usize> {
        self.iter().filter(|suspect| suspect.absent).map(|suspect| suspect.member).collect()
    }

    pub fn is_absent(&self, member: usize) -> bool {
        self.get(member).is_some_and(|suspect| suspect.absent)
    }
}

/// The members that may be missing when a fork is recovered.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// Sets of missing members, one recovery each.
    pub lost: Vec<Vec<usize>>,
    /// Members that may be inactive even if they are present.
    pub suspects: Vec<usize>,
    /// All of the suspects can be present.
    pub offered: bool,
    /// One of the suspects has lost its ZRWA.
    pub zrwa_lost: bool,
    /// One of the suspects alone has lost its volatile cache.
    pub cache_lost: bool,
}

/// All sets of up to `most` of `members`, the smaller ones first.
pub(super) fn subsets(members: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut sets = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..most {
        let to = sets.len();
        for index in from..to {
            let after = sets[index].last().map_or(0, |last| 1 + position(members, *last));
            for member in &members[after..] {
                let larger = sets[index].iter().copied().chain([*member]).collect();
                sets.push(larger);
            }
        }
        from = to;
    }
    sets
}

fn position(members: &[usize], member: usize) -> usize {
    members.iter().position(|other| *other == member).unwrap_or(members.len())
}

/// All members below `count` except `than`.
pub(super) fn others(count: usize, than: &[usize]) -> Vec<usize> {
    (0..count).filter(|member| !than.contains(member)).collect()
}

/// Members as a phrase for messages.
pub(super) fn named(members: &[usize]) -> String {
    let numbers: Vec<String> = members.iter().map(usize::to_string).collect();
    match members {
        [member] => format!("member {member}"),
        _ => format!("members {}", numbers.join(" and ")),
    }
}

/// The missing members as the beginning of a message.
pub(super) fn without(lost: &[usize]) -> String {
    if lost.is_empty() { "with all members: ".into() } else { format!("without {}: ", named(lost)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_full_at_limit_of_members() {
        let mut suspects = FaultBudget::new(2);
        suspects.of(3).absent = true;
        assert!(!suspects.is_full() && suspects.is_absent(3));
        suspects.of(1).struck = true;
        // A member that is a suspect already needs no room.
        suspects.of(3).struck = true;
        assert_eq!((suspects.members(), suspects.absent()), (vec![3, 1], vec![3]));
        assert!(suspects.is_full());
        suspects.retain(|suspect| suspect.absent);
        assert!(!suspects.is_full() && suspects.get(1).is_none());
    }

    #[test]
    #[should_panic = "must not be struck beside"]
    fn suspects_panic_beyond_limit() {
        let mut suspects = FaultBudget::new(1);
        suspects.of(0);
        suspects.of(1);
    }

    #[test]
    fn subsets_up_to_size_are_listed_once() {
        assert_eq!(subsets(&[4, 7, 9], 0), [Vec::<usize>::new()]);
        assert_eq!(subsets(&[4, 7], 1), [vec![], vec![4], vec![7]]);
        let pairs = [vec![], vec![4], vec![7], vec![9], vec![4, 7], vec![4, 9], vec![7, 9]];
        assert_eq!(subsets(&[4, 7, 9], 2), pairs);
    }
}
