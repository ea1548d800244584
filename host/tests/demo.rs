//! The demo as run by new users: on a terminal, interrupted, and with too little data.

use crate::support::{Place, Ran, Random};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::Command,
    time::{Duration, Instant},
};

/// A place with a private directory tree of `bytes` bytes, and an empty directory for temporary files.
fn with_tree(bytes: usize) -> Place {
    let place = Place::new();
    fs::create_dir(place.path("temporary")).unwrap();
    fs::create_dir(place.path("my tree")).unwrap();
    fs::write(place.path("my tree/secret"), Random(9).bytes(bytes)).unwrap();
    place
}

#[test]
fn interrupted_demo_leaves_no_files_and_private_directory() {
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("KILL", 9)] {
        let place = with_tree(48 << 20);
        let temporary = place.path("temporary");
        let mut command = place.command(&["demo", "my tree"]);
        let mut child = command.env("TMPDIR", &temporary).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // From this line on it writes the files that it has read.
        assert!(said.any(|line| line.contains("array")), "{signal}");
        for entry in fs::read_dir(&temporary).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "others can read it");
        }
        Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{signal} has left something");
    }
}

#[test]
fn demo_warns_of_too_small_input() {
    let place = with_tree(5_000);
    let small = place.run(&["demo", "my tree", "--seed", "1"]).ok();
    assert!(small.stderr.contains("too small") && small.text().contains("too small"), "{}", small.text());
    fs::write(place.path("my tree/more"), vec![1; 1 << 20]).unwrap();
    for seed in 0..20 {
        let enough = place.run(&["demo", "my tree", "--seed", &seed.to_string()]).ok();
        assert!(enough.stderr.is_empty() && enough.text().contains("Nothing was lost."), "{}", enough.stderr);
    }
}

#[test]
fn demo_does_not_count_kernel_files_as_lost() {
    let place = Place::new();
    for made_up in ["/proc/self/fdinfo", "/proc/self"] {
        let demo = place.run(&["demo", made_up, "--json"]);
        assert_eq!((demo.code, &demo.json()["entries_different"]), (0, &0.into()), "{}", demo.stderr);
        // There are hundreds of such files.
        assert!(
            demo.stderr.lines().filter(|line| line.contains("was changed")).count() <= 10,
            "{}",
            demo.stderr
        );
    }
}

#[test]
fn demo_names_unusable_temporary_directory() {
    let place = with_tree(5_000);
    for nowhere in ["/nonexistent", "/proc"] {
        let mut command = place.command(&["demo", "my tree"]);
        let ran = Ran::new(command.env("TMPDIR", nowhere).output().unwrap());
        let ran = ran.fails_with(&["no temporary files can be made in", nowhere]);
        assert!(!ran.stderr.contains("full"), "{}", ran.stderr);
    }
}

#[test]
fn demo_last_line_is_command_repeating_same_run() {
    let place = with_tree(2 << 20);
    let first = place.run(&["demo", "my tree"]).ok().text();
    // With the path by which this program was called, which need not be in `PATH`.
    let run = first.trim_end().rsplit_once("The same again: ").unwrap().1.to_string();
    let second = Command::new("bash").args(["-c", &run]).current_dir(place.path("")).output().unwrap();
    let second = String::from_utf8(second.stdout).unwrap();
    let story = |text: &str| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("seconds"));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(story(&first), story(&second));
}

/// Runs the demo on a terminal with `columns` columns; returns the terminal output.
fn on_a_terminal(place: &Place, columns: u32) -> String {
    let binary = env!("CARGO_BIN_EXE_zoneraid");
    let shell = format!("stty cols {columns} rows 24; exec {binary} demo 'my tree' --seed 4");
    let mut script = Command::new("script");
    script.args(["-qec", &shell, "/dev/null"]).env("TERM", "xterm").current_dir(place.path(""));
    let ran = script.output().unwrap();
    assert!(ran.status.success());
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[test]
fn demo_progress_fits_terminal_of_any_width() {
    let place = with_tree(2 << 20);
    let started = Instant::now();
    let wide = on_a_terminal(&place, 100);
    assert!(started.elapsed() > Duration::from_secs(3), "over before it was seen");
    assert!(wide.contains("\x1b[32mNothing was lost.\x1b[0m"), "{wide:?}");
    assert!(wide.contains("left"), "no bar: {wide:?}");
    let narrow = on_a_terminal(&place, 40);
    let bars: Vec<&str> = narrow.split(['\r', '\n']).filter(|part| part.contains("compare ")).collect();
    assert!(!bars.is_empty());
    for bar in bars {
        let bar: String =
            bar.split('\x1b').map(|part| part.trim_start_matches(['[', '2', 'K', '1', 'G'])).collect();
        assert!(bar.trim_end().chars().count() < 40, "wraps: {bar:?}");
    }
}
