//! House rules that a compiler does not check: dependencies between crates and on external crates,
//! length of files, location of unsafe code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const LINES_MAX: usize = 800;

/// Keywords that begin a definition, in Rust, Python and the .proto files.
const DEFINES: &[&str] = &["fn", "struct", "enum", "trait", "def", "class", "rpc", "message"];

/// Areas by the folders of their files; the first folder that fits counts.
const AREAS: &[(&str, &str)] = &[
    ("coordinator/", "coordinator"),
    ("worker/client/", "client"),
    ("worker/", "worker"),
    ("cli/", "cli"),
    ("tools/dataset/", "cli"),
    ("python/src/", "python"),
];

/// Constructions that a stranger must read twice, and their replacement.
const PLAIN: &[(&str, &str)] = &[
    ("nobody", "name the actor: no rank, no worker"),
    ("somebody", "name the actor: a user, an operator"),
    ("anybody", "name the actor: any caller"),
    ("whoever", "name the actor: the caller, the leader"),
    ("told", "reported, notified, rejected"),
    ("tells", "reports, returns, shows"),
    ("goes on", "continues"),
    ("went on", "continued"),
    ("anew", "again"),
    ("what is", "a noun: the samples that are"),
    ("what they", "a noun: the bytes that they"),
    ("what has", "a noun: the part that has"),
    ("what comes", "a noun: the batch that comes"),
];

/// Allowed dependencies between shardfeed's crates. Tests may depend on all of them.
const ARROWS: &[(&str, &[&str])] = &[
    ("plan", &[]),
    ("tfrecord", &[]),
    ("table", &["plan", "tfrecord"]),
    ("telemetry", &[]),
    ("tls", &[]),
    ("proto", &["plan"]),
    ("scheduler", &["plan"]),
    ("host", &["telemetry"]),
    ("raft", &["host"]),
    ("coordinator", &["plan", "proto", "tls", "scheduler", "host", "raft"]),
    ("handoff", &[]),
    ("socket", &[]),
    ("device", &["handoff"]),
    ("image", &[]),
    ("pipeline", &["plan", "tfrecord", "table", "handoff", "image"]),
    ("source", &["plan", "tfrecord", "proto", "socket", "pipeline"]),
    ("reader", &["plan", "tfrecord", "proto", "handoff", "socket", "pipeline", "source"]),
    (
        "agent",
        &["plan", "tfrecord", "proto", "tls", "handoff", "socket", "pipeline", "source", "reader"],
    ),
    ("client", &["plan", "tfrecord", "proto", "handoff", "socket", "pipeline", "source", "reader"]),
    ("embedded", &["client"]),
    ("cluster", &["proto", "source", "reader", "agent", "embedded"]),
    ("dataset-tools", &["plan", "tfrecord", "image", "source", "client"]),
    (
        "",
        &[
            "plan",
            "tfrecord",
            "telemetry",
            "tls",
            "proto",
            "coordinator",
            "socket",
            "device",
            "pipeline",
            "source",
            "agent",
            "client",
            "embedded",
            "dataset-tools",
        ],
    ),
    ("chaos", &["plan", "proto", "telemetry", "scheduler", "host", "raft", "coordinator"]),
    (
        "python",
        &[
            "plan",
            "tfrecord",
            "table",
            "telemetry",
            "proto",
            "handoff",
            "device",
            "pipeline",
            "embedded",
            "cluster",
        ],
    ),
];

/// Returns a crate's package name: its name after `shardfeed-`; the command has the plain name.
fn package(name: &str) -> String {
    if name.is_empty() { "shardfeed".into() } else { format!("shardfeed-{name}") }
}

/// Crates of pure logic: nothing in them waits, connects or stores.
const PURE: &[&str] = &[
    "shardfeed-plan",
    "shardfeed-tfrecord",
    "shardfeed-table",
    "shardfeed-image",
    "shardfeed-pipeline",
    "shardfeed-scheduler",
];
const NOT_IN_PURE: &[&str] =
    &["tokio", "tonic", "prost", "openraft", "object_store", "reqwest", "tracing"];

/// Layers that build and are tested alone: packages that a layer alone must not need, and one that
/// it does need.
const LAYERS: &[(&str, &[&str], &str)] = &[
    (
        "shardfeed-tfrecord",
        &["tokio", "hyper", "tonic", "prost", "openraft", "redb", "object_store", "shardfeed-plan"],
        "crc-fast",
    ),
    (
        "shardfeed-embedded",
        &[
            "tonic",
            "tonic-prost",
            "openraft",
            "redb",
            "shardfeed-tls",
            "shardfeed-agent",
            "shardfeed-host",
            "shardfeed-raft",
            "shardfeed-coordinator",
        ],
        "shardfeed-reader",
    ),
    (
        "shardfeed-cluster",
        &["openraft", "redb", "shardfeed-raft", "shardfeed-coordinator"],
        "tonic",
    ),
];

/// Crates that must not be needed: building requires only Rust, a C compiler, and what
/// `worker/image/cmake.sh` finds for libjpeg-turbo.
const NOWHERE: &[&str] = &["aws-lc-sys", "openssl-sys", "bindgen", "prost-build", "protobuf-src"];

/// Files that may contain unsafe code, each time with a `// SAFETY:` comment.
const UNSAFE_IN: &[&str] = &[
    "chaos/src/sim/process.rs",
    "worker/handoff/src/slot.rs",
    "worker/device/src/driver.rs",
    "worker/device/tests/consumer/mod.rs",
    "worker/image/src/jpeg/library.rs",
    "python/src/buffer.rs",
    "python/src/dlpack.rs",
    "common/tfrecord/src/example/varints.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the text files that git tracks, and new ones that it does not ignore.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().map(PathBuf::from).filter(|name| root().join(name).is_file()).collect()
}

fn sources(extensions: &[&str]) -> Vec<(String, String)> {
    let wanted =
        |file: &PathBuf| file.extension().is_some_and(|e| extensions.iter().any(|want| e == *want));
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        (file.display().to_string(), text)
    };
    files().into_iter().filter(wanted).map(read).collect()
}

/// Packages by id: name, and dependencies in a build (not for tests).
struct Tree {
    names: BTreeMap<String, String>,
    needs: BTreeMap<String, BTreeSet<String>>,
    ours: BTreeSet<String>,
}

impl Tree {
    fn read() -> Self {
        // Crates of other platforms are not present after a build.
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--offline"])
            .args(["--filter-platform", &platform])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let packages = metadata["packages"].as_array().unwrap();
        let names = packages.iter().map(|p| (text(&p["id"]), text(&p["name"]))).collect();
        let in_build = |dep: &&Value| {
            dep["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"] != "dev")
        };
        let needs = metadata["resolve"]["nodes"].as_array().unwrap().iter().map(|node| {
            let deps = node["deps"].as_array().unwrap().iter().filter(in_build);
            (text(&node["id"]), deps.map(|dep| text(&dep["pkg"])).collect())
        });
        let ours = metadata["workspace_members"].as_array().unwrap().iter().map(text).collect();
        Self { names, needs: needs.collect(), ours }
    }

    fn id(&self, name: &str) -> &str {
        let mut ours = self.ours.iter().filter(|id| self.names[*id] == name);
        ours.next().unwrap_or_else(|| panic!("{name} is no crate of the workspace"))
    }

    /// Returns the names of all packages that `id` is built with.
    fn all_needs(&self, id: &str) -> BTreeSet<&str> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![id]);
        while let Some(id) = next.pop() {
            for need in &self.needs[id] {
                if seen.insert(need.as_str()) {
                    next.push(need);
                }
            }
        }
        seen.iter().map(|id| self.names[*id].as_str()).collect()
    }
}

#[test]
fn arrows_point_down() {
    let tree = Tree::read();
    let known: BTreeSet<String> = ARROWS.iter().map(|(name, _)| package(name)).collect();
    let others = ["shardfeed-tests", "shardfeed-bench", "shardfeed-fuzz"];
    for id in &tree.ours {
        let name = tree.names[id].as_str();
        assert!(known.contains(name) || others.contains(&name), "{name} has no place in ARROWS");
    }
    for (name, allowed) in ARROWS {
        let (name, allowed) = (package(name), allowed.iter().map(|name| package(name)));
        let allowed: BTreeSet<String> = allowed.collect();
        for need in &tree.needs[tree.id(&name)] {
            let need_name = tree.names[need].as_str();
            let fine = !tree.ours.contains(need) || allowed.contains(need_name);
            assert!(fine, "{name} must not depend on {need_name}");
        }
    }
}

#[test]
fn pure_crates_stay_pure() {
    let tree = Tree::read();
    for name in PURE {
        let needs = tree.all_needs(tree.id(name));
        for banned in NOT_IN_PURE {
            assert!(!needs.contains(banned), "{name} must never see {banned}");
        }
    }
}

/// Other crates of a workspace build may enable features: only `cargo tree` of one crate shows the
/// packages that it is built and tested with alone.
#[test]
fn layers_build_and_are_tested_without_those_above() {
    for (layer, banned, needed) in LAYERS {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--edges", "normal,build,dev"])
            .args(["--prefix", "none", "--format", "{p}", "--package", layer])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8(output.stdout).unwrap();
        let packages: BTreeSet<_> =
            tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(packages.contains(needed), "cargo tree of {layer} shows no {needed}:\n{tree}");
        for banned in *banned {
            assert!(!packages.contains(banned), "{layer} must build without {banned}");
        }
    }
}

#[test]
fn building_needs_rust_and_a_c_compiler_only() {
    let tree = Tree::read();
    for id in &tree.ours {
        let needs = tree.all_needs(id);
        for banned in NOWHERE {
            assert!(!needs.contains(banned), "{} needs {banned}", tree.names[id]);
        }
    }
}

#[test]
fn no_file_is_over_the_cap() {
    for (file, text) in sources(&["rs", "py", "pyi"]) {
        if file.starts_with("proto/src/generated/") {
            continue;
        }
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{file} has {lines} lines, more than {LINES_MAX}");
    }
    let oracle = std::fs::read_to_string(root().join("tests/order_oracle.py")).unwrap();
    assert!(oracle.lines().count() <= 240, "the oracle is to stay readable in one sitting");
}

#[test]
fn unsafe_code_stands_where_it_may() {
    for (file, text) in sources(&["rs"]) {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_unsafe = |line: &str| {
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait"]
                .iter()
                .any(|w| line.contains(w))
        };
        let found = code.filter(|line| !line.contains("line.contains")).any(is_unsafe);
        let allowed = UNSAFE_IN.contains(&file.as_str()) || file == "tests/tidy.rs";
        assert!(!found || allowed, "{file} has unsafe code");
    }
}

/// Comments and pages, also those made from the code, as docs/GLOSSARY.md and CONTRIBUTING.md ask
/// for: plain English, with a noun first and a named actor.
#[test]
fn prose_is_plain() {
    let mut found = vec![];
    for (file, text) in sources(&["rs", "md"]) {
        let is_rust = file.ends_with(".rs");
        if file == "tests/tidy.rs" || file.contains("generated") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if is_rust && !line.starts_with("//") {
                continue;
            }
            // Names in backticks and quotations are not prose.
            let prose: String = line.split(['`', '"']).step_by(2).collect();
            let words: Vec<_> = prose.split(|c: char| !c.is_ascii_alphabetic()).collect();
            let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
            let spaced = format!(" {} ", words.join(" ").to_lowercase());
            for (odd, instead) in
                PLAIN.iter().filter(|(odd, _)| spaced.contains(&format!(" {odd} ")))
            {
                found.push(format!("{file}:{}: \"{odd}\"; write {instead}", number + 1));
            }
            let headless = ["What", "Who", "Whether", "Where", "How"];
            if line.starts_with("/// ")
                && words.first().is_some_and(|first| headless.contains(first))
            {
                found.push(format!(
                    "{file}:{}: a doc comment begins with a noun or a verb",
                    number + 1
                ));
            }
        }
    }
    assert!(found.is_empty(), "a stranger must be able to read this:\n{}", found.join("\n"));
}

/// Returns the name of the type that a line defines. `type` defines one only at the start of a line:
/// within an `impl` it belongs to a trait.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ').skip_while(|word| word.starts_with("pub"));
    let is_type = match words.next()? {
        "struct" | "enum" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    let is_own = name.starts_with(char::is_uppercase) && !["Error", "Result"].contains(&name);
    (is_type && is_own).then_some(name)
}

#[test]
fn a_type_name_means_one_thing_in_an_area() {
    let mut defined: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for (file, text) in sources(&["rs"]) {
        let is_shipped =
            file.contains("/src/") && !file.contains("/tests/") && !file.ends_with("/tests.rs");
        let area = AREAS.iter().find(|(folder, _)| file.starts_with(folder));
        let (Some((_, area)), true) = (area, is_shipped) else {
            continue;
        };
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for name in code.lines().filter_map(type_name) {
            defined.entry((*area, name.into())).or_default().push(file.clone());
        }
    }
    let wrong: Vec<_> = defined
        .iter()
        .filter(|(_, files)| files.len() > 1)
        .map(|((area, name), files)| format!("{area}: {name} in {}", files.join(", ")))
        .collect();
    assert!(
        wrong.is_empty(),
        "a reader must not have to ask which type a name means; rename all but one of:\n{}",
        wrong.join("\n")
    );
    assert!(defined.len() > 1000, "only {} types were found", defined.len());
}

#[test]
fn every_crate_takes_the_house_lints() {
    for file in files().iter().filter(|file| file.ends_with("Cargo.toml")) {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let fine = text.contains("[workspace]") || text.contains("[lints]\nworkspace = true");
        assert!(fine, "{} lacks [lints] workspace = true", file.display());
    }
}

/// `make chaos-bugs` compiles them in; nothing else would detect that the code has diverged.
#[test]
fn the_deliberate_bugs_fit_the_code() {
    let diffs = files().into_iter().filter(|file| {
        file.starts_with("chaos/bugs") && file.extension().is_some_and(|end| end == "diff")
    });
    let seeds = std::fs::read_to_string(root().join("chaos/bugs/SEEDS")).unwrap();
    for diff in diffs {
        let command =
            Command::new("git").args(["apply", "--check"]).arg(&diff).current_dir(root()).output();
        let said = String::from_utf8(command.unwrap().stderr).unwrap();
        assert!(said.is_empty(), "{}: {said}make it again", diff.display());
        let name = diff.file_stem().unwrap().to_str().unwrap();
        assert!(seeds.contains(&format!("{name} ")), "chaos/bugs/SEEDS lacks {name}");
    }
}

#[test]
fn order_md_shows_a_key_and_a_permutation_that_hold() {
    let text = std::fs::read_to_string(root().join("docs/ORDER.md")).unwrap();
    let zero = shardfeed_plan::Digest::from_bytes([0; 32]);
    let key = shardfeed_plan::stream_key("line", &zero, &[1, 2]);
    let permutation = shardfeed_plan::Draws::new(key, 5).permutation(8).unwrap();
    assert!(text.contains(&format!("`{key:#018x}`")), "key {key:#x}");
    assert!(text.contains(&format!("`{permutation:?}`")), "permutation {permutation:?}");
}

/// True if a line of code defines `name`.
fn defines(code: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let defines = |line: &str, keyword: &&str| {
        let definition = format!("{keyword} {name}");
        line.match_indices(definition.as_str()).any(|(at, found)| {
            let before = line[..at].chars().next_back();
            let after = line[at + found.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.any(|line| DEFINES.iter().any(|keyword| defines(line, keyword)))
}

/// Every link of the tour whose text is in backticks, such as `Loader::commit` or `Batch._of`, leads
/// to a file that defines the last name of the text.
#[test]
fn the_code_tour_leads_to_definitions() {
    let page = std::fs::read_to_string(root().join("docs/CODE_TOUR.md")).unwrap();
    let (mut links, mut wrong) = (0, vec![]);
    for rest in page.split("[`").skip(1) {
        let Some((text, rest)) = rest.split_once("`](") else {
            continue;
        };
        let (target, _) = rest.split_once(')').expect("a link ends with a bracket");
        let name = text.rsplit([':', '.']).next().expect("a text has a last part");
        links += 1;
        match std::fs::read_to_string(root().join("docs").join(target)) {
            Ok(code) if defines(&code, name) => {}
            Ok(_) => wrong.push(format!("{target} does not define `{name}`")),
            Err(error) => wrong.push(format!("{target}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "docs/CODE_TOUR.md is out of date:\n{}", wrong.join("\n"));
    assert!(links > 60, "only {links} links have a name in backticks");
}
