//! Shell completion: offers existing names, quickly, and without messages in case of errors.

use crate::support::{Place, Ran, drive};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Offers for the last of `words`, which may be empty, each with its description.
fn offers(place: &Place, words: &[&str]) -> Vec<(String, String)> {
    let mut command = place.command(&[&["--", "zoneraid"], words].concat());
    command.env("ZONERAID_COMPLETE", "fish").current_dir(place.path("drives"));
    let begun = Instant::now();
    let ran = Ran::new(command.output().unwrap()).ok();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(ran.stderr, "", "{words:?}");
    let text = ran.text();
    let split = |line: &str| line.split_once('\t').map(|(word, what)| (word.to_string(), what.to_string()));
    let offers = text.lines().map(|line| split(line).unwrap_or((line.to_string(), String::new())));
    // Options are offered, too.
    offers.filter(|(word, _)| !word.starts_with('-')).collect()
}

fn words(place: &Place, typed: &[&str]) -> Vec<String> {
    offers(place, typed).into_iter().map(|(word, _)| word).collect()
}

#[test]
fn completions_offer_existing_arrays_zones_and_drives() {
    let place = Place::with_array(7);
    place.run_with(&["zone", "write", "drives", "3"], &[1; 4096]).ok();
    let images = |numbers: &[usize]| -> Vec<String> {
        numbers.iter().map(|n| drive("drives", *n)[7..].to_string()).collect()
    };
    assert_eq!(words(&place, &["zone", "re"]), ["report", "read", "reset"]);
    // Arrays, for every command that takes one.
    for before in [&["status"][..], &["zone", "report"], &["start"], &["replace"], &["fail"]] {
        let offered = words(&place, &[before, &["ta"]].concat());
        assert_eq!(offered, ["tank"], "{before:?}");
        assert!(
            words(&place, &[before, &[""]].concat()).contains(&"drive0.img".into()),
            "{before:?}: no paths"
        );
    }
    assert_eq!(words(&place, &["create", "--level", ""]), ["raid5", "raid6", "single"]);
    assert_eq!(words(&place, &["bench", "--level", ""]), ["raid5", "raid6", "single"]);
    // Zones for which the command is useful.
    assert_eq!(offers(&place, &["zone", "read", "tank", ""]), [("3".into(), "closed, 4 KiB written".into())]);
    assert_eq!(words(&place, &["zone", "write", "--fua", "tank", "1"]), ["1", "10", "11", "12", "13"]);
    assert_eq!(words(&place, &["zone", "report", "tank", ""]).len(), 14);
    // Members by role and drive, and blank drives.
    let members = offers(&place, &["fail", "tank", ""]);
    assert!(members.contains(&("2".into(), "./drive2.img, active".into())), "{members:?}");
    let of = |wanted: &str, offers: Vec<(String, String)>| -> Vec<String> {
        offers.into_iter().filter(|(_, what)| what.contains(wanted)).map(|(word, _)| word).collect()
    };
    assert_eq!(of("member", offers(&place, &["examine", ""])), images(&[0, 1, 2, 3, 4]));
    assert_eq!(of("128 MiB, blank", offers(&place, &["examine", ""])), images(&[5, 6]));
    for before in [&["create", "pond"][..], &["create", "pond", "x"], &["replace", "tank", "2"]] {
        assert_eq!(of("blank", offers(&place, &[before, &[""]].concat())), images(&[5, 6]), "{before:?}");
    }
    let old = offers(&place, &["replace", "tank", ""]);
    assert!(old.iter().any(|(word, what)| word == "4" && what.ends_with("drive4.img, active")), "{old:?}");
    // A name that is not one word, or is ambiguous, is offered by its UUID.
    let (five, six) = (drive("drives", 5), drive("drives", 6));
    place.run(&["create", "--yes", "my array", &five, &six, &drive("drives", 4)]).ok();
    let named = offers(&place, &["status", ""]);
    let (id, _) = named.iter().find(|(_, what)| what == "array 'my array'").unwrap();
    assert_eq!(id.len(), 36, "{named:?}");
}

#[test]
fn completions_neither_block_nor_print_errors() {
    let place = Place::with_array(5);
    place.emulate("other", 1);
    fs::rename(place.path("other/drive0.img"), place.path("drives/a.img")).unwrap();
    place.run(&["emulate", "fault", "drives/a.img", "slow", "1000000"]).ok();
    fs::write(place.path("drives/b.img"), b"ZNSIMAGE and nothing else").unwrap();
    // A daemon that does not respond.
    fs::create_dir_all(place.path("run")).unwrap();
    let _silent = std::os::unix::net::UnixListener::bind(place.path("run/silent.sock")).unwrap();
    // And a drive that is locked by another process.
    let image = File::open(place.path("drives/drive1.img")).unwrap();
    flock(&image, FlockOperation::LockExclusive).unwrap();
    assert!(words(&place, &["status", ""]).contains(&"tank".into()));
    for nonsense in [
        &["zone", "read", "nothing", ""][..],
        &["fail", "", ""],
        &["bogus", ""],
        &["status", "\x1b"],
        &["replace", "a", "b", "c", "d"],
    ] {
        offers(&place, nonsense);
    }
    let mut unknown = place.command(&["--", "zoneraid", "sta"]);
    let ran = Ran::new(unknown.env("ZONERAID_COMPLETE", "tcsh").output().unwrap()).ok();
    assert_eq!((ran.text(), ran.stderr), (String::new(), String::new()));
}

#[test]
fn completions_work_in_bash_with_generated_script() {
    let place = Place::with_array(6);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]).ok().text();
        assert!(script.contains("ZONERAID_COMPLETE") && !script.contains("target/"), "{shell}: {script}");
    }
    fs::write(place.path("script"), place.run(&["completions", "bash"]).ok().stdout).unwrap();
    let complete = |words: &str| {
        let count = words.split(' ').count();
        let program =
            std::path::Path::new(env!("CARGO_BIN_EXE_zoneraid")).parent().unwrap().display().to_string();
        let lines = format!(
            "PATH={program}:$PATH; source ../script; COMP_TYPE=9; COMP_WORDS=(zoneraid {words}); COMP_CWORD={count}; \
             _clap_complete_zoneraid zoneraid \"${{COMP_WORDS[COMP_CWORD]}}\"; echo ${{COMPREPLY[*]}}"
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &lines]).stdin(Stdio::null()).current_dir(place.path("drives"));
        bash.env("ZONERAID_RUN_DIR", place.path("run")).env_remove("ZONERAID_DIR");
        let ran = Ran::new(bash.output().unwrap()).ok();
        assert_eq!(ran.stderr, "", "{words}");
        ran.text().trim().to_string()
    };
    assert_eq!(complete("zone re"), "report read reset");
    assert_eq!(complete("status ta"), "tank");
    assert_eq!(complete("zone write tank 1"), "1 10 11 12 13");
    assert_eq!(complete("create pond drive5"), "drive5.img");
    // Other shells may not be installed; those that are accept their scripts.
    for shell in ["zsh", "fish"] {
        let script = place.path(shell);
        fs::write(&script, place.run(&["completions", shell]).ok().stdout).unwrap();
        if let Ok(ran) = Command::new(shell).arg("-n").arg(&script).output() {
            assert!(ran.status.success(), "{shell}: {}", String::from_utf8_lossy(&ran.stderr));
        }
    }
}
