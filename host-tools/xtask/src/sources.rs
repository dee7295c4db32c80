//! What may stand in which source file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The rules; all paths are relative to the project's top folder.
pub struct Rules {
    /// Where `target_arch` may stand besides folders named `arch`: files, and folders with all below.
    pub architectures: &'static [&'static str],
    /// Folders of packages, and whether unsafe code may stand there; the innermost decides.
    pub unsafe_folders: Vec<(String, bool)>,
    /// Crate roots that have to forbid unsafe code.
    pub safe_roots: Vec<String>,
}

/// Checks every Rust source and manifest below `root`, and lists what breaks a rule, as `file:line: what`.
///
/// # Errors
/// A file or folder cannot be read.
pub fn check(root: &Path, rules: &Rules) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort();
    let mut broken = Vec::new();
    for file in files {
        let text = fs::read_to_string(root.join(&file)).with_context(|| format!("cannot read {file}"))?;
        broken.extend(judge(&file, &text, rules));
    }
    Ok(broken)
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            collect(root, &entry.path(), files)?;
        } else if kind.is_file() && (name.ends_with(".rs") || name == "Cargo.toml") {
            let path = entry.path();
            files.push(path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// What in one file breaks a rule.
fn judge(file: &str, text: &str, rules: &Rules) -> Vec<String> {
    let manifest = file.ends_with(".toml");
    let code = if manifest {
        without_toml_comments(text)
    } else {
        code_only(text)
    };
    let below = |folder: &str| file == folder || file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let mut broken = Vec::new();

    let in_arch = Path::new(file)
        .parent()
        .is_some_and(|folder| folder.iter().any(|name| name == "arch"));
    if !in_arch && !rules.architectures.iter().any(|folder| below(folder)) {
        for line in lines_with(&code, "target_arch") {
            broken.push(format!(
                "{file}:{line}: target_arch stands only in folders named arch and in guest-os/hal"
            ));
        }
    }
    if manifest {
        return broken;
    }

    let innermost = rules
        .unsafe_folders
        .iter()
        .filter(|(folder, _)| below(folder))
        .max_by_key(|(folder, _)| folder.len());
    if !innermost.is_some_and(|(_, allowed)| *allowed) {
        for line in lines_with(&code, "unsafe") {
            broken.push(format!(
                "{file}:{line}: unsafe stands only in hal, irq, guest-os and vmm-glue"
            ));
        }
    }
    if rules.safe_roots.iter().any(|root| root == file) {
        let squeezed: String = code.chars().filter(|c| !c.is_whitespace()).collect();
        if !squeezed.contains("#![forbid(unsafe_code)]") {
            broken.push(format!("{file}:1: the crate root lacks #![forbid(unsafe_code)]"));
        }
    }
    broken
}

/// Numbers of the lines that hold `word` as a whole word.
fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let holds = |line: &str| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|part| part == word)
    };
    code.lines()
        .enumerate()
        .filter(|(_, line)| holds(line))
        .map(|(index, _)| index + 1)
        .collect()
}

fn without_toml_comments(text: &str) -> String {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Rust source with comments, strings and characters left out; lines keep their numbers.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut previous = ' ';
    while let Some(c) = rest.chars().next() {
        let word_before = previous.is_alphanumeric() || previous == '_';
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if c == '"' {
            1 + quoted(&rest[1..], '"')
        } else if c == '\'' {
            character(rest)
        } else if !word_before && "rbc".contains(c) {
            raw_string(rest)
        } else {
            0
        };
        if skipped == 0 {
            code.push(c);
            previous = c;
            rest = &rest[c.len_utf8()..];
        } else {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            previous = ' ';
            rest = &rest[skipped..];
        }
    }
    code
}

/// Length of the block comment that `text` begins with; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Length up to and with the closing `quote`, with escapes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// Length of the character literal that `text` begins with; 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut after = text[1..].chars();
    match (after.next(), after.next()) {
        (Some('\\'), _) => 1 + quoted(&text[1..], '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 0,
    }
}

/// Length of the raw string that `text` begins with (`r"…"`, `br#"…"#`, …); 0 if it is none.
fn raw_string(text: &str) -> usize {
    let Some(after) = text
        .strip_prefix("br")
        .or_else(|| text.strip_prefix("cr"))
        .or_else(|| text.strip_prefix('r'))
    else {
        return 0;
    };
    let inside = after.trim_start_matches('#');
    let Some(body) = inside.strip_prefix('"') else {
        return 0;
    };
    let close = format!("\"{}", "#".repeat(after.len() - inside.len()));
    let start = text.len() - body.len();
    body.find(&close).map_or(text.len(), |at| start + at + close.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            architectures: &["guest-os/hal", "guest-os/Cargo.toml"],
            unsafe_folders: vec![
                ("guest-os".into(), true),
                ("guest-os/workload".into(), false),
                ("irq".into(), true),
                ("nvme".into(), false),
            ],
            safe_roots: vec!["nvme/src/lib.rs".into()],
        }
    }

    #[test]
    fn a_forbidden_cfg_is_found_with_its_line() {
        let text = "//! target_arch in words is fine\n\n#[cfg(target_arch = \"x86_64\")]\nfn f() {}\n";
        let found = judge("irq/src/fan.rs", text, &rules());
        assert_eq!(
            found,
            ["irq/src/fan.rs:3: target_arch stands only in folders named arch and in guest-os/hal"]
        );
        assert_eq!(
            judge("irq/src/fan.rs", "if cfg!(target_arch = \"x86_64\") {}", &rules()).len(),
            1
        );
        for file in [
            "irq/src/arch/x86_64.rs",
            "irq/src/arch/mod.rs",
            "guest-os/hal/src/mmio.rs",
        ] {
            assert_eq!(judge(file, text, &rules()), Vec::<String>::new(), "{file}");
        }
        assert_eq!(judge("irq/src/arch.rs", text, &rules()).len(), 1, "a file is no folder");
        assert_eq!(judge("guest-os/hall/src/lib.rs", text, &rules()).len(), 1);
    }

    #[test]
    fn manifests_are_looked_at() {
        let text = "[package]\n# target_arch\n[target.'cfg(target_arch = \"x86_64\")'.dependencies]\n";
        assert_eq!(judge("irq/Cargo.toml", text, &rules()).len(), 1);
        assert!(judge("irq/Cargo.toml", text, &rules())[0].starts_with("irq/Cargo.toml:3: "));
        assert_eq!(judge("guest-os/Cargo.toml", text, &rules()), Vec::<String>::new());
    }

    #[test]
    fn unsafe_code_is_found_where_it_may_not_stand() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        let found = judge("nvme/src/queue.rs", text, &rules());
        assert_eq!(
            found,
            ["nvme/src/queue.rs:2: unsafe stands only in hal, irq, guest-os and vmm-glue"]
        );
        assert_eq!(judge("irq/src/apic.rs", text, &rules()), Vec::<String>::new());
        assert_eq!(judge("guest-os/src/main.rs", text, &rules()), Vec::<String>::new());
        assert_eq!(
            judge("guest-os/workload/src/job.rs", text, &rules()).len(),
            1,
            "the innermost room decides"
        );
        assert_eq!(judge("images/build.rs", text, &rules()).len(), 1, "outside every room");
        let words =
            "// unsafe\nconst UNSAFE: &str = \"unsafe\"; /* unsafe */ fn not_unsafe() {}\n#![forbid(unsafe_code)]\n";
        assert_eq!(judge("nvme/src/queue.rs", words, &rules()), Vec::<String>::new());
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        let missing = judge("nvme/src/lib.rs", "// #![forbid(unsafe_code)]\n", &rules());
        assert_eq!(
            missing,
            ["nvme/src/lib.rs:1: the crate root lacks #![forbid(unsafe_code)]"]
        );
        assert_eq!(
            judge("nvme/src/lib.rs", "//! Doc.\n#![forbid(unsafe_code)]\n", &rules()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn code_without_comments_and_literals() {
        let visible = |text: &str| code_only(text).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(visible(r#"a "x \" y" b"#), "a b");
        assert_eq!(visible(r###"a r#"x " y"# b r"\" c br##"x"# y"## d"###), "a b c d");
        assert_eq!(visible("a /* x /* y */ z */ b // c\nd"), "a b d");
        assert_eq!(visible("f::<'a>('x', '\\'', '\"', b'\\\\') g"), "f::<'a>( , , , b ) g");
        assert_eq!(visible("r#type for_r \"s\" bar"), "r#type for_r bar");
        assert_eq!(visible("é 'é' \"é"), "é");
        assert_eq!(
            code_only("\"a\nb\" /*\n\n*/ x").lines().count(),
            4,
            "lines keep their numbers"
        );
    }

    #[test]
    fn the_tree_is_walked() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("nvme/src/lib.rs", "#![forbid(unsafe_code)]\nmod deep;\n"),
            ("nvme/src/deep/mod.rs", "\nunsafe fn f() {}\n"),
            ("target/x.rs", "unsafe"),
            (".hidden/x.rs", "unsafe"),
            ("nvme/notes.txt", "unsafe"),
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = check(root.path(), &rules()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("nvme/src/deep/mod.rs:2: unsafe"), "{found:?}");
    }
}
