//! fio's job files: sections of options, `[global]` ones for all that follow.

use std::fs;
use std::path::Path;

use workload::job::{JobError, JobSet, OPTIONS};

/// Options of fio that change nothing here, whatever their value: the guest is the engine, and does no buffering.
const WITHOUT_EFFECT: &[&str] = &[
    "buffered",
    "create_on_open",
    "description",
    "direct",
    "directory",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "fallocate",
    "gtod_reduce",
    "group_reporting",
    "invalidate",
    "ioengine",
    "nice",
    "new_group",
    "prio",
    "refill_buffers",
    "stonewall",
    "thread",
    "unlink",
];

/// fio's other names of options that the guest knows.
const ALIASES: &[(&str, &str)] = &[("readwrite", "rw"), ("blocksize", "bs")];

/// A job out of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JobFile {
    /// The job.
    pub jobs: JobSet,
    /// `option=value` of those that were taken without effect, each once.
    pub without_effect: Vec<String>,
}

struct Setting<'a> {
    line: usize,
    name: &'a str,
    value: &'a str,
}

struct Section<'a> {
    name: &'a str,
    settings: Vec<Setting<'a>>,
}

/// Reads the job of a file: that of `section`, or the only one.
///
/// # Errors
/// In one line, with the file, the line and the option.
pub fn read(path: &Path, section: Option<&str>) -> Result<JobFile, String> {
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
    parse(&text, section).map_err(|error| format!("{file}{error}"))
}

/// As [`read`], of a file's text. Errors begin with what follows the file's name.
fn parse(text: &str, wanted: Option<&str>) -> Result<JobFile, String> {
    let sections = sections(text)?;
    let jobs = || {
        sections
            .iter()
            .enumerate()
            .filter(|(_, section)| section.name != "global")
    };
    let names = || jobs().map(|(_, section)| section.name).collect::<Vec<_>>().join(", ");
    let mut chosen = jobs().filter(|(_, section)| wanted.is_none_or(|name| section.name == name));
    let (at, job) = match (chosen.next(), chosen.next(), wanted) {
        (Some(only), None, _) => only,
        (None, _, None) => return Err(": it has no job; a job begins with its [name]".to_string()),
        (None, _, Some(name)) => return Err(format!(": it has no job {name}; it has {}", names())),
        (Some(_), Some(_), Some(name)) => {
            return Err(format!(": it has several jobs {name}; give them names of their own"));
        }
        (Some(_), Some(_), None) => {
            return Err(format!(
                ": it has the jobs {}; one runs at a time, choose it by --section",
                names()
            ));
        }
    };
    let globals = sections[..at].iter().filter(|section| section.name == "global");
    let mut read = JobFile {
        jobs: JobSet::default(),
        without_effect: Vec::new(),
    };
    // The name of a section is that of its job, unless an option says otherwise.
    let _ = read.jobs.set("name", job.name);
    for setting in globals.chain([job]).flat_map(|section| &section.settings) {
        apply(setting, &mut read).map_err(|error| format!(":{}: {error}", setting.line))?;
    }
    Ok(read)
}

fn apply(setting: &Setting<'_>, read: &mut JobFile) -> Result<(), String> {
    let Setting { name, value, .. } = *setting;
    // Taking it without effect would write to drives that the file means to spare.
    if name == "filename" {
        return Err(format!(
            "filename: `{value}` cannot choose among drives, and a job uses each --drive; \
             take the option out, and give only the drives that it names"
        ));
    }
    if WITHOUT_EFFECT.contains(&name) {
        let word = if value.is_empty() {
            name.to_string()
        } else {
            format!("{name}={value}")
        };
        if !read.without_effect.contains(&word) {
            read.without_effect.push(word);
        }
        return Ok(());
    }
    let name = ALIASES
        .iter()
        .find(|alias| alias.0 == name)
        .map_or(name, |alias| alias.1);
    read.jobs.set(name, value).map_err(|error| match error {
        JobError::Unknown { name, nearest: None } if name.len() > 2 => {
            format!("unknown option `{name}` (doorpost knows {})", OPTIONS.join(", "))
        }
        error => error.to_string(),
    })
}

fn sections(text: &str) -> Result<Vec<Section<'_>>, String> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // As in fio, a comment may also stand behind an option.
        let line = line.find(['#', ';']).map_or(line, |at| &line[..at]);
        let (number, line) = (number + 1, line.trim());
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest
                .split_once(']')
                .map(|(name, _)| name.trim())
                .filter(|name| !name.is_empty())
                .ok_or_else(|| format!(":{number}: `{line}` is not a [section]"))?;
            sections.push(Section {
                name,
                settings: Vec::new(),
            });
            continue;
        }
        if line.starts_with("include ") {
            return Err(format!(":{number}: `include` is not taken; put the options here"));
        }
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let Some(section) = sections.last_mut() else {
            return Err(format!(":{number}: `{line}` stands before the first [section]"));
        };
        section.settings.push(Setting {
            line: number,
            name: name.trim(),
            value: value.trim(),
        });
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = "; comment\n[global]\nioengine=libaio\nbs = 8K\ndirect=1\n\n[first]\nrw=randread\niodepth=16\n[second]\nreadwrite=read\nbs=1m\n";

    fn error(text: &str, section: Option<&str>) -> String {
        parse(text, section).unwrap_err()
    }

    #[test]
    fn globals_hold_for_the_jobs_that_follow() {
        let first = parse(TWO, Some("first")).unwrap();
        assert_eq!(
            (first.jobs.job.name.as_str(), first.jobs.job.bs, first.jobs.job.iodepth),
            ("first", 8192, 16)
        );
        assert_eq!(first.without_effect, ["ioengine=libaio", "direct=1"]);
        let second = parse(TWO, Some("second")).unwrap();
        assert_eq!(
            (
                second.jobs.job.name.as_str(),
                second.jobs.job.bs,
                second.jobs.job.iodepth
            ),
            ("second", 1 << 20, 1)
        );
        let later = parse("[job]\niodepth=2\n[global]\niodepth=9\n", None).unwrap();
        assert_eq!(later.jobs.job.iodepth, 2);
    }

    #[test]
    fn comments_may_follow_an_option() {
        let job = parse("[job] ; one\niodepth=4 ; four\nbs=8k# eight\n  # rw=write\n", None).unwrap();
        let job = &job.jobs.job;
        assert_eq!((job.name.as_str(), job.iodepth, job.bs), ("job", 4, 8192));
        assert_eq!(job.rw, workload::job::Load::Read);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        assert_eq!(
            error(TWO, None),
            ": it has the jobs first, second; one runs at a time, choose it by --section"
        );
        assert_eq!(error(TWO, Some("third")), ": it has no job third; it has first, second");
        assert_eq!(error("", None), ": it has no job; a job begins with its [name]");
        assert_eq!(
            error("rw=read\n", None),
            ":1: `rw=read` stands before the first [section]"
        );
        assert_eq!(
            error("[job]\n\niodetph=4\n", None),
            ":3: unknown option `iodetph`; did you mean `iodepth`?"
        );
        assert_eq!(
            error("[job]\nbs=4q\n", None),
            ":2: bs: `q` in `4q` is no unit; known are k, m, g, t, p"
        );
        assert_eq!(error("[job\n", None), ":1: `[job` is not a [section]");
        assert!(error("[job]\nzonemode=zbd\n", None).starts_with(":2: unknown option `zonemode`"));
        assert_eq!(
            error("[job]\nfilename=/dev/nvme1n1\nrw=write\n", None),
            ":2: filename: `/dev/nvme1n1` cannot choose among drives, and a job uses each --drive; \
             take the option out, and give only the drives that it names"
        );
        assert!(error("[job]\ninclude other.fio\n", None).contains("include"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\[?[a-z]{0,9}\\]?=?[ -~]{0,9}\n){0,9}") {
            let _ = parse(&text, None);
        }
    }
}
