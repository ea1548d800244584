//! The decoder: finds the stored symbols from which a missing one is computed.
//!
//! It works on one column, the same offset in every chunk of a stripe. The data symbols are the unknowns. Each stored
//! symbol is a sum of data symbols: a data symbol is the sum of itself; P is the XOR of the first data symbols, of all
//! of them or, for partial parity, of fewer; Q is the same with the coefficients `2^i`. There may be several of each,
//! which cover different numbers of data symbols. So the caller passes a list of sums, and which of them are present,
//! rather than a number of parities.
//!
//! [`solve`] returns a [`Recipe`]: present symbols, each with a coefficient, that add up to the wanted one. All
//! decoding uses it:
//!
//! - a degraded read, and the rebuild of one member or two, ask for [`Sum::data`], [`Sum::p`] or [`Sum::q`];
//! - whether a block can be decoded is whether there is a recipe for it;
//! - whether a stripe agrees with its parity is whether all [`checks`] give zeros.
//!
//! The choice of parities determines the number of reads: the P of five chunks and the P of four give the fifth chunk
//! without reading the other four. So all choices of no, one and two parities are tried, and the best one is taken: of
//! the fewest sources, among these one with coefficients of 1 only, among these the first. This is exact: where no
//! source can be left out, the coefficients of two parities follow from two symbols that are not used, so pairs of such
//! symbols are all that has to be tried. Only if there is no such recipe, Gaussian elimination over all parities finds
//! out whether more than two of them give one; this case is not critical for latency, so the first solution is taken.

use super::{
    gf256::{div, mul, pow2},
    pq, xor,
};
use std::ops::Deref;

/// Maximum number of data symbols of a column.
pub const MAX_DATA: usize = 32;

/// Maximum number of stored symbols of a column: one for each bit of `present`.
pub const MAX_STORED: usize = u128::BITS as usize;

/// A sum of data symbols, with coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// A bit for each data symbol that is in it.
    symbols: u32,
    /// The coefficient of data symbol `i` is `2^(power * i)`: `power` is 0 for data and P, 1 for Q.
    power: u8,
}

impl Sum {
    /// The data symbol `index`.
    pub const fn data(index: usize) -> Sum {
        Sum { symbols: 1 << index, power: 0 }
    }

    /// The XOR of the first `covers` data symbols.
    pub const fn p(covers: usize) -> Sum {
        Sum { symbols: first(covers), power: 0 }
    }

    /// The sum of the first `covers` data symbols, `2^i` times symbol `i`.
    pub const fn q(covers: usize) -> Sum {
        Sum { symbols: first(covers), power: 1 }
    }

    /// Parity `which` of the first `covers` data symbols: P for 0, otherwise Q.
    pub const fn parity(which: usize, covers: usize) -> Sum {
        if which == 0 { Sum::p(covers) } else { Sum::q(covers) }
    }

    /// Coefficient of data symbol `index`.
    pub const fn coefficient(&self, index: usize) -> u8 {
        if self.symbols >> index & 1 == 1 { pow2(self.power as usize * index) } else { 0 }
    }

    /// The data symbol that it equals, if any.
    fn only(&self) -> Option<usize> {
        let index = self.symbols.trailing_zeros() as usize;
        (self.symbols.is_power_of_two() && self.coefficient(index) == 1).then_some(index)
    }
}

/// A bit for each of the first `count` data symbols.
const fn first(count: usize) -> u32 {
    assert!(count <= MAX_DATA);
    ((1_u64 << count) - 1) as u32
}

/// A term of a [`Recipe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecipeTerm {
    /// Index of the stored symbol in the list.
    pub stored: u8,
    /// Its coefficient; never 0.
    pub coefficient: u8,
}

/// Stored symbols that add up to the wanted sum.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    sources: [RecipeTerm; MAX_SOURCES],
    count: usize,
}

/// Maximum number of sources: those of a recipe are linearly independent, and a check has one more.
const MAX_SOURCES: usize = MAX_DATA + 1;

const _: () = assert!(MAX_SOURCES <= xor::MAX_SOURCES);

impl Recipe {
    const EMPTY: Recipe =
        Recipe { sources: [RecipeTerm { stored: 0, coefficient: 0 }; MAX_SOURCES], count: 0 };

    /// The sources, in the order of the list that was given to [`solve`].
    pub fn sources(&self) -> &[RecipeTerm] {
        &self.sources[..self.count]
    }

    /// Whether the wanted sum is the XOR of the sources.
    pub fn is_xor(&self) -> bool {
        self.sources().iter().all(|source| source.coefficient == 1)
    }

    /// Computes the wanted blocks into `target`, which is overwritten. `blocks` are those of [`Recipe::sources`], in
    /// that order; all of one length.
    pub fn run(&self, target: &mut [u8], blocks: &[impl Deref<Target = [u8]>]) {
        assert_eq!(blocks.len(), self.count);
        assert!(blocks.iter().all(|block| block.len() == target.len()));
        if self.is_xor() {
            return xor::xor_all(target, blocks);
        }
        let mut coefficients = [0; MAX_SOURCES];
        for (coefficient, source) in coefficients.iter_mut().zip(self.sources()) {
            *coefficient = source.coefficient;
        }
        pq::sum(target, &coefficients[..self.count], blocks);
    }

    fn push(&mut self, stored: u8, coefficient: u8) {
        let behind = self.sources().iter().filter(|source| source.stored > stored).count();
        let at = self.count - behind;
        self.sources.copy_within(at..self.count, at + 1);
        self.sources[at] = RecipeTerm { stored, coefficient };
        self.count += 1;
    }

    /// Cost of a recipe: number of sources, then whether products are needed.
    fn cost(&self) -> (usize, bool) {
        (self.count, !self.is_xor())
    }
}

/// Finds the best recipe for `wanted` from the present symbols of `stored` (bit `i` of `present` for `stored[i]`);
/// `None` if these do not determine it. Allocates no memory.
pub fn solve(present: u128, stored: &[Sum], wanted: Sum) -> Option<Recipe> {
    let column = SymbolColumn::new(present, stored, wanted);
    column.few_parities().or_else(|| column.many_parities())
}

/// Parity checks: recipes that give 0 if the `present` symbols of `stored` are consistent. Each expresses one symbol,
/// its last source, by earlier ones; without redundancy there are none.
///
/// If they do not hold because one symbol is wrong, it is the symbol without which the remaining checks hold; with P
/// and Q of all data symbols only one symbol has that property.
pub fn checks(present: u128, stored: &[Sum]) -> impl Iterator<Item = Recipe> {
    let at = (0..stored.len().min(MAX_STORED)).filter(move |at| present >> at & 1 == 1);
    at.filter_map(move |at| {
        let before = present & ((1 << at) - 1);
        let mut recipe = solve(before, stored, stored[at])?;
        recipe.push(at as u8, 1);
        Some(recipe)
    })
}

/// Input of the decoder: the present symbols, and the wanted sum.
struct SymbolColumn {
    wanted: Sum,
    /// A bit for each data symbol that is present.
    known: u32,
    /// Index in the list of each of these data symbols.
    places: [u8; MAX_DATA],
    /// All other present symbols; `count` of them are valid.
    parities: [Parity; MAX_STORED],
    count: usize,
}

/// A stored sum, and its index in the list.
#[derive(Clone, Copy)]
struct Parity {
    sum: Sum,
    place: u8,
}

impl SymbolColumn {
    fn new(present: u128, stored: &[Sum], wanted: Sum) -> SymbolColumn {
        let none = Parity { sum: Sum { symbols: 0, power: 0 }, place: 0 };
        let mut column =
            SymbolColumn { wanted, known: 0, places: [0; MAX_DATA], parities: [none; MAX_STORED], count: 0 };
        for (place, sum) in stored.iter().enumerate().take(MAX_STORED) {
            match sum.only() {
                _ if present >> place & 1 == 0 => {}
                Some(index) if column.known >> index & 1 == 1 => {}
                Some(index) => {
                    column.known |= 1 << index;
                    column.places[index] = place as u8;
                }
                None => {
                    column.parities[column.count] = Parity { sum: *sum, place: place as u8 };
                    column.count += 1;
                }
            }
        }
        column
    }

    fn parities(&self) -> &[Parity] {
        &self.parities[..self.count]
    }

    /// The best recipe with at most two parities.
    fn few_parities(&self) -> Option<Recipe> {
        let mut best = self.with(&[]);
        for a in self.parities() {
            if !is_worth_a_try(&best, 1 + self.left_over(a.sum.symbols)) {
                continue;
            }
            for i in self.zeros(a.sum.symbols) {
                let times = div(self.wanted.coefficient(i), a.sum.coefficient(i));
                keep_better(&mut best, times.and_then(|times| self.with(&[(*a, times)])));
            }
        }
        for (after, a) in self.parities().iter().enumerate() {
            for b in &self.parities()[after + 1..] {
                let symbols = a.sum.symbols | b.sum.symbols;
                let fewest = 2 + self.left_over(symbols) - self.cancelled(&a.sum, &b.sum);
                if !is_worth_a_try(&best, fewest) {
                    continue;
                }
                for i in self.zeros(symbols) {
                    for j in bits(symbols).filter(|j| *j != i) {
                        let times = self.two(&a.sum, &b.sum, i, j);
                        let recipe =
                            times.and_then(|(a_times, b_times)| self.with(&[(*a, a_times), (*b, b_times)]));
                        keep_better(&mut best, recipe);
                    }
                }
            }
        }
        best
    }

    /// Lower bound of the number of data sources in addition to parities that cover `symbols`, if the parities do not
    /// cancel each other in symbols that are not wanted.
    fn left_over(&self, symbols: u32) -> usize {
        ((symbols ^ self.wanted.symbols) & self.known).count_ones() as usize
    }

    /// Upper bound of the data symbols that are not wanted and that `a` and `b` can cancel: with equal powers all that
    /// both cover, else one at most, as the ratio of coefficients differs from symbol to symbol.
    fn cancelled(&self, a: &Sum, b: &Sum) -> usize {
        let both = (a.symbols & b.symbols & self.known & !self.wanted.symbols).count_ones() as usize;
        if a.power == b.power { both } else { both.min(1) }
    }

    /// Data symbols that may be assumed not to be sources, from which the coefficient of a parity follows: the first
    /// missing one of the wanted sum and of `symbols`; if none is missing, each of `symbols`.
    fn zeros(&self, symbols: u32) -> impl Iterator<Item = usize> {
        let lacking = (symbols | self.wanted.symbols) & !self.known;
        bits(if lacking == 0 { symbols } else { lacking & lacking.wrapping_neg() })
    }

    /// Coefficients of `a` and `b` with which their sum has the same coefficients of data symbols `i` and `j` as the
    /// wanted sum, so that these are not needed as sources; `None` if there are none.
    fn two(&self, a: &Sum, b: &Sum, i: usize, j: usize) -> Option<(u8, u8)> {
        let at = |index| (a.coefficient(index), b.coefficient(index), self.wanted.coefficient(index));
        let ((a_i, b_i, w_i), (a_j, b_j, w_j)) = (at(i), at(j));
        let determinant = mul(a_i, b_j) ^ mul(a_j, b_i);
        let a_times = div(mul(w_i, b_j) ^ mul(w_j, b_i), determinant)?;
        let b_times = div(mul(a_i, w_j) ^ mul(a_j, w_i), determinant)?;
        Some((a_times, b_times))
    }

    /// The recipe with these parities and coefficients, and data symbols for the rest; `None` if one of those is not
    /// present.
    fn with(&self, parities: &[(Parity, u8)]) -> Option<Recipe> {
        let mut recipe = Recipe::EMPTY;
        let covered = parities.iter().fold(self.wanted.symbols, |all, (parity, _)| all | parity.sum.symbols);
        for index in bits(covered) {
            let rest = parities.iter().fold(self.wanted.coefficient(index), |rest, (parity, times)| {
                rest ^ mul(*times, parity.sum.coefficient(index))
            });
            match rest {
                0 => {}
                _ if self.known >> index & 1 == 0 => return None,
                _ => recipe.push(self.places[index], rest),
            }
        }
        for (parity, times) in parities.iter().filter(|(_, times)| *times != 0) {
            recipe.push(parity.place, *times);
        }
        Some(recipe)
    }

    /// Finds a recipe with any number of parities by Gaussian elimination: the rows of the matrix are the missing data
    /// symbols, the columns the parities, and the last column the wanted sum.
    fn many_parities(&self) -> Option<Recipe> {
        let covered =
            self.parities().iter().fold(self.wanted.symbols, |all, parity| all | parity.sum.symbols);
        let mut rows = [[0; MAX_STORED + 1]; MAX_DATA];
        let mut height = 0;
        for index in bits(covered & !self.known) {
            for (column, parity) in self.parities().iter().enumerate() {
                rows[height][column] = parity.sum.coefficient(index);
            }
            rows[height][self.count] = self.wanted.coefficient(index);
            height += 1;
        }
        let rows = &mut rows[..height];
        let mut used = [(Parity { sum: self.wanted, place: 0 }, 0); MAX_DATA];
        let mut rank = 0;
        for column in 0..self.count {
            let Some(pivot) = (rank..height).find(|row| rows[*row][column] != 0) else { continue };
            rows.swap(rank, pivot);
            let pivot = rows[rank];
            for (at, row) in rows.iter_mut().enumerate() {
                let times = match at == rank {
                    true => continue,
                    false => div(row[column], pivot[column])?,
                };
                for (entry, pivot) in row.iter_mut().zip(&pivot) {
                    *entry ^= mul(times, *pivot);
                }
            }
            used[rank] = (self.parities[column], pivot[column]);
            rank += 1;
        }
        if rows[rank..].iter().any(|row| row[self.count] != 0) {
            return None;
        }
        for (row, (_, times)) in rows.iter().zip(&mut used[..rank]) {
            *times = div(row[self.count], *times)?;
        }
        self.with(&used[..rank])
    }
}

/// Whether a recipe with `sources` sources could be better than the best one so far.
fn is_worth_a_try(best: &Option<Recipe>, sources: usize) -> bool {
    best.as_ref().is_none_or(|best| (sources, false) < best.cost())
}

/// Replaces the best recipe so far if `recipe` is better.
fn keep_better(best: &mut Option<Recipe>, recipe: Option<Recipe>) {
    if let Some(recipe) = recipe
        && best.as_ref().is_none_or(|best| recipe.cost() < best.cost())
    {
        *best = Some(recipe);
    }
}

/// The numbers of the bits that are set.
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{gf256::tests::slow_mul, xor::tests::bytes};
    use std::sync::LazyLock;

    const BLOCK: usize = 256;

    /// All products and, at `[a][0]`, where the product is trivial, the inverse.
    static SLOW: LazyLock<Vec<[u8; 256]>> = LazyLock::new(|| {
        let row = |a| {
            let mut row: [u8; 256] = std::array::from_fn(|b| slow_mul(a, b as u8));
            row[0] = row.iter().position(|product| *product == 1).unwrap_or(0) as u8;
            row
        };
        (0..=255).map(row).collect()
    });

    fn product(a: u8, b: u8) -> u8 {
        if b == 0 { 0 } else { SLOW[a as usize][b as usize] }
    }

    /// The coefficients of a sum, by the definitions of P and Q.
    fn row(sum: &Sum, k: usize) -> Vec<u8> {
        let mut power = 1;
        let mut row = Vec::new();
        for index in 0..k {
            row.push(if sum.symbols >> index & 1 == 0 { 0 } else { power });
            for _ in 0..sum.power {
                power = slow_mul(power, 2);
            }
        }
        row
    }

    /// Rank of the matrix of these rows.
    fn rank(mut rows: Vec<Vec<u8>>) -> usize {
        let mut rank = 0;
        for column in 0..rows.first().map_or(0, Vec::len) {
            let Some(pivot) = (rank..rows.len()).find(|row| rows[*row][column] != 0) else { continue };
            rows.swap(rank, pivot);
            let pivot = rows[rank].clone();
            let inverse = SLOW[pivot[column] as usize][0];
            for row in &mut rows[rank + 1..] {
                let times = product(row[column], inverse);
                for (entry, pivot) in row.iter_mut().zip(&pivot) {
                    *entry ^= product(times, *pivot);
                }
            }
            rank += 1;
        }
        rank
    }

    /// Oracle: whether `wanted` is a linear combination of the others.
    fn is_told(others: &[Vec<u8>], wanted: &[u8]) -> bool {
        rank(others.to_vec()) == rank([others, &[wanted.to_vec()]].concat())
    }

    fn chosen<T: Clone>(present: u128, all: &[T]) -> Vec<T> {
        bits_of(present).filter(|at| *at < all.len()).map(|at| all[at].clone()).collect()
    }

    fn bits_of(set: u128) -> impl Iterator<Item = usize> {
        (0..128).filter(move |at| set >> at & 1 == 1)
    }

    /// A column with its content.
    struct Example {
        k: usize,
        stored: Vec<Sum>,
        rows: Vec<Vec<u8>>,
        data: Vec<Vec<u8>>,
        blocks: Vec<Vec<u8>>,
    }

    impl Example {
        /// `k` data symbols and these parities.
        fn new(k: usize, parities: &[Sum], seed: u64) -> Example {
            let stored: Vec<Sum> = (0..k).map(Sum::data).chain(parities.iter().copied()).collect();
            let rows: Vec<Vec<u8>> = stored.iter().map(|sum| row(sum, k)).collect();
            let data: Vec<Vec<u8>> = (0..k).map(|i| bytes(BLOCK, seed * 64 + i as u64 + 1)).collect();
            let blocks = rows.iter().map(|row| content(row, &data)).collect();
            Example { k, stored, rows, data, blocks }
        }

        fn everything(&self) -> u128 {
            (1 << self.stored.len()) - 1
        }

        /// Solves for `wanted`, and checks the result against the oracle.
        fn ask(&self, present: u128, wanted: Sum) -> Option<Recipe> {
            let what = || format!("{wanted:?} of {:?}, present {present:b}", self.stored);
            let recipe = solve(present, &self.stored, wanted);
            let wanted_row = row(&wanted, self.k);
            let expected = is_told(&chosen(present, &self.rows), &wanted_row);
            assert_eq!(recipe.is_some(), expected, "{}", what());
            let recipe = recipe?;
            let sources = recipe.sources();
            assert!(sources.windows(2).all(|two| two[0].stored < two[1].stored), "{}", what());
            assert!(sources.iter().all(|s| s.coefficient != 0 && present >> s.stored & 1 == 1), "{}", what());
            assert!(adds_up_to(&recipe, &self.blocks) == content(&wanted_row, &self.data), "{}", what());
            Some(recipe)
        }

        /// The fewest sources that suffice, and whether their XOR does, by trying all.
        fn best(&self, present: u128, wanted: Sum) -> Option<(usize, bool)> {
            let wanted = row(&wanted, self.k);
            let subsets = || (0..=present).filter(|set| set & !present == 0);
            let told = subsets().filter(|set| is_told(&chosen(*set, &self.rows), &wanted));
            let fewest = told.map(|set| set.count_ones()).min()?;
            let one = |set: u128| {
                let rows = chosen(set, &self.rows);
                (0..self.k).all(|i| rows.iter().fold(0, |sum, row| sum ^ row[i]) == wanted[i])
            };
            Some((fewest as usize, subsets().any(|set| set.count_ones() == fewest && one(set))))
        }
    }

    /// Runs a recipe on the stored blocks.
    fn adds_up_to(recipe: &Recipe, blocks: &[Vec<u8>]) -> Vec<u8> {
        let given = recipe.sources().iter().map(|source| &blocks[source.stored as usize][..]);
        let mut target = vec![7; blocks[0].len()];
        recipe.run(&mut target, &given.collect::<Vec<_>>());
        target
    }

    fn content(row: &[u8], data: &[Vec<u8>]) -> Vec<u8> {
        let mut content = vec![0; BLOCK];
        for (times, data) in row.iter().zip(data) {
            for (sum, byte) in content.iter_mut().zip(data) {
                *sum ^= product(*times, *byte);
            }
        }
        content
    }

    /// All losses of up to `most` of `count` symbols, as bits of the present ones.
    fn losses(count: usize, most: u32) -> impl Iterator<Item = u128> {
        (0..1_u128 << count).filter(move |present| count as u32 - present.count_ones() <= most)
    }

    #[test]
    fn decode_after_two_losses_finds_all_decodable_symbols() {
        for k in 1..=8 {
            for (p, q) in (1..=k).flat_map(|p| (1..=k).map(move |q| (p, q))) {
                let example = Example::new(k, &[Sum::p(p), Sum::q(q)], (64 * p + q) as u64);
                let wanted = (0..k).map(Sum::data).chain([Sum::p(p), Sum::q(q), Sum::p(k), Sum::q(k)]);
                let wanted: Vec<Sum> = wanted.collect();
                for present in losses(k + 2, 2) {
                    for wanted in &wanted {
                        let recipe = example.ask(present, *wanted);
                        if p == k && q == k {
                            assert!(recipe.is_some(), "RAID-6 bears two losses: {wanted:?} {present:b}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn decode_recipe_is_shortest_and_xor_if_possible() {
        // With up to three data symbols all possible sums, with four those that begin with the first.
        for k in 1..=4 {
            let prefixes = (1..=k).flat_map(|covers| [Sum::p(covers), Sum::q(covers)]);
            let sets = (1..1 << k).flat_map(|symbols| [0, 1].map(|power| Sum { symbols, power }));
            let all: Vec<Sum> = if k < 4 { sets.collect() } else { prefixes.collect() };
            for (at, a) in all.iter().enumerate() {
                for b in &all[at..] {
                    let example = Example::new(k, &[*a, *b], 3);
                    for present in losses(k + 2, 3) {
                        for wanted in (0..k).map(Sum::data).chain(all.iter().copied()) {
                            let found = example.ask(present, wanted).map(|r| (r.count, r.is_xor()));
                            let best = example.best(present, wanted);
                            assert_eq!(found, best, "{wanted:?} {a:?} {b:?} {present:b}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn decode_random_partial_parities_agrees_with_oracle() {
        let mut random = bytes(1 << 20, 5).into_iter().map(usize::from);
        let mut below = move |limit: usize| random.next().unwrap() % limit;
        let mut many = 0;
        for seed in 0..4000 {
            let k = 1 + below(30);
            let parities: Vec<Sum> = (0..below(7))
                .map(|_| match (below(2), 1 + below(k)) {
                    (0, covers) => Sum::p(covers),
                    (_, covers) => Sum::q(covers),
                })
                .collect();
            let example = Example::new(k, &parities, seed);
            let mut present = example.everything();
            let lacking: Vec<usize> = (0..below(6)).map(|_| below(k)).collect();
            for index in &lacking {
                present &= !(1 << index);
            }
            for wanted in lacking.iter().map(|index| Sum::data(*index)).chain([Sum::p(k), Sum::q(k)]) {
                let recipe = example.ask(present, wanted);
                let parities = |r: &Recipe| r.sources().iter().filter(|s| s.stored as usize >= k).count();
                many += recipe.is_some_and(|recipe| parities(&recipe) > 2) as u32;
            }
        }
        assert!(many > 20, "only {many} needed more than two parities");
    }

    #[test]
    fn decode_recovers_data_from_partial_parities_alone() {
        // Only the partial parity of each chunk is present, and no data.
        for k in 2..=31 {
            for power in [Sum::p, Sum::q] {
                let example = Example::new(k, &(1..=k).map(power).collect::<Vec<_>>(), 1);
                let present = example.everything() & !((1 << k) - 1);
                for index in 1..k {
                    let recipe = example.ask(present, Sum::data(index)).unwrap();
                    let stored = recipe.sources().iter().map(|source| source.stored as usize);
                    assert_eq!(stored.collect::<Vec<_>>(), [k + index - 1, k + index]);
                }
            }
        }
        // Three unknowns need three parities.
        let example = Example::new(3, &[Sum::p(3), Sum::q(3), Sum::q(2)], 1);
        assert_eq!(example.ask(0b111000, Sum::data(0)).unwrap().sources().len(), 3);
        assert_eq!(example.ask(0b111000, Sum::data(2)).unwrap().sources().len(), 2);
    }

    #[test]
    fn decode_checks_detect_every_change_of_redundant_blocks() {
        for k in 1..=6 {
            for (p, q) in (1..=k).flat_map(|p| (1..=k).map(move |q| (p, q))) {
                let example = Example::new(k, &[Sum::p(p), Sum::q(q), Sum::p(1 + p / 2)], 9);
                for present in losses(k + 3, 3) {
                    let checks: Vec<Recipe> = checks(present, &example.stored).collect();
                    let rows = chosen(present, &example.rows);
                    assert_eq!(checks.len(), rows.len() - rank(rows));
                    for changed in bits_of(present) {
                        let mut blocks = example.blocks.clone();
                        blocks[changed][99] ^= 0x40;
                        let notices =
                            |check: &Recipe, blocks: &[Vec<u8>]| adds_up_to(check, blocks) != [0; BLOCK];
                        assert!(!checks.iter().any(|check| notices(check, &example.blocks)));
                        let others = chosen(present & !(1 << changed), &example.rows);
                        let redundant = is_told(&others, &example.rows[changed]);
                        assert_eq!(checks.iter().any(|check| notices(check, &blocks)), redundant);
                    }
                }
            }
        }
    }

    #[test]
    fn decode_checks_with_p_q_identify_wrong_symbol() {
        for k in 1..=8 {
            let example = Example::new(k, &[Sum::p(k), Sum::q(k)], 4);
            let all = example.everything();
            for wrong in bits_of(all) {
                let mut blocks = example.blocks.clone();
                blocks[wrong][99] ^= 0x40;
                let suspects = bits_of(all).filter(|suspect| {
                    let mut left = checks(all & !(1 << suspect), &example.stored);
                    left.all(|check| adds_up_to(&check, &blocks) == [0; BLOCK])
                });
                assert_eq!(suspects.collect::<Vec<_>>(), [wrong], "{k}");
            }
        }
    }

    #[test]
    fn decode_recipe_runs_over_any_length() {
        let example = Example::new(6, &[Sum::p(6), Sum::q(6)], 2);
        let recipe = example.ask(0b11110101, Sum::data(1)).unwrap();
        for len in [256, 4096, 4352, 12288] {
            let data: Vec<Vec<u8>> = (0..6).map(|i| bytes(len, i + 1)).collect();
            let (mut p, mut q) = (vec![0; len], vec![0; len]);
            pq::pq_all(&mut p, &mut q, &data);
            let blocks = [data, vec![p, q]].concat();
            assert!(adds_up_to(&recipe, &blocks) == blocks[1], "{len}");
        }
    }
}
