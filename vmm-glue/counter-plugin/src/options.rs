//! The plugin's arguments: `-plugin libdoorpost_counter_plugin.so,out=FILE[,mmio=1]`.

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// File that receives one JSON line per mark, and one at the end.
    pub out: String,
    /// Count memory-mapped I/O too; every load and store then costs a call.
    pub mmio: bool,
}

/// Parses `name=value` arguments.
///
/// # Errors
/// One line that names the argument and what would do.
pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Options, String> {
    let mut out = None;
    let mut mmio = false;
    for argument in arguments {
        match argument.split_once('=') {
            Some(("out", path)) if !path.is_empty() => out = Some(path.to_owned()),
            // QEMU itself turns a bare `mmio` into `mmio=on`.
            Some(("mmio", "1" | "on")) => mmio = true,
            Some(("mmio", "0" | "off")) => mmio = false,
            _ => {
                return Err(format!(
                    "argument `{argument}` is not known: give out=FILE and, to count MMIO, mmio=1"
                ));
            }
        }
    }
    let out = out.ok_or("give out=FILE, the file that receives the counts")?;
    Ok(Options { out, mmio })
}
