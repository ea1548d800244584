//! Shell completions and manual pages know every command.

#![allow(clippy::unwrap_used)]

mod support;

use std::{collections::BTreeSet, fs, process::Stdio};
use support::Place;

/// The commands that `zoneraid ... --help` lists.
fn commands(place: &Place, before: &[&str]) -> Vec<String> {
    let help = place.run(&[before, &["--help"]].concat()).ok().text();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(String::from).collect()
}

#[test]
fn there_is_a_manual_page_for_every_command_and_no_other() {
    let place = Place::new();
    place.run(&["man", "pages"]).ok();
    let found: BTreeSet<String> = fs::read_dir(place.path("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected = BTreeSet::from(["zoneraid.1".to_string()]);
    for command in commands(&place, &[]) {
        if ["zone", "emulate", "export"].contains(&command.as_str()) {
            let inner = commands(&place, &[&command]);
            expected.extend(inner.iter().map(|name| format!("zoneraid-{command}-{name}.1")));
        }
        if command == "emulate" {
            let faults = commands(&place, &["emulate", "fault"]);
            expected.extend(faults.iter().map(|name| format!("zoneraid-emulate-fault-{name}.1")));
        }
        expected.insert(format!("zoneraid-{command}.1"));
    }
    assert_eq!(found, expected);
    assert!(expected.contains("zoneraid-zone-write.1"));
    let page = fs::read_to_string(place.path("pages/zoneraid-zone-write.1")).unwrap();
    assert!(page.contains("ack") && page.contains("queue"), "{page}");
}

#[test]
fn completions_name_every_command_and_bash_understands_them() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]).ok().text();
        for command in commands(&place, &[]).into_iter().chain(["queue-depth".into()]) {
            assert!(script.contains(&command), "{shell}: no {command}");
        }
    }
    let script = place.run(&["completions", "bash"]).ok().text();
    let complete = format!(
        "{script}\nCOMP_WORDS=(zoneraid zone re); COMP_CWORD=2; _zoneraid zoneraid re zone; echo ${{COMPREPLY[*]}}"
    );
    let bash =
        std::process::Command::new("bash").args(["-c", &complete]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&bash.stdout), "report read reset\n");
    place.run(&["completions", "tcsh"]).fails_with(&["tcsh", "bash"]);
}
