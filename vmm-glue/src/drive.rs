//! What stands behind an NVMe controller (`--drive`).

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;
use workload::units::{UnitError, parse_size};

use crate::in_use;

/// Size of a `null` drive that names none.
pub const NULL_SIZE: u64 = 8 << 30;
/// Size of the largest drive: QEMU rounds the largest signed number down to a GiB.
pub const MAX_SIZE: u64 = (1 << 63) - (1 << 30);
/// Size of a `scratch` drive that names none.
pub const SCRATCH_SIZE: u64 = 64 << 20;

/// What to put behind a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveSpec {
    /// A file or block device that exists.
    File(PathBuf),
    /// Nothing: reads give zeros at once, writes vanish.
    Null(u64),
    /// A temporary file of zeros that has no name and ends with the run.
    Scratch(u64),
}

/// A drive that cannot be used.
#[derive(Debug, Error)]
pub enum DriveError {
    /// The size behind `null:` or `scratch:` is malformed.
    #[error("drive {drive}: {error}")]
    Unit {
        /// The drive as given.
        drive: String,
        /// What is wrong.
        error: UnitError,
    },
    /// There is no such file, or it may not be opened.
    #[error("drive {path}: {error}{}", way_out(error))]
    Open {
        /// The file.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// Neither a regular file nor a block device.
    #[error("drive {path} is a {kind}; give a regular file or a block device, or `null` or `scratch`")]
    Kind {
        /// The file.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// Nothing in it.
    #[error("drive {drive} holds 0 bytes; {}", more_than_nothing(.drive))]
    Empty {
        /// The drive as given.
        drive: String,
    },
    /// Not a whole number of blocks.
    #[error("drive {drive} holds {bytes} bytes, which is no multiple of 512; {}", whole_blocks(.drive, *.bytes))]
    Ragged {
        /// The drive as given.
        drive: String,
        /// Its size.
        bytes: u64,
    },
    /// More than QEMU can address.
    #[error("drive {drive} holds {bytes} bytes, more than QEMU can address; {MAX_SIZE} is the most")]
    Large {
        /// The drive as given.
        drive: String,
        /// Its size.
        bytes: u64,
    },
    /// The host itself uses the device, and the job would write to it.
    #[error(
        "drive {path} is in use by this host ({user}) and the job may write to it; take another drive, or release this one"
    )]
    InUse {
        /// The device.
        path: String,
        /// By what.
        user: String,
    },
    /// The temporary file could not be made.
    #[error("scratch file of {bytes} bytes in {}: {error}; set TMPDIR to a directory with room", std::env::temp_dir().display())]
    Scratch {
        /// Its size.
        bytes: u64,
        /// What the kernel said.
        error: io::Error,
    },
}

fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; create it (truncate -s 64M FILE), or use `scratch` or `null`",
        io::ErrorKind::PermissionDenied => "; check its owner and mode, or run as a user that may open it",
        _ => "",
    }
}

/// The word of a drive whose size is an option: `null` or `scratch`.
fn made_up(drive: &str) -> Option<&str> {
    let word = drive.split_once(':')?.0;
    matches!(word, "null" | "scratch").then_some(word)
}

fn more_than_nothing(drive: &str) -> String {
    match made_up(drive) {
        Some(word) => format!("give it a size (`{word}:64m`), or leave the size out (`{word}`)"),
        None => "give it a size first (truncate -s 64M FILE), or use `scratch`".to_string(),
    }
}

fn whole_blocks(drive: &str, bytes: u64) -> String {
    // The largest drive is a whole number of blocks, and larger ones are refused before.
    let size = bytes.next_multiple_of(512);
    match made_up(drive) {
        Some(word) => format!("give `{word}:{size}`"),
        None => format!("resize it to {size}"),
    }
}

impl FromStr for DriveSpec {
    type Err = DriveError;

    fn from_str(text: &str) -> Result<Self, DriveError> {
        let (word, size) = text
            .split_once(':')
            .map_or((text, None), |(word, size)| (word, Some(size)));
        let size = |default: u64| -> Result<u64, DriveError> {
            let drive = text.to_string();
            let bytes = match size {
                Some(size) => parse_size(size).map_err(|error| DriveError::Unit {
                    drive: drive.clone(),
                    error,
                })?,
                None => default,
            };
            check_size(&drive, bytes)
        };
        Ok(match word {
            "null" => Self::Null(size(NULL_SIZE)?),
            "scratch" => Self::Scratch(size(SCRATCH_SIZE)?),
            _ => Self::File(PathBuf::from(text)),
        })
    }
}

impl fmt::Display for DriveSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Null(size) => write!(f, "null:{size}"),
            Self::Scratch(size) => write!(f, "scratch:{size}"),
        }
    }
}

fn check_size(drive: &str, bytes: u64) -> Result<u64, DriveError> {
    match bytes {
        0 => Err(DriveError::Empty {
            drive: drive.to_string(),
        }),
        _ if bytes > MAX_SIZE => Err(DriveError::Large {
            drive: drive.to_string(),
            bytes,
        }),
        _ if !bytes.is_multiple_of(512) => Err(DriveError::Ragged {
            drive: drive.to_string(),
            bytes,
        }),
        _ => Ok(bytes),
    }
}

/// A drive that is ready: opened, checked, and closed again when this is dropped.
#[derive(Debug)]
pub struct Drive {
    /// As it was asked for.
    pub spec: DriveSpec,
    /// Bytes in it.
    pub bytes: u64,
    /// The device refuses writes. Drives that hold nothing of anybody's take them.
    pub read_only: bool,
    /// What the launcher reads and writes.
    pub backing: Backing,
}

/// Where a drive's bytes are.
#[derive(Debug)]
pub enum Backing {
    /// Nowhere.
    Null,
    /// In a regular file.
    File(File),
    /// In a block device.
    BlockDevice(File),
}

impl Drive {
    /// Opens a drive. A file is opened for reading only unless `allow_write`; a block device that the host itself uses is
    /// refused then.
    ///
    /// # Errors
    /// When the drive cannot be used; each names the drive and the way out.
    pub fn open(spec: DriveSpec, allow_write: bool) -> Result<Self, DriveError> {
        match &spec {
            DriveSpec::Null(bytes) => Ok(Self {
                bytes: *bytes,
                read_only: false,
                backing: Backing::Null,
                spec,
            }),
            DriveSpec::Scratch(bytes) => {
                let bytes = *bytes;
                let made = tempfile::tempfile().and_then(|file| file.set_len(bytes).map(|()| file));
                let file = made.map_err(|error| DriveError::Scratch { bytes, error })?;
                Ok(Self {
                    bytes,
                    read_only: false,
                    backing: Backing::File(file),
                    spec,
                })
            }
            DriveSpec::File(path) => {
                let (backing, bytes) = open_file(path, allow_write)?;
                Ok(Self {
                    bytes: check_size(&path.display().to_string(), bytes)?,
                    read_only: !allow_write,
                    backing,
                    spec,
                })
            }
        }
    }
}

fn open_file(path: &Path, allow_write: bool) -> Result<(Backing, u64), DriveError> {
    let name = || path.display().to_string();
    let open_error = |error| DriveError::Open { path: name(), error };
    let metadata = fs::metadata(path).map_err(open_error)?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let kind = if kind.is_dir() {
            "directory"
        } else if kind.is_char_device() {
            "character device (for NVMe, take the namespace's block device, such as /dev/nvme0n1)"
        } else {
            "pipe or socket"
        };
        return Err(DriveError::Kind { path: name(), kind });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(allow_write);
    let block_device = kind.is_block_device();
    let number = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    if block_device && allow_write {
        if let Some(user) = in_use::user(number.0, number.1) {
            return Err(DriveError::InUse { path: name(), user });
        }
        // The kernel refuses this while anything holds the device, and refuses others as long as we hold it.
        options.custom_flags(rustix::fs::OFlags::EXCL.bits() as i32);
    }
    let mut file = options.open(path).map_err(|error| {
        if block_device && error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
            DriveError::InUse {
                path: name(),
                user: "the kernel says: busy".to_string(),
            }
        } else {
            open_error(error)
        }
    })?;
    if block_device {
        let bytes = file.seek(SeekFrom::End(0)).map_err(open_error)?;
        Ok((Backing::BlockDevice(file), bytes))
    } else {
        Ok((Backing::File(file), metadata.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn parse(text: &str) -> Result<DriveSpec, String> {
        text.parse().map_err(|error: DriveError| error.to_string())
    }

    #[test]
    fn drives_are_read() {
        assert_eq!(parse("null"), Ok(DriveSpec::Null(8 << 30)));
        assert_eq!(parse("null:1t"), Ok(DriveSpec::Null(1 << 40)));
        assert_eq!(parse("scratch:16m"), Ok(DriveSpec::Scratch(16 << 20)));
        assert_eq!(parse("./null"), Ok(DriveSpec::File("./null".into())));
        assert_eq!(parse("disk:1.img"), Ok(DriveSpec::File("disk:1.img".into())));
        assert_eq!(
            parse("null:4q").unwrap_err(),
            "drive null:4q: `q` in `4q` is no unit; known are k, m, g, t, p"
        );
        assert!(
            parse("scratch:0")
                .unwrap_err()
                .starts_with("drive scratch:0 holds 0 bytes; ")
        );
        assert!(
            parse("null:1000")
                .unwrap_err()
                .ends_with("no multiple of 512; give `null:1024`")
        );
        assert!(parse("null:9000p").unwrap_err().ends_with(" is the most"));
    }

    #[test]
    fn advice_for_a_size_is_taken() {
        for text in ["null:0", "scratch:0", "null:1", "scratch:1000"] {
            let error = parse(text).unwrap_err();
            let advised: Vec<&str> = error.split('`').skip(1).step_by(2).collect();
            assert!(!advised.is_empty(), "{error}");
            for advice in advised {
                assert!(parse(advice).is_ok(), "`{advice}` of {error}");
            }
        }
        // Up to the largest drive, beyond which there is no rounding up.
        let largest = format!("null:{MAX_SIZE}");
        assert!(parse(&largest).is_ok());
        assert!(parse(&format!("null:{}", MAX_SIZE - 1)).unwrap_err().contains(&largest));
        for bytes in [MAX_SIZE + 1, MAX_SIZE + 512, i64::MAX as u64, u64::MAX] {
            let error = parse(&format!("null:{bytes}")).unwrap_err();
            assert!(error.ends_with(&format!("; {MAX_SIZE} is the most")), "{error}");
        }
    }

    #[test]
    fn unusable_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| {
            Drive::open(DriveSpec::File(path.to_path_buf()), false)
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        let missing = folder.path().join("missing");
        assert!(error(&missing).contains("missing: No such file or directory (os error 2); create it"));
        assert!(error(folder.path()).contains("is a directory; give a regular file"));
        assert!(error(Path::new("/dev/null")).contains("is a character device"));
        let file = folder.path().join("file");
        File::create(&file).unwrap();
        assert!(error(&file).contains("file holds 0 bytes"));
        File::create(&file).unwrap().write_all(&[0; 513]).unwrap();
        assert!(error(&file).contains("holds 513 bytes, which is no multiple of 512; resize it to 1024"));
    }

    #[test]
    fn a_file_is_written_only_when_that_is_allowed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        for allowed in [false, true] {
            let drive = Drive::open(DriveSpec::File(file.path().to_path_buf()), allowed).unwrap();
            assert_eq!((drive.bytes, drive.read_only), (4096, !allowed));
            let Backing::File(mut opened) = drive.backing else {
                panic!("a regular file")
            };
            assert_eq!(opened.write_all(&[1; 512]).is_ok(), allowed);
        }
    }

    #[test]
    fn scratch_has_no_name() {
        let drive = Drive::open(DriveSpec::Scratch(1 << 20), true).unwrap();
        let Backing::File(file) = drive.backing else {
            panic!("a file")
        };
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.nlink()), (1 << 20, 0));
    }
}
