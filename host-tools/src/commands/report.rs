//! `doorpost report`: the report out of a kept serial line, or out of a report's JSON.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use vmm_glue::run::Launcher;
use vmm_glue::serial::{Lines, Transcript};
use workload::frame::{Frame, FrameError};
use workload::report::{Failure, Report, SCHEMA};

use crate::cli::ReportArguments;
use crate::output::Destination;
use crate::report::Run;

/// Reads an earlier run and writes its report.
pub fn report(arguments: &ReportArguments) -> anyhow::Result<()> {
    let name = arguments.file.display().to_string();
    let mut bytes = Vec::new();
    let read = if arguments.file == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        fs::read(&arguments.file).map(|all| bytes = all)
    };
    read.context(name.clone())?;
    let run = parse(&bytes).context(name)?;
    Destination::open(&arguments.output)?.write(&run)
}

/// A report as `doorpost run --output-format json` writes it; the rest of that file is fio's.
#[derive(Deserialize)]
struct Saved {
    doorpost: Run,
}

fn parse(bytes: &[u8]) -> anyhow::Result<Run> {
    let run = if bytes.trim_ascii_start().starts_with(b"{") {
        let saved: Saved = serde_json::from_slice(bytes)
            .map_err(|error| anyhow!("no report of doorpost, or of another version: {error}"))?;
        saved.doorpost
    } else {
        Run {
            report: from_serial(bytes)?,
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

/// What the last run on a serial line came to.
fn from_serial(bytes: &[u8]) -> anyhow::Result<Report> {
    let mut transcript = Transcript::new();
    let mut run: Result<Option<Report>, Trouble> = Ok(None);
    let mut line = |text: String| match transcript.logged_line(&text) {
        Ok(Some(Frame::Hello(_))) => run = Ok(None),
        // After the first trouble only a new run counts.
        _ if run.is_err() => {}
        Ok(Some(Frame::Report(report))) => run = Ok(Some(*report)),
        Ok(Some(Frame::Failure(failure))) => run = Err(Trouble::Failure(failure)),
        Ok(Some(Frame::Progress(_)) | None) => {}
        Err(error) => run = Err(Trouble::Frame(error)),
    };
    let mut lines = Lines::new();
    lines.push(bytes, &mut line);
    lines.finish().into_iter().for_each(line);
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
        format!("{:#}", parse(text.as_bytes()).unwrap_err())
    }

    #[test]
    fn a_serial_line_and_a_json_give_the_same_report() {
        assert_eq!(parse(whole().as_bytes()).unwrap().report, sample::report());
        let run = sample::run();
        assert_eq!(parse(json::render(&run).unwrap().as_bytes()).unwrap(), run);
    }

    #[test]
    fn the_last_run_counts() {
        let failure = Frame::Failure(Failure {
            kind: FailureKind::Run,
            message: "nvme0: gone".to_string(),
        });
        let failed = log(&[hello(), failure]);
        assert!(parse(format!("{failed}{}", whole()).as_bytes()).is_ok());
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
        let run = parse(text.as_bytes()).unwrap();
        assert!(!text::render(&run).is_empty());
        assert!(!json::render(&run).unwrap().is_empty());
        assert!(run.complaint().is_some());
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
