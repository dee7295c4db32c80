//! Errors of the command line, each in one line that names the thing and the way out.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// One line for an error of the command-line parser.
pub fn one_line(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) if !texts.is_empty() => Some(texts.join(", ")),
        _ => None,
    };
    let argument =
        || text(ContextKind::InvalidArg).map_or_else(|| "an option".to_string(), |argument| plain(&argument));
    let hint = |kind| text(kind).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    match error.kind() {
        ErrorKind::UnknownArgument if !argument().starts_with('-') => {
            format!(
                "`{}` stands alone; options begin with -- (--help lists them all)",
                argument()
            )
        }
        ErrorKind::UnknownArgument => format!(
            "unknown option {}{} (--help lists them all)",
            argument(),
            hint(ContextKind::SuggestedArg)
        ),
        ErrorKind::InvalidSubcommand => format!(
            "unknown command {}{} (--help lists them all)",
            text(ContextKind::InvalidSubcommand).unwrap_or_default(),
            hint(ContextKind::SuggestedSubcommand)
        ),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "no command is given; try `doorpost run --drive null`, or --help".to_string()
        }
        ErrorKind::MissingRequiredArgument => format!("{} is missing (--help shows how it is given)", argument()),
        ErrorKind::ArgumentConflict => match text(ContextKind::PriorArg).map(|prior| plain(&prior)) {
            Some(prior) if prior != argument() => format!("{} does not go with {prior}; leave one out", argument()),
            _ => format!("{} is given twice; leave one out", argument()),
        },
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_none_or(|value| value.is_empty()) => {
            format!("{} needs a value", argument())
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string);
            let why = why.or_else(|| text(ContextKind::ValidValue).map(|known| format!("it is none of {known}")));
            let value = text(ContextKind::InvalidValue).unwrap_or_default();
            match why {
                Some(why) if why.contains(&value) => format!("{}: {why}", argument()),
                Some(why) => format!("{}: `{value}`: {why}", argument()),
                None => format!("{}: `{value}` does not fit", argument()),
            }
        }
        ErrorKind::TooManyValues => format!(
            "{} takes no value, but `{}` is given",
            argument(),
            text(ContextKind::InvalidValue).unwrap_or_default()
        ),
        _ => {
            let whole = error.to_string();
            let first = whole.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_string()
        }
    }
}

/// `--drive <DRIVE>` without its placeholder.
fn plain(argument: &str) -> String {
    argument.split([' ', '=']).next().unwrap_or(argument).to_string()
}
