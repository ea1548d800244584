//! Manual pages cover all commands, errors of usage suggest the right form, and the examples in OPERATING.md are
//! correct.

use crate::support::Place;
use std::{collections::BTreeSet, fs};

/// The commands that `zoneraid ... --help` lists.
fn commands(place: &Place, before: &[&str]) -> Vec<String> {
    let help = place.run(&[before, &["--help"]].concat()).ok().text();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(String::from).collect()
}

#[test]
fn manual_pages_match_commands_exactly() {
    let place = Place::new();
    place.run(&["man", "pages"]).ok();
    let found: BTreeSet<String> = fs::read_dir(place.path("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected = BTreeSet::from(["zoneraid.8".to_string()]);
    for command in commands(&place, &[]) {
        if ["zone", "namespace", "emulate", "export", "volume", "scrub"].contains(&command.as_str()) {
            let inner = commands(&place, &[&command]);
            expected.extend(inner.iter().map(|name| format!("zoneraid-{command}-{name}.8")));
        }
        if command == "emulate" {
            let faults = commands(&place, &["emulate", "fault"]);
            expected.extend(faults.iter().map(|name| format!("zoneraid-emulate-fault-{name}.8")));
        }
        expected.insert(format!("zoneraid-{command}.8"));
    }
    assert_eq!(found, expected);
    assert!(expected.contains("zoneraid-zone-write.8"));
    let page = fs::read_to_string(place.path("pages/zoneraid-zone-write.8")).unwrap();
    assert!(page.contains("ack") && page.contains("queue"), "{page}");
    for name in &found {
        let page = fs::read_to_string(place.path("pages").join(name)).unwrap();
        for section in ["NOTES", "\"EXIT STATUS\"", "\"FILES\"", "\"ENVIRONMENT\""] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name} has no {section}");
        }
        assert!(page.contains(" 8 "), "{name} is in another section");
    }
    assert!(page.contains(".SH EXAMPLES\n.nf\nzoneraid zone write tank 0 \\-\\-fua < data\n"), "{page}");
    // If groff is installed, it reads them without warnings.
    let mut groff = std::process::Command::new("groff");
    groff.args(["-man", "-Tutf8", "-ww", "-z"]).args(found.iter().map(|name| place.path("pages").join(name)));
    if let Ok(ran) = groff.output() {
        assert!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

#[test]
fn help_shows_examples_and_errors_suggest_corrections() {
    let place = Place::new();
    place.run(&["completions", "tcsh"]).fails_with(&["tcsh", "bash"]);
    let help = place.run(&["zone", "write", "--help"]).ok().text();
    assert!(help.contains("Examples:\n  zoneraid zone write tank 0 --fua < data"), "{help}");
    assert!(help.contains("1 to 1024"), "{help}");
    let help = place.run(&["create", "--help"]).ok().text();
    assert!(help.contains("raid6") && help.contains("any two members may be lost"), "{help}");
    place.run(&["statsu"]).fails_with(&["similar subcommands exist", "'status'", "see zoneraid --help"]);
    place.run(&["zone", "raed", "x", "0"]).fails_with(&["'read'", "see zoneraid zone --help"]);
    place.run(&["create", "--chnk", "64K"]).fails_with(&["'--chunk'", "see zoneraid create --help"]);
    place.run(&["zone", "read", "tank", "first"]).fails_with(&[
        "<ZONE>",
        "not an integer",
        "zoneraid zone read --help",
    ]);
    place.run(&["zone", "read", "tank", "-1"]).fails_with(&["<ZONE>", "'-1'", "0..=4294967295"]);
    place.run(&["zone", "read", "tank", "99999999999"]).fails_with(&["<ZONE>", "99999999999"]);
    place.run(&["zone", "read", "tank", ""]).fails_with(&["<ZONE>", "a number is missing"]);
    place.run(&["emulate", "create", "x", "--count", "33"]).fails_with(&["--count", "1..=32"]);
    place.run(&["emulate", "create", "x", "--zones", "0"]).fails_with(&["--zones"]);
    let export = ["export", "nvmet", "tank", "--transport", "tcp", "--address", "::1"];
    place.run(&export).fails_with(&["--host <NQN>", "zoneraid export nvmet --help"]);
    let both = [&export[..], &["--any-host", "--host", "nqn.x"]].concat();
    place.run(&both).fails_with(&["--any-host", "cannot be used with"]);
    place.run(&[&export[..], &["--host", "nqn.a/../b"]].concat()).fails_with(&["begins with 'nqn.'"]);
    place.run(&[&export[..], &["--any-host"]].concat()).fails_with(&["'tank' does not run"]);
}

/// A line without the parts that vary between runs: times, UUIDs and serial numbers.
fn lasting(line: &str) -> String {
    let is_number = |word: &&str| word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let words = line.split_inclusive([' ', ',']).map(|word| {
        let bare = word.trim_end_matches([' ', ',']);
        if is_number(&bare) || line.starts_with("real ") { word.replace(bare, "N") } else { word.to_string() }
    });
    words.collect()
}

#[test]
fn operating_manual_failure_examples_match_actual_output() {
    let manual = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/OPERATING.md")).unwrap();
    let (_, section) = manual.split_once("\n## Watch it fail\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let place = Place::new();
    let run = |line: &str| {
        let zoneraid = env!("CARGO_BIN_EXE_zoneraid");
        let script = format!("zoneraid() {{ '{zoneraid}' \"$@\"; }}; {{ {line}\n}} 2>&1");
        let mut bash = place.program("bash");
        // Messages of other programs depend on the locale.
        bash.args(["-c", &script]).env("TIMEFORMAT", "real    %lR").env("LC_ALL", "C.UTF-8");
        let said = bash.output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    // Lines before the first prompt prepare the example; from there on each command is followed by its output.
    let mut lines = section.lines().filter_map(|line| line.strip_prefix("    ")).peekable();
    while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
        run(line);
    }
    let mut commands = 0;
    while let Some(line) = lines.next() {
        let mut shown = Vec::new();
        while let Some(said) = lines.next_if(|line| !line.starts_with("$ ")) {
            shown.push(lasting(said));
        }
        let said: Vec<String> = run(line.strip_prefix("$ ").unwrap()).lines().map(lasting).collect();
        assert_eq!(said, shown, "{line}");
        commands += 1;
    }
    assert!(commands > 30, "{commands}");
}
