//! fio's job files: sections of options, `[global]` ones for all that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use workload::job::{JobError, JobSet};
use workload::options::{OPTIONS, RUN_OPTIONS, Settings, canonical};

/// Options of fio that change nothing here, whatever their value: the guest is the engine, and does no buffering.
pub const WITHOUT_EFFECT: &[&str] = &[
    "buffered",
    "create_on_open",
    "create_serialize",
    "description",
    "direct",
    "directory",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "exec_postrun",
    "exec_prerun",
    "fallocate",
    "file_service_type",
    "gtod_reduce",
    "invalidate",
    "ioengine",
    "nice",
    "prio",
    "random_generator",
    "refill_buffers",
    "runstamp",
    "thread",
    "unlink",
];

/// Jobs out of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct JobFile {
    /// The jobs.
    pub jobs: JobSet,
    /// `option=value` of those that were taken without effect, each once.
    pub without_effect: Vec<String>,
}

#[derive(Clone, Copy)]
struct Setting<'a> {
    line: usize,
    name: &'a str,
    value: &'a str,
}

struct Section<'a> {
    name: &'a str,
    settings: Vec<Setting<'a>>,
}

/// Reads the jobs of a file: that of `section`, or all. Options named in `anew` are given otherwise, and passed over.
///
/// # Errors
/// In one line, with the file, the line and the option.
pub fn read(path: &Path, section: Option<&str>, anew: &BTreeSet<&str>) -> Result<JobFile, String> {
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
    parse(&text, section, anew).map_err(|error| format!("{file}{error}"))
}

/// An option as it is listed.
pub fn word(name: &str, value: &str) -> String {
    match value {
        "" => name.to_string(),
        value => format!("{name}={value}"),
    }
}

/// As [`read`], of a file's text. Errors begin with what follows the file's name.
fn parse(text: &str, wanted: Option<&str>, anew: &BTreeSet<&str>) -> Result<JobFile, String> {
    let sections = sections(text)?;
    let mut reader = Reader {
        run: BTreeMap::new(),
        settings: Settings::default(),
        without_effect: Vec::new(),
        anew,
    };
    let mut global: Vec<Setting<'_>> = Vec::new();
    let mut jobs = Vec::new();
    for section in &sections {
        if section.name == "global" {
            global.extend(&section.settings);
            continue;
        }
        if wanted.is_some_and(|name| name != section.name) {
            continue;
        }
        reader.settings.job = Default::default();
        reader.apply_all(&global)?;
        // The name of a section is that of its job, unless an option of its own says otherwise.
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        };
        let name: String = section.name.chars().take(64).map(plain).collect();
        reader
            .settings
            .set("name", &name)
            .map_err(|error| format!(": {error}"))?;
        reader.apply_all(&section.settings)?;
        jobs.push(std::mem::take(&mut reader.settings.job));
    }
    if jobs.is_empty() {
        let names = sections
            .iter()
            .map(|section| section.name)
            .filter(|name| *name != "global");
        let names: Vec<&str> = names.collect();
        return Err(match wanted {
            Some(name) if !names.is_empty() => format!(": it has no job {name}; it has {}", names.join(", ")),
            _ => ": it has no job; a job begins with its [name]".to_string(),
        });
    }
    Ok(JobFile {
        jobs: JobSet {
            run: reader.settings.run,
            jobs,
        },
        without_effect: reader.without_effect,
    })
}

struct Reader<'a> {
    /// Options of the run that were given: value and line.
    run: BTreeMap<&'a str, (&'a str, usize)>,
    /// The job that is read, and the run.
    settings: Settings,
    without_effect: Vec<String>,
    anew: &'a BTreeSet<&'a str>,
}

impl<'a> Reader<'a> {
    fn apply_all(&mut self, settings: &[Setting<'a>]) -> Result<(), String> {
        settings.iter().try_for_each(|setting| {
            self.apply(*setting)
                .map_err(|error| format!(":{}: {error}", setting.line))
        })
    }

    fn apply(&mut self, Setting { line, name, value }: Setting<'a>) -> Result<(), String> {
        if WITHOUT_EFFECT.contains(&name) {
            let word = word(name, value);
            if !self.without_effect.contains(&word) {
                self.without_effect.push(word);
            }
            return Ok(());
        }
        if self.anew.contains(canonical(name)) {
            return Ok(());
        }
        if RUN_OPTIONS.contains(&name) {
            let earlier = *self.run.entry(name).or_insert((value, line));
            if earlier.0 != value {
                return Err(format!(
                    "{name} holds for the whole run, and line {} says {name}={}; leave one out",
                    earlier.1, earlier.0
                ));
            }
        }
        self.settings.set(name, value).map_err(|error| match error {
            JobError::Unknown { name, nearest: None } if name.len() > 2 => {
                let known: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
                format!("unknown option `{name}` (doorpost knows {})", known.join(", "))
            }
            error => error.to_string(),
        })
    }
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
    use workload::job::JobSpec;

    const TWO: &str = "; comment\n[global]\nioengine=libaio\nbs = 8K\ndirect=1\n\n[first]\nrw=randread\niodepth=16\n[second]\nreadwrite=read\nbs=1m\nstonewall\n";

    fn jobs(text: &str, section: Option<&str>) -> Result<JobFile, String> {
        parse(text, section, &BTreeSet::new())
    }

    fn error(text: &str, section: Option<&str>) -> String {
        jobs(text, section).unwrap_err()
    }

    fn gist(job: &JobSpec) -> (&str, u64, u64, bool) {
        (&job.name, job.bs, job.iodepth, job.stonewall)
    }

    #[test]
    fn globals_hold_for_the_jobs_that_follow() {
        let both = jobs(TWO, None).unwrap();
        let gists: Vec<_> = both.jobs.jobs.iter().map(gist).collect();
        assert_eq!(gists, [("first", 8192, 16, false), ("second", 1 << 20, 1, true)]);
        assert_eq!(both.without_effect, ["ioengine=libaio", "direct=1"]);
        let second = jobs(TWO, Some("second")).unwrap();
        assert_eq!(gist(&second.jobs.jobs[0]), ("second", 1 << 20, 1, true));
        let later = jobs("[job]\niodepth=2\n[global]\niodepth=9\n", None).unwrap();
        assert_eq!(gist(&later.jobs.jobs[0]), ("job", 4096, 2, false));
        let named = jobs("[global]\nname=x\n[my job]\n[other]\nname=y\n", None).unwrap();
        let names: Vec<_> = named.jobs.jobs.iter().map(|job| &job.name[..]).collect();
        assert_eq!(names, ["my_job", "y"]);
    }

    #[test]
    fn comments_may_follow_an_option() {
        let file = jobs("[job] ; one\niodepth=4 ; four\nbs=8k# eight\n  # rw=write\n", None).unwrap();
        let job = &file.jobs.jobs[0];
        assert_eq!(gist(job), ("job", 8192, 4, false));
        assert_eq!(job.rw, workload::job::Load::Read);
    }

    #[test]
    fn what_is_given_anew_is_passed_over() {
        let anew = ["filename", "bs"].into();
        let file = parse("[job]\nfilename=/dev/sdb\nblocksize=oops\niodepth=2\n", None, &anew).unwrap();
        assert_eq!(gist(&file.jobs.jobs[0]), ("job", 4096, 2, false));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
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
            error("[job]\nfilename=/dev/sdb\nrw=write\n", None),
            ":2: filename: `/dev/sdb` is not a namespace as the guest names it; write nvme0n1 for the first drive, with `:` between several"
        );
        assert_eq!(
            error("[a]\nwait=poll\n[b]\nwait=halt\n", None),
            ":4: wait holds for the whole run, and line 2 says wait=poll; leave one out"
        );
        assert!(error("[job]\ninclude other.fio\n", None).contains("include"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\[?[a-z]{0,9}\\]?=?[ -~]{0,9}\n){0,9}") {
            let _ = jobs(&text, None);
        }
    }
}
