//! Parts of sentences about arrays.

/// Members in a sentence: `member 3`, `members 0, 2 and 5`.
pub fn members_named(roles: &[usize]) -> String {
    let roles: Vec<String> = roles.iter().map(usize::to_string).collect();
    let members = if roles.len() == 1 { "member" } else { "members" };
    format!("{members} {}", in_a_row(&roles))
}

/// Items in a sentence: `a`, `a and b`, `a, b and c`.
pub fn in_a_row(things: &[String]) -> String {
    match things {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => things.concat(),
    }
}

/// `is` or `are`, depending on a count.
pub fn is_or_are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// `has` or `have`, depending on a count.
pub fn has_or_have(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

/// A small number in words.
pub fn number(count: usize) -> String {
    match count {
        1 => "one".into(),
        2 => "two".into(),
        _ => count.to_string(),
    }
}

/// A number of zones in a sentence.
pub fn so_many_zones(count: usize) -> String {
    if count == 1 { "1 zone".to_string() } else { format!("{count} zones") }
}
