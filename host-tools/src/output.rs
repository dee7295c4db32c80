//! Where reports go: whole, or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cli::{Format, OutputArguments};
use crate::failure::Usage;
use crate::report::{Run, json, text};

/// The formats wanted, each with the file that it goes to; None is standard output.
#[derive(Debug, PartialEq, Eq)]
pub struct Destination {
    text: Option<Option<PathBuf>>,
    json: Option<Option<PathBuf>>,
}

impl Destination {
    /// Works out what goes where, and checks that files can be written there, so that no run is in vain.
    ///
    /// # Errors
    /// When text and JSON would mix, or the file cannot be written.
    pub fn open(arguments: &OutputArguments) -> anyhow::Result<Self> {
        let wants = |format| arguments.formats.contains(&format);
        let file = arguments.output.clone();
        let destination = match (wants(Format::Normal), wants(Format::Json)) {
            (true, true) if file.is_none() => {
                let message =
                    "--output-format normal,json needs --output FILE for the JSON; the text goes to standard output";
                return Err(Usage(message.to_string()).into());
            }
            (true, true) => Self {
                text: Some(None),
                json: Some(file),
            },
            (false, true) => Self {
                text: None,
                json: Some(file),
            },
            (_, false) => Self {
                text: Some(file),
                json: None,
            },
        };
        if let Some(path) = &arguments.output {
            check(path).map_err(|error| Usage(format!("--output {} cannot be written: {error}", path.display())))?;
        }
        Ok(destination)
    }

    /// Writes a run's report.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, run: &Run) -> anyhow::Result<()> {
        if let Some(file) = &self.json {
            put(file.as_deref(), &json::render(run)?)?;
        }
        if let Some(file) = &self.text {
            put(file.as_deref(), &text::render(run))?;
        }
        Ok(())
    }
}

fn put(file: Option<&Path>, content: &str) -> anyhow::Result<()> {
    match file {
        Some(path) => write_whole(path, content.as_bytes()),
        None => {
            let mut out = io::stdout().lock();
            out.write_all(content.as_bytes())
                .and_then(|()| out.flush())
                .context("standard output")
        }
    }
}

/// The file that a path names in the end, and whether it may be replaced: a pipe or a terminal is written to instead.
fn target(path: &Path) -> io::Result<(PathBuf, bool)> {
    match fs::canonicalize(path) {
        Ok(real) => {
            let metadata = fs::metadata(&real)?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok((real, metadata.is_file()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((path.to_path_buf(), true)),
        Err(error) => Err(error),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn temporary(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    // The user's umask decides, as for any file.
    let permissions = Permissions::from_mode(0o666);
    tempfile::Builder::new()
        .prefix(".doorpost-")
        .permissions(permissions)
        .tempfile_in(folder(path))
}

fn check(path: &Path) -> io::Result<()> {
    let (real, replaceable) = target(path)?;
    if replaceable {
        // A missing folder is named more plainly so.
        fs::metadata(folder(&real))?;
        temporary(&real)?;
    } else {
        File::options().write(true).open(&real)?;
    }
    Ok(())
}

/// Writes a file: a reader finds the old content or the new, never half of one.
///
/// # Errors
/// When it cannot be written; the old content is still there then.
pub fn write_whole(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let (real, replaceable) = target(path)?;
        if !replaceable {
            return File::options().write(true).open(&real)?.write_all(content);
        }
        let mut file = temporary(&real)?;
        file.write_all(content)?;
        file.persist(&real)?;
        Ok(())
    };
    write().with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(formats: &[Format], output: Option<&Path>) -> Result<Destination, String> {
        let arguments = OutputArguments {
            output: output.map(Path::to_path_buf),
            formats: formats.to_vec(),
        };
        Destination::open(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn text_and_json_never_mix() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        let both = [Format::Normal, Format::Json];
        assert!(open(&both, None).unwrap_err().contains("needs --output FILE"));
        let destination = open(&both, Some(&file)).unwrap();
        assert_eq!(
            (destination.text, destination.json),
            (Some(None), Some(Some(file.clone())))
        );
        let destination = open(&[Format::Json], None).unwrap();
        assert_eq!((destination.text, destination.json), (None, Some(None)));
        let destination = open(&[Format::Normal], Some(&file)).unwrap();
        assert_eq!((destination.text, destination.json), (Some(Some(file)), None));
        // The check has left nothing.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing/report.json");
        assert!(
            open(&[Format::Json], Some(&missing))
                .unwrap_err()
                .contains("cannot be written: No such file")
        );
        assert!(
            open(&[Format::Json], Some(folder.path()))
                .unwrap_err()
                .contains("cannot be written: is a directory")
        );
    }

    #[test]
    fn files_are_replaced_whole_and_links_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old and longer").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_whole(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        // A device is written to, not replaced.
        write_whole(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
