//! A run, from the job to the report: controllers, plan, queues, jobs, and what came of it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Acquire;

use hal::clock::Clock;
use hal::dma::Dma;
use irq::fanout::{self, Demand, Device, Plan};
use nvme::spec::{ErrorEntry, SmartLog};
use nvme::{Command, Prps};
use workload::frame::Frame;
use workload::job::{JobSet, JobSpec, Size};
use workload::offsets::{Offsets, Random};
use workload::report::{self, Failure, FailureKind, Report};

use crate::arch::{self, DmaMemory, MachineClock};
use crate::discover::{self, Attached};
use crate::engine::job::{File, Io, Job, fill};
use crate::engine::{Engine, EngineQueue, Proof, RUN, run_failure};
use crate::machine::Machine;
use crate::{cpu, outbox, progress, skew, summary};

/// Entries of a controller's error log that go into the report, the newest.
const ERROR_LOG: usize = 8;
/// The smallest and the largest queue that is made, in entries: no more commands than that have identifiers.
const MIN_ENTRIES: u32 = 32;
const MAX_ENTRIES: u32 = 4096;

/// Does what the job set says, and sends the report.
///
/// # Errors
/// Why there is no report.
pub fn run(machine: &Machine, set: &JobSet) -> Result<(), Failure> {
    let job = &set.job;
    let dma = Dma::new(DmaMemory);
    let attached = discover::controllers(machine, &dma, job)?;
    if attached.is_empty() {
        return Err(usage(match machine.pci.is_empty() {
            true => "the machine has no PCI configuration space in memory (MCFG); use one that has (QEMU: -M q35)",
            false => "no NVMe controller found on PCI; give the guest a drive",
        }));
    }
    let targets = targets(&attached, job)?;
    let mut plan = plan(machine, &attached, &targets, job)?;
    route(&attached, &plan)?;
    let engines = engines(&attached, &targets, &mut plan, job, &dma)?;

    let boot_ns = MachineClock
        .rate()
        .nanoseconds(MachineClock.ticks().wrapping_sub(machine.entered_at));
    let engines = start(engines);
    if let Some(failure) = engines.iter().find_map(|engine| engine.failure.clone()) {
        // Commands may still be in flight: their memory stays with the device.
        core::mem::forget(engines);
        return Err(failure);
    }
    let report = Report {
        schema: report::SCHEMA,
        machine: report::Machine {
            architecture: arch::NAME.to_string(),
            hypervisor: machine.hypervisor.clone(),
            cpus: machine.cpus.len() as u32,
            memory_bytes: machine.memory_bytes,
            interrupt_controller: arch::INTERRUPT_CONTROLLER.to_string(),
            clock: skew::report(machine),
            boot_ns,
        },
        controllers: attached.iter().map(controller_report).collect(),
        queues: engines
            .iter()
            .enumerate()
            .flat_map(|(cpu, engine)| queue_reports(machine, cpu, engine))
            .collect(),
        cpus: engines
            .iter()
            .enumerate()
            .map(|(cpu, engine)| cpu_report(machine, cpu, engine))
            .collect(),
        jobs: job_reports(&engines, &targets),
        notes: plan.notes,
    };
    // The drive is told to come to rest before anybody is told that all went well: queues first, then the controller.
    for queue in engines.into_iter().flat_map(|engine| engine.release()) {
        let deleted = queue.0.lock().delete_queue_pair(queue.1);
        if let Err(error) = deleted {
            log::warn!("{error}");
        }
    }
    for attached in &attached {
        attached
            .shared
            .lock()
            .shutdown()
            .map_err(|error| run_failure(error.to_string()))?;
    }
    summary::print(&report);
    outbox::send(&Frame::Report(Box::new(report)));
    Ok(())
}

fn usage(message: impl Into<String>) -> Failure {
    Failure {
        kind: FailureKind::Usage,
        message: message.into(),
    }
}

/// A namespace that jobs use.
struct Target {
    name: String,
    /// Index of its controller.
    device: usize,
    id: u32,
    block_size: u32,
    /// The job's blocks in it.
    blocks: u64,
}

/// The namespaces that the job uses, and how much of each.
fn targets(attached: &[Attached], job: &JobSpec) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    let mut refusals = Vec::new();
    for (device, attached) in attached.iter().enumerate() {
        for namespace in &attached.namespaces {
            if let Err(error) = namespace.supported() {
                refusals.push(error.to_string());
                continue;
            }
            let name = format!("{}n{}", attached.name, namespace.id);
            let block_size = u64::from(namespace.block_size);
            if job.rw.writes()
                && let Err(error) = namespace.writable()
            {
                return Err(usage(format!("{name}: {error}; rw={} writes: use a read job", job.rw)));
            }
            if !job.bs.is_multiple_of(block_size) {
                return Err(usage(format!(
                    "bs={} is not a multiple of the block size of {name}, {block_size} bytes; use a multiple of that",
                    job.bs
                )));
            }
            let most = attached.info.max_transfer as u64;
            if job.bs > most {
                return Err(usage(format!(
                    "bs={} is more than one command of {} can transfer, {most} bytes; use a smaller bs",
                    job.bs, attached.name
                )));
            }
            if job.bs / block_size > 65_536 {
                return Err(usage(format!(
                    "bs={} is more than 65536 blocks of {name}; use a smaller bs",
                    job.bs
                )));
            }
            let whole = namespace.bytes();
            let area = match job.size {
                Size::Percent(percent) => (u128::from(whole) * u128::from(percent) / 100) as u64,
                Size::Bytes(bytes) if bytes > whole => {
                    return Err(usage(format!(
                        "size={bytes} is more than {name} holds, {whole} bytes; use a smaller size, or 100%"
                    )));
                }
                Size::Bytes(bytes) => bytes,
            };
            let blocks = area / job.bs;
            if blocks == 0 {
                return Err(usage(format!(
                    "no block of bs={} fits into the {area} bytes of {name} that size={} gives; use a smaller bs or a larger size",
                    job.bs, job.size
                )));
            }
            targets.push(Target {
                name,
                device,
                id: namespace.id,
                block_size: namespace.block_size,
                blocks,
            });
        }
    }
    if targets.is_empty() {
        return Err(run_failure(match refusals.is_empty() {
            true => "no controller has an active namespace".to_string(),
            false => format!("no namespace can be used: {}", refusals.join("; ")),
        }));
    }
    Ok(targets)
}

/// Spreads the job's copies, the queues and the vectors. Controllers without a namespace that a job uses take no part.
fn plan(machine: &Machine, attached: &[Attached], targets: &[Target], job: &JobSpec) -> Result<Plan, Failure> {
    let jobs = job.numjobs as usize;
    if jobs > machine.cpus.len() {
        return Err(usage(format!(
            "numjobs={jobs} needs as many CPUs, and there are {}; use fewer jobs or more CPUs",
            machine.cpus.len()
        )));
    }
    let used: Vec<usize> = (0..attached.len())
        .filter(|device| targets.iter().any(|target| target.device == *device))
        .collect();
    let interrupts = job.wait.uses_interrupts();
    let mut cpus = machine.cpus.len();
    if interrupts {
        // Messages reach only some ids; CPUs beyond them cannot own a queue.
        cpus = (0..cpus).take_while(|cpu| arch::message(*cpu, 0).is_some()).count();
        if let Some(without) = used.iter().map(|device| &attached[*device]).find(|a| a.entries() == 0) {
            return Err(usage(format!(
                "{} ({}) has no MSI-X, and wait={} needs it; use wait=poll",
                without.name, without.function, job.wait
            )));
        }
    }
    let devices: Vec<Device<'_>> = used
        .iter()
        .map(|device| &attached[*device])
        .map(|a| Device {
            name: &a.name,
            queues: usize::from(a.queues.1),
            entries: a.entries(),
        })
        .collect();
    let demand = Demand {
        jobs,
        cpus,
        slots: arch::SLOTS,
        interrupts,
    };
    let mut plan = fanout::plan(&devices, demand)
        .ok_or_else(|| run_failure("a controller granted no I/O queue pair".to_string()))?;
    for queue in &mut plan.queues {
        queue.device = used[queue.device];
    }
    Ok(plan)
}

/// Writes the messages into the controllers' tables, after the CPUs know which interrupts are theirs.
fn route(attached: &[Attached], plan: &Plan) -> Result<(), Failure> {
    for (device, attached) in attached.iter().enumerate() {
        let mut messages = Vec::new();
        for queue in plan.queues.iter().filter(|queue| queue.device == device) {
            let (Some(entry), Some(slot)) = (queue.entry, queue.slot) else {
                continue;
            };
            let message = arch::message(queue.cpu, slot).ok_or_else(|| {
                run_failure(format!(
                    "{}: CPU {} cannot be reached by a message",
                    attached.name, queue.cpu
                ))
            })?;
            cpu::all()[queue.cpu].route(slot);
            messages.push((entry, message));
        }
        attached.program(messages);
    }
    Ok(())
}

/// Makes queue pairs, buffers and jobs: one engine for each CPU of the plan.
fn engines(
    attached: &[Attached],
    targets: &[Target],
    plan: &mut Plan,
    spec: &JobSpec,
    dma: &Dma,
) -> Result<Vec<Engine>, Failure> {
    let mut engines = Vec::new();
    for cpu in 0..plan.cpus {
        // Sorted by slot, as the engine keeps them: places in the list stay valid.
        let mut mine: Vec<&fanout::Queue> = plan.queues.iter().filter(|queue| queue.cpu == cpu).collect();
        mine.sort_by_key(|queue| queue.slot);
        let place = |device: usize, job: usize| {
            mine.iter()
                .position(|queue| queue.device == device && queue.jobs.contains(&job))
                .ok_or_else(|| run_failure(format!("job {job} has no queue of {}", attached[device].name)))
        };
        let jobs: Vec<Job> = (0..spec.numjobs as usize)
            .filter(|job| plan.cpu_of(*job) == cpu)
            .map(|job| make_job(attached, targets, spec, job, dma, place))
            .collect::<Result<_, _>>()?;
        let mut queues = Vec::new();
        for queue in mine {
            let Attached { shared, info, .. } = &attached[queue.device];
            let depth = spec.iodepth.saturating_mul(queue.jobs.len() as u32);
            let entries = depth
                .saturating_add(1)
                .clamp(MIN_ENTRIES, MAX_ENTRIES)
                .next_power_of_two() as u16;
            let vector = queue.entry.map(|entry| entry as u16);
            let pair = shared
                .lock()
                .create_queue_pair(queue.index as u16 + 1, entries, vector)
                .map_err(|error| run_failure(error.to_string()))?;
            if u32::from(pair.capacity()) < depth {
                let (name, id, most) = (&shared.name, pair.id(), pair.capacity());
                plan.notes.push(format!(
                    "{name} queue {id} holds {most} of the {depth} commands asked for"
                ));
            }
            let target = targets.iter().find(|target| target.device == queue.device);
            let target = target.ok_or_else(|| run_failure(format!("no job uses {}", shared.name)))?;
            let proof = Proof::new(dma, target.id, u64::from(target.block_size), info.page_size)
                .map_err(|error| usage(error.to_string()))?;
            let route = queue.entry.zip(queue.slot);
            queues.push(EngineQueue::new(shared.clone(), pair, proof, route, queue.jobs.clone()));
        }
        engines.push(Engine::new(spec.wait, queues, jobs, cpu == 0, plan.cpus));
    }
    Ok(engines)
}

/// Makes one job: its memory, and for each namespace a command for each I/O buffer.
fn make_job(
    attached: &[Attached],
    targets: &[Target],
    spec: &JobSpec,
    job: usize,
    dma: &Dma,
    place: impl Fn(usize, usize) -> Result<usize, Failure>,
) -> Result<Job, Failure> {
    let no_memory = |what: &dyn core::fmt::Display| usage(format!("{what}; use a smaller iodepth, or more memory"));
    let no_lists = |_| no_memory(&"no memory is left for the lists of I/Os");
    let depth = spec.iodepth as usize;
    let bytes = spec.bs as usize;
    // No buffer crosses a page that it could lie in.
    let apart = if bytes < 4096 {
        bytes.next_power_of_two()
    } else {
        bytes.next_multiple_of(4096)
    };
    let length = depth
        .checked_mul(apart)
        .ok_or_else(|| no_memory(&"the I/O buffers have more bytes than can be counted"))?;
    let mut buffer = dma.allocate(length, 4096).map_err(|error| no_memory(&error))?;
    let mut ios = Vec::new();
    ios.try_reserve_exact(depth).map_err(no_lists)?;
    for number in 0..depth {
        if spec.rw.writes() {
            // Something that compresses no better than random data, and differs from buffer to buffer.
            let place = ((job * depth + number + 1) as u64) << 32;
            fill(&mut buffer, number * apart, place, spec.bs);
        }
        ios.push(Io::new(number * apart));
    }
    let mut files = Vec::new();
    for (number, target) in targets.iter().enumerate() {
        let page_size = attached[target.device].info.page_size;
        let blocks = (spec.bs / u64::from(target.block_size)) as u32;
        let mut commands = Vec::new();
        let mut pointers = Vec::new();
        commands.try_reserve_exact(depth).map_err(no_lists)?;
        pointers.try_reserve_exact(depth).map_err(no_lists)?;
        for io in &ios {
            let prps = Prps::new(dma, &buffer, io.offset, bytes, page_size).map_err(|error| no_memory(&error))?;
            commands.push(Command::read(target.id, 0, blocks, prps.data_pointer()));
            pointers.push(prps);
        }
        let random = Random::new(spec.randseed, (job * targets.len() + number) as u64);
        files.push(File {
            name: target.name.clone(),
            id: target.id,
            block_size: u64::from(target.block_size),
            blocks_per_io: u64::from(blocks),
            offsets: match (spec.rw.is_random(), spec.norandommap) {
                (false, _) => Offsets::sequential(target.blocks),
                (true, false) => Offsets::mapped(target.blocks, random),
                (true, true) => Offsets::free(target.blocks, random),
            },
            quota: if spec.time_based { u64::MAX } else { target.blocks },
            left: 0,
            queue: place(target.device, job)?,
            commands,
            _pointers: pointers,
        });
    }
    Job::new(spec.clone(), job, files, buffer, ios).ok_or_else(|| no_memory(&"no memory is left for the lists of I/Os"))
}

/// Runs an engine on each CPU, the first on this one, and returns them when all are done.
fn start(engines: Vec<Engine>) -> Vec<Engine> {
    let count = engines.len();
    let mut engines = engines.into_iter();
    let first = engines.next();
    for (engine, (index, cpu)) in engines.zip(cpu::all().iter().enumerate().skip(1)) {
        cpu.give(index, Box::new(engine));
    }
    let mut done: Vec<Engine> = Vec::with_capacity(count);
    if let Some(mut engine) = first {
        engine.run();
        done.push(engine);
    }
    // The others' wake-ups and the tick end each halt.
    while RUN.finished.load(Acquire) < count {
        arch::interrupts_off();
        if RUN.finished.load(Acquire) < count {
            arch::halt();
        }
        arch::interrupts_on();
        progress::show(MachineClock.ticks(), false);
    }
    if RUN.began().is_some() {
        arch::mark();
    }
    arch::stop_tick();
    for cpu in &cpu::all()[1..count.max(1)] {
        loop {
            if let Some(engine) = cpu.collect() {
                done.push(*engine);
                break;
            }
            core::hint::spin_loop();
        }
    }
    done
}

fn controller_report(attached: &Attached) -> report::Controller {
    let info = &attached.info;
    let mut controller = attached.shared.lock();
    let events = controller.poll_events().unwrap_or_default();
    let errors = controller.error_log().unwrap_or_default();
    let health = controller.smart_log().ok().map(|log| health(&log));
    // The lock is free again before `recovery` takes it.
    drop(controller);
    let namespace = |namespace: &nvme::Namespace| report::Namespace {
        name: format!("{}n{}", attached.name, namespace.id),
        id: namespace.id,
        blocks: namespace.blocks,
        block_size: namespace.block_size,
        read_only: namespace.read_only,
        refused: namespace.supported().err().map(|error| error.to_string()),
    };
    report::Controller {
        name: attached.name.clone(),
        address: attached.function.to_string(),
        pci_id: attached.function.id,
        model: info.model.clone(),
        serial: info.serial.clone(),
        firmware: info.firmware.clone(),
        version: info.version.to_string(),
        vectors: attached.entries() as u32,
        queues_wanted: u32::from(attached.queues.0),
        queues_granted: u32::from(attached.queues.1),
        max_transfer_bytes: info.max_transfer as u64,
        doorbell_stride: info.capabilities.doorbell_stride() as u32,
        namespaces: attached.namespaces.iter().map(namespace).collect(),
        write_cache: info.volatile_write_cache,
        shadow_doorbells: attached.shadow_doorbells,
        recovery: attached.shared.recovery(),
        events: events.iter().map(ToString::to_string).collect(),
        health,
        error_log: errors.iter().take(ERROR_LOG).map(error_log_entry).collect(),
    }
}

fn health(log: &SmartLog) -> report::Health {
    report::Health {
        warnings: log
            .critical_warning()
            .iter_names()
            .map(|(name, _)| name.to_lowercase())
            .collect(),
        temperature_k: log.temperature.get(),
        spare_percent: log.spare,
        used_percent: log.percentage_used,
        host_reads: log.host_reads.get() as u64,
        host_writes: log.host_writes.get() as u64,
        power_on_hours: log.power_on_hours.get() as u64,
        unsafe_shutdowns: log.unsafe_shutdowns.get() as u64,
        media_errors: log.media_errors.get() as u64,
    }
}

fn error_log_entry(entry: &ErrorEntry) -> report::ErrorLogEntry {
    report::ErrorLogEntry {
        number: entry.count.get(),
        queue: entry.sq_id.get(),
        status: entry.status().to_string(),
        namespace: entry.nsid.get(),
        lba: entry.lba.get(),
    }
}

fn queue_reports(machine: &Machine, cpu: usize, engine: &Engine) -> Vec<report::Queue> {
    let one = |queue: &EngineQueue| {
        let (now, base) = (&queue.end, &queue.base);
        report::Queue {
            controller: queue.shared.name.clone(),
            id: queue.pair.id(),
            entries: u32::from(queue.pair.entries()),
            cpu: cpu as u32,
            cpu_hardware_id: machine.cpus[cpu],
            msix_entry: queue.entry.map(|entry| entry as u32),
            vector: queue.slot.map(arch::vector),
            jobs: queue.jobs.iter().map(|job| *job as u32).collect(),
            interrupts: queue.end_interrupts - queue.base_interrupts,
            spurious: queue.spurious,
            missed: queue.missed,
            submissions: now.submitted - base.submitted,
            completions: now.completed - base.completed,
            sq_doorbells: now.sq_doorbells - base.sq_doorbells,
            cq_doorbells: now.cq_doorbells - base.cq_doorbells,
        }
    };
    engine.queues.iter().map(one).collect()
}

fn cpu_report(machine: &Machine, cpu: usize, engine: &Engine) -> report::Cpu {
    report::Cpu {
        cpu: cpu as u32,
        hardware_id: machine.cpus[cpu],
        ..engine.counts.clone()
    }
}

fn job_reports(engines: &[Engine], targets: &[Target]) -> Vec<report::Job> {
    let areas = |job: &Job| targets.iter().map(|target| target.blocks * job.spec.bs).collect();
    let mut jobs: Vec<report::Job> = engines
        .iter()
        .enumerate()
        .flat_map(|(cpu, engine)| engine.jobs.iter().map(move |job| job.report(cpu, areas(job))))
        .collect();
    jobs.sort_by_key(|job| job.index);
    jobs
}
