//! Names of arrays and drives: chosen by their owners, by attackers, and by two arrays at once.

use crate::support::{Place, Ran, drive, fingerprint};
use host::members::StartTerms;
use std::fs;

#[test]
fn invalid_array_names_are_refused_before_writing() {
    let place = Place::new();
    place.emulate("drives", 5);
    let before = fingerprint(&place.path("drives"));
    let long = "x".repeat(65);
    let names =
        ["", "../tank", "a/b", "/", "tank\x1b[2J", "two\nlines", "\u{202e}knat", " tank", "..", "-x", &long];
    for name in names {
        let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
        for dry_run in [&[][..], &["--dry-run"]] {
            let mut args = [&["create"], dry_run, &["--", name]].concat();
            args.extend(drives.iter().map(String::as_str));
            place.run(&args).fails_with(&["an array cannot have this name"]);
        }
    }
    assert!(fingerprint(&place.path("drives")) == before);
    for name in ["x", "my array", "Größe", &long[1..]] {
        place.create(name, "drives", 5).ok();
        assert_eq!(place.json(&["status", "drives"])["name"], name);
        place.run(&["emulate", "create", "other", "--count", "1", "--zones", "4"]).ok();
        fs::remove_dir_all(place.path("other")).unwrap();
        fs::remove_dir_all(place.path("drives")).unwrap();
        place.emulate("drives", 5);
    }
}

/// As [`Place::run`], in another working directory and with `places` to look for arrays.
fn run_in(place: &Place, directory: &str, places: &str, args: &[&str]) -> Ran {
    let mut command = place.command(args);
    Ran::new(
        command.current_dir(place.path(directory)).env("ZONERAID_DIR", place.path(places)).output().unwrap(),
    )
}

#[test]
fn ambiguous_array_name_is_refused() {
    let place = Place::with_array(5);
    place.emulate("planted", 5);
    place.create("tank", "planted", 5).ok();
    let ids =
        ["drives", "planted"].map(|dir| place.json(&["status", dir])["uuid"].as_str().unwrap().to_string());
    let both = [ids[0].as_str(), &ids[1], "may mean 2 arrays"];
    for verb in ["status", "rebuild", "start"] {
        run_in(&place, "planted", "drives", &[verb, "tank"]).fails_with(&both);
    }
    for (directory, id) in ["drives", "planted"].iter().zip(&ids) {
        for args in [["status", id, "--json"], ["status", &id.to_uppercase(), "--json"]] {
            assert_eq!(run_in(&place, "planted", "drives", &args).ok().json()["uuid"], id.as_str());
        }
        assert_eq!(
            run_in(&place, directory, directory, &["status", "tank", "--json"]).ok().json()["uuid"],
            id.as_str()
        );
    }

    // A directory with the name of an array that is elsewhere.
    fs::rename(place.path("planted"), place.path("tank")).unwrap();
    let serve = ["serve", "tank", "--nbd", "nbd.sock"];
    for args in [&["status", "tank"][..], &["start", "tank"], &serve] {
        run_in(&place, "", "drives", args).fails_with(&["./tank", &ids[0], "may mean"]);
    }
    assert_eq!(
        run_in(&place, "", "drives", &["status", "./tank", "--json"]).ok().json()["uuid"],
        ids[1].as_str()
    );
    assert_eq!(
        run_in(&place, "", "tank", &["status", "tank", "--json"]).ok().json()["uuid"],
        ids[1].as_str()
    );
    // An empty directory, like a mount point.
    fs::rename(place.path("tank"), place.path("planted")).unwrap();
    fs::create_dir(place.path("tank")).unwrap();
    run_in(&place, "", "drives", &serve).fails_with(&["'tank' carries no volume"]);
}

#[test]
fn directory_of_running_and_idle_array_is_ambiguous() {
    let place = Place::with_array(11);
    let drives: Vec<String> = (5..10).map(|n| drive("drives", n)).collect();
    place
        .run(&[&["create", "idle"][..], &drives.iter().map(String::as_str).collect::<Vec<_>>()].concat())
        .ok();
    let daemon = place.daemon_of(place.path(&drive("drives", 0)), StartTerms::default());
    place.run(&["fail", "tank", "1"]).ok();
    place.remove(&drives[4]);
    let said = ["drives holds members of 2 arrays", "'tank'", "'idle'", "name one of their members"];
    for args in
        [&["replace", &drives[4], &drive("drives", 10)][..], &["status", "drives"], &["stop", "drives"]]
    {
        place.run(args).fails_with(&said);
    }
    for (name, array) in [("tank", "tank"), (&*drive("drives", 2), "tank"), (&drives[0], "idle")] {
        assert_eq!(place.json(&["status", name])["name"], array);
    }
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

#[test]
fn directory_named_like_running_array_is_ambiguous() {
    let place = Place::with_array(5);
    place.emulate("tank", 5);
    place.create("other", "tank", 5).ok();
    let daemon = place.daemon();
    place.run(&["status", "tank"]).fails_with(&["./tank", "which runs", "may mean"]);
    assert_eq!(place.json(&["status", "./tank"])["name"], "other");
    assert_eq!(place.json(&["status", "drives"])["name"], "tank");
    // An empty directory is not ambiguous.
    fs::remove_dir_all(place.path("tank")).unwrap();
    fs::create_dir(place.path("tank")).unwrap();
    assert_eq!(place.json(&["status", "tank"])["name"], "tank");
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

#[test]
fn list_and_status_search_environment_directory() {
    let place = Place::with_array(5);
    fs::create_dir(place.path("empty")).unwrap();
    for args in [["list", "--json"], ["status", "--json"]] {
        let listed = run_in(&place, "empty", "drives", &args).ok().json();
        assert_eq!(listed["arrays"][0]["name"], "tank", "{args:?}");
    }
}

#[test]
fn output_contains_no_terminal_control_characters() {
    let place = Place::new();
    let dir = "dri\x1b[2J\u{202e}\nves\u{9b}1m";
    place.emulate(dir, 6);
    place.create("tank", dir, 5).ok();
    let image = drive(dir, 0);
    let commands: [&[&str]; 9] = [
        &["status", dir],
        &["list", dir],
        &["examine", &image],
        &["zone", "report", dir],
        &["status", "\x1b[2J"],
        &["examine", "\x1b[2J/x"],
        &["create", "\x1b[2J", &image],
        &["create", "new", "--dry-run", "--yes", &image, &drive(dir, 1), &drive(dir, 2)],
        &["\x1b[2J"],
    ];
    for args in commands {
        for json in [&[][..], &["--json"]] {
            let ran = place.run(&[args, json].concat());
            for text in [ran.text(), ran.stderr] {
                let obeyed = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
                assert!(!text.chars().any(obeyed), "{args:?} {json:?}: {text:?}");
            }
        }
    }
    place.remove(&drive(dir, 3));
    let said = place.run(&["status", dir]);
    assert_eq!(said.text().lines().filter(|line| line.starts_with("ves")).count(), 0, "{}", said.text());
}

#[test]
fn advised_commands_quote_names_for_shell() {
    let place = Place::new();
    place.emulate("my $drives", 6);
    place.create("tank", "my $drives", 5).ok();
    place.run(&["fail", "my $drives", "2"]).ok();
    let status = place.json(&["status", "my $drives"]);
    let action = status["action"].as_str().unwrap();
    assert!(action.starts_with("zoneraid replace 'my $drives' 2 NEW,"), "{action}");
    place.run(&["rebuild", "my $drives"]).fails_with(&["zoneraid replace 'my $drives' 2 NEW"]);
}
