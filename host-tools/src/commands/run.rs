//! `doorpost run`: boot the guest, run a job, print the report.

use vmm_glue::plan::Plan;
use vmm_glue::run::{Event, Outcome};
use workload::job::JobSet;

use crate::cli::RunArguments;
use crate::failure::{DeviceErrors, Usage, is_closed_pipe};
use crate::guest_image;
use crate::job_file::JobFile;
use crate::output::Destination;
use crate::progress::Progress;
use crate::report::Run;

/// Runs a job and writes its report.
pub fn run(arguments: &RunArguments) -> anyhow::Result<()> {
    let JobFile { jobs, without_effect } = arguments.job.job().map_err(Usage)?;
    let plan = plan(arguments, jobs).map_err(Usage)?;
    // Before anything is opened for writing.
    let output = arguments.output.output.as_deref().map(|path| ("--output", path));
    plan.check_files(output.as_slice())
        .map_err(|error| Usage(error.to_string()))?;
    let destination = Destination::open(&arguments.output)?;
    let mut progress = Progress::new(plan.jobs.longest_us());
    let result = vmm_glue::run::run(&plan, &mut |event| match event {
        Event::Note(note) => progress.note(note),
        Event::Starting(accelerator) => progress.note(&format!("starting the {} guest ({accelerator})", plan.arch)),
        Event::Progress(totals) => progress.show(totals),
    });
    progress.end();
    let Outcome { mut report, launcher } = result?;
    if !without_effect.is_empty() {
        let options = without_effect.join(", ");
        report.notes.push(format!("taken without effect: {options}"));
    }
    let run = Run {
        report,
        launcher: Some(launcher),
    };
    let written = destination.write(&run);
    match (written, run.complaint()) {
        // A reader that has gone does not make errors undone; a report that cannot be written is worse than both.
        (Err(error), _) if !is_closed_pipe(&error) => Err(error),
        (_, Some(complaint)) if !arguments.ignore_errors => Err(DeviceErrors(complaint).into()),
        (written, _) => written,
    }
}

fn plan(arguments: &RunArguments, jobs: JobSet) -> Result<Plan<'static>, String> {
    let arch = arguments.arch;
    Ok(Plan {
        jobs,
        arch,
        image: guest_image::of(arch).ok_or_else(|| format!("this program carries no guest for {arch}"))?,
        vcpus: arguments.vcpus,
        memory: arguments.memory,
        accel: arguments.accel,
        drives: arguments.drives()?,
        qemu: arguments.qemu.clone(),
        qemu_args: arguments.qemu_arg.clone(),
        keep_serial: arguments.keep_serial.clone(),
        timeout: arguments.timeout,
    })
}
