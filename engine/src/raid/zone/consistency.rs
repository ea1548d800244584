//! Whether blocks of a stripe agree with its parities.

use crate::{buf::Buf, code::decode, raid::geometry::Layout};
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
    let indices = (0..layout.members as u64)
        .filter(|index| left_out != Some(layout.member(row, *index)) && part(*index as u8).is_some());
    let present = indices.fold(0, |all, index| all | 1 << index);
    let symbols = &layout.symbols(layout.data_chunks())[..layout.members];
    let mut sum = vec![0; bytes.len()];
    decode::checks(present, symbols).all(|check| {
        let sources: Vec<&[u8]> = check.sources().iter().filter_map(|source| part(source.stored)).collect();
        check.run(&mut sum, &sources);
        sum.iter().all(|byte| *byte == 0)
    })
}

/// The member whose part of a row is wrong, at `bytes` of one block: the only one without which the others agree. With
/// one parity left, the others of each member agree.
pub fn wrong_member(layout: &Layout, row: u64, parts: &[Option<Buf>], bytes: Range<usize>) -> Option<usize> {
    let is_wrong = |member: &usize| is_consistent(layout, row, parts, bytes.clone(), Some(*member));
    let mut wrong = (0..layout.members).filter(|member| parts[*member].is_some()).filter(is_wrong);
    wrong.next().filter(|_| wrong.next().is_none())
}
