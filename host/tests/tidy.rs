//! Rules for the whole repository that no compiler checks: dependencies between crates and between files of a crate,
//! what the engine must not use, no unfinished code, no dead links, and no references to files outside the repository.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

const CRATES: [&str; 7] = ["gfni", "engine", "emu", "sim", "host", "lab", "guest"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// All files of the repository with one of these extensions, without build products.
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

/// Rust sources of `crates` that are part of a library or a binary.
fn sources(crates: &[&str]) -> Vec<PathBuf> {
    let root = root();
    let are_tests = |path: &PathBuf| path.ends_with("tests.rs") || path.iter().any(|part| part == "tests");
    let of_crate = |path: &PathBuf| {
        crates.iter().any(|name| path.starts_with(root.join(name).join("src"))) && !are_tests(path)
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
fn crates_depend_in_one_direction_only() {
    let ours = ["gfni", "engine", "emu", "sim", "zoneraid", "lab", "guest"];
    let allowed: [(&str, &[&str]); 7] = [
        ("gfni", &[]),
        ("engine", &["gfni"]),
        ("emu", &["engine"]),
        ("sim", &["engine", "emu"]),
        ("host", &["engine", "emu"]),
        ("lab", &["engine", "emu"]),
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

/// Layers of crates, from the lowest up: a layer may import from itself and from those before it. It is a module with
/// its submodules, except for those that are layers themselves.
const LAYERS: [(&str, &[&str]); 2] = [
    (
        "engine",
        &[
            // Devices, and devices made of devices.
            "buf",
            "code",
            "runtime",
            "zone",
            "device",
            "table",
            "adapt",
            "evidence",
            // Formats on media, and a block device on any device.
            "format",
            "frame",
            "qos",
            "volume",
            // Values: layout, and decisions of policies.
            "raid",
            "raid::policy::kind",
            "raid::geometry",
            "raid::policy",
            "format::superblock",
            "format::record",
            "raid::generations",
            // Messages and events of an array.
            "raid::error",
            "raid::events",
            "raid::change",
            // Components of the array, each with its own state.
            "raid::journal",
            "raid::members",
            "raid::membership",
            "raid::unreadable",
            "raid::bad_blocks",
            "raid::zone_records",
            "raid::zone::flow",
            "raid::zone::reader",
            "raid::zone::set",
            "raid::zone::drain",
            "raid::maintain::background",
            "raid::parts",
            // What the operations on them share.
            "raid::recover::verdict",
            "raid::failures",
            "raid::io",
            "raid::power",
            "raid::durable",
            // Operations on zones, and what follows from their state.
            "raid::zone",
            "raid::status",
            "raid::health",
            "raid::recover::judge",
            "raid::recover::revive",
            "raid::policy::run",
            // Operations on the array.
            "raid::run",
            "raid::recover::scan",
            "raid::erase",
            "raid::create",
            "raid::maintain",
            "raid::recover",
            // Public interface.
            "deferred",
            "array",
            "owner",
            // Namespaces on any device.
            "vzone",
        ],
    ),
    (
        "host",
        &[
            // General services of a process.
            "process::size",
            "process::clock",
            "process::output",
            "process::crash",
            "process::machine",
            "process::run",
            "process",
            // Event loop, its memory and its threads.
            "reactor::arena",
            "reactor::traffic",
            "reactor::ring",
            "reactor",
            "reactor::workers",
            // Interfaces of the kernel and NBD, and the log of acknowledgements in a file.
            "serve::map",
            "serve::ack_log",
            "serve::bytes",
            "serve::export",
            "serve::ublk",
            "serve::nbd",
            "serve",
            // Drives and their labels.
            "drive::label",
            "drive::users",
            "drive",
            // Plain data: reports, names, and messages to daemons.
            "report",
            "control::name",
            "control::qos",
            "control::pool",
            "control::tenants",
            "control::protocol",
            "control::client",
            "control",
            // Arrays: discovery, repair, and operation.
            "members",
            "members::repair",
            "daemon::block",
            "daemon::rebuilder",
            "daemon::scrubber",
            "daemon::socket",
            "daemon::state",
            "daemon::status",
            "daemon",
            // User interface.
            "bench::alloc",
            "bench",
            "cli::interrupt",
            "cli::demo",
            "cli::volume_args",
            "cli::args",
            "cli",
        ],
    ),
];

/// Module path of a source file in crate `name`; empty for the root.
fn module_of(name: &str, path: &Path) -> Vec<String> {
    let inside = path.strip_prefix(root().join(name).join("src")).unwrap().with_extension("");
    let mut names: Vec<String> =
        inside.components().map(|part| part.as_os_str().to_str().unwrap().to_string()).collect();
    if ["mod", "lib", "main"].contains(&names.last().unwrap().as_str()) {
        names.pop();
    }
    names
}

/// Words and symbols of source text; `::` is one symbol.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let end = match rest.find(|c: char| !is_word(c)) {
            _ if rest.starts_with("::") => 2,
            Some(0) => first.len_utf8(),
            end => end.unwrap_or(rest.len()),
        };
        tokens.extend(Some(&rest[..end]).filter(|token| !token.trim().is_empty()));
        rest = &rest[end..];
    }
    tokens
}

/// Adds the paths in the import tree at the start of `tokens`, and returns the rest.
fn paths<'a>(mut tokens: &'a [&'a str], base: &[String], found: &mut Vec<Vec<String>>) -> &'a [&'a str] {
    let mut path = base.to_vec();
    loop {
        match tokens {
            ["{", rest @ ..] => {
                tokens = rest;
                while !matches!(tokens, [] | ["}", ..]) {
                    let behind = paths(tokens, &path, found);
                    tokens = match behind {
                        ["as", _, rest @ ..] | [",", rest @ ..] => rest,
                        _ if behind.len() == tokens.len() => &tokens[1..],
                        _ => behind,
                    };
                }
                return tokens.get(1..).unwrap_or_default();
            }
            [word, rest @ ..] if word.starts_with(|c: char| c.is_alphabetic()) && *word != "as" => {
                match *word {
                    "self" => {}
                    "super" => _ = path.pop(),
                    word => path.push(word.to_string()),
                }
                match rest {
                    ["::", behind @ ..] if !matches!(behind, ["*" | "<", ..]) => tokens = behind,
                    _ => {
                        found.push(path);
                        return rest;
                    }
                }
            }
            _ => return tokens,
        }
    }
}

/// All paths in `text`, the source of `module`, that begin with `crate::`, `super::` or the name of a submodule.
fn named(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let inside: BTreeSet<&str> =
        tokens.windows(3).filter(|t| t[0] == "mod" && t[2] == ";").map(|t| t[1]).collect();
    let mut found = Vec::new();
    for at in (0..tokens.len().saturating_sub(1)).filter(|at| tokens[at + 1] == "::") {
        if at > 0 && tokens[at - 1] == "::" {
            continue;
        }
        match tokens[at] {
            "crate" => _ = paths(&tokens[at + 2..], &[], &mut found),
            "super" => _ = paths(&tokens[at..], module, &mut found),
            word if inside.contains(word) => _ = paths(&tokens[at..], module, &mut found),
            _ => {}
        }
    }
    found
}

/// Imports of each module of a crate, by source file.
fn imports(name: &str) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let files: BTreeMap<Vec<String>, PathBuf> =
        sources(&[name]).into_iter().map(|path| (module_of(name, &path), path)).collect();
    let module = |path: &[String]| {
        let longest = (1..=path.len()).rev().find(|names| files.contains_key(&path[..*names]))?;
        Some(path[..longest].to_vec())
    };
    let of_file = |(own, path): (&Vec<String>, &PathBuf)| {
        let text: Vec<String> = code_lines(path).into_iter().map(|(_, line)| line).collect();
        let named = named(&text.join("\n"), own).into_iter().filter_map(|path| module(&path));
        (own.clone(), named.filter(|other| other != own).collect())
    };
    files.iter().map(of_file).collect()
}

#[test]
fn imports_are_found_in_all_spellings() {
    let module: Vec<String> = ["a", "b"].map(String::from).into();
    let text = "mod c;\npub use c::D;\nuse crate::{e::{self, F as G}, h::*, i};\nuse super::{J, k::l};\n\
                fn m() -> super::super::n::O { crate::p::<Q>(c::r::s(), r::t) }";
    let found: BTreeSet<String> = named(text, &module).iter().map(|path| path.join("::")).collect();
    let expected = ["a::b::c::D", "e", "e::F", "h", "i", "a::J", "a::k::l", "n::O", "p", "a::b::c::r::s"];
    assert_eq!(found, expected.map(String::from).into());
}

/// Index of a module's layer.
fn layer_of(layers: &[&str], module: &[String]) -> Option<usize> {
    let module = module.join("::");
    let is_in = |layer: &str| {
        module.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    (0..layers.len()).filter(|layer| is_in(layers[*layer])).max_by_key(|layer| layers[*layer].len())
}

#[test]
fn layers_import_in_one_direction_only() {
    for (name, layers) in LAYERS {
        let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
        for (module, others) in imports(name).iter().filter(|(module, _)| !module.is_empty()) {
            let layer = layer_of(layers, module);
            assert!(layer.is_some(), "{name}: {} is in no layer", module.join("::"));
            used.extend(layer);
            let above = others.iter().filter(|other| layer_of(layers, other) > layer);
            wrong.extend(above.map(|other| format!("{} imports {}", module.join("::"), other.join("::"))));
        }
        assert!(wrong.is_empty(), "{name} looks up:\n{}", wrong.join("\n"));
        assert_eq!(used.len(), layers.len(), "{name}: some layers have no modules");
    }
}

#[test]
fn host_sources_are_in_few_folders_with_one_direction() {
    let entries = fs::read_dir(root().join("host/src")).unwrap().count();
    assert!(entries <= 12, "host/src has {entries} entries; at most 12, lib.rs and main.rs included");
    // The layers of a folder follow each other: so the folders as wholes import in one direction, too.
    let (_, layers) = LAYERS.iter().find(|(name, _)| *name == "host").unwrap();
    let mut folders: Vec<&str> = layers.iter().map(|layer| layer.split("::").next().unwrap()).collect();
    folders.dedup();
    let distinct: BTreeSet<&str> = folders.iter().copied().collect();
    assert_eq!(folders.len(), distinct.len(), "the layers of a folder are apart: {folders:?}");
}

/// Modules that a module imports from, directly or indirectly.
fn reached<'a>(
    imports: &'a BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    from: &'a [String],
) -> BTreeSet<&'a [String]> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(imports[module].iter().map(Vec::as_slice).filter(|other| seen.insert(*other)));
    }
    seen
}

#[test]
fn import_cycles_are_absent_or_inside_one_module() {
    // A module with its children: the compressor of `emu`, the command `sim`, pairs in `host`.
    for (name, most) in [("engine", 0), ("emu", 5), ("sim", 3), ("host", 2)] {
        let imports = imports(name);
        for module in imports.keys() {
            let needs_it = |other: &&[String]| reached(&imports, other).contains(module.as_slice());
            let circle: Vec<String> = reached(&imports, module)
                .into_iter()
                .filter(needs_it)
                .map(|other| other.join("::"))
                .collect();
            let inside = circle.iter().min_by_key(|other| other.len()).cloned().unwrap_or_default();
            let is_inside = circle.iter().all(|other| other.starts_with(&inside));
            assert!(
                circle.len() <= most && is_inside,
                "{name}: these need each other: {}",
                circle.join(", ")
            );
        }
    }
}

#[test]
fn engine_uses_no_operating_system_nor_unsafe_code() {
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
fn test_files_all_belong_to_test_binary() {
    for name in ["emu", "sim", "host"] {
        let directory = root().join(name).join("tests");
        let all = fs::read_to_string(directory.join("main.rs")).unwrap();
        let apart = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        for path in files(&["rs"]).iter().filter(|path| path.parent() == Some(&directory)) {
            let file = path.file_stem().unwrap().to_str().unwrap();
            let is_in =
                all.contains(&format!("mod {file};")) || apart.contains(&format!("name = \"{file}\""));
            assert!(file == "main" || is_in, "{} is in no program of tests", path.display());
        }
    }
}

#[test]
fn code_has_no_panics_todos_or_ignored_tests() {
    let banned = [".unwrap()", ".expect(", "todo!", "unimplemented!", "panic!("];
    complain_about(&banned, &sources(&CRATES), "errors are values outside tests");
    let ignored = concat!("#[", "ignore");
    for path in files(&["rs"]) {
        assert!(!fs::read_to_string(&path).unwrap().contains(ignored), "{} ignores a test", path.display());
    }
}

/// Least numbers of assertions in 1,000 lines that are no tests.
const ASSERTED: [(&str, f64); 5] = [
    ("engine/src/raid", 5.0),
    ("engine/src/volume", 5.0),
    ("engine/src/vzone", 5.0),
    ("engine/src/adapt", 5.0),
    ("host/src/daemon", 5.0),
];

/// Invariants are checked in production. Assertions at compile time, and those of debug builds, do not count.
#[test]
fn assertions_per_thousand_lines() {
    let all = sources(&["engine", "host"]);
    for (folder, least) in ASSERTED {
        let (mut lines, mut asserted) = (0, 0);
        for path in all.iter().filter(|path| path.starts_with(root().join(folder))) {
            let text = fs::read_to_string(path).unwrap();
            lines += text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
            let is_one = |line: &str| {
                ["assert!(", "assert_eq!(", "assert_ne!("]
                    .iter()
                    .any(|word| line.trim_start().starts_with(word))
            };
            asserted += code_lines(path).iter().filter(|(_, line)| is_one(line)).count();
        }
        let density = asserted as f64 * 1000.0 / lines as f64;
        assert!(
            density >= least,
            "{folder}: {asserted} assertions in {lines} lines; at least {least} in 1,000"
        );
    }
}

/// Words of all comments of a crate, its tests included, in lower case; without code in backticks.
fn comment_words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for path in files(&["rs"]).iter().filter(|path| path.starts_with(root().join(name))) {
        let text = fs::read_to_string(path).unwrap();
        let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
        let comments = comments.map(|line| line.trim_start_matches(['/', '!'])).collect::<Vec<_>>().join(" ");
        let prose = comments.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        let found = prose.split(|c: char| !c.is_ascii_alphabetic() && c != '\'');
        words.extend(found.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase));
    }
    words
}

/// A comment names the thing that it is about: components are no persons, and a noun says more than 'what'. The limits
/// are for 1,000 words, 0.3 and 3 in the end.
#[test]
fn comments_stay_below_limits_of_person_words() {
    let persons = ["who", "whoever", "nobody", "somebody", "whom"];
    for (name, most_persons, most_what) in [
        ("engine", 0.3, 3.0),
        ("emu", 0.3, 3.0),
        ("sim", 0.3, 3.0),
        ("host", 0.3, 3.0),
        ("lab", 0.3, 3.0),
        ("guest", 0.3, 3.0),
    ] {
        let words = comment_words(name);
        let per_thousand = |counted: &[&str]| {
            let count = words.iter().filter(|word| counted.contains(&word.as_str())).count();
            count as f64 * 1000.0 / words.len() as f64
        };
        let (persons, what) = (per_thousand(&persons), per_thousand(&["what", "whatever"]));
        assert!(
            persons <= most_persons && what <= most_what,
            "comments of {name} have {persons:.1} words for persons and {what:.1} times 'what' in 1,000 words; at most \
             {most_persons} and {most_what}"
        );
    }
}

#[test]
fn unsafe_code_is_confined_to_listed_files() {
    let known = [
        "bench/alloc.rs",
        "bench/isal.rs",
        "bench/null.rs",
        "drive/block.rs",
        "drive/flight.rs",
        "drive/nvme/mod.rs",
        "reactor/arena.rs",
        "reactor/ring.rs",
        "serve/map.rs",
        "serve/ublk/control.rs",
        "serve/ublk/queue.rs",
    ]
    .map(|file| root().join("host/src").join(file));
    let gfni = root().join("gfni/src/lib.rs");
    let is_other = |path: &PathBuf| !known.contains(path) && *path != gfni;
    let others: Vec<PathBuf> = sources(&CRATES).into_iter().filter(is_other).collect();
    complain_about(
        &["unsafe fn", "unsafe {", "unsafe impl"],
        &others,
        "unsafe code needs a module of its own",
    );
}

/// Paths that the table of a crate in docs/SOURCES.md names, below the directory of its sources.
fn documented_sources(name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/SOURCES.md")).unwrap();
    let heading = format!("## {name}");
    let section = text.lines().skip_while(|line| *line != heading).skip(1);
    let rows = section.take_while(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`')).map(|(path, _)| path.to_string()).collect()
}

#[test]
fn every_source_file_is_documented() {
    for name in CRATES {
        let directory = root().join(name).join("src");
        let below = |path: &PathBuf| path.strip_prefix(&directory).unwrap().to_str().unwrap().to_string();
        let existing: BTreeSet<String> = sources(&[name]).iter().map(below).collect();
        let documented = documented_sources(name);
        let needs_none = |path: &&String| {
            let file = path.rsplit('/').next().unwrap();
            ["mod.rs", "lib.rs", "main.rs"].contains(&file) || path.starts_with("bin/")
        };
        let missing: Vec<&String> =
            existing.difference(&documented).filter(|path| !needs_none(path)).collect();
        assert!(missing.is_empty(), "docs/SOURCES.md lacks files of {name}: {missing:?}");
        let removed: Vec<&String> = documented.difference(&existing).collect();
        assert!(removed.is_empty(), "docs/SOURCES.md names files that {name} does not have: {removed:?}");
    }
}

#[test]
fn document_links_resolve_inside_repository() {
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
fn repository_refers_to_no_outside_paths() {
    // Assembled here, so that this file does not match itself.
    let banned = [["/wo", "rk/"].concat(), ["../sh", "ared"].concat(), ["/tmp/", "wt"].concat()];
    for path in files(&["rs", "md", "toml", "json", "Makefile", "run", "yml"]) {
        let text = fs::read_to_string(&path).unwrap();
        for word in &banned {
            assert!(!text.contains(word.as_str()), "{} refers to {word}", path.display());
        }
    }
}

#[test]
fn systemd_unit_sees_mounts_devices_and_limits_restarts() {
    let unit = fs::read_to_string(root().join("dist/zoneraid@.service")).unwrap();
    let lines: Vec<&str> = unit.lines().filter(|line| !line.starts_with('#')).collect();
    // Each of these gives the daemon a mount namespace of its own, or hides drives from it.
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

/// Whether allowed licences satisfy an SPDX expression; `/` is an old form of `OR`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    /// Parses and removes the expression at the start of `words`.
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
fn licence_expressions_are_evaluated_correctly() {
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
fn dependencies_have_free_licences_one_registry_one_version() {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    // Only dependencies of this platform have been fetched.
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
        // The versions of workspace crates are those of the tree.
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
fn cargo_commands_in_documents_use_locked() {
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

/// Numbers of inherent methods of the types in a source file, by type.
fn methods(path: &Path) -> BTreeMap<String, usize> {
    let (mut found, mut of_type) = (BTreeMap::new(), None);
    for (_, line) in code_lines(path) {
        if let Some(rest) = line.strip_prefix("impl") {
            let rest =
                rest.strip_prefix('<').and_then(|rest| rest.split_once("> ")).map_or(rest, |(_, rest)| rest);
            let name: String = rest.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect();
            of_type = (!rest.contains(" for ")).then_some(name);
        }
        let item = line.strip_prefix("    ").filter(|item| !item.starts_with(' ')).unwrap_or_default();
        let visibility =
            item.strip_prefix("pub").map_or(item, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let is_method =
            ["fn ", "async fn ", "const fn ", "unsafe fn "].iter().any(|head| visibility.starts_with(head));
        if let Some(name) = of_type.as_ref().filter(|_| is_method) {
            *found.entry(name.clone()).or_default() += 1;
        }
    }
    found
}

/// A type whose operations are spread over many files hides what these files depend on.
#[test]
fn types_with_many_methods_are_in_one_file() {
    let mut spread = Vec::new();
    for name in CRATES {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for path in sources(&[name]) {
            for (of_type, count) in methods(&path) {
                places.entry(of_type).or_default().push(count);
            }
        }
        let many =
            places.into_iter().filter(|(_, counts)| counts.len() > 1 && counts.iter().sum::<usize>() > 40);
        spread.extend(many.map(|(of_type, counts)| format!("{name}: {of_type} has {counts:?} methods")));
    }
    assert!(spread.is_empty(), "in several files:\n{}", spread.join("\n"));
    assert!(methods(&root().join("engine/src/raid/parts.rs"))["Raid"] > 0, "methods are not found");
}

/// Addresses, out-of-band metadata and later checksums of members' blocks are the business of one file.
#[test]
fn parts_are_read_and_written_in_one_place() {
    let raid = root().join("engine/src/raid");
    // The metadata logs and labels; new drives; host commands, of which only the kind matters.
    let others = [
        "io.rs",
        "journal",
        "create.rs",
        "erase.rs",
        "maintain/target.rs",
        "recover/scan.rs",
        "zone/drain.rs",
        "zone/dispatch.rs",
    ];
    let is_other = |path: &PathBuf| others.iter().any(|other| path.starts_with(raid.join(other)));
    let sources: Vec<PathBuf> =
        sources(&["engine"]).into_iter().filter(|path| path.starts_with(&raid) && !is_other(path)).collect();
    let commands = ["Command::read(", "Command::write(", "Command::Read {", "Command::Append {"];
    complain_about(&commands, &sources, "commands to parts are made in raid/io.rs");
    complain_about(
        &["= Command::Write { lba", "(Command::Write {"],
        &sources,
        "commands to parts are made in raid/io.rs",
    );
}

/// Names of the types that a source file defines, except those of tests: associated types are not definitions.
fn defined_types(text: &str) -> Vec<String> {
    let (mut found, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        let rest = line.trim_start();
        let indent = &line[..line.len() - rest.len()];
        if rest == "#[cfg(test)]" {
            // An item ends with a closing brace or a semicolon at its own indentation.
            let ends = |line: &str| {
                let inner = line.strip_prefix(indent).filter(|inner| !inner.starts_with(' '));
                inner.is_some_and(|inner| inner.starts_with('}') || inner.ends_with(';'))
            };
            _ = lines.by_ref().find(|line| ends(line));
            continue;
        }
        let item = match rest.strip_prefix("pub") {
            Some(rest) => {
                rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest)
            }
            None => rest,
        };
        let Some((keyword, rest)) = item.trim_start().split_once(' ') else { continue };
        let is_type = ["struct", "enum", "trait", "union"].contains(&keyword);
        if is_type || keyword == "type" && indent.is_empty() {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push(rest[..end].to_string());
        }
    }
    found
}

#[test]
fn type_names_are_unique_per_crate() {
    let text = "pub(in a::b) struct A;\n#[cfg(test)]\nmod tests {\n    struct B;\n}\n\
                    enum C<T> {\ntype D = A;\n    type E = A;\n";
    assert_eq!(defined_types(text), ["A", "C", "D"]);
    let mut twice = Vec::new();
    for name in CRATES {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in sources(&[name]) {
            for defined in defined_types(&fs::read_to_string(&path).unwrap()) {
                places.entry(defined).or_default().push(path.display().to_string());
            }
        }
        let several = places.into_iter().filter(|(_, paths)| paths.len() > 1);
        twice.extend(several.map(|(defined, paths)| format!("{defined}: {}", paths.join(", "))));
    }
    assert!(twice.is_empty(), "types that are defined more than once in a crate:\n{}", twice.join("\n"));
}
