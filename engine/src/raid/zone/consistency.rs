//! Whether blocks of a stripe agree with its parities.

use crate::{
    buf::{Buf, is_zero},
    code::decode,
    raid::geometry::Layout,
};
use std::ops::Range;

/// Whether the parts of a row of a complete stripe, by member, agree with each other at `bytes`, without that of the
/// member `left_out`. `None` for a member whose part is not known.
pub fn is_consistent(
    layout: &Layout,
    row: u64,
    parts: &[Option<Buf>],
    bytes: Range<usize>,
    left_out: Option<usize>,
) -> bool {
    assert_eq!(parts.len(), layout.members, "parts of a row, and members");
    let part =
        |index: u8| parts[layout.member(row, index as u64)].as_deref().map(|part| &part[bytes.clone()]);
    let symbols = &layout.symbols(layout.data_chunks())[..layout.members];
    let mut sum = vec![0; bytes.len()];
    decode::checks(present(layout, row, parts, left_out), symbols).all(|check| {
        let sources: Vec<&[u8]> = check.sources().iter().filter_map(|source| part(source.stored)).collect();
        check.run(&mut sum, &sources);
        is_zero(&sum)
    })
}

/// Computes parity number `which` of stripe `row`, `target`, from the parts of all members but `wrong`, each as long as
/// the target. Returns whether that is possible.
pub fn parity_of_others(
    layout: &Layout,
    (row, which): (u64, usize),
    parts: &[Option<Buf>],
    wrong: usize,
    target: &mut [u8],
) -> bool {
    let part = |index: u8| parts[layout.member(row, index as u64)].as_deref();
    let symbols = &layout.symbols(layout.data_chunks())[..layout.members];
    let wanted = symbols[layout.data_chunks() as usize + which];
    let Some(recipe) = decode::solve(present(layout, row, parts, Some(wrong)), symbols, wanted) else {
        return false;
    };
    let sources: Vec<&[u8]> = recipe.sources().iter().filter_map(|source| part(source.stored)).collect();
    recipe.run(target, &sources);
    true
}

/// The symbols (bits) of stripe `row` whose parts are known, without that of the member `left_out`.
fn present(layout: &Layout, row: u64, parts: &[Option<Buf>], left_out: Option<usize>) -> u128 {
    let is_known = |index: &u64| {
        let member = layout.member(row, *index);
        left_out != Some(member) && parts[member].is_some()
    };
    (0..layout.members as u64).filter(is_known).fold(0, |all, index| all | 1 << index)
}

/// The member whose part of a row is wrong, at `bytes` of one block: the only one without which the others agree. With
/// one parity left, the others of each member agree.
pub fn wrong_member(layout: &Layout, row: u64, parts: &[Option<Buf>], bytes: Range<usize>) -> Option<usize> {
    let is_wrong = |member: &usize| is_consistent(layout, row, parts, bytes.clone(), Some(*member));
    let mut wrong = (0..layout.members).filter(|member| parts[*member].is_some()).filter(is_wrong);
    wrong.next().filter(|_| wrong.next().is_none())
}
