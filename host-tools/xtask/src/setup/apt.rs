//! Packages on Debian and its relatives, without a change to the machine's package sources.
//!
//! Where the release's own QEMU is too old, its backports are read through a private list: a sources file and a lists folder
//! below target/, made from what apt itself says about the machine's mirrors, and given to apt-get as options.

use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::qemu::{NEEDED, Version};
use crate::project::Project;
use crate::shell;

/// The package of QEMU.
pub const QEMU: &str = "qemu-system-x86";
/// The packages of a C linker and of what it links.
pub const LINKER: [&str; 2] = ["gcc", "libc6-dev"];

/// Installs the packages of a linker, of QEMU, or both.
///
/// # Errors
/// The machine has no apt, we may not install (the message holds the commands), or apt fails.
pub fn install(project: &Project, linker: bool, qemu: bool) -> Result<()> {
    let mut packages = Vec::new();
    if linker {
        packages.extend(LINKER);
    }
    if qemu {
        packages.push(QEMU);
    }
    if !shell::exists("apt-get") {
        bail!(
            "this machine has no apt-get: install {} by its own means, then run again",
            if qemu {
                format!("QEMU {NEEDED} or later (qemu-system-x86_64), and a C linker (cc)")
            } else {
                "a C linker (cc)".into()
            }
        );
    }
    let rights = Rights::find()?;
    let mut candidates = policy(None, None, &packages)?;
    if packages.iter().any(|package| !candidates.contains_key(*package)) {
        // A new container or installation: apt has not yet read what its sources offer.
        rights.run(&apt_get(None, &["update"]))?;
        candidates = policy(None, None, &packages)?;
    }
    if !qemu || new_enough(&candidates) {
        return rights.run(&install_command(None, None, &packages));
    }
    let own = candidates.get(QEMU).map_or("no", String::as_str);
    install_from_backports(project, rights, &packages, own)
}

/// Installs through a private list; `own` is the release's own version of QEMU, which will not do.
fn install_from_backports(project: &Project, rights: Rights, packages: &[&str], own: &str) -> Result<()> {
    let release = codename(&fs::read_to_string("/etc/os-release").unwrap_or_default())
        .context("/etc/os-release names no VERSION_CODENAME, so there are no backports to look for")?;
    let backports = format!("{release}-backports");
    let folder = project.target().join("xtask-apt");
    eprintln!(
        "{release} itself has {own} {QEMU}: taking it from {backports}, by a private list in {}",
        folder.display()
    );
    let private = PrivateList::create(&folder, &release)?;
    let update = apt_get(Some(&private), &["update"]);
    let install = install_command(Some(&private), Some(&backports), packages);
    // The lists are large, and root's; afterwards they have served.
    let clear = ["rm", "-rf", &private.lists.to_string_lossy()].map(str::to_owned);
    if rights == Rights::None {
        return Err(by_hand(&[&update, &install, &clear]));
    }
    let done = rights.run(&update).and_then(|()| {
        let offered = policy(Some(&private), Some(&backports), packages)?;
        if !new_enough(&offered) {
            let offered = offered.get(QEMU).map_or("no", String::as_str);
            bail!(
                "{backports} has {offered} {QEMU}, and {NEEDED} or later is needed: build QEMU, or use a later release"
            );
        }
        rights.run(&install)
    });
    rights.run(&clear)?;
    done
}

fn new_enough(candidates: &BTreeMap<String, String>) -> bool {
    candidates
        .get(QEMU)
        .and_then(|version| Version::parse(version))
        .is_some_and(|version| version >= NEEDED)
}

/// How we may install.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    Root,
    /// sudo asks for nothing.
    Sudo,
    /// sudo may ask, and there is somebody to answer.
    AskingSudo,
    None,
}

impl Rights {
    fn find() -> Result<Self> {
        let user = shell::output(Command::new("id").arg("-u"))?.context("there is no `id` program")?;
        Ok(if user.trim() == "0" {
            Self::Root
        } else if shell::succeeds(Command::new("sudo").args(["-n", "true"])) {
            Self::Sudo
        } else if shell::exists("sudo") && std::io::stdin().is_terminal() {
            Self::AskingSudo
        } else {
            Self::None
        })
    }

    /// Runs a command of an administrator, after showing it.
    fn run(self, words: &[String]) -> Result<()> {
        let before: &[&str] = match self {
            Self::None => return Err(by_hand(&[words])),
            Self::Root => &[],
            Self::Sudo => &["sudo", "-n"],
            Self::AskingSudo => &["sudo"],
        };
        let mut all = before
            .iter()
            .map(|word| (*word).to_owned())
            .chain(words.iter().cloned());
        let mut command = Command::new(all.next().unwrap_or_default());
        command.args(all);
        eprintln!("$ {}", shell::line(&command));
        shell::run(&mut command)
    }
}

/// The error that says which commands an administrator has to run.
fn by_hand(commands: &[&[String]]) -> anyhow::Error {
    let lines: Vec<String> = commands
        .iter()
        .map(|words| {
            let words: Vec<String> = words.iter().map(|word| shell::quote(word.as_ref())).collect();
            format!("  {}\n", words.join(" "))
        })
        .collect();
    anyhow::anyhow!(
        "only root can install packages, and sudo does not work here. Run as root\n{}then run this again.",
        lines.concat()
    )
}

/// Package sources that only we read: a sources file, and the folder of what its mirrors offer.
struct PrivateList {
    sources: PathBuf,
    lists: PathBuf,
}

impl PrivateList {
    /// Writes the sources file of `release` with its backports.
    fn create(folder: &Path, release: &str) -> Result<Self> {
        let targets = shell::output(Command::new("apt-get").args(["indextargets", "Created-By: Packages"]))?
            .context("there is no apt-get")?;
        let options = |entry: &str| source_options(entry, |path| fs::read_to_string(path).ok());
        let text = private_sources(&targets, release, options)?;
        let sources = folder.join("doorpost.sources");
        let lists = folder.join("lists");
        fs::create_dir_all(lists.join("partial"))
            .and_then(|()| fs::write(&sources, text))
            .with_context(|| format!("cannot write {}", sources.display()))?;
        Ok(Self { sources, lists })
    }

    /// The options that have apt read these instead of the machine's own.
    fn options(&self) -> impl Iterator<Item = String> {
        [
            format!("Dir::Etc::sourcelist={}", self.sources.display()),
            "Dir::Etc::sourceparts=/dev/null".into(),
            format!("Dir::State::lists={}", self.lists.display()),
            // The cache of the machine's own lists stays as it is.
            "Dir::Cache::pkgcache=".into(),
            "Dir::Cache::srcpkgcache=".into(),
        ]
        .into_iter()
        .flat_map(|option| ["-o".to_owned(), option])
    }
}

/// `apt-get` that asks no questions.
fn apt_get(private: Option<&PrivateList>, arguments: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
        .map(str::to_owned)
        .into();
    words.extend(private.into_iter().flat_map(PrivateList::options));
    words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    words
}

fn install_command(private: Option<&PrivateList>, suite: Option<&str>, packages: &[&str]) -> Vec<String> {
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    if let Some(suite) = suite {
        arguments.extend(["-t", suite]);
    }
    arguments.extend(packages);
    apt_get(private, &arguments)
}

/// The version of each package that apt would install, as far as it knows one.
fn policy(private: Option<&PrivateList>, suite: Option<&str>, packages: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut command = Command::new("apt-cache");
    command
        .env("LC_ALL", "C")
        .args(private.into_iter().flat_map(PrivateList::options));
    if let Some(suite) = suite {
        command.args(["-t", suite]);
    }
    let answer = shell::output(command.arg("policy").args(packages))?.context("there is no apt-cache")?;
    Ok(candidates(&answer))
}

/// Reads `apt-cache policy`: package and candidate version.
fn candidates(policy: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut package = "";
    for line in policy.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            package = name;
        } else if let Some(version) = line
            .trim()
            .strip_prefix("Candidate: ")
            .filter(|version| *version != "(none)")
        {
            found.insert(package.to_owned(), version.to_owned());
        }
    }
    found
}

/// Reads os-release: the release's code name.
fn codename(os_release: &str) -> Option<String> {
    let value = os_release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?
        .trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}

/// A sources file with the release's own suites and its backports, from apt's description of the sources in use.
///
/// `options` gives the lines about trust (`Signed-By`, `Trusted`) of a source, by its place `file:number`.
fn private_sources(targets: &str, release: &str, options: impl Fn(&str) -> String) -> Result<String> {
    // (mirror, options) to (suites, components)
    let mut sources: BTreeMap<(String, String), (Vec<String>, Vec<String>)> = BTreeMap::new();
    let mut mirror_of_release = false;
    for stanza in targets.split("\n\n") {
        let field = |name: &str| {
            stanza
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        let (Some(mirror), Some(suite), Some(component)) = (field("Repo-URI"), field("Release"), field("Component"))
        else {
            continue;
        };
        let name = field("Codename").unwrap_or(suite);
        let belongs = name == release || name.strip_prefix(release).is_some_and(|rest| rest.starts_with('-'));
        // A suite in a folder (`./`) or on a disc is not what a mirror has.
        if !belongs || mirror.starts_with("cdrom:") || field("Target-Of").is_some_and(|kind| kind != "deb") {
            continue;
        }
        let key = (
            mirror.to_owned(),
            field("Sourcesentry").map(&options).unwrap_or_default(),
        );
        let (suites, components) = sources.entry(key).or_default();
        let mut add = |suite: String| {
            if !suites.contains(&suite) {
                suites.push(suite);
            }
        };
        add(suite.to_owned());
        // Backports lie beside the release itself, on the same mirror.
        if name == release && field("Origin").is_none_or(|origin| ["Debian", "Ubuntu"].contains(&origin)) {
            add(format!("{release}-backports"));
            mirror_of_release = true;
        }
        if !components.iter().any(|known| known == component) {
            components.push(component.to_owned());
        }
    }
    if !mirror_of_release {
        bail!("apt knows no mirror of {release}: add one to its sources, run `apt-get update`, then run this again");
    }
    let mut text = String::from("# Written by `cargo xtask setup`, which alone reads it.\n");
    for ((mirror, options), (suites, components)) in sources {
        text.push_str(&format!(
            "\nTypes: deb\nURIs: {mirror}\nSuites: {}\nComponents: {}\n{options}",
            suites.join(" "),
            components.join(" ")
        ));
    }
    Ok(text)
}

/// The lines about trust of the source at `entry` (`file:number`), in the form of a .sources file.
///
/// In .sources files the number counts stanzas, in .list files lines.
fn source_options(entry: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let Some((path, number)) = entry.rsplit_once(':') else {
        return String::new();
    };
    let (Some(text), Ok(number)) = (read(path), number.parse::<usize>()) else {
        return String::new();
    };
    let mut options = String::new();
    if path.ends_with(".sources") {
        let stanzas = text
            .split("\n\n")
            .filter(|stanza| stanza.lines().any(|line| line.contains(':') && !line.starts_with('#')));
        let mut keep = false;
        for line in stanzas.skip(number.saturating_sub(1)).take(1).flat_map(str::lines) {
            // A key in the file itself goes on over indented lines.
            if !line.starts_with([' ', '\t', '#']) {
                let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
                keep = ["signed-by", "trusted"].contains(&name.as_str());
            }
            if keep && !line.starts_with('#') {
                options.push_str(line);
                options.push('\n');
            }
        }
    } else if let Some(line) = text.lines().nth(number.saturating_sub(1)) {
        let bracket = line
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or("", |(inside, _)| inside);
        for option in bracket.split_whitespace() {
            match option.split_once('=') {
                Some(("signed-by", keys)) => options.push_str(&format!("Signed-By: {}\n", keys.replace(',', " "))),
                Some(("trusted", value)) => options.push_str(&format!("Trusted: {value}\n")),
                _ => {}
            }
        }
    }
    options
}

#[cfg(test)]
mod tests;
