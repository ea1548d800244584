//! Rules about the repository as a whole, which no compiler checks: which crate may look at
//! which, what the engine must not touch, no unfinished code, no dead links, no references to
//! files outside the repository.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

const CRATES: [&str; 5] = ["engine", "sim", "host", "lab", "guest"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every file of the repository with one of these extensions, build products left out.
fn files(extensions: &[&str]) -> Vec<PathBuf> {
    fn walk(dir: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    walk(&path, extensions, found);
                }
            } else if extensions.iter().any(|e| name == *e || path.extension().is_some_and(|x| x == *e)) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), extensions, &mut found);
    assert!(!found.is_empty(), "no {extensions:?} files below {}", root().display());
    found.sort();
    found
}

/// The numbered lines of a source file that are neither comments nor tests.
fn code_lines(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.map(|(number, line)| (number + 1, line.to_string())).collect()
}

/// Rust sources of `crates` that end up in a library or a binary.
fn sources(crates: &[&str]) -> Vec<PathBuf> {
    let root = root();
    let of_crate = |path: &PathBuf| {
        crates.iter().any(|name| path.starts_with(root.join(name).join("src"))) && !path.ends_with("tests.rs")
    };
    let found: Vec<PathBuf> = files(&["rs"]).into_iter().filter(of_crate).collect();
    assert!(!found.is_empty());
    found
}

fn complain_about(what: &[&str], sources: &[PathBuf], why: &str) {
    let mut complaints = Vec::new();
    for path in sources {
        for (number, line) in code_lines(path) {
            for word in what.iter().filter(|word| line.contains(**word)) {
                complaints.push(format!("{}:{number}: {word}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(complaints.is_empty(), "{why}:\n{}", complaints.join("\n"));
}

#[test]
fn crates_look_in_one_direction_only() {
    let ours = ["engine", "sim", "zoneraid", "lab", "guest"];
    let allowed: [(&str, &[&str]); 5] = [
        ("engine", &[]),
        ("sim", &["engine"]),
        ("host", &["engine", "sim"]),
        ("lab", &["engine", "sim"]),
        ("guest", &[]),
    ];
    for (name, may_use) in allowed {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("\n[").filter(|part| part.contains("dependencies]"));
        for line in dependencies.flat_map(str::lines) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap().trim_start_matches("zoneraid-");
            if ours.contains(&dependency) {
                assert!(may_use.contains(&dependency), "{name} must not depend on {dependency}");
            }
        }
    }
}

#[test]
fn the_engine_knows_no_operating_system_and_no_unsafe_code() {
    let lib = fs::read_to_string(root().join("engine/src/lib.rs")).unwrap();
    assert!(lib.contains("#![forbid(unsafe_code)]"));
    let banned = [
        "Instant",
        "SystemTime",
        "thread::",
        "HashMap",
        "HashSet",
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "println!",
        "print!",
        "dbg!",
    ];
    complain_about(&banned, &sources(&["engine"]), "the engine has no clock, threads, random order or I/O");
}

#[test]
fn nothing_is_unfinished_and_errors_are_values() {
    let banned = [".unwrap()", ".expect(", "todo!", "unimplemented!", "panic!("];
    complain_about(&banned, &sources(&CRATES), "errors are values outside tests");
    let ignored = concat!("#[", "ignore");
    for path in files(&["rs"]) {
        assert!(!fs::read_to_string(&path).unwrap().contains(ignored), "{} ignores a test", path.display());
    }
}

#[test]
fn unsafe_code_is_where_it_is_known_to_be() {
    let known = [
        "alloc.rs",
        "arena.rs",
        "drive/block.rs",
        "drive/flight.rs",
        "drive/nvme/mod.rs",
        "map.rs",
        "ring.rs",
        "ublk/control.rs",
        "ublk/queue.rs",
    ]
    .map(|file| root().join("host/src").join(file));
    let others: Vec<PathBuf> = sources(&CRATES).into_iter().filter(|path| !known.contains(path)).collect();
    complain_about(
        &["unsafe fn", "unsafe {", "unsafe impl"],
        &others,
        "unsafe code needs a module of its own",
    );
}

#[test]
fn links_between_documents_resolve() {
    let mut dead = Vec::new();
    for path in files(&["md"]) {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let file = path.parent().unwrap().join(target);
            if !file.exists() || !inside_the_repository(&file) {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

fn inside_the_repository(path: &Path) -> bool {
    let root = root();
    let relative = path.strip_prefix(&root).unwrap();
    let mut depth = 0;
    for part in relative.components() {
        depth += if part == Component::ParentDir { -1 } else { 1 };
        if depth < 0 {
            return false;
        }
    }
    true
}

#[test]
fn the_repository_stands_alone() {
    // Put together here, so that this file does not find itself.
    let banned = [["/wo", "rk/"].concat(), ["../sh", "ared"].concat(), ["/tmp/", "wt"].concat()];
    for path in files(&["rs", "md", "toml", "json", "Makefile", "run", "yml"]) {
        let text = fs::read_to_string(&path).unwrap();
        for word in &banned {
            assert!(!text.contains(word.as_str()), "{} refers to {word}", path.display());
        }
    }
}

#[test]
fn the_unit_sees_what_is_mounted_and_every_device_and_is_not_started_for_ever() {
    let unit = fs::read_to_string(root().join("dist/zoneraid@.service")).unwrap();
    let lines: Vec<&str> = unit.lines().filter(|line| !line.starts_with('#')).collect();
    // Each of these gives the daemon a mount namespace of its own, or keeps drives from it.
    let banned = ["Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "Bind", "Root", "Temporary"];
    for line in &lines {
        assert!(!banned.iter().any(|word| line.starts_with(word)), "{line}");
        assert!(!line.starts_with("Device") && !line.starts_with("User="), "{line}");
    }
    let value = |key: &str| lines.iter().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    assert!(value("StartLimitBurst=").parse::<u32>().is_ok_and(|burst| burst > 0));
    assert!(!["", "0"].contains(&value("StartLimitIntervalSec=")));
    assert_eq!(value("NoNewPrivileges="), "yes");

    let rules = fs::read_to_string(root().join("dist/60-zoneraid.rules")).unwrap();
    let smr = rules.lines().find(|line| line.contains("host-managed") && line.contains("zoneraid_probe"));
    assert!(smr.is_some_and(|line| line.starts_with("SUBSYSTEM==\"block\"")), "SMR disks start nothing");
}

/// The licences in the `allow` of deny.toml.
fn allowed_licences() -> Vec<String> {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("allow = [")).unwrap();
    line.trim_end_matches(']').split(", ").map(|licence| licence.trim_matches('"').to_string()).collect()
}

/// Whether one may choose allowed licences in an SPDX expression; `/` is an old `OR`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    /// The expression at the start of `words`, which is taken off.
    fn any(words: &mut &[&str], allowed: &[String]) -> bool {
        let mut result = all(words, allowed);
        while let Some((&"OR", rest)) = words.split_first() {
            *words = rest;
            result |= all(words, allowed);
        }
        result
    }
    fn all(words: &mut &[&str], allowed: &[String]) -> bool {
        let mut result = one(words, allowed);
        while let Some((&"AND", rest)) = words.split_first() {
            *words = rest;
            result &= one(words, allowed);
        }
        result
    }
    fn one(words: &mut &[&str], allowed: &[String]) -> bool {
        let (first, rest) = words.split_first().unwrap();
        *words = rest;
        if *first == "(" {
            let result = any(words, allowed);
            *words = &words[1..];
            return result;
        }
        let mut licence = first.to_string();
        if let Some((&"WITH", rest)) = words.split_first() {
            licence += &format!(" WITH {}", rest[0]);
            *words = &rest[1..];
        }
        allowed.contains(&licence)
    }
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut left = &words[..];
    let result = any(&mut left, allowed);
    assert!(left.is_empty(), "{expression}");
    result
}

#[test]
fn licences_are_chosen_as_the_expression_says() {
    let allowed = ["MIT", "Zlib", "A WITH b"].map(String::from);
    for good in
        ["MIT", "GPL OR MIT", "MIT/GPL", "(GPL OR MIT) AND Zlib", "A WITH b AND MIT", "GPL AND X OR MIT"]
    {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["GPL", "MIT AND GPL", "A", "A WITH c", "(GPL OR MIT) AND X", "MIT-0"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn what_is_used_is_free_of_one_registry_and_of_one_version() {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    // Only what is used here has been fetched.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let args = ["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform];
    let ran = std::process::Command::new(cargo).args(args).current_dir(root()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let (allowed, mut wrong, mut names) = (allowed_licences(), Vec::new(), Vec::new());
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        match package["source"].as_str() {
            Some("registry+https://github.com/rust-lang/crates.io-index") => {}
            None if Path::new(package["manifest_path"].as_str().unwrap()).starts_with(root()) => {}
            source => wrong.push(format!("{name} comes from {source:?}")),
        }
        let licence = package["license"].as_str().unwrap_or("nothing");
        if !is_allowed(licence, &allowed) {
            wrong.push(format!("{name} may be used under {licence}"));
        }
        if names.contains(&name) {
            wrong.push(format!("{name} is there in several versions"));
        }
        names.push(name);
        // The version of what is ours is that of the tree.
        let from_registry = |d: &&serde_json::Value| d["path"].is_null() && package["source"].is_null();
        for dependency in package["dependencies"].as_array().unwrap().iter().filter(from_registry) {
            if dependency["req"] == "*" {
                wrong.push(format!("{name} takes any version of {}", dependency["name"]));
            }
        }
    }
    assert!(names.len() > 50, "{names:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_built_is_what_the_lock_file_says() {
    let mut loose = Vec::new();
    let verbs = ["run", "build", "test", "bench", "install", "clippy", "metadata", "deny"];
    for path in files(&["md", "Makefile", "run"]) {
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            for rest in line.split("cargo ").chain(line.split("$(CARGO) ")).skip(1) {
                let mut words = rest.split([' ', '`']);
                // A command that is only mentioned has no arguments.
                let verb = words.next().filter(|verb| verbs.contains(verb));
                if verb.is_some() && rest.as_bytes().get(verb.unwrap().len()) == Some(&b' ') {
                    let command = rest.split('`').next().unwrap();
                    if command.split(' ').nth(1).is_some_and(|word| word.starts_with('-'))
                        && !command.contains("--locked")
                    {
                        loose.push(format!("{}: {line}", path.display()));
                    }
                }
            }
        }
    }
    assert!(loose.is_empty(), "without --locked:\n{}", loose.join("\n"));
}
