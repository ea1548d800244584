//! Help texts with examples, and manual pages, from the definition of the command line.

use super::args::{Cli, NOTES};
use crate::process::output::HEALTHY;
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::{fs, io, path::Path};

/// Examples of each command.
const EXAMPLES: [(&str, &[&str]); 59] = [
    (
        "create",
        &[
            "zoneraid create --dry-run tank /dev/ng0n1 /dev/ng1n1 /dev/ng2n1 /dev/ng3n1 /dev/ng4n1",
            "zoneraid create tank drives/drive0.img drives/drive1.img drives/drive2.img",
            "zoneraid create --level raid6 tank /dev/ng0n1 /dev/ng1n1 /dev/ng2n1 /dev/ng3n1 /dev/ng4n1 /dev/ng5n1",
            "zoneraid create --policy log --zone-size 1G tank /dev/sda /dev/sdb /dev/sdc",
            "zoneraid create --no-autostart tank /dev/ng0n1 /dev/ng1n1 /dev/ng2n1",
        ],
    ),
    ("start", &["zoneraid start tank", "zoneraid start --wait 30 786016fa-84d7-41fd-827c-8ce2f45cda34"]),
    (
        "serve",
        &["zoneraid serve drives --nbd nbd.sock", "zoneraid serve tank --nbd 192.168.1.5:10809 --wait 30"],
    ),
    (
        "volume create",
        &[
            "zoneraid volume create tank",
            "zoneraid volume create drives --size 64G",
            "zoneraid volume create tank/mail --size 100G",
            "zoneraid volume create tank/vms/mail --size 100G",
            "zoneraid volume create tank/mail --size 100G --guarantee 100G",
            "zoneraid volume create tank --size 8T --compression zstd --unit 16K",
        ],
    ),
    ("volume list", &["zoneraid volume list tank", "zoneraid --json volume list tank"]),
    ("volume rename", &["zoneraid volume rename tank/mail post"]),
    (
        "volume remove",
        &["zoneraid volume remove tank/mail --yes", "zoneraid volume remove tank/mail@monday --yes"],
    ),
    (
        "volume snapshot",
        &[
            "zoneraid volume snapshot tank/mail@monday",
            "zoneraid volume snapshot tank/mail@monday tank/backup@monday",
        ],
    ),
    ("volume clone", &["zoneraid volume clone tank/mail@monday old-mail"]),
    (
        "volume rollback",
        &[
            "zoneraid volume rollback tank/mail@monday --yes",
            "zoneraid volume rollback tank/mail@monday --remove-later --yes",
        ],
    ),
    (
        "volume diff",
        &["zoneraid volume diff tank/mail@monday", "zoneraid --json volume diff tank/mail@monday tuesday"],
    ),
    (
        "volume resize",
        &["zoneraid volume resize tank --size 96G", "zoneraid volume resize tank/mail --size 200G"],
    ),
    (
        "volume set",
        &[
            "zoneraid volume set tank --compression zstd",
            "zoneraid volume set tank --compression lz4 --unit 64K",
            "zoneraid volume set tank --compression off",
            "zoneraid volume set tank --when-full queue:200",
            "zoneraid volume set tank --lend 1G",
            "zoneraid volume set tank/mail --iops 5000 --bandwidth 200M",
            "zoneraid volume set tank/mail --iops 0",
            "zoneraid volume set tank/mail --floor-iops 2000 --latency 1000",
            "zoneraid volume set tank/mail --guarantee 50G",
        ],
    ),
    ("stop", &["zoneraid stop tank"]),
    ("status", &["zoneraid status", "zoneraid status tank", "zoneraid --json status tank"]),
    ("top", &["zoneraid top tank", "zoneraid --json top tank"]),
    ("examine", &["zoneraid examine /dev/ng0n1", "zoneraid examine --export /dev/ng0n1"]),
    ("list", &["zoneraid list", "zoneraid list drives"]),
    (
        "replace",
        &[
            "zoneraid replace tank 3 /dev/ng7n1",
            "zoneraid replace --yes drives/drive3.img drives/drive5.img",
            "zoneraid replace --cancel tank 3",
        ],
    ),
    ("rebuild", &["zoneraid rebuild tank"]),
    (
        "scrub start",
        &["zoneraid scrub start tank", "zoneraid scrub start tank --since-last --rate 100M --wait"],
    ),
    ("scrub pause", &["zoneraid scrub pause tank"]),
    ("scrub stop", &["zoneraid scrub stop tank"]),
    ("scrub status", &["zoneraid scrub status tank", "zoneraid --json scrub status tank"]),
    ("fail", &["zoneraid fail tank 3"]),
    ("rename", &["zoneraid rename tank pool", "zoneraid rename drives/drive0.img tank"]),
    ("adopt", &["zoneraid adopt tank"]),
    ("autostart", &["zoneraid autostart tank no", "zoneraid autostart tank yes"]),
    ("error-limit", &["zoneraid error-limit tank 20", "zoneraid error-limit tank 0"]),
    ("destroy", &["zoneraid destroy tank", "zoneraid destroy --yes tank"]),
    ("wipe", &["zoneraid wipe /dev/ng7n1", "zoneraid wipe --yes drives/drive0.img drives/drive1.img"]),
    ("demo", &["zoneraid demo", "zoneraid demo --seed 7 Documents"]),
    (
        "bench",
        &[
            "zoneraid bench",
            "zoneraid bench --level raid6",
            "zoneraid --json bench --rounds 20",
            "zoneraid bench --peers --rounds 3",
        ],
    ),
    ("completions", &["zoneraid completions bash > /etc/bash_completion.d/zoneraid"]),
    ("emulate create", &["zoneraid emulate create drives --count 7 --zones 16 --zone-capacity 64M"]),
    ("emulate fault read-only", &["zoneraid emulate fault drives/drive1.img read-only 2"]),
    ("emulate fault offline", &["zoneraid emulate fault drives/drive1.img offline 2"]),
    ("emulate fault unreadable", &["zoneraid emulate fault drives/drive1.img unreadable 32768"]),
    ("emulate fault flip", &["zoneraid emulate fault drives/drive1.img flip 32768"]),
    ("emulate fault drop", &["zoneraid emulate fault drives/drive2.img drop 32768"]),
    ("emulate fault misdirect", &["zoneraid emulate fault drives/drive2.img misdirect 32768 32769"]),
    ("emulate fault stale", &["zoneraid emulate fault drives/drive2.img stale 32768"]),
    ("emulate fault slow", &["zoneraid emulate fault drives/drive1.img slow 1000"]),
    ("emulate fault gone", &["zoneraid emulate fault drives/drive1.img gone"]),
    ("emulate fault clear", &["zoneraid emulate fault drives/drive1.img clear"]),
    (
        "export nvmet",
        &[
            "zoneraid export nvmet tank --transport tcp --address 192.0.2.1 --host nqn.2014-08.org.example:one",
            "zoneraid export nvmet tank --transport tcp --address 192.0.2.1 --host nqn.2014-08.org.example:one --key secret",
            "zoneraid export nvmet tank --transport tcp --address 192.0.2.1 --any-host --dry-run",
        ],
    ),
    ("export remove", &["zoneraid export remove tank"]),
    ("zone report", &["zoneraid zone report tank", "zoneraid zone report tank 3"]),
    (
        "zone write",
        &["zoneraid zone write tank 0 --fua < data", "zoneraid zone write tank 0 --ack-log safe < data"],
    ),
    (
        "zone read",
        &["zoneraid zone read tank 0 > data", "zoneraid zone read tank 0 --offset 1M --length 4K > data"],
    ),
    (
        "namespace create",
        &[
            "zoneraid namespace create tank/mail --size 400G",
            "zoneraid namespace create tank/logs --size 1T --weight 2 --active 8 --width 2",
        ],
    ),
    ("namespace list", &["zoneraid namespace list tank", "zoneraid --json namespace list tank"]),
    ("namespace resize", &["zoneraid namespace resize tank/mail --size 800G"]),
    (
        "namespace set",
        &[
            "zoneraid namespace set tank/logs --iops 5000 --bandwidth 200M",
            "zoneraid namespace set tank/mail --floor-iops 2000 --latency 1000",
            "zoneraid namespace set tank/logs",
        ],
    ),
    ("namespace remove", &["zoneraid namespace remove --yes tank/mail"]),
    ("zone reset", &["zoneraid zone reset tank 0"]),
    ("zone finish", &["zoneraid zone finish tank 0"]),
    ("zone open", &["zoneraid zone open tank 0"]),
    ("zone close", &["zoneraid zone close tank 0"]),
];

const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "success; for status: healthy, or being changed by another process"),
    (
        "1",
        "for status: degraded; for replace and rebuild: some data could not be rebuilt; for scrub: or repaired",
    ),
    ("2", "for status: unusable"),
    (
        "4",
        "the command failed, with the reason on standard error; for status: some daemons do not report the \
         status of their arrays",
    ),
];

const FILES: [(&str, &str); 8] = [
    ("/dev/zoneraid/NAME", "block device of a running array"),
    ("/var/lib/zoneraid/UUID.scrub", "state and history of the scrubs of an array"),
    ("/dev/zoneraid/ARRAY/NAME", "block device of a namespace of a running array"),
    ("/run/zoneraid/UUID.sock", "control socket of the daemon of an array, for its user only"),
    ("/run/zoneraid/UUID.lock", "locked by the daemon of an array, so that no copy of it runs as well"),
    (
        "/run/zoneraid/UUID.tails",
        "acknowledgement log: the next daemon needs it if this one is killed, until the next boot",
    ),
    ("/etc/machine-id", "source of the identity of this host; arrays store a hash of it"),
    ("IMAGE.faults", "faults of an emulated drive"),
];

const ENVIRONMENT: [(&str, &str); 6] = [
    ("ZONERAID_DIR", "a further directory in which arrays are looked for by name"),
    (
        "XDG_RUNTIME_DIR",
        "for users other than root, its subdirectory zoneraid is searched before /run/zoneraid",
    ),
    ("ZONERAID_RUN_DIR", "the run directory, in place of both"),
    ("ZONERAID_MACHINE_ID", "a file in the place of /etc/machine-id"),
    ("NO_COLOR", "no colours, if it is not empty"),
    ("TMPDIR", "directory of the drives of demo, about four times as large as its input"),
];

/// The command line with examples in its help texts.
pub fn command() -> Command {
    with_examples(Cli::command(), "")
}

fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_string()).collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |inner| with_examples(inner, path.trim_start()))
    });
    // Negative numbers are invalid numbers, and not unknown options.
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    match examples(path) {
        [] => command,
        examples => command.after_help(format!("Examples:\n  {}", examples.join("\n  "))),
    }
}

/// The examples of a command; `path` is its name with its parents, for example `zone report`.
fn examples(path: &str) -> &'static [&'static str] {
    EXAMPLES.iter().find(|(name, _)| *name == path).map_or(&[], |(_, examples)| examples)
}

/// Writes a manual page for every command to `dir`.
pub fn pages(dir: &Path) -> Result<u8> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(dir)
        .and_then(|()| write_pages(&command, "", dir))
        .with_context(|| format!("manual pages cannot be written to {}", dir.display()))?;
    Ok(HEALTHY)
}

fn write_pages(command: &Command, path: &str, dir: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(inner, format!("{path} {}", inner.get_name()).trim_start(), dir)?;
    }
    let man = Man::new(command.clone().after_help("")).section("8");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut synopsis = Vec::new();
    man.render_synopsis_section(&mut synopsis)?;
    // Long lists of options may be broken at each of them; such lines have no spaces to be widened.
    let synopsis = String::from_utf8_lossy(&synopsis).replace(r"\fR|\fB", r"\fR|\:\fB");
    let synopsis = synopsis.replace(".SH SYNOPSIS\n", ".SH SYNOPSIS\n.ad l\n") + ".ad\n";
    page.extend(synopsis.into_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(own_sections(path).into_bytes());
    fs::write(dir.join(man.get_filename()), page)
}

/// Sections of the manual pages that clap does not generate.
fn own_sections(path: &str) -> String {
    let mut text = String::from(".SH NOTES\n");
    for line in NOTES.lines().filter(|line| !line.starts_with("Exit codes")) {
        text += &format!("{}\n.PP\n", escape(line));
    }
    if !examples(path).is_empty() {
        text += ".SH EXAMPLES\n.nf\n";
        text += &examples(path).iter().map(|example| escape(example) + "\n").collect::<String>();
        text += ".fi\n";
    }
    let lists = [("EXIT STATUS", &EXIT_STATUS[..]), ("FILES", &FILES), ("ENVIRONMENT", &ENVIRONMENT)];
    for (head, entries) in lists {
        text += &format!(".SH \"{head}\"\n");
        for (what, meaning) in entries {
            text += &format!(".TP\n\\fB{}\\fR\n{}\n", escape(what), escape(meaning));
        }
    }
    text
}

/// Escapes text for roff.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_has_parsable_examples_for_each_command() {
        fn check(inner: &Command, path: &str) {
            let path = format!("{path} {}", inner.get_name()).trim_start().to_string();
            if inner.has_subcommands() {
                return inner.get_subcommands().for_each(|inner| check(inner, &path));
            }
            let is_exempt = ["man", "help"].contains(&path.as_str());
            assert!(is_exempt || !examples(&path).is_empty(), "{path} has no example");
            for example in examples(&path) {
                let words = example.split(['<', '>']).next().unwrap().split_whitespace();
                command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{example}: {error}"));
                let verbs: Vec<&str> = path.split(' ').collect();
                assert!(verbs.iter().all(|verb| example.contains(&format!(" {verb}"))), "{example}");
            }
        }
        Cli::command().get_subcommands().for_each(|inner| check(inner, ""));
    }
}
