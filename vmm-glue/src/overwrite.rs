//! Whether two paths name the same bytes, so that writing one would destroy the other.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a path names in the end, whatever links lead there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A regular file: its file system and its number there.
    File(u64, u64),
    /// A block device, by its number: several nodes may have it.
    BlockDevice(u64),
    /// A file that does not exist yet: its folder's file system and number, and its name.
    New(u64, u64, OsString),
}

/// Links that are followed to a file that does not exist, as the kernel would.
const LINKS: usize = 40;

impl Identity {
    /// Looks a path up. None for what holds no bytes of its own (a terminal, a pipe, `/dev/null`), and for what cannot be
    /// looked up: whoever opens it will say why.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        if let Ok(metadata) = fs::metadata(path) {
            let kind = metadata.file_type();
            return if kind.is_file() {
                Some(Self::File(metadata.dev(), metadata.ino()))
            } else if kind.is_block_device() {
                Some(Self::BlockDevice(metadata.rdev()))
            } else {
                None
            };
        }
        let folder = |path: &Path| match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        // Creating a file by a link that leads nowhere creates what the link names.
        let mut path = path.to_path_buf();
        for _ in 0..LINKS {
            match fs::read_link(&path) {
                Ok(target) => path = folder(&path).join(target),
                Err(_) => break,
            }
        }
        let metadata = fs::metadata(folder(&path)).ok()?;
        Some(Self::New(
            metadata.dev(),
            metadata.ino(),
            path.file_name()?.to_os_string(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_to_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let of = |name: &str| Identity::of(&at(name));
        fs::write(at("file"), "").unwrap();
        fs::write(at("other"), "").unwrap();
        fs::create_dir(at("sub")).unwrap();
        symlink("../file", at("sub/soft")).unwrap();
        fs::hard_link(at("file"), at("hard")).unwrap();
        assert!(matches!(of("file"), Some(Identity::File(..))));
        for name in ["sub/soft", "hard", "sub/../file"] {
            assert_eq!(of(name), of("file"), "{name}");
        }
        assert_ne!(of("other"), of("file"));
    }

    #[test]
    fn files_to_be_made_are_compared_by_place() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let of = |name: &str| Identity::of(&at(name));
        fs::create_dir(at("sub")).unwrap();
        symlink("../new", at("sub/first")).unwrap();
        symlink(at("sub/first"), at("second")).unwrap();
        symlink("loop", at("loop")).unwrap();
        assert!(matches!(of("new"), Some(Identity::New(..))));
        for name in ["sub/../new", "sub/first", "second"] {
            assert_eq!(of(name), of("new"), "{name}");
        }
        assert_ne!(of("sub/new"), of("new"));
        assert_eq!(of("missing/new"), None);
        // A link to itself ends.
        assert!(of("loop").is_some());
        assert_eq!(Identity::of(Path::new("new")), Identity::of(Path::new("./new")));
    }

    #[test]
    fn what_holds_no_bytes_is_nothing() {
        assert_eq!(Identity::of(Path::new("/dev/null")), None);
        assert_eq!(Identity::of(Path::new("/")), None);
    }
}
