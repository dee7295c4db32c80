//! `doorpost report`: the report out of a kept serial line, or out of a report's JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use vmm_glue::run::Launcher;
use vmm_glue::serial::{LONGEST_LINE, Transcript};
use workload::frame::{Frame, FrameError};
use workload::report::{Failure, Report, SCHEMA};

use crate::cli::ReportArguments;
use crate::output::Destination;
use crate::report::Run;

/// Reads an earlier run and writes its report.
pub fn report(arguments: &ReportArguments) -> anyhow::Result<()> {
    let name = arguments.file.display().to_string();
    let run = if arguments.file == Path::new("-") {
        parse(io::stdin().lock(), &BOUNDS)
    } else {
        let file = File::open(&arguments.file).context(name.clone())?;
        parse(BufReader::new(file), &BOUNDS)
    };
    let run = run.context(name)?;
    Destination::open(&arguments.output)?.write(&run)
}

/// How much is read at most, in bytes; memory is bounded so.
struct Bounds {
    line: u64,
    json: u64,
}

const BOUNDS: Bounds = Bounds {
    line: LONGEST_LINE as u64,
    // 255 jobs with every bucket of every histogram filled stay below it.
    json: 256 << 20,
};

/// A report as `doorpost run --output-format json` writes it; the rest of that file is fio's.
#[derive(Deserialize)]
struct Saved {
    doorpost: Run,
}

fn parse(mut from: impl BufRead, bounds: &Bounds) -> anyhow::Result<Run> {
    let run = if is_json(&mut from)? {
        from_json(from, bounds.json)?
    } else {
        Run {
            report: from_serial(from, bounds.line)?,
            launcher: None::<Launcher>,
        }
    };
    let schema = run.report.schema;
    if schema != SCHEMA {
        return Err(anyhow!(
            "the report has version {schema}, this program reads version {SCHEMA}; use the program that wrote it"
        ));
    }
    Ok(run)
}

/// Whether the first byte that is no space begins an object.
fn is_json(from: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = from.fill_buf()?;
        let spaces = bytes.len() - bytes.trim_ascii_start().len();
        match bytes.get(spaces) {
            Some(first) => return Ok(*first == b'{'),
            None if bytes.is_empty() => return Ok(false),
            None => from.consume(spaces),
        }
    }
}

fn from_json(from: impl Read, longest: u64) -> anyhow::Result<Run> {
    let mut bounded = from.take(longest);
    match serde_json::from_reader::<_, Saved>(&mut bounded) {
        Ok(saved) => Ok(saved.doorpost),
        Err(_) if bounded.limit() == 0 => Err(anyhow!(
            "this JSON is longer than {} MiB, which no report of doorpost is",
            longest >> 20
        )),
        Err(error) if error.is_io() => Err(io::Error::from(error).into()),
        Err(error) => Err(anyhow!("no report of doorpost, or of another version: {error}")),
    }
}

/// What the last run on a serial line came to.
fn from_serial(mut from: impl BufRead, longest: u64) -> anyhow::Result<Report> {
    let mut transcript = Transcript::new();
    let mut run: Result<Option<Report>, Trouble> = Ok(None);
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        // One byte more than a line may have, to tell that it has more.
        let length = from.by_ref().take(longest + 1).read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        if length as u64 > longest {
            return Err(anyhow!(
                "line {number} is longer than {} MiB; is it the serial line of a run?",
                longest >> 20
            ));
        }
        match transcript.logged_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])) {
            Ok(Some(Frame::Hello(_))) => run = Ok(None),
            // After the first trouble only a new run counts.
            _ if run.is_err() => {}
            Ok(Some(Frame::Report(report))) => run = Ok(Some(*report)),
            Ok(Some(Frame::Failure(failure))) => run = Err(Trouble::Failure(failure)),
            Ok(Some(Frame::Progress(_)) | None) => {}
            Err(error) => run = Err(Trouble::Frame(error)),
        }
    }
    match run {
        Ok(Some(report)) => Ok(report),
        Ok(None) => Err(anyhow!(
            "there is no report in it; is it the whole serial line of a run?"
        )),
        Err(Trouble::Failure(failure)) => Err(anyhow!("the run failed: {}", failure.message)),
        Err(Trouble::Frame(error)) => Err(anyhow!("{error}")),
    }
}

enum Trouble {
    Failure(Failure),
    Frame(FrameError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{json, sample, text};
    use serde_json::Value;
    use workload::frame::FrameWriter;
    use workload::report::{FailureKind, Hello};

    fn hello() -> Frame {
        Frame::Hello(Hello {
            schema: SCHEMA,
            architecture: "x86_64".to_string(),
            version: "0.1.0".to_string(),
        })
    }

    fn log(frames: &[Frame]) -> String {
        let mut text = "SeaBIOS\r\n".to_string();
        let mut writer = FrameWriter::new();
        for frame in frames {
            writer.write(frame, &mut text).unwrap();
        }
        text
    }

    fn whole() -> String {
        log(&[hello(), Frame::Report(Box::new(sample::report()))])
    }

    fn error(text: &str) -> String {
        format!("{:#}", parse(text.as_bytes(), &BOUNDS).unwrap_err())
    }

    #[test]
    fn a_serial_line_and_a_json_give_the_same_report() {
        assert_eq!(parse(whole().as_bytes(), &BOUNDS).unwrap().report, sample::report());
        let run = sample::run();
        assert_eq!(parse(json::render(&run).unwrap().as_bytes(), &BOUNDS).unwrap(), run);
    }

    #[test]
    fn the_last_run_counts() {
        let failure = Frame::Failure(Failure {
            kind: FailureKind::Run,
            message: "nvme0: gone".to_string(),
        });
        let failed = log(&[hello(), failure]);
        assert!(parse(format!("{failed}{}", whole()).as_bytes(), &BOUNDS).is_ok());
        assert_eq!(error(&format!("{}{failed}", whole())), "the run failed: nvme0: gone");
    }

    /// Every number in a JSON value, in turn.
    fn numbers(value: &mut Value, at: &mut dyn FnMut(&mut Value)) {
        match value {
            Value::Number(_) => at(value),
            Value::Array(values) => values.iter_mut().for_each(|value| numbers(value, at)),
            Value::Object(values) => values.values_mut().for_each(|value| numbers(value, at)),
            _ => {}
        }
    }

    #[test]
    fn no_figure_is_too_large() {
        let takes = |value: &Value| serde_json::from_value::<Run>(value.clone()).is_ok();
        let mut run = serde_json::to_value(sample::run()).unwrap();
        let mut count = 0;
        numbers(&mut run.clone(), &mut |_| count += 1);
        let mut changed = 0;
        // Each number becomes the largest that its type takes; those before it stay so.
        for number in 0..count {
            for largest in [u64::MAX, u32::MAX.into(), u16::MAX.into(), u8::MAX.into()] {
                let mut other = run.clone();
                let mut index = 0;
                numbers(&mut other, &mut |value| {
                    if index == number {
                        *value = largest.into();
                    }
                    index += 1;
                });
                if takes(&other) {
                    run = other;
                    changed += 1;
                    break;
                }
            }
        }
        // Numbers of buckets stay below their bound, and in order.
        assert!(changed > count / 2, "{changed} of {count}");
        run["report"]["schema"] = SCHEMA.into();
        let text = format!("{{\"doorpost\":{run}}}");
        let run = parse(text.as_bytes(), &BOUNDS).unwrap();
        assert!(!text::render(&run).is_empty());
        assert!(!json::render(&run).unwrap().is_empty());
        assert!(run.complaint().is_some());
    }

    /// Bounds that are soon reached.
    const SMALL: Bounds = Bounds {
        line: 1 << 20,
        json: 2 << 20,
    };

    #[test]
    fn a_serial_line_may_be_longer_than_what_is_kept() {
        let text = format!("{}{}", "SeaBIOS speaks\n".repeat(200_000), whole());
        assert!(text.len() as u64 > 2 * SMALL.line);
        assert_eq!(parse(text.as_bytes(), &SMALL).unwrap().report, sample::report());
        // And a line as long as is allowed, with its end, is none too many.
        let text = format!("{}\n{}", "x".repeat((1 << 20) - 1), whole());
        assert!(parse(text.as_bytes(), &SMALL).is_ok());
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let error = |start: &str, byte: u8| {
            let from = start.as_bytes().chain(io::repeat(byte));
            format!("{:#}", parse(BufReader::new(from), &SMALL).unwrap_err())
        };
        assert_eq!(
            error("SeaBIOS\n", 0),
            "line 2 is longer than 1 MiB; is it the serial line of a run?"
        );
        assert_eq!(
            error("{", b' '),
            "this JSON is longer than 2 MiB, which no report of doorpost is"
        );
    }

    #[test]
    fn what_is_no_report_is_said() {
        assert!(error("SeaBIOS\n").starts_with("there is no report in it"));
        assert!(
            error("{\"jobs\": []}")
                .starts_with("no report of doorpost, or of another version: missing field `doorpost`")
        );
        let cut = &whole()[..whole().len() - 40];
        assert!(error(cut).contains("garbled"));
        let mut old = sample::report();
        old.schema = SCHEMA + 1;
        assert!(error(&log(&[hello(), Frame::Report(Box::new(old))])).contains("this program reads version"));
    }
}
