//! Messages name the state, its cause, and a command that helps.

use crate::support::{Place, Ran, drive, nobody};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    ops::{Deref, DerefMut},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// A place with six drives of 32 zones in `drives`, and on five of them an array with a volume of 64 MiB.
fn with_volume() -> Place {
    let place = Place::new();
    place
        .run(&["emulate", "create", "drives", "--count", "6", "--zones", "32", "--zone-capacity", "4M"])
        .ok();
    place.create("tank", "drives", 5).ok();
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    place
}

/// A server that is killed at the end of its test.
struct Served(Child);

impl Deref for Served {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server and waits for its first line.
fn served(mut command: Command) -> Served {
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    if !said.contains(" serves ") {
        panic!("{said}: {}", Ran::new(server.wait_with_output().unwrap()).stderr);
    }
    Served(server)
}

fn serve(place: &Place) -> Served {
    served(place.command(&["serve", "drives", "--nbd", "nbd.sock"]))
}

fn tell(server: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(server), signal).unwrap();
}

/// Waits until `is_so` holds for the status of the array in `drives`.
fn status_until(place: &Place, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = place.json(&["status", "drives"]);
        if is_so(&status) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{status}");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn advice_names_killed_nbd_server_and_socket() {
    let place = with_volume();
    let mut server = serve(&place);
    server.kill().unwrap();
    server.wait().unwrap();
    let again = format!("zoneraid serve drives --nbd {}", place.path("nbd.sock").display());
    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!((&status["waits_for_daemon"], &status["action"]), (&true.into(), &again.clone().into()));
    let said = status["status"].as_str().unwrap();
    assert!(said.ends_with("its NBD server was killed, and its clients wait for the next one"), "{said}");
    for args in
        [&["stop", "drives"][..], &["top", "drives"], &["rebuild", "drives"], &["destroy", "--yes", "drives"]]
    {
        place.run(args).fails_with(&["NBD server of 'tank' was killed", &again]);
    }
    place.run(&["wipe", "--yes", &drive("drives", 3)]).fails_with(&[
        "NBD clients wait",
        " --nbd ",
        "nbd.sock",
    ]);
    let mut server = serve(&place);
    place.run(&["stop", "drives"]).ok();
    server.wait().unwrap();
    assert_eq!(place.json(&["status", "drives"])["waits_for_daemon"], false);
    // A daemon with a waiting block device is no NBD server.
    place.leave_tails("drives");
    assert_eq!(place.json(&["status", "drives"])["action"], "zoneraid start drives");
}

#[test]
fn advice_names_array_one_directory_down() {
    let place = Place::with_array(5);
    place.run(&["status", "tank"]).fails_with(&["no array called 'tank'", "there is one in drives"]);
    place
        .run(&["status", "pond"])
        .fails_with(&["no array called 'pond'", "name its directory or one of its members"]);
}

#[test]
fn mistyped_nbd_address_creates_no_socket() {
    let place = with_volume();
    let refused = place.run(&["serve", "drives", "--nbd", "999.1.1.1"]);
    refused.fails_with(&["not an address", "./999.1.1.1"]);
    assert!(!place.path("999.1.1.1").exists());
}

#[test]
fn top_names_process_of_unresponsive_daemon() {
    let place = with_volume();
    let mut server = serve(&place);
    tell(&server, rustix::process::Signal::STOP);
    let top = place.run(&["top", "drives"]);
    tell(&server, rustix::process::Signal::CONT);
    top.fails_with(&["'tank'", "is run by", &format!("process {}", server.id()), "does not answer"]);
    place.run(&["stop", "drives"]).ok();
    server.wait().unwrap();
    place
        .run(&["top", "drives"])
        .fails_with(&["'drives' does not run", "zoneraid serve drives --nbd SOCKET"]);
}

#[test]
fn unwritable_run_directory_error_names_environment_variable() {
    let place = with_volume();
    fs::create_dir(place.path("run")).unwrap();
    fs::set_permissions(place.path("run"), fs::Permissions::from_mode(0o555)).unwrap();
    for number in 0..5 {
        let image = place.path(&drive("drives", number));
        fs::set_permissions(image, fs::Permissions::from_mode(0o666)).unwrap();
    }
    let output = nobody(&place, "", &["serve", "drives", "--nbd", "/nonexistent/nbd.sock"]).output().unwrap();
    Ran::new(output).fails_with(&["cannot be locked", "name another directory in $ZONERAID_RUN_DIR"]);
}

#[test]
fn volume_on_read_only_images_serves_read_only() {
    let place = with_volume();
    let everybody = |mode| {
        for number in 0..5 {
            let image = place.path(&drive("drives", number));
            fs::set_permissions(image, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    everybody(0o444);
    fs::create_dir(place.path("own")).unwrap();
    fs::set_permissions(place.path("own"), fs::Permissions::from_mode(0o777)).unwrap();
    let of_nobody = |args: &[&str]| {
        let mut command = nobody(&place, "own", args);
        command.env("ZONERAID_RUN_DIR", place.path("own"));
        command
    };
    let before = crate::support::fingerprint(&place.path("drives"));
    let serve = ["serve", "../drives", "--nbd", "nbd.sock"];
    Ran::new(of_nobody(&serve).output().unwrap()).fails_with(&["cannot be opened", "permission denied"]);
    let mut server = served(of_nobody(&[&serve[..], &["--read-only"]].concat()));
    // The drives are in use for other processes, as with any server.
    place.run(&["zone", "reset", "drives", "0"]).fails_with(&["in use"]);
    let status = Ran::new(of_nobody(&["status", "../drives", "--json"]).output().unwrap()).ok().json();
    assert_eq!((&status["read_only"], &status["pid"]), (&true.into(), &server.id().into()));
    tell(&server, rustix::process::Signal::TERM);
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(crate::support::fingerprint(&place.path("drives")) == before);
    everybody(0o644);
}

#[test]
fn advice_for_volume_never_suggests_zone_reset() {
    for (first, advice) in [(4, "--give-up"), (2, "connect the drives that hold these zones again")] {
        let place = with_volume();
        // A killed volume leaves zones open; those offline on two drives are offline in the array.
        let mut server = serve(&place);
        server.kill().unwrap();
        server.wait().unwrap();
        for (number, zone) in
            [1, 2].into_iter().flat_map(|number| (first..32).map(move |zone| (number, zone)))
        {
            place.run(&["emulate", "fault", &drive("drives", number), "offline", &zone.to_string()]).ok();
        }
        fs::remove_dir_all(place.path("run")).unwrap();
        let status = place.json(&["status", "drives"]);
        assert!(!status["offline_zones"].as_array().unwrap().is_empty(), "{status}");
        let action = status["action"].as_str().unwrap();
        assert!(action.contains(advice) && !action.contains("zone reset"), "{action}");
    }
}

#[test]
fn idle_daemon_takes_out_lost_drives_within_redundancy() {
    let place = with_volume();
    let mut server = serve(&place);
    assert_eq!(place.json(&["status", "drives"])["state"], "healthy");
    place.remove(&drive("drives", 3));
    let status = status_until(&place, |status| status["state"] == "degraded");
    assert_eq!(status["members"][3]["state"], "out", "{status}");
    // No other member can be taken out: a vanished drive fails the array only when a command needs it.
    place.run(&["emulate", "fault", &drive("drives", 1), "gone"]).ok();
    sleep(Duration::from_secs(7));
    let status = place.json(&["status", "drives"]);
    assert_eq!((&status["state"], &status["members"][1]["state"]), (&"degraded".into(), &"active".into()));
    place.run(&["emulate", "fault", &drive("drives", 1), "clear"]).ok();
    place.run(&["stop", "drives"]).ok();
    server.wait().unwrap();
}

#[test]
fn image_in_memory_replaces_member_of_running_array() {
    let place = with_volume();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let image = memory.path().join("drive5.img");
    fs::rename(place.path(&drive("drives", 5)), &image)
        .or_else(|_| {
            fs::copy(place.path(&drive("drives", 5)), &image).map(|_| place.remove(&drive("drives", 5)))
        })
        .unwrap();
    std::os::unix::fs::symlink(&image, place.path(&drive("drives", 5))).unwrap();
    let mut server = serve(&place);
    place.run(&["replace", "drives", "1", &drive("drives", 5)]).ok();
    place.run(&["stop", "drives"]).ok();
    server.wait().unwrap();
    assert_eq!(place.json(&["status", "drives"])["state"], "healthy");
}

#[test]
fn create_reports_active_zones_and_volume_create_reserve() {
    let place = Place::new();
    place.run(&["emulate", "create", "drives", "--zones", "32", "--zone-capacity", "4M"]).ok();
    let drives: Vec<String> = (0..5).map(|number| drive("drives", number)).collect();
    let args: Vec<&str> = ["create", "tank"].into_iter().chain(drives.iter().map(String::as_str)).collect();
    let active = place.json(&[&args[..], &["--dry-run"]].concat())["max_active_zones"].as_u64().unwrap();
    let made = place.run(&args).ok().text();
    assert!(active > 0 && made.contains(&format!("{active} zones can be active at once")), "{made}");
    let made = place.run(&["volume", "create", "drives"]).ok().text();
    assert!(made.contains("of 30 zones of"), "{made}");
    assert!(made.contains("are set aside for garbage collection and"), "{made}");
}

#[test]
fn create_warns_of_too_few_active_zones() {
    let place = Place::new();
    let shape = ["--model", "pm1731a", "--zones", "40000", "--zone-capacity", "4M"];
    place.run(&[&["emulate", "create", "drives", "--count", "3"], &shape[..]].concat()).ok();
    let drives: Vec<String> = (0..3).map(|number| drive("drives", number)).collect();
    let create = ["create", "tank", "--policy", "log", "--dry-run"];
    let create: Vec<&str> = create.into_iter().chain(drives.iter().map(String::as_str)).collect();
    let said = place.run(&create).ok().stderr;
    assert!(
        said.contains("active zones, and a volume needs 5") && said.contains("a smaller --chunk"),
        "{said}"
    );
}

/// Interrupts a command, which has to end by the signal; returns its standard error.
fn interrupted(command: Child) -> String {
    tell(&command, rustix::process::Signal::INT);
    let output = command.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn interrupted_write_reports_durable_bytes() {
    let place = Place::with_array(5);
    let log = place.path("acks");
    let mut command = place.command(&["zone", "write", "drives", "0", "--ack-log", "acks"]);
    let mut write = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = write.stdin.take().unwrap();
    // The command flushes every 8 MiB, and then waits for more input.
    stdin.write_all(&vec![7; 12 << 20]).unwrap();
    let acknowledged = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.lines().last().map_or(0, |line| line.parse::<u64>().unwrap())
    };
    let begun = Instant::now();
    while acknowledged() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(10));
    }
    sleep(Duration::from_millis(300));
    let said = interrupted(write);
    let durable = acknowledged();
    let expected =
        format!("interrupted; {durable} bytes of the input are durable in zone 0, up to byte {durable}");
    assert!(said.contains(&expected) && said.contains("zoneraid zone report drives 0"), "{expected}: {said}");
    assert!(durable == 8 << 20 && place.read_zone("drives", 0).len() as u64 >= durable);
}

#[test]
fn interrupted_replace_names_command_to_continue() {
    let place = Place::with_array(6);
    for zone in 0..6 {
        place.run_with(&["zone", "write", "drives", &zone.to_string()], &vec![zone; 16 << 20]).ok();
    }
    place.remove(&drive("drives", 1));
    place.run(&["emulate", "fault", &drive("drives", 5), "slow", "300"]).ok();
    let replace = place.command(&["replace", "drives", "1", &drive("drives", 5)]).spawn().unwrap();
    sleep(Duration::from_secs(2));
    let said = interrupted(replace);
    assert!(said.contains("interrupted; ") && said.contains("drives"), "{said}");
    place.run(&["emulate", "fault", &drive("drives", 5), "clear"]).ok();
    // The advice depends on the progress: whether the new drive is a member already.
    if said.contains("zoneraid rebuild drives") {
        place.run(&["rebuild", "drives"]).ok();
    } else {
        assert!(said.contains("zoneraid status drives"), "{said}");
        place.run(&["replace", "--yes", "drives", "1", &drive("drives", 5)]).ok();
    }
    assert_eq!(place.json(&["status", "drives"])["state"], "healthy");
}

#[test]
fn interrupted_client_reports_that_daemon_continues() {
    let place = with_volume();
    let mut server = serve(&place);
    place.run(&["emulate", "fault", &drive("drives", 5), "slow", "5000"]).ok();
    let replace = place.command(&["replace", "drives", "1", &drive("drives", 5)]).spawn().unwrap();
    sleep(Duration::from_secs(1));
    let said = interrupted(replace);
    assert!(said.contains("the daemon of the array continues it"), "{said}");
    assert!(said.contains("zoneraid status drives"), "{said}");
    place.run(&["emulate", "fault", &drive("drives", 5), "clear"]).ok();
    status_until(&place, |status| {
        status["rebuild"].is_null() && status["members"][1]["drive"].to_string().contains("drive5")
    });
    place.run(&["stop", "drives"]).ok();
    server.wait().unwrap();
}

#[test]
fn status_and_list_accept_several_arguments() {
    let place = Place::with_array(5);
    place.emulate("others", 5);
    place.create("pond", "others", 5).ok();
    let all = place.run(&["status", "drives", "others"]).ok().text();
    assert!(all.contains("tank") && all.contains("pond") && all.contains("0 of 14 zones"), "{all}");
    let arrays = place.json(&["status", "drives", "others"]);
    assert_eq!(
        (&arrays["arrays"][0]["name"], &arrays["arrays"][1]["name"]),
        (&"tank".into(), &"pond".into())
    );
    // The arrays that are found are shown nevertheless.
    let part = place.run(&["status", "nothing", "drives"]);
    assert!(part.text().contains("tank"), "{}", part.text());
    part.fails_with(&["no array called 'nothing'"]);
    place.run(&["status", "nothing", "none"]).fails_with(&["no array called 'none'"]);
    let drives = place.run(&["list", "drives", "others"]).ok().text();
    assert!(drives.contains("drives/drive0.img") && drives.contains("others/drive4.img"), "{drives}");
}

#[test]
fn status_overview_shows_nbd_address_and_volume_usage() {
    let place = with_volume();
    let mut server = serve(&place);
    let mut all = place.command(&["status"]);
    let all = Ran::new(all.current_dir(place.path("drives")).output().unwrap()).ok().text();
    assert!(all.contains("nbd+unix:///?socket=") && all.contains("0 B of 64 MiB"), "{all}");
    let text = place.run(&["status", "drives"]).ok().text();
    let written = text.split_once("written: ").unwrap().1;
    assert!(written.starts_with("no user data yet\n"), "{text}");
    assert!(
        text.lines()
            .filter(|line| line.starts_with("written:") || line.starts_with("         "))
            .all(|line| line.len() < 90),
        "{text}"
    );
    place.run(&["stop", "drives"]).ok();
    server.wait().unwrap();
}
