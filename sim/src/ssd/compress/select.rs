//! Which way a group goes: what Braid-ZNS (§III) calls the scheme selection logic.
//!
//! It knows the sizes of four units alone, and looks at two things: their range, for units that are about as large as
//! each other fill pages alike in any order; and the average ratio, for units that hardly got smaller share no page.
//! Either way they are *compacted*: placed as they come. Otherwise they are *braided*: of the orders there are the one
//! is taken that ends first. That one unit never crosses a page goes for both. The paper gives no threshold; these are
//! decisions, and none was fitted to anything.

use super::{GROUP, PAGE};

/// Up to which range units are about as large as each other: a sixteenth of a page.
const DENSE: usize = PAGE / 16;
/// From which average on they hardly got smaller: fifteen sixteenths of a page.
const HARDLY_SMALLER: usize = PAGE / 16 * 15;

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The selection logic.
    BySizes,
    /// Nobody: all groups are placed as they come, or in the best order.
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

/// All orders of a group, by their number in a CPSH. The first is the one in which it came.
pub(super) fn orders() -> impl Iterator<Item = [usize; GROUP]> {
    (0..GROUP.pow(4)).map(|number| [number / 64, number / 16 % 4, number / 4 % 4, number % 4]).filter(
        |order| {
            let seen = order.iter().fold(0, |seen: u8, unit| seen | 1 << unit);
            seen.count_ones() as usize == GROUP
        },
    )
}

/// How far a page is filled: units and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fill {
    /// Pages that were begun behind the first.
    pub pages: usize,
    pub bytes: usize,
    pub units: usize,
}

impl Fill {
    /// Behind units of these sizes, each of which goes to the next page if this one has no room.
    pub fn behind(self, sizes: impl Iterator<Item = usize>) -> Fill {
        sizes.fold(self, |fill, size| match fill.units < GROUP && fill.bytes + size <= PAGE {
            true => Fill { bytes: fill.bytes + size, units: fill.units + 1, ..fill },
            false => Fill { pages: fill.pages + 1, bytes: size, units: 1 },
        })
    }
}

/// The number of the order that ends first behind a page that is so full; the earliest of those that are alike.
/// Of a group that is not whole the units that are not there come last.
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
    fn there_are_24_orders_and_the_first_changes_nothing() {
        let all: Vec<_> = orders().collect();
        assert_eq!((all.len(), all[0]), (24, [0, 1, 2, 3]));
        assert!(all.is_sorted());
    }

    #[test]
    fn range_and_ratio_decide() {
        let braids = |sizes: [usize; 4]| Choice::BySizes.braids(&sizes);
        assert!(!braids([4 * K, 4 * K + 500, 4 * K, 5 * K - 500]), "all alike");
        assert!(braids([4 * K, 12 * K, 4 * K, 12 * K]));
        assert!(!braids([PAGE, 13 * K, PAGE, PAGE]), "hardly smaller");
        assert!(braids([PAGE, 2 * K, PAGE, PAGE]));
        assert!(!Choice::AlwaysCompacted.braids(&[1, PAGE]) && Choice::AlwaysBraided.braids(&[7, 7]));
        assert!(!Choice::AlwaysBraided.braids(&[]));
    }

    #[test]
    fn large_units_are_put_beside_small_ones() {
        let sizes = [10 * K, 11 * K, 6 * K, 5 * K];
        let number = best_order(&sizes, Fill::default());
        let order = orders().nth(number).unwrap();
        let end = |order: [usize; 4]| Fill::default().behind(order.iter().map(|unit| sizes[*unit]));
        assert_eq!(end(order).pages, 1, "{order:?}");
        assert_eq!(end([0, 1, 2, 3]).pages, 2);
    }

    /// No other order ends earlier, whatever there is before it.
    #[test]
    fn the_best_order_is_the_best_of_all() {
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
    fn a_page_takes_four_units_at_most() {
        assert_eq!(Fill::default().behind([9; 5].into_iter()), Fill { pages: 1, bytes: 9, units: 1 });
    }
}
