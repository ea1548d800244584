//! Removal and replacement of members: the same for a command that holds the drives and for the daemon.

use crate::{
    control::name::MemberName,
    process::output::quoted,
    report::{FailReport, is_or_are, members_named},
};
use anyhow::{Result, anyhow, bail, ensure};
use engine::{
    array::{Array, ArrayError, ArrayStatus, Drive, MemberState, MemberStatus, Progress, ReplaceOutcome},
    raid::error::{NoReplacement, ReplaceFailure},
};
use std::path::{Path, PathBuf};

/// The members of an array, to resolve the name of one.
pub struct Members<'a> {
    /// Name of the array.
    pub array: &'a str,
    pub count: u32,
    /// Drives, without symbolic links, and the roles that they have or had.
    pub drives: Vec<(u32, PathBuf)>,
    /// Roles without a drive.
    pub missing: Vec<u32>,
}

impl Members<'_> {
    /// The role of the named member.
    pub fn role(&self, member: &MemberName) -> Result<usize> {
        let (path, exists) = match member {
            MemberName::Role(role) => {
                let (array, count) = (self.array, self.count);
                ensure!(*role < count, "there is no role {role}: '{array}' has {count} members, from 0");
                return Ok(*role as usize);
            }
            MemberName::Path { path, exists } => (path, *exists),
        };
        let text = path.display();
        if let Some((role, _)) = self.drives.iter().find(|(_, drive)| drive == path) {
            return Ok(*role as usize);
        }
        ensure!(!exists, "{text} is not a member of '{}'", self.array);
        let alike = self.drives.iter().find(|(_, drive)| drive.file_name() == path.file_name());
        if let Some((role, drive)) = alike {
            bail!("{text} does not exist; member {role} of '{}' is {}", self.array, drive.display());
        }
        // A drive that does not exist any more can only be the missing member.
        match self.missing[..] {
            [role] => Ok(role as usize),
            [] => bail!("{text} does not exist, and no member of '{}' is missing", self.array),
            _ => bail!("{text} does not exist; name the member by its role (see zoneraid status)"),
        }
    }
}

/// The error for a new drive at `path` that is a member of `array` already.
pub fn in_use(path: &Path, array: &str) -> String {
    format!(
        "{} is in use as a member of '{array}': use another drive, or take this one out of the array first \
         (zoneraid fail)",
        path.display()
    )
}

/// Takes the member in `role` out of `array`.
pub async fn fail(array: &Array, role: usize) -> Result<FailReport> {
    let before = array.status();
    let lacking =
        |(other, member): &(usize, &MemberStatus)| *other != role && member.state != MemberState::Active;
    let others: Vec<usize> = before.members.iter().enumerate().filter(lacking).map(|(r, _)| r).collect();
    ensure!(
        before.parities > 0,
        "member {role} is the only drive of the array, and holds all data: copy it to another drive first (zoneraid \
         replace)"
    );
    ensure!(
        others.len() < before.parities,
        "member {role} cannot be taken out without loss of data, since {} {} not in sync",
        members_named(&others),
        is_or_are(others.len())
    );
    // A missing member goes out, like all others that are missing, when deferred-write mode ends.
    match before.members.get(role).is_some_and(|member| member.awaited) {
        true => array.begin().await?,
        false => array.fail(role).await?,
    }
    let now = array.status();
    let members = before.members.iter().zip(&now.members).enumerate();
    let is_also_out = |(other, (before, now)): &(usize, (&MemberStatus, &MemberStatus))| {
        *other != role && before.awaited && now.state == MemberState::Out && !now.awaited
    };
    let also_out = members.filter(is_also_out).map(|(other, _)| other as u32).collect();
    let drive = before.members.get(role).map(|member| member.drive.clone()).unwrap_or_default();
    Ok(FailReport { array: before.name, role: role as u32, drive, called_off: false, also_out })
}

/// Refuses a rebuild without a target: members are out, and no drives have been attached in their places.
pub fn refuse_if_only_out(called: &str, array: &ArrayStatus) -> Result<()> {
    let is = |state| array.members.iter().position(|member| member.state == state);
    match is(MemberState::Out).filter(|_| is(MemberState::Rebuilding).is_none()) {
        Some(role) => {
            bail!("member {role} is out and has no drive: zoneraid replace {called} {role} NEW")
        }
        None => Ok(()),
    }
}

/// Replaces the member in `role` by `drive`. A working member is copied, unless `now` takes it out at once. The caller
/// rebuilds the parts that are lacking afterwards. `note` receives notes on unexpected steps.
pub async fn replace(
    array: &Array,
    role: usize,
    drive: Drive,
    now: bool,
    progress: &dyn Fn(Progress),
    note: &dyn Fn(&str),
) -> Result<ReplaceOutcome> {
    array.accepts(&drive)?;
    let (status, new) = (array.status(), drive.name.clone());
    let works = status.members.get(role).is_some_and(|member| member.state != MemberState::Out);
    let is_only = status.parities == 0;
    ensure!(
        !now || !is_only,
        "the only drive of '{}' has to stay in use while it is copied: repeat the command without --now",
        status.name
    );
    ensure!(
        works || !is_only,
        "the only drive of '{}' is out, and holds all data: connect it again, or restore the data to a new array",
        status.name
    );
    if works && !now {
        let advice = |error| match is_only {
            true => anyhow!("{error}"),
            false => anyhow!("{error}; --now takes the old drive out first and rebuilds it"),
        };
        array.can_copy(role, &drive).map_err(advice)?;
        let replaced = array.replace(role, drive, progress).await.map_err(advise)?;
        if replaced == ReplaceOutcome::Attached {
            note(&format!("member {role} went out during the copy: {new} is rebuilt from the other members"));
        } else if is_only {
            let old = &status.members[role].drive;
            note(&format!("{old} still holds a copy of '{}': zoneraid wipe {}", status.name, quoted(old)));
        }
        return Ok(replaced);
    }
    match works {
        true => {
            array.fail(role).await?;
            note(&format!("member {role} was still working, and has been taken out of '{}'", status.name));
        }
        false => note(&format!("member {role} is out: {new} is rebuilt from the other members")),
    }
    array.attach(role, drive).await?;
    Ok(ReplaceOutcome::Attached)
}

/// Adds the recommended action to an error of a copy.
fn advise(error: ArrayError) -> anyhow::Error {
    let advice = match &error {
        ArrayError::Replace(NoReplacement::Failed { why: ReplaceFailure::NewFailed(_), .. }) => {
            "give another drive, or remove the cause and repeat the command, which continues the copy"
        }
        ArrayError::Replace(NoReplacement::Failed { why: ReplaceFailure::LeftOut { .. }, .. }) => {
            "rebuild that drive first (zoneraid rebuild), and repeat the command, which continues the copy"
        }
        _ => return error.into(),
    };
    anyhow!("{error}; {advice}")
}

/// Bytes that were copied.
pub fn copied_bytes(replaced: ReplaceOutcome) -> u64 {
    match replaced {
        ReplaceOutcome::Copied { bytes } => bytes,
        ReplaceOutcome::Attached => 0,
    }
}
