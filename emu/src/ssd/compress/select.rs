//! Choice of the order of a group: the scheme selection logic of Braid-ZNS (§III).
//!
//! It uses the sizes of the four units alone, in two ways: their range, for units of similar size fill pages alike in
//! any order; and the average ratio, for units that hardly shrank share no page. In both cases they are *compacted*:
//! placed in their own order. Otherwise they are *braided*: placed in the order that ends first. In either case no unit
//! crosses a page. The paper gives no thresholds; these are decisions, and none was fitted to anything.

use super::{GROUP, PAGE};

/// Largest range of units of similar size: a sixteenth of a page.
const DENSE: usize = PAGE / 16;
/// Smallest average of units that hardly shrank: fifteen sixteenths of a page.
const HARDLY_SMALLER: usize = PAGE / 16 * 15;

/// Rule of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The selection logic.
    BySizes,
    /// Constant: all groups keep their order, or get the best one.
    AlwaysCompacted,
    AlwaysBraided,
}

impl Choice {
    /// Whether a group of units with these sizes is braided.
    pub(super) fn braids(self, sizes: &[usize]) -> bool {
        let (Some(most), Some(least)) = (sizes.iter().max(), sizes.iter().min()) else { return false };
        match self {
            Choice::AlwaysCompacted => false,
            Choice::AlwaysBraided => true,
            Choice::BySizes => {
                let average = sizes.iter().sum::<usize>() / sizes.len();
                most - least > DENSE && average < HARDLY_SMALLER
            }
        }
    }
}

/// All orders of a group, by their number in a CPSH. The first is the identity.
pub(super) fn orders() -> impl Iterator<Item = [usize; GROUP]> {
    (0..GROUP.pow(4)).map(|number| [number / 64, number / 16 % 4, number / 4 % 4, number % 4]).filter(
        |order| {
            let seen = order.iter().fold(0, |seen: u8, unit| seen | 1 << unit);
            seen.count_ones() as usize == GROUP
        },
    )
}

/// Fill level of a page: units and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fill {
    /// Pages that were begun behind the first.
    pub pages: usize,
    pub bytes: usize,
    pub units: usize,
}

impl Fill {
    /// The level after units of these sizes, each of which goes to the next page if it does not fit.
    pub fn behind(self, sizes: impl Iterator<Item = usize>) -> Fill {
        sizes.fold(self, |fill, size| match fill.units < GROUP && fill.bytes + size <= PAGE {
            true => Fill { bytes: fill.bytes + size, units: fill.units + 1, ..fill },
            false => Fill { pages: fill.pages + 1, bytes: size, units: 1 },
        })
    }
}

/// The number of the order that ends first behind a page with this fill level; the earliest of equal ones. In an
/// incomplete group the missing units come last.
pub(super) fn best_order(sizes: &[usize], fill: Fill) -> usize {
    let whole = |order: &[usize; GROUP]| order[sizes.len()..].iter().all(|unit| *unit >= sizes.len());
    let numbered = orders().enumerate().filter(|(_, order)| whole(order));
    let end = |order: [usize; GROUP]| fill.behind(order[..sizes.len()].iter().map(|unit| sizes[*unit]));
    numbered.min_by_key(|(_, order)| end(*order)).map_or(0, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 1024;

    #[test]
    fn braid_has_24_orders_starting_with_identity() {
        let all: Vec<_> = orders().collect();
        assert_eq!((all.len(), all[0]), (24, [0, 1, 2, 3]));
        assert!(all.is_sorted());
    }

    #[test]
    fn braid_choice_follows_size_range_and_ratio() {
        let braids = |sizes: [usize; 4]| Choice::BySizes.braids(&sizes);
        assert!(!braids([4 * K, 4 * K + 500, 4 * K, 5 * K - 500]), "all alike");
        assert!(braids([4 * K, 12 * K, 4 * K, 12 * K]));
        assert!(!braids([PAGE, 13 * K, PAGE, PAGE]), "hardly smaller");
        assert!(braids([PAGE, 2 * K, PAGE, PAGE]));
        assert!(!Choice::AlwaysCompacted.braids(&[1, PAGE]) && Choice::AlwaysBraided.braids(&[7, 7]));
        assert!(!Choice::AlwaysBraided.braids(&[]));
    }

    #[test]
    fn braid_order_pairs_large_with_small_units() {
        let sizes = [10 * K, 11 * K, 6 * K, 5 * K];
        let number = best_order(&sizes, Fill::default());
        let order = orders().nth(number).unwrap();
        let end = |order: [usize; 4]| Fill::default().behind(order.iter().map(|unit| sizes[*unit]));
        assert_eq!(end(order).pages, 1, "{order:?}");
        assert_eq!(end([0, 1, 2, 3]).pages, 2);
    }

    /// No other order ends earlier, for any fill level before it.
    #[test]
    fn braid_best_order_ends_earliest_of_all() {
        let mut rng = crate::rng::Rng::new(5);
        for _ in 0..2000 {
            let sizes: Vec<usize> =
                (0..1 + rng.below(4)).map(|_| 1 + rng.below(PAGE as u64) as usize).collect();
            let fill = Fill { pages: 0, bytes: rng.below(PAGE as u64) as usize, units: 1 };
            let order = orders().nth(best_order(&sizes, fill)).unwrap();
            let end = |order: &[usize]| fill.behind(order.iter().map(|unit| sizes[*unit]));
            let chosen = end(&order[..sizes.len()]);
            for other in orders() {
                let other: Vec<usize> = other.into_iter().filter(|unit| *unit < sizes.len()).collect();
                assert!(chosen <= end(&other), "{sizes:?} {order:?} {other:?}");
            }
        }
    }

    #[test]
    fn braid_page_takes_at_most_four_units() {
        assert_eq!(Fill::default().behind([9; 5].into_iter()), Fill { pages: 1, bytes: 9, units: 1 });
    }
}
