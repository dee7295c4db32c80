//! Runs other programs.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The command as one would type it, with the variables that it sets.
pub fn line(command: &Command) -> String {
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quote(value?))));
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quote);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

/// A word as a shell reads it.
pub fn quote(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+:,./@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs to the end, with our terminal.
///
/// # Errors
/// It cannot be started, or ends with a status other than 0; the message holds the whole command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// Runs to the end and returns what it wrote to standard output; None if there is no such program.
///
/// # Errors
/// It cannot be started for another reason, or ends with a status other than 0.
pub fn output(command: &mut Command) -> Result<Option<String>> {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot start `{}`", line(command))),
    };
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", line(command), output.status, complaint.trim());
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Runs to the end, silently; true if it ended with status 0.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Is there a program of that name on the search path?
pub fn exists(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_can_be_typed_again() {
        let mut command = Command::new("cargo");
        command
            .args(["doc", "a b", "", "it's"])
            .env("RUSTDOCFLAGS", "-D warnings")
            .env_remove("GONE");
        assert_eq!(
            line(&command),
            r"RUSTDOCFLAGS='-D warnings' cargo doc 'a b' '' 'it'\''s'"
        );
    }

    #[test]
    fn status_and_absence_are_told_apart() {
        assert_eq!(output(&mut Command::new("doorpost-no-such-program")).unwrap(), None);
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("why"), "{error}");
        assert_eq!(
            output(Command::new("sh").args(["-c", "echo yes"])).unwrap().as_deref(),
            Some("yes\n")
        );
        assert!(run(&mut Command::new("false")).is_err());
        assert!(succeeds(&mut Command::new("true")) && !succeeds(&mut Command::new("false")));
        assert!(exists("sh") && !exists("doorpost-no-such-program"));
    }
}
